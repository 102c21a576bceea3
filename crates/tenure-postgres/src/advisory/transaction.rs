//! Advisory locks in a transaction of the caller's own; they end with it. Knows scopes, not
//! connections.

use std::fmt;
use std::time::Duration;

use tokio_postgres::Transaction;

use super::key::{Key, Mode};
use super::trouble::{Waited, failed};
use crate::own::Canceller;
use crate::step::Step;
use tenure::Error;

/// Takes advisory locks in your own transaction. They end with it, by commit or rollback, and
/// cannot be given back before. Goes well with poolers of every kind.
///
/// # Examples
/// ```no_run
/// # use std::error::Error;
/// # use tokio_postgres::Client;
/// # async fn example(client: &mut Client) -> Result<(), Box<dyn Error>> {
/// use tenure_postgres::advisory::InTransaction;
///
/// let transaction = client.transaction().await?;
/// InTransaction::of(&transaction).exclusive("invoice numbers").lock().await?;
/// // One transaction at a time is here.
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct InTransaction<'t> {
    transaction: &'t Transaction<'t>,
    canceller: Canceller,
}

impl<'t> InTransaction<'t> {
    /// In this transaction.
    #[must_use]
    pub fn of(transaction: &'t Transaction<'t>) -> Self {
        Self { transaction, canceller: Canceller::plain() }
    }

    /// Says how waits are cancelled, for clients that require TLS.
    #[must_use]
    pub fn cancelled_by(mut self, canceller: Canceller) -> Self {
        self.canceller = canceller;
        self
    }

    /// An exclusive lock.
    pub fn exclusive(&self, key: impl Into<Key>) -> TransactionLock<'_> {
        TransactionLock { scope: self, key: key.into(), mode: Mode::Exclusive, limit: None }
    }

    /// A shared lock: any number of shared holders, beside no exclusive one.
    pub fn shared(&self, key: impl Into<Key>) -> TransactionLock<'_> {
        TransactionLock { scope: self, key: key.into(), mode: Mode::Shared, limit: None }
    }
}

impl fmt::Debug for InTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InTransaction")
    }
}

/// An advisory lock to be taken in a transaction.
#[derive(Debug)]
#[must_use = "it is `lock` that takes it"]
pub struct TransactionLock<'s> {
    scope: &'s InTransaction<'s>,
    key: Key,
    mode: Mode,
    limit: Option<Duration>,
}

impl TransactionLock<'_> {
    /// How long [`lock`](Self::lock) waits at most: it then fails with `TimedOut`. Without it, the
    /// `lock_timeout` of the transaction counts.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Acquires the lock if it is free, and returns whether it was; never waits. See
    /// [`InTransaction`] for an example.
    ///
    /// # Errors
    /// If the server refuses. The transaction can go on, unless it could not before.
    ///
    /// # Cancel safety
    /// May be dropped at any time: the lock is not held then, and the transaction can go on.
    pub async fn try_lock(self) -> Result<bool, Error> {
        let step = Step::begin(self.scope.transaction, &self.scope.canceller, None);
        let text = self.text("pg_try_advisory_xact_lock");
        let answer = self.scope.transaction.query_typed(&text, &[]).await;
        let got = answer.and_then(|rows| rows.first().map_or(Ok(false), |row| row.try_get(0)));
        self.end(step, got)
    }

    /// Acquires the lock, waiting in the server's queue. See [`InTransaction`] for an example.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](tenure::ErrorKind::TimedOut) if the timeout expires,
    /// [`ErrorKind::Deadlock`](tenure::ErrorKind::Deadlock) if the server finds that it would wait
    /// for ever; otherwise if the server refuses. The transaction can go on, unless it could not
    /// before; after a deadlock others still wait for what it holds, so roll back.
    ///
    /// # Cancel safety
    /// May be dropped at any time: the lock is not held then, and the transaction can go on, a
    /// tenth of a second later. A cancellation that takes longer than that to reach the server
    /// may end another statement of it.
    ///
    /// # Fairness
    /// The server's: first come, first served, except that a shared claim may pass other shared
    /// claims.
    pub async fn lock(self) -> Result<(), Error> {
        let step = Step::begin(self.scope.transaction, &self.scope.canceller, self.limit);
        let text = self.text("pg_advisory_xact_lock");
        let answer = self.scope.transaction.query_typed(&text, &[]).await;
        self.end(step, answer.map(drop))
    }

    fn text(&self, function: &str) -> String {
        format!("SELECT {function}{}({})", self.mode.suffix(), self.key.number.arguments())
    }

    fn end<T>(&self, step: Step<'_>, answer: Result<T, tokio_postgres::Error>) -> Result<T, Error> {
        match answer {
            Ok(answer) => {
                step.keep();
                Ok(answer)
            }
            Err(error) => {
                step.undo();
                Err(failed(&error, &Waited { what: &self.key, limit: self.limit }))
            }
        }
    }
}
