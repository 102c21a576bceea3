//! Locks between hosts, in a PostgreSQL database. One function per verb, one round trip each; the
//! rules are those of the `ledger` room, in PL/pgSQL.
//!
//! ```text
//! callers ─> line.rs ─> ready.rs ═══ database    front: on the callers' runtime, if there is one
//! keeper ──> line.rs ─> ready.rs ═══ database    back: on a thread of the engine's own
//! sessions <─ listeners.rs <─ listener.rs ═══ database    one connection listens, for all
//! ```
//!
//! Behind a pooler that lends connections for a transaction at a time nothing can be listened to
//! and nothing is kept by a session: then calls carry everything with them, and whoever waits asks
//! again and again.

mod replies;
mod claim;
// Public for the crate `tenure-postgres`, which shares URL, TLS and connection set-up.
#[doc(hidden)]
pub mod client;
mod statements;
mod cells;
mod crowds;
mod dial;
mod doctor;
mod errors;
mod connect;
mod inspect;
mod connection;
mod signals;
mod listeners;
mod pipeline;
mod schema;
#[cfg(feature = "conformance")]
mod testing;
mod tls;
mod claims;
mod url;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_postgres::Row;
use uuid::Uuid;

use self::replies::Answer;
use self::statements::Call;
use self::crowds::Crowds;
use self::errors::{Sent, to_error};
use self::connect::Setup;
use self::connection::Line;
use self::signals::Listener;
use self::pipeline::{Parameters, Room};
pub use self::schema::{MIGRATIONS, Migration};
#[cfg(feature = "conformance")]
pub(crate) use self::testing::{WeakEngine, furnish};
use self::claims::Unsent;
use self::url::Location;
use super::Terms;
use super::runtime::{Callers, Own};
use crate::contract::{
    Cells, Claim, ClaimId, ClaimRef, Diagnostics, Engine, Error, ErrorKind, Evicted, Eviction,
    Fence, FenceFloor, Fencing, Finding, LocalSessions, Namespace, OwnershipProof, Partitions,
    Pending, Promises, Query, Raised, Release, Released, Renewed, Replication, SessionId,
    SignalListener, Snapshot, Survives, Verb, Verdict, Wake,
};
use crate::limits;

/// What the PostgreSQL engine promises.
pub const PROMISES: Promises = Promises {
    engine: "postgres",
    fencing: Fencing::ClockBounded,
    fencing_rests_on: "a sequence in the database; where commits are lost the server's wall clock",
    fence_floor: true,
    queue: true,
    sharing: true,
    counting: true,
    atomic_sets: true,
    cells: true,
    wake: Wake::Push,
    survives: &[Survives::ClientCrash, Survives::StoreRestart, Survives::PowerLoss],
    replicas: false,
    drift_percent: 10,
    lacks_because: "",
};

/// What it promises where commits are not waited for (`durability=grace`).
pub const PROMISES_WITH_GRACE: Promises =
    Promises { survives: &[Survives::ClientCrash], ..PROMISES };

/// What it promises behind a pooler that lends connections for one transaction at a time.
pub const PROMISES_BEHIND_POOLER: Promises = Promises { wake: Wake::Poll, ..PROMISES };

/// Both.
const PROMISES_WITH_GRACE_BEHIND_POOLER: Promises =
    Promises { wake: Wake::Poll, ..PROMISES_WITH_GRACE };

/// How often whoever waits behind a pooler asks again.
const POLL: Duration = Duration::from_millis(100);
/// How often the engine looks for what nobody asks for any more.
const SWEEP: Duration = Duration::from_secs(60);

/// The PostgreSQL engine.
#[derive(Clone)]
pub struct PostgresEngine {
    inner: Arc<Inner>,
}

struct Inner {
    setup: Arc<Setup>,
    /// On the callers' runtime.
    front: Option<(Callers, Line)>,
    back: Line,
    /// None behind a pooler.
    listener: Option<Listener>,
    promises: &'static Promises,
    /// Claims that wait, where nobody tells them: whoever has any asks again.
    waiting: Mutex<BTreeSet<ClaimId>>,
    crowds: Crowds,
    unsent: Unsent,
    /// How many calls were made, and how often sessions of others are being and were told.
    calls: AtomicU64,
    telling: AtomicU64,
    told: AtomicU64,
    /// The thread that connections live on. Last, so that they end first.
    own: Own,
}

impl std::fmt::Debug for PostgresEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let location = &self.inner.setup.location;
        f.debug_struct("PostgresEngine").field("location", location).finish_non_exhaustive()
    }
}

/// Opens the store that a URL names.
pub(super) async fn connect(url: &str, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let during = |error: Error| error.during(Verb::Connect);
    let setup = Location::parse(url)
        .and_then(|location| Setup::new(location, terms.namespace.clone(), terms.max_lease));
    let own = Own::start("tenure-postgres").map_err(during)?;
    let callers = Callers::find(&own).await;
    let opened = PostgresEngine::open(setup.map_err(during)?, own, callers).await;
    let engine = opened.map_err(during)?;
    engine.keep_house();
    Ok(Arc::new(engine))
}

/// The statements that make the schema of a URL, for whoever may run them. Asks nobody.
///
/// # Errors
/// If the URL does not name a database.
pub fn statements(url: &str) -> Result<String, Error> {
    Ok(schema::script(&Location::parse(url).map_err(|error| error.during(Verb::Connect))?, 0))
}

/// Makes the schema of a URL, or brings it to the newest version. Nothing happens if it is that.
///
/// # Errors
/// If the database cannot be reached, the role may not, or the schema is newer.
///
/// # Cancel safety
/// May be dropped at any time. The work is one transaction, which goes on.
pub async fn migrate(url: &str) -> Result<(), Error> {
    let during = |error: Error| error.during(Verb::Connect);
    let setup = Location::parse(url)
        .and_then(|location| Setup::new(location, Namespace::default(), limits::DEFAULT_MAX_LEASE))
        .map_err(during)?;
    let own = Own::start("tenure-migrate").map_err(during)?;
    let work = own.handle().spawn(async move {
        let (client, connection) = setup.dial().await?;
        tokio::spawn(connection);
        schema::bring_in(&client, &setup.location).await
    });
    let gone = |_| Err(replies::strange());
    work.await.unwrap_or_else(gone).map_err(during)
}

impl PostgresEngine {
    async fn open(setup: Setup, own: Own, callers: Option<Callers>) -> Result<Self, Error> {
        let setup = Arc::new(setup);
        let listener = Listener::start(Arc::clone(&setup), own.handle()).await?;
        let line =
            |home: &Handle| Line::new(Arc::clone(&setup), home.clone(), own.handle().clone());
        let back = line(own.handle());
        // Tells whether there is a pooler.
        back.ready().await?;
        let front = callers.map(|callers| {
            let line = line(callers.handle());
            (callers, line)
        });
        if let Some((_, line)) = &front {
            line.ready().await?;
        }
        let pooled = setup.is_pooled();
        let promises = match (pooled, setup.is_async()) {
            (false, false) => &PROMISES,
            (false, true) => &PROMISES_WITH_GRACE,
            (true, false) => &PROMISES_BEHIND_POOLER,
            (true, true) => &PROMISES_WITH_GRACE_BEHIND_POOLER,
        };
        let inner = Inner {
            setup,
            front,
            back,
            listener: (!pooled).then_some(listener),
            promises,
            waiting: Mutex::default(),
            crowds: Crowds::default(),
            unsent: Unsent::default(),
            calls: AtomicU64::new(0),
            telling: AtomicU64::new(0),
            told: AtomicU64::new(0),
            own,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Does, on the engine's own thread, what nobody else does: asks for whoever waits where the
    /// database cannot tell, and looks for what nobody asks for any more.
    fn keep_house(&self) {
        let handle = self.inner.own.handle();
        let weak = Arc::downgrade(&self.inner);
        if self.inner.listener.is_none() {
            let weak = Weak::clone(&weak);
            handle.spawn(async move {
                loop {
                    tokio::time::sleep(POLL).await;
                    let Some(inner) = weak.upgrade() else { return };
                    inner.poll_once();
                }
            });
        }
        handle.spawn(async move {
            loop {
                // Many clients should not come all at once.
                let chance = u32::from(Uuid::new_v4().as_bytes()[0]);
                tokio::time::sleep(SWEEP + SWEEP * chance / 255).await;
                let Some(inner) = weak.upgrade() else { return };
                let engine = Self { inner };
                if let Err(error) = engine.sweep().await {
                    tracing::debug!("the look for what is left behind failed: {error}");
                }
            }
        });
    }

    /// The line that suits whoever calls.
    fn line(&self) -> &Line {
        match &self.inner.front {
            Some((callers, line)) if callers.serves() => line,
            _ => &self.inner.back,
        }
    }

    /// Makes a call, on the line that suits whoever calls.
    async fn call(
        &self,
        verb: Verb,
        call: Call,
        parameters: impl FnOnce(i32) -> Parameters,
    ) -> Result<Vec<Row>, Error> {
        let room = self.room(verb).await?;
        let parameters = parameters(room.ns());
        let answer = room.call(call, parameters).await;
        answer.map_err(|error| unanswered(error.as_ref()).during(verb))
    }

    /// Room for a call, on the line that suits whoever calls.
    async fn room(&self, verb: Verb) -> Result<Room, Error> {
        self.inner.calls.fetch_add(1, Ordering::SeqCst);
        let ready = self.line().ready().await.map_err(|error| error.during(verb))?;
        Ok(ready.room(verb).await)
    }

    /// Makes a call, and right behind it has told whoever it leaves to be told.
    async fn call_and_tell(
        &self,
        verb: Verb,
        call: Call,
        parameters: impl FnOnce(i32) -> Parameters,
    ) -> Result<Vec<Row>, Error> {
        let room = self.room(verb).await?;
        let parameters = parameters(room.ns());
        let answer = room.call_and_tell(call, parameters).await;
        answer.map_err(|error| unanswered(error.as_ref()).during(verb))
    }

    /// Makes a call whose answers are rows of one kind, and tells whom they say is to be told.
    async fn ask(
        &self,
        verb: Verb,
        call: Call,
        parameters: impl FnOnce(i32) -> Parameters,
    ) -> Result<Vec<Answer>, Error> {
        let rows = self.call(verb, call, parameters).await?;
        self.read(&rows).map_err(|error| error.during(verb))
    }

    /// Reads answers, and tells whom they say is to be told.
    fn read(&self, rows: &[Row]) -> Result<Vec<Answer>, Error> {
        let answers = rows.iter().map(Answer::read).collect::<Result<Vec<_>, _>>();
        let mut answers = answers?;
        let (mut sessions, mut texts) = (Vec::new(), Vec::new());
        answers.retain(|answer| {
            let Some((session, text)) = answer.told() else { return true };
            let is_left = answer.is_left_to_tell();
            // Our own sessions need no detour.
            if !self.inner.setup.listeners.tell(session, text) && !is_left {
                sessions.push(Uuid::from_u128(session.as_u128()).to_string());
                texts.push(text.to_owned());
            }
            false
        });
        if !sessions.is_empty() {
            self.notify(sessions, texts);
        }
        Ok(answers)
    }

    /// Has sessions of others told. Nobody waits for it: what is not told is found by asking.
    fn notify(&self, sessions: Vec<String>, texts: Vec<String>) {
        let inner = Arc::clone(&self.inner);
        inner.telling.fetch_add(1, Ordering::SeqCst);
        self.inner.own.handle().spawn(async move {
            let parameters: Parameters = vec![Box::new(sessions), Box::new(texts)];
            if let Ok(ready) = inner.back.ready().await
                && let Err(error) =
                    ready.room(Verb::Release).await.call(Call::Notify, parameters).await
            {
                tracing::debug!("sessions were not told: {error:?}");
            }
            inner.told.fetch_add(1, Ordering::SeqCst);
            inner.telling.fetch_sub(1, Ordering::SeqCst);
        });
    }

    async fn sweep(&self) -> Result<(), Error> {
        let ready = self.inner.back.ready().await?;
        let is_async = self.inner.setup.is_async();
        let parameters: Parameters = vec![Box::new(ready.ns), Box::new(is_async)];
        let answer = ready.room(Verb::Release).await.call(Call::Sweep, parameters).await;
        answer.map(drop).map_err(|error| unanswered(error.as_ref()))
    }
}

/// Why a call has no answer.
fn unanswered(error: Option<&tokio_postgres::Error>) -> Error {
    error.map_or_else(
        || {
            Error::new(ErrorKind::Unavailable, "the runtime of the connection ended")
                .with_help("call again: Tenure goes on with a thread of its own")
                .effect_unknown()
        },
        |error| to_error(error, Sent::Yes),
    )
}

impl Inner {
    /// Whoever waits asks again.
    fn poll_once(&self) {
        let waits = !self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if waits {
            self.setup.listeners.resync();
        }
    }

    /// Remembers whether a claim waits, where nobody would tell it.
    fn waits(&self, claim: ClaimId, waits: bool) {
        if self.listener.is_some() {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waits {
            waiting.insert(claim);
        } else {
            waiting.remove(&claim);
        }
    }
}

impl Engine for PostgresEngine {
    fn promises(&self) -> &Promises {
        self.inner.promises
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        Box::pin(async move {
            let sending = self.inner.unsent.begin(claim.id);
            if let (Some(listener), Some(session)) = (&self.inner.listener, claim.session) {
                // A grant that is told before anybody listens is told to nobody.
                self.inner.calls.fetch_add(1, Ordering::SeqCst);
                listener.listens(session).await;
            }
            let verdict = self.ask_for(claim, &sending).await;
            if verdict.is_ok() {
                sending.answered();
            }
            let waits = matches!(verdict, Ok(Verdict::Queued(_)));
            if waits {
                self.inner.crowds.saw(claim.parts.first_name(), true);
            }
            self.inner.waits(claim.id, waits);
            verdict
        })
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(async move {
            let answers = self.keep(batch).await?;
            for (claim, answer) in batch.iter().zip(&answers) {
                self.inner.waits(claim.id, matches!(answer, Renewed::Waiting(_)));
            }
            Ok(answers)
        })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        Box::pin(async move {
            for release in batch {
                self.inner.waits(release.claim.id, false);
            }
            self.give_back_sent(batch).await
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(async move { self.look(query).await })
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        Box::pin(async move {
            let answer = self.put_out(eviction).await;
            answer.map_err(|error| error.on(&eviction.name))
        })
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let gone = self.inner.setup.listeners.gone();
        self.inner.setup.listeners.listen(session, listener);
        let Some(listener) = &self.inner.listener else { return };
        for gone in gone {
            listener.unlisten(gone);
        }
        listener.listen(session);
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn fence_floor(&self) -> Option<&dyn FenceFloor> {
        Some(self)
    }

    fn replication(&self) -> Option<&dyn Replication> {
        None
    }

    fn partitions(&self) -> Option<&dyn Partitions> {
        None
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics> {
        Some(self)
    }

    fn ownership_proof(&self) -> Option<&dyn OwnershipProof> {
        None
    }

    fn local(&self) -> Option<&dyn LocalSessions> {
        None
    }
}

impl FenceFloor for PostgresEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        Box::pin(self.lift_sequence(to))
    }
}

impl Diagnostics for PostgresEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async move { self.ask_the_server().await })
    }
}
