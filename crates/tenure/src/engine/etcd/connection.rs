//! The connection to a cluster: one member at a time gets all calls, and the next one after a
//! failure. Has timeouts and watches over the identity of the cluster; knows nothing of locks.
//!
//! - **Failover.** `current` is the index of the member in use. A call that fails because of its
//!   member (timeout, no connection, unavailable) advances `current`, unless another call has done
//!   so already. The watch stream subscribes to `current` and follows.
//! - **No retry.** A call is sent once. Only the caller knows whether it may be repeated.
//! - **Two clients per member.** Calls from the caller's runtime use a connection that lives there,
//!   all others the one of the engine's thread (`tasks.rs`).
//! - **Restored clusters.** A cluster that was restored from a backup counts revisions from an
//!   older one, and fences would fall. Each response is compared with the newest state that was
//!   known *before its request was sent*: responses may arrive out of order, but none of them may
//!   be older than that. After a contradiction all transactions and lease calls fail.
//! - **New connections.** The revision of a restored cluster may be above all that this client has
//!   seen, if the client was idle since before the backup. But a restore replaces the servers, so
//!   no connection outlives it. `opened` counts connections, `checked` is how many of them there
//!   were when the cluster was last compared with the terms of the namespace. While the two
//!   differ, no grant is passed on (`cluster_check.rs`).

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::timeout;

use super::client::{
    Client, ClientOptions, Compare, Login, RequestOp, ResponseHeader, ResponseOp, RpcError, Target,
    TlsPem, TxnRequest,
};
use super::errors::CallError;
use super::tasks::CallerRuntime;
#[cfg(feature = "conformance")]
use super::testing::GatePass;
use super::url::Location;
use crate::contract::{Error, ErrorKind};
use crate::engine::common::jitter;
use crate::engine::common::url::TlsFiles;
use crate::limits;
use crate::sync::{Mutex, PoisonError};

/// The timeout of a call if there are other members to switch to.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);

/// The timeout of a connection attempt: shorter than that of a call, so that a call to an
/// unreachable member fails with the knowledge that it was not sent.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(800);

/// The connection to one cluster.
pub(super) struct ClusterConnection {
    members: Vec<MemberConnection>,
    caller_runtime: CallerRuntime,
    current: watch::Sender<usize>,
    limit: Duration,
    observed: Mutex<ClusterState>,
    /// The cluster was found to be another one, or older than before.
    restored: AtomicBool,
    /// Notified when `restored` is set.
    restored_notify: Notify,
    /// How many connections were opened, to all members.
    opened: Arc<AtomicU64>,
    /// How many of them there were when the cluster was last compared with the terms.
    checked: AtomicU64,
    /// One comparison at a time.
    pub(super) checking: AsyncMutex<()>,
    /// The conformance suite's gate: passed before each transaction and after its reply.
    #[cfg(feature = "conformance")]
    gate: Option<GatePass>,
}

/// A member and the connections to it: one on the engine's thread, and one on the callers' runtime
/// for calls that are made there.
struct MemberConnection {
    endpoint: String,
    target: Target,
    engine: OnceLock<Client>,
    caller: OnceLock<Client>,
}

/// The newest state of the cluster that a response has named.
#[derive(Clone, Copy, Debug, Default)]
struct ClusterState {
    cluster: Option<u64>,
    revision: u64,
    raft_term: u64,
}

/// The reply to a transaction.
#[derive(Debug)]
pub(super) struct TxnReply {
    /// Whether all comparisons were true, so that the writes were made.
    pub(super) succeeded: bool,
    /// The revision of the store after the transaction.
    pub(super) revision: u64,
    pub(super) replies: Vec<ResponseOp>,
}

impl ClusterConnection {
    pub(super) fn new(location: &Location, caller_runtime: CallerRuntime) -> Result<Self, Error> {
        let login = location.credentials()?;
        let login = login.map(|(user, password)| Arc::new(Login::new(user, password)));
        let tls = location.tls().map(read_tls).transpose()?;
        let opened = Arc::new(AtomicU64::new(0));
        let connect_timeout = Some(CONNECT_TIMEOUT);
        let options = ClientOptions { connect_timeout, tls, login, opened: Arc::clone(&opened) };
        let member = |endpoint: String| {
            let target = Target::new(&endpoint, &options).map_err(|failure| {
                let what = format!("the connection cannot be configured: {failure}");
                Error::new(ErrorKind::InvalidOption, what)
                    .with_help("check the hosts in the URL and the files of ca=, cert= and key=")
            })?;
            let (engine, caller) = (OnceLock::new(), OnceLock::new());
            Ok::<_, Error>(MemberConnection { endpoint, target, engine, caller })
        };
        let members: Vec<MemberConnection> =
            location.endpoints().into_iter().map(member).collect::<Result<_, _>>()?;
        let limit = if members.len() > 1 { MEMBER_TIMEOUT } else { limits::CALL };
        // Spreads clients that start at the same time over the members.
        let first = jitter::index(members.len());
        let (current, _) = watch::channel(first);
        let (observed, restored) = (Mutex::new(ClusterState::default()), AtomicBool::new(false));
        let restored_notify = Notify::new();
        Ok(Self {
            members,
            caller_runtime,
            current,
            limit,
            observed,
            restored,
            restored_notify,
            opened,
            checked: AtomicU64::new(0),
            checking: AsyncMutex::new(()),
            #[cfg(feature = "conformance")]
            gate: None,
        })
    }

    /// Configures a timeout that a busy machine does not reach, for tests with a manual clock, and
    /// a gate for transactions.
    #[cfg(feature = "conformance")]
    pub(super) fn for_tests(mut self, gate: Option<GatePass>) -> Self {
        self.limit = Duration::from_secs(60);
        self.gate = gate;
        self
    }

    /// Waits for the gate of the suite, if there is one.
    #[cfg(feature = "conformance")]
    async fn pass_gate(&self) {
        if let Some(gate) = &self.gate {
            gate().await;
        }
    }

    /// The timeout of a call.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// The member in use, with notifications of changes.
    pub(super) fn current(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// The endpoints of all members.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| &*member.endpoint)
    }

    /// Returns the client of a member that belongs to the current runtime, which must be the
    /// engine's or the callers'.
    pub(super) fn client_of(&self, member: usize) -> Client {
        let member = &self.members[member];
        let client = if self.caller_runtime.is_current() { &member.caller } else { &member.engine };
        client.get_or_init(|| Client::new(&member.target)).clone()
    }

    /// Sends a call to the member in use, with a timeout. Switches to the next member if this one
    /// fails.
    pub(super) async fn call<T, F>(&self, make: impl FnOnce(Client) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, RpcError>>,
    {
        let at = *self.current.borrow();
        let limited = timeout(self.limit, make(self.client_of(at))).await;
        let response = match limited {
            Ok(response) => response.map_err(|failure| CallError::from_rpc(&failure)),
            Err(_) => Err(CallError::Timeout(self.limit)),
        };
        let response = response.map_err(|error| error.with_endpoint(&self.members[at].endpoint));
        if response.as_ref().is_err_and(CallError::should_switch_member) {
            self.switch_from(at);
        }
        response
    }

    /// Sends a transaction and checks that the cluster is the same as before.
    async fn send_txn(&self, txn: TxnRequest) -> Result<TxnReply, CallError> {
        self.check_not_restored()?;
        #[cfg(feature = "conformance")]
        self.pass_gate().await;
        let before = self.observed();
        let response = self.call(|client: Client| async move { client.txn(txn).await }).await?;
        let revision = self.observe_header(response.header.as_ref(), before)?;
        #[cfg(feature = "conformance")]
        self.pass_gate().await;
        Ok(TxnReply { succeeded: response.succeeded, revision, replies: response.responses })
    }

    /// Reads at one revision.
    pub(super) async fn read(&self, ops: Vec<RequestOp>) -> Result<TxnReply, CallError> {
        self.send_txn(TxnRequest { success: ops, ..TxnRequest::default() }).await
    }

    /// Sends a transaction: `then` if all comparisons are true, else `otherwise`.
    pub(super) async fn txn(
        &self,
        compares: Vec<Compare>,
        then: Vec<RequestOp>,
        otherwise: Vec<RequestOp>,
    ) -> Result<TxnReply, CallError> {
        self.send_txn(TxnRequest { compare: compares, success: then, failure: otherwise }).await
    }

    /// Sends a call about leases. Its response is not compared with the known revision, because it
    /// may be older.
    pub(super) async fn lease_call<T, F>(
        &self,
        make: impl FnOnce(Client) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, RpcError>>,
    {
        self.check_not_restored()?;
        self.call(make).await
    }

    /// Switches to the next member, unless `member` is no longer the one in use.
    pub(super) fn switch_from(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        self.current.send_if_modified(|current| {
            let same = *current == member && next != member;
            if same {
                *current = next;
            }
            same
        });
    }

    /// The cluster's id, once a response has named it.
    pub(super) fn cluster(&self) -> Option<u64> {
        self.observed().cluster
    }

    /// The newest raft term that a response has named. It grows with every election.
    pub(super) fn raft_term(&self) -> u64 {
        self.observed().raft_term
    }

    /// Records the raft term of a response whose revision may be old.
    pub(super) fn observe_term(&self, header: Option<&ResponseHeader>) {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        observed.raft_term = observed.raft_term.max(header.map_or(0, |header| header.raft_term));
    }

    /// Records the revision that a response of the watch stream names. It may be older than what
    /// is known: a watch follows the member's own copy.
    pub(super) fn observe_watch(&self, header: Option<&ResponseHeader>) {
        let revision = header.and_then(|header| u64::try_from(header.revision).ok()).unwrap_or(0);
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        observed.revision = observed.revision.max(revision);
    }

    /// How many connections were opened so far.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }

    /// Records that the cluster was compared with the terms by a call that was sent when this many
    /// connections were open.
    pub(super) fn set_checked(&self, opened: u64) {
        self.checked.fetch_max(opened, Ordering::SeqCst);
    }

    /// Whether no connection was opened since the cluster was compared with the terms.
    pub(super) fn is_checked(&self) -> bool {
        self.checked.load(Ordering::SeqCst) >= self.opened()
    }

    /// Records that the cluster was replaced or restored. Returns the error.
    pub(super) fn set_restored(&self) -> CallError {
        self.restored.store(true, Ordering::SeqCst);
        self.restored_notify.notify_one();
        CallError::Restored(restored())
    }

    /// Whether the cluster was found to be replaced or restored.
    pub(super) fn is_restored(&self) -> bool {
        self.restored.load(Ordering::SeqCst)
    }

    /// Waits until the cluster is found to be replaced or restored.
    pub(super) async fn until_restored(&self) {
        self.restored_notify.notified().await;
    }

    pub(super) fn check_not_restored(&self) -> Result<(), CallError> {
        if self.is_restored() { Err(CallError::Restored(restored())) } else { Ok(()) }
    }

    fn observed(&self) -> ClusterState {
        *self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the cluster id, revision and raft term of a response. Fails if they contradict
    /// `before`, the state that was known when the request was sent.
    fn observe_header(
        &self,
        header: Option<&ResponseHeader>,
        before: ClusterState,
    ) -> Result<u64, CallError> {
        let Some(header) = header else {
            return Err(CallError::Unavailable("the response has no header".to_owned()));
        };
        let revision = u64::try_from(header.revision).unwrap_or(0);
        let cluster = header.cluster_id;
        let other = before.cluster.is_some_and(|known| known != cluster);
        if other || revision < before.revision {
            return Err(self.set_restored());
        }
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        observed.cluster = Some(cluster);
        observed.revision = observed.revision.max(revision);
        observed.raft_term = observed.raft_term.max(header.raft_term);
        Ok(revision)
    }
}

/// The error for a cluster that was replaced or restored.
fn restored() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "the etcd cluster was replaced or restored from a backup, and fences would decrease",
    )
    .with_help("stop what still runs under old locks, then connect with ?restored=accept")
}

/// Reads the certificates and keys that the URL names.
fn read_tls(files: &TlsFiles) -> Result<TlsPem, Error> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| {
            let what = format!("a certificate or key cannot be read: {error}");
            Error::new(ErrorKind::InvalidOption, what)
                .with_help(format!("check {}", path.display()))
                .caused_by(error)
        })
    };
    let ca = files.ca.as_deref().map(read).transpose()?;
    let identity = match &files.identity {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    Ok(TlsPem { ca, identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_fails_is_asked_again_only_after_the_others() {
        let location = Location::parse("etcd://a:1,b:1,c:1").unwrap();
        let connection = ClusterConnection::new(&location, CallerRuntime::default()).unwrap();
        let first = *connection.current.borrow();
        connection.switch_from(first);
        let second = *connection.current.borrow();
        assert_eq!(second, (first + 1) % 3);
        connection.switch_from(first);
        assert_eq!(*connection.current.borrow(), second, "the switch was made already");
        let alone = ClusterConnection::new(
            &Location::parse("etcd://a:1").unwrap(),
            CallerRuntime::default(),
        )
        .unwrap();
        alone.switch_from(0);
        assert_eq!(*alone.current.borrow(), 0);
    }

    #[test]
    fn a_certificate_that_is_not_there_is_named() {
        let location = Location::parse("etcds://a:1?ca=/no/such/file").unwrap();
        let error = ClusterConnection::new(&location, CallerRuntime::default())
            .map(|_| panic!("the file does not exist"))
            .unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    }
}
