//! Advisory locks on a client of the caller's own. Knows what it holds there; the connection is
//! the caller's.

use std::borrow::BorrowMut;
use std::fmt;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::guard::lost;
use super::key::{Key, Mode, Number, undo};
use super::trouble::{Waited, failed, millis, pooled};
use crate::own::{Canceller, say};
use tenure::contract::{Error, ErrorKind, Loss, Verb};
use tenure::engine::postgres::client::to_error;

/// Takes advisory locks on your own client. They end at release, or with the connection.
///
/// It has the client while it lives, owned or borrowed, and lends it: [`client`](Self::client),
/// [`SessionGuard::client`]. Locks are taken one inside the other: [`SessionGuard::session`].
/// A lock that is not to outlive a transaction is better taken with
/// [`InTransaction`](super::InTransaction).
///
/// # Examples
/// ```no_run
/// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_postgres::advisory::Session;
///
/// let mut session = Session::new(client);
/// let mut guard = session.exclusive("migrations").lock().await?;
/// guard.client().batch_execute("CREATE TABLE IF NOT EXISTS invoice (id int8)").await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Session<C: BorrowMut<Client>> {
    client: C,
    held: Vec<Number>,
    /// Whether it is known that the connection is ours from end to end.
    direct: bool,
    canceller: Canceller,
    /// A cancellation on its way; until it has come, it might hit any statement.
    /// And what it was to undo.
    cancelling: Option<(JoinHandle<()>, String)>,
}

impl<C: BorrowMut<Client>> Session<C> {
    /// On this client. The first lock asks whether a pooler stands between, and refuses if so.
    pub fn new(client: C) -> Self {
        let canceller = Canceller::plain();
        Self { client, held: Vec::new(), direct: false, canceller, cancelling: None }
    }

    /// On a client behind a pooler that lends a connection for a whole session. Behind one that
    /// lends it for a transaction, locks would come to belong to another client.
    pub fn behind_session_pooler(client: C) -> Self {
        Self { direct: true, ..Self::new(client) }
    }

    /// Says how waits are cancelled, for clients that require TLS.
    #[must_use]
    pub fn cancelled_by(mut self, canceller: Canceller) -> Self {
        self.canceller = canceller;
        self
    }

    /// An exclusive lock.
    pub fn exclusive(&mut self, key: impl Into<Key>) -> SessionLock<'_, C> {
        SessionLock { session: self, key: key.into(), mode: Mode::Exclusive, limit: None }
    }

    /// A shared lock: any number of shared holders, beside no exclusive one.
    pub fn shared(&mut self, key: impl Into<Key>) -> SessionLock<'_, C> {
        SessionLock { session: self, key: key.into(), mode: Mode::Shared, limit: None }
    }

    /// The client, for anything else. Waits for a cancellation that is on its way.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn client(&mut self) -> &mut Client {
        self.settle().await;
        self.client.borrow_mut()
    }

    /// Ends this, and gives the client back as it came. Waits for a cancellation that is on its
    /// way: a caller that drops the session instead and uses the client at once may have a
    /// statement cancelled.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the client is dropped with it, or is as after a drop.
    pub async fn into_client(mut self) -> C {
        self.settle().await;
        self.client
    }

    /// Before a lock is asked for.
    async fn prepare(&mut self, key: &Key) -> Result<(), Error> {
        self.settle().await;
        self.look().await?;
        if !self.held.contains(&key.number) {
            return Ok(());
        }
        let what = format!("this session holds {key} already: it would be let in again");
        Err(Error::new(ErrorKind::InvalidOption, what)
            .during(Verb::Claim)
            .with_help("use the guard that you have, or another connection"))
    }

    /// A statement failed that was to take a lock, which it may have taken all the same.
    fn failed(
        &mut self,
        error: &tokio_postgres::Error,
        key: &Key,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Error {
        let client: &mut Client = self.client.borrow_mut();
        say(client, &undo(key.number, mode));
        failed(error, &Waited { what: key, limit })
    }

    async fn settle(&mut self) {
        if let Some((cancelling, text)) = &mut self.cancelling {
            // It only ends.
            let _ = cancelling.await;
            // Where it had to be cancelled more than once, all that was said before may have been
            // hit.
            let client: &mut Client = self.client.borrow_mut();
            say(client, text);
            self.cancelling = None;
        }
    }

    /// Whether the connection is ours from end to end. The client states its encoding when it
    /// connects; a pooler connects in its own words, and repeats ours later or never.
    async fn look(&mut self) -> Result<(), Error> {
        if self.direct {
            return Ok(());
        }
        let text = "SELECT source = 'client' FROM pg_settings WHERE name = 'client_encoding'";
        let answer = self.client.borrow_mut().query_typed(text, &[]).await;
        let answer = answer.and_then(|rows| rows.first().map_or(Ok(true), |row| row.try_get(0)));
        self.direct = answer.map_err(|error| to_error(&error).during(Verb::Claim))?;
        if self.direct {
            return Ok(());
        }
        Err(pooled(
            "take it in a transaction (`InTransaction`), or connect to the server itself; if the \
             pooler lends connections for whole sessions, say so: `Session::behind_session_pooler`",
        ))
    }
}

impl<C: BorrowMut<Client>> fmt::Debug for Session<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("held", &self.held).finish_non_exhaustive()
    }
}

/// An advisory lock to be taken on a client.
#[derive(Debug)]
#[must_use = "it is `lock` that takes it"]
pub struct SessionLock<'s, C: BorrowMut<Client>> {
    session: &'s mut Session<C>,
    key: Key,
    mode: Mode,
    limit: Option<Duration>,
}

impl<'s, C: BorrowMut<Client>> SessionLock<'s, C> {
    /// How long [`lock`](Self::lock) waits at most: it then fails with `TimedOut`. Without it, the
    /// `lock_timeout` of the session counts.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Acquires the lock if it is free; never waits. See [`Session`] for an example.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// May be dropped at any time. A lock that was taken meanwhile is given back.
    pub async fn try_lock(self) -> Result<Option<SessionGuard<'s, C>>, Error> {
        let Self { session, key, mode, limit } = self;
        session.prepare(&key).await?;
        let function = format!("pg_try_advisory_lock{}", mode.suffix());
        let text = format!("SELECT {function}({})", key.number.arguments());
        let mut attempt = Attempt { session, key: key.number, mode, waits: false, over: false };
        let answer = attempt.client().query_typed(&text, &[]).await;
        attempt.over = true;
        drop(attempt);
        let got = answer.and_then(|rows| rows.first().map_or(Ok(false), |row| row.try_get(0)));
        match got {
            Ok(true) => Ok(Some(SessionGuard::new(session, key, mode))),
            Ok(false) => Ok(None),
            Err(error) => Err(session.failed(&error, &key, mode, limit)),
        }
    }

    /// Acquires the lock, waiting in the server's queue. See [`Session`] for an example.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if the timeout expires, [`ErrorKind::Deadlock`] if the server finds
    /// that it would wait for ever, [`ErrorKind::InvalidOption`] if this session holds the key
    /// already, [`ErrorKind::Unsupported`] behind a pooler; otherwise if the server refuses.
    ///
    /// # Cancel safety
    /// May be dropped at any time. The wait is cancelled, and a lock that was taken meanwhile is
    /// given back before anything else is done on the connection.
    ///
    /// # Fairness
    /// The server's: first come, first served, except that a shared claim may pass other shared
    /// claims.
    pub async fn lock(self) -> Result<SessionGuard<'s, C>, Error> {
        let Self { session, key, mode, limit } = self;
        session.prepare(&key).await?;
        let lock = format!("pg_advisory_lock{}({})", mode.suffix(), key.number.arguments());
        // One message, so one transaction: the limit ends with it, however it ends.
        let text = match limit.map(millis) {
            None => format!("SELECT {lock}"),
            Some(limit) => {
                format!("SELECT set_config('lock_timeout', '{limit}', true); SELECT {lock}")
            }
        };
        let mut attempt = Attempt { session, key: key.number, mode, waits: true, over: false };
        let answer = attempt.client().batch_execute(&text).await;
        attempt.over = true;
        drop(attempt);
        match answer {
            Ok(()) => Ok(SessionGuard::new(session, key, mode)),
            Err(error) => Err(session.failed(&error, &key, mode, limit)),
        }
    }
}

/// A statement under way that may take a lock. Dropped, it takes none.
struct Attempt<'a, C: BorrowMut<Client>> {
    session: &'a mut Session<C>,
    key: Number,
    mode: Mode,
    /// Whether it may wait, and so has to be cancelled.
    waits: bool,
    over: bool,
}

impl<C: BorrowMut<Client>> Attempt<'_, C> {
    fn client(&mut self) -> &mut Client {
        self.session.client.borrow_mut()
    }
}

impl<C: BorrowMut<Client>> Drop for Attempt<'_, C> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let text = undo(self.key, self.mode);
        let client: &mut Client = self.session.client.borrow_mut();
        let behind = say(client, &text);
        if self.waits {
            // The server cancels by two signals, which may come late and hit what was just said:
            // of three, one is left alone.
            say(client, &text);
            say(client, &text);
            let cancelling = self.session.canceller.cancel(client.cancel_token(), behind);
            self.session.cancelling = cancelling.map(|task| (task, text));
        }
    }
}

/// An advisory lock that is held on a client.
///
/// Dropping it sends the release behind the statements that were sent before;
/// [`release`](Self::release) waits for its response.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct SessionGuard<'s, C: BorrowMut<Client>> {
    session: &'s mut Session<C>,
    key: Key,
    mode: Mode,
    over: bool,
}

impl<'s, C: BorrowMut<Client>> SessionGuard<'s, C> {
    fn new(session: &'s mut Session<C>, key: Key, mode: Mode) -> Self {
        session.held.push(key.number);
        Self { session, key, mode, over: false }
    }

    /// What is locked.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key.clone()
    }

    /// The client, for what is to be done under the lock.
    pub fn client(&mut self) -> &mut Client {
        self.session.client.borrow_mut()
    }

    /// The session, for one more lock.
    pub fn session(&mut self) -> &mut Session<C> {
        self.session
    }

    /// Whether the lock is still held, as far as is known here. Costs no call. The connection is
    /// yours: its end, where you drive it, is the loss of the lock.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the connection has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        let ended = self.client().is_closed();
        if ended { Err(lost(&self.key, Loss::Disconnected)) } else { Ok(()) }
    }

    /// Releases the lock and waits for the server to confirm it. See [`Session`] for an example.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock had been lost before: it may have had another holder.
    ///
    /// # Cancel safety
    /// May be dropped at any time. The lock is given back all the same.
    pub async fn release(mut self) -> Result<(), Error> {
        let key = self.key.clone();
        let lost = |loss| Err(lost(&key, loss).during(Verb::Release));
        // A cancellation of something inside might hit the release.
        self.session.settle().await;
        self.end();
        let text = self.give_back();
        let answer = self.client().query_typed(&text, &[]).await;
        match answer.and_then(|rows| rows.first().map_or(Ok(false), |row| row.try_get(0))) {
            Ok(true) => Ok(()),
            Ok(false) => lost(Loss::Forgotten),
            Err(error) if error.as_db_error().is_none() => lost(Loss::Disconnected),
            Err(error) => {
                let text = undo(key.number, self.mode);
                say(self.client(), &text);
                Err(to_error(&error).during(Verb::Release))
            }
        }
    }

    fn give_back(&self) -> String {
        let function = format!("pg_advisory_unlock{}", self.mode.suffix());
        format!("SELECT {function}({})", self.key.number.arguments())
    }

    fn end(&mut self) {
        self.over = true;
        self.session.held.retain(|key| *key != self.key.number);
    }
}

impl<C: BorrowMut<Client>> Drop for SessionGuard<'_, C> {
    fn drop(&mut self) {
        if !self.over {
            self.end();
            let text = self.give_back();
            say(self.client(), &text);
        }
    }
}

impl<C: BorrowMut<Client>> fmt::Debug for SessionGuard<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionGuard").field("key", &self.key).finish_non_exhaustive()
    }
}
