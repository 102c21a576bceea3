//! Whether a cluster is still the one that wrote the terms of the namespace, asked again while a
//! client is connected.
//!
//! A client notices by itself that the cluster has another id or that revisions fall
//! (`connection.rs`). A client that has been idle since before a backup sees neither if the cluster
//! keeps its id: the revisions of the restored cluster are above all that it has seen, and the key
//! of the terms is the same in the backup. Its next fence would be below those that others got
//! after the backup. But a restore replaces the servers, so the first reply of a restored cluster
//! comes over a new connection. So a reply with a fence or the version of a cell is passed on only
//! if no connection was opened since the terms were last compared. That is one comparison of two
//! numbers for a client that stays connected, and two calls after a connection was opened.
//!
//! The comparison reads the terms, then the raft index. The number of connections is taken between
//! the two: whichever server answers last is the one behind the connections counted so far.

use super::Inner;
use super::client::RequestOp;
use super::connection::TxnReply;
use super::errors::{CallError, VerbError};
use super::terms::read_terms;
use super::transaction::Transaction;

impl Inner {
    /// Sends a transaction whose reply may be a fence or a version. The reply is passed on only if
    /// the cluster is the one of the terms.
    pub(super) async fn checked_txn(
        &self,
        txn: Transaction,
        otherwise: Vec<RequestOp>,
    ) -> Result<TxnReply, VerbError> {
        self.check_cluster().await?;
        let reply = self.connection.txn(txn.compares, txn.writes, otherwise).await?;
        // Usually no connection was opened meanwhile, and this is one comparison of two numbers.
        self.check_cluster().await.map_err(|error| match error {
            error @ CallError::Restored(_) => VerbError::Call(error),
            // The transaction itself was answered, so its effect is unknown to the caller.
            error => VerbError::Error(error.into_error().effect_unknown()),
        })?;
        Ok(reply)
    }

    /// Compares the cluster with the terms of the namespace, if a connection was opened since that
    /// was last done. Fails if the cluster was restored or does not answer.
    pub(super) async fn check_cluster(&self) -> Result<(), CallError> {
        let connection = &*self.connection;
        if connection.is_checked() {
            return Ok(());
        }
        let _one = connection.checking.lock().await;
        // One contradiction does not count: the two reads may have been answered by two members,
        // of which the second is behind.
        for _ in 0..2 {
            connection.check_not_restored()?;
            if connection.is_checked() {
                return Ok(());
            }
            // Before the read: the terms that it finds are these or newer ones.
            let known = self.epoch();
            let stored = match read_terms(connection, &self.keys).await? {
                Ok(stored) => stored,
                Err(error) => return Err(CallError::Rejected(error)),
            };
            if !stored.is_restored() && stored.agrees_with(known) {
                connection.set_checked(stored.opened);
                return Ok(());
            }
        }
        Err(connection.set_restored())
    }
}
