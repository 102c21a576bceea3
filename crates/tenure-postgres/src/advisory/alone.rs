//! Advisory locks on connections of our own. Owns the loop of asking, waiting and asking again.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::error::{DbError, Severity, SqlState};

use super::errand::{Errand, First, first};
use super::guard::Guard;
use super::key::{Key, Mode};
use super::table::{LockTable, Place, Seat, Spot};
use super::trouble::{Waited, failed, millis, timed_out};
use super::wire::Wire;
use tenure::contract::{Error, ErrorKind, Verb};
use tenure::engine::postgres::client::ConnectionRuntime;
use tenure::engine::postgres::client::Connector;
use tenure::engine::postgres::client::ForkCheck;
use tenure::limits;

/// How many connections at most, unless told otherwise.
const CONNECTIONS: usize = 8;
/// Pause between two attempts where all connections are in use, so that none can wait in the
/// server's queue.
const POLL: Duration = Duration::from_millis(50);
/// Pause between two searches for idle connections.
const IDLE: Duration = Duration::from_secs(60);

/// Advisory locks, many on few connections of Tenure's own.
///
/// The connections live on the runtime that connected, or on a thread of their own where there is
/// none; they end with it, and every lock with them.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// use tenure_postgres::advisory::Advisory;
///
/// let advisory = Advisory::connect("postgres://app@localhost/shop").await?;
/// if let Some(guard) = advisory.exclusive("nightly report").try_lock().await? {
///     // One process at a time is here.
///     guard.release().await?;
/// }
/// let limit = std::time::Duration::from_secs(5);
/// let guard = advisory.shared("config").timeout(limit).lock().await?;
/// guard.check()?; // an error if its connection has ended
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Advisory {
    inner: Arc<Inner>,
}

struct Inner {
    connector: Arc<Connector>,
    table: Arc<LockTable>,
    /// Where connections live.
    home: ConnectionRuntime,
    most: usize,
    /// One attempt to connect at a time; and how the latest ended, by its number.
    gate: tokio::sync::Mutex<()>,
    latest: Mutex<(u64, Option<Error>)>,
    /// The process that the connections belong to.
    birth: ForkCheck,
}

impl Advisory {
    /// Connects to the database that a URL names, as for `Tenure::connect`.
    ///
    /// # Errors
    /// If the server cannot be reached or rejects the login; [`ErrorKind::Unsupported`] if a pooler
    /// lends its connections to other clients between two statements.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_at_most(url, CONNECTIONS).await
    }

    /// As [`connect`](Self::connect), with so many connections at most; two at least. Held locks
    /// share them; each wait for a lock takes one. Where there are no more, a wait polls every 50
    /// ms.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn connect_at_most(url: &str, connections: usize) -> Result<Self, Error> {
        let connector = Arc::new(Connector::new(url)?);
        let home = ConnectionRuntime::find("tenure-advisory").await?;
        let opening = {
            let connector = Arc::clone(&connector);
            home.handle().spawn(async move { Wire::first_two(&connector).await })
        };
        let wires = opening.await.map_err(|_| gone())?;
        let table = Arc::new(LockTable::default());
        for wire in wires.map_err(|error| error.during(Verb::Connect))? {
            table.add(wire);
        }
        tidy(home.handle(), Arc::downgrade(&table));
        let inner = Inner {
            connector,
            table,
            home,
            most: connections.max(2),
            gate: tokio::sync::Mutex::new(()),
            latest: Mutex::new((0, None)),
            birth: ForkCheck::here(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// An exclusive lock.
    pub fn exclusive(&self, key: impl Into<Key>) -> Lock {
        self.lock(key.into(), Mode::Exclusive)
    }

    /// A shared lock: any number of shared holders, beside no exclusive one.
    pub fn shared(&self, key: impl Into<Key>) -> Lock {
        self.lock(key.into(), Mode::Shared)
    }

    fn lock(&self, key: Key, mode: Mode) -> Lock {
        Lock { inner: Arc::clone(&self.inner), key, mode, limit: None }
    }
}

impl fmt::Debug for Advisory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Advisory").field("connector", &self.inner.connector).finish_non_exhaustive()
    }
}

/// An advisory lock to be taken.
#[derive(Clone)]
#[must_use = "it is `lock` that takes it"]
pub struct Lock {
    inner: Arc<Inner>,
    key: Key,
    mode: Mode,
    limit: Option<Duration>,
}

impl Lock {
    /// How long [`lock`](Self::lock) waits at most: it then fails with `TimedOut`.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Acquires the lock if it is free; never waits. See [`Advisory`] for an example.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// May be dropped at any time. A lock that was taken meanwhile is given back.
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        if self.inner.birth.is_inherited() {
            return Err(forked());
        }
        // Every connection may have broken since the last call.
        let mut again = self.inner.most;
        loop {
            let place = match self.inner.table.spot(self.key.number, self.mode) {
                Spot::Free(place) => (place, false),
                Spot::Part(place) => (place, true),
                Spot::Taken => return Ok(None),
                Spot::Nowhere => {
                    self.inner.open().await?;
                    continue;
                }
            };
            let home = self.inner.home.handle().clone();
            let taking = take(place.0, self.key.clone(), place.1, home.clone());
            match Errand::new(home, taking).await {
                Ok(outcome) => return Ok(outcome),
                // That is no news: ask on another one.
                Err((_, true)) if again > 0 => again -= 1,
                Err((error, _)) => return Err(self.failed(&error)),
            }
        }
    }

    /// Acquires the lock, waiting in the server's queue. See [`Advisory`] for an example.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if the timeout expires; otherwise if the server cannot be reached or
    /// refuses.
    ///
    /// # Cancel safety
    /// May be dropped at any time. The wait is cancelled; a lock that was taken meanwhile is given
    /// back.
    ///
    /// # Fairness
    /// The server's: first come, first served, except that a shared claim may pass other shared
    /// claims. Where all connections are in use, a wait is not in that queue.
    pub async fn lock(&self) -> Result<Guard, Error> {
        let mut left = self.limit;
        loop {
            if let Some(guard) = self.try_lock().await? {
                return Ok(guard);
            }
            match self.inner.table.seat(self.key.number, self.mode, self.inner.most) {
                Seat::Here(place) => return self.wait(place, left).await,
                Seat::Open => self.inner.open().await?,
                Seat::Full => {
                    let pause = left.map_or(POLL, |left| left.min(POLL));
                    if pause.is_zero() {
                        return Err(timed_out(&self.waited()));
                    }
                    Alarm::set(self.inner.home.handle(), pause).await?;
                    left = left.map(|left| left.saturating_sub(pause));
                }
            }
        }
    }

    /// Waits on a connection that does nothing else.
    async fn wait(&self, place: Place, left: Option<Duration>) -> Result<Guard, Error> {
        let limit = left.map_or(0, millis);
        let home = self.inner.home.handle();
        let connector = Arc::clone(&self.inner.connector);
        let mut waiting = Waiting::new(place, connector, home.clone(), limit);
        // The server counts; we only see to it that a silent one does not keep us.
        let outcome = match left {
            None => (&mut waiting).await,
            Some(left) => {
                let late = Alarm::set(home, left.saturating_add(limits::CALL * 2));
                match first(&mut waiting, late).await {
                    First::One(outcome) => outcome,
                    First::Other(late) => return Err(late.map_or_else(|gone| gone, |()| mute())),
                }
            }
        };
        let Some(place) = waiting.done() else { return Err(gone()) };
        match outcome {
            Ok(()) => Ok(Guard::new(place, self.key.clone(), home.clone())),
            Err(error) => {
                let undoing = async move {
                    if place.wire.undo(place.key, place.mode).await.is_err() {
                        place.wire.end();
                    }
                };
                Errand::new(home.clone(), undoing).await;
                Err(self.failed(&error))
            }
        }
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Error {
        failed(error, &self.waited())
    }

    fn waited(&self) -> Waited<'_> {
        Waited { what: &self.key, limit: self.limit }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Lock");
        it.field("key", &self.key).field("mode", &self.mode).field("limit", &self.limit);
        it.finish_non_exhaustive()
    }
}

impl Inner {
    /// Opens one more connection. Callers that arrive while one is being opened wait for it, and
    /// get its error.
    async fn open(&self) -> Result<(), Error> {
        let latest = || self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let before = latest().0;
        let _gate = self.gate.lock().await;
        let (number, error) = latest();
        if number > before {
            return error.map_or(Ok(()), Err);
        }
        let (connector, table) = (Arc::clone(&self.connector), Arc::clone(&self.table));
        // In a task of its own: the next caller can use it if this one leaves.
        let opening = self.home.handle().spawn(async move {
            let wire = Wire::open(&connector).await?;
            table.add(wire);
            Ok(())
        });
        let outcome: Result<(), Error> = opening.await.map_err(|_| gone())?;
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) =
            (number + 1, outcome.as_ref().err().cloned());
        outcome
    }
}

/// Asks for a lock that may be free. The second half of an error says whether its connection
/// broke.
async fn take(
    place: Place,
    key: Key,
    part: bool,
    home: Handle,
) -> Result<Option<Guard>, (tokio_postgres::Error, bool)> {
    let (number, mode) = (place.key, place.mode);
    let answer =
        if part { place.wire.take_part(number).await } else { place.wire.take(number, mode).await };
    match answer {
        Ok(true) => Ok(Some(Guard::new(place, key, home))),
        Ok(false) => Ok(None),
        Err(error) => {
            let ends = |said: &DbError| {
                matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
            };
            let broken = error.as_db_error().is_none_or(ends);
            // A statement that is ended from outside may have taken the lock all the same. What
            // others share here cannot be told apart, so that only the connection's end is sure.
            let sure = match error.code() {
                Some(&SqlState::QUERY_CANCELED) if part => false,
                Some(_) if !part => place.wire.undo(number, mode).await.is_ok(),
                _ => true,
            };
            if !sure || broken {
                place.wire.end();
            }
            Err((error, broken))
        }
    }
}

/// Ends idle connections, now and then.
fn tidy(home: &Handle, table: Weak<LockTable>) {
    home.spawn(async move {
        loop {
            tokio::time::sleep(IDLE).await;
            let Some(table) = table.upgrade() else { return };
            table.shrink();
        }
    });
}

type Call = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send>>;

/// A wait in the server's queue. Dropped on the way, it is cancelled, and its connection ended.
struct Waiting {
    /// None once it is over.
    place: Option<Place>,
    call: Call,
    connector: Arc<Connector>,
    home: Handle,
}

impl Waiting {
    fn new(place: Place, connector: Arc<Connector>, home: Handle, limit: u128) -> Self {
        let (wire, key, mode) = (Arc::clone(&place.wire), place.key, place.mode);
        let call = Box::pin(async move { wire.wait(key, mode, limit).await });
        Self { place: Some(place), call, connector, home }
    }

    /// The place, when the wait is over.
    fn done(mut self) -> Option<Place> {
        let mut place = self.place.take()?;
        place.stops_waiting();
        Some(place)
    }
}

impl Future for Waiting {
    type Output = Result<(), tokio_postgres::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.call.as_mut().poll(cx)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(place) = self.place.take().filter(|place| !place.is_inherited()) {
            let connector = Arc::clone(&self.connector);
            let call = std::mem::replace(&mut self.call, Box::pin(std::future::pending()));
            self.home.spawn(async move { place.wire.give_up(&connector, call).await });
        }
    }
}

/// A time that passes on the runtime of the connections, wherever it is awaited.
struct Alarm(JoinHandle<()>);

impl Alarm {
    async fn set(home: &Handle, after: Duration) -> Result<(), Error> {
        let mut alarm = Self(home.spawn(async move { tokio::time::sleep(after).await }));
        (&mut alarm.0).await.map_err(|_| gone())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn mute() -> Error {
    Error::new(ErrorKind::Unavailable, "the server does not answer")
        .during(Verb::Claim)
        .with_help("check that it is not stuck, then try again")
}

fn forked() -> Error {
    let what = "these connections belong to the process from which this one was forked";
    Error::new(ErrorKind::Closed, what)
        .during(Verb::Claim)
        .with_help("connect after the fork, or start the child with exec")
}

fn gone() -> Error {
    Error::new(ErrorKind::Closed, "the runtime that the connections lived on has ended")
        .with_help("connect anew")
}
