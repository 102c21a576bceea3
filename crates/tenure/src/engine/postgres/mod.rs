//! Locks between hosts, in a PostgreSQL database. One function of the schema per verb, one round
//! trip each. The rules are those of `ledger/`, restated in PL/pgSQL (`sql/`).
//!
//! ```text
//! callers ──> calls.rs ─> connection.rs ─> pipeline.rs ═══ database   on the callers' runtime
//! keeper ───> calls.rs ─> connection.rs ─> pipeline.rs ═══ database   on the engine's own thread
//! sessions <─ signals.rs <──────────────── listener.rs ═══ database   one for all sessions
//! ```
//!
//! The state is in the database alone; every function reads the server's clock after it has locked
//! the rows of its slots. A call that fails is safe to repeat, because claims carry their id.
//!
//! Behind a pooler that lends connections for one transaction at a time there are no subscriptions
//! and no session settings. Then each call is a transaction that repeats all settings, and waiters
//! poll.

mod calls;
mod cells;
mod claim;
mod claims;
// Public for the crate `tenure-postgres`, which shares URL, TLS and login.
mod cell_watches;
#[doc(hidden)]
pub mod client;
mod connect;
mod connection;
mod deadlock;
mod doctor;
mod errors;
mod evict;
mod functions;
mod inspect;
mod job_rows;
mod jobs;
mod listener;
mod pipeline;
mod raise_fences;
mod rates;
mod release;
mod renew;
mod replies;
mod schema;
mod signals;
mod statements;
#[cfg(feature = "conformance")]
mod testing;
mod tls;
mod url;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use self::claims::{ContendedNames, UnsentClaims, WaitingClaims};
use self::connect::ConnectionContext;
use self::connection::ConnectionManager;
use self::errors::call_failed;
use self::jobs::WorkerMemories;
use self::listener::NotificationListener;
pub use self::schema::{MIGRATIONS, Migration, migrate, statements};
use self::statements::{Function, Parameters};
#[cfg(feature = "conformance")]
pub(crate) use self::testing::{WeakEngine, install_suite_schema};
use self::url::Location;
use super::Terms;
use super::common::jitter;
use super::common::runtime::{Callers, EngineThread};
use crate::contract::{
    DeadlockHandling, Engine, Error, Fencing, Promises, SessionId, SignalListener, Survives, Verb,
    Wake, optional_objects,
};
use crate::engine::common::verbs::boxed_verbs;

/// What the PostgreSQL engine promises.
pub const PROMISES: Promises = Promises {
    engine: "postgres",
    fencing: Fencing::ClockBounded,
    fencing_rests_on: "a sequence in the database; where commits are lost the server's wall clock",
    lists_rest_on: "an index of the table",
    jobs: true,
    deadlocks: DeadlockHandling::Broken,
    rates: true,
    wake: Wake::Push,
    survives: &[Survives::ClientCrash, Survives::StoreRestart, Survives::PowerLoss],
    replicas: false,
    drift_percent: 10,
    ..Promises::EVERY_RULE
};

/// What it promises where commits do not wait for the disk (`durability=grace`).
pub const PROMISES_WITH_GRACE: Promises =
    Promises { survives: &[Survives::ClientCrash], ..PROMISES };

/// What it promises behind a pooler that lends connections for one transaction at a time.
pub const PROMISES_BEHIND_POOLER: Promises = Promises { wake: Wake::Poll, ..PROMISES };

/// What it promises with `durability=grace` behind such a pooler.
const PROMISES_WITH_GRACE_BEHIND_POOLER: Promises =
    Promises { wake: Wake::Poll, ..PROMISES_WITH_GRACE };

/// How often waiters are renewed behind a pooler.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest interval between sweeps of expired rows; the longest is twice that.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The PostgreSQL engine.
#[derive(Clone)]
pub struct PostgresEngine {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<ConnectionContext>,
    /// The connection on the callers' runtime, if that runtime is fit to keep one.
    callers_connection: Option<(Callers, ConnectionManager)>,
    /// The connection on the engine's own thread.
    own_connection: ConnectionManager,
    /// None behind a pooler.
    listener: Option<NotificationListener>,
    promises: &'static Promises,
    /// Filled behind a pooler only.
    waiting: WaitingClaims,
    contended: ContendedNames,
    unsent: UnsentClaims,
    workers: WorkerMemories,
    /// These three counters tell the conformance suite whether anything is in flight.
    calls: AtomicU64,
    notifies_in_flight: AtomicU64,
    notifies_done: AtomicU64,
    /// The engine's own thread. The last field, so that the connections on it are dropped first.
    own: EngineThread,
}

impl std::fmt::Debug for PostgresEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let location = &self.inner.context.location;
        f.debug_struct("PostgresEngine").field("location", location).finish_non_exhaustive()
    }
}

/// Opens the store that a URL names.
pub(super) async fn connect(url: &str, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let during = |error: Error| error.during(Verb::Connect);
    let context = Location::parse(url).and_then(|location| {
        ConnectionContext::new(location, terms.namespace.clone(), terms.max_lease)
    });
    let own = EngineThread::start("tenure-postgres").map_err(during)?;
    let callers = Callers::find(&own).await;
    let opened = PostgresEngine::open(context.map_err(during)?, own, callers).await;
    let engine = opened.map_err(during)?;
    engine.start_background_tasks();
    Ok(Arc::new(engine))
}

impl PostgresEngine {
    async fn open(
        context: ConnectionContext,
        own: EngineThread,
        callers: Option<Callers>,
    ) -> Result<Self, Error> {
        let context = Arc::new(context);
        // First, because the handshake of the next connection detects a pooler with its help.
        let listener = NotificationListener::start(Arc::clone(&context), own.handle()).await?;
        let manager = |runtime: &Handle| {
            ConnectionManager::new(Arc::clone(&context), runtime.clone(), own.handle().clone())
        };
        let own_connection = manager(own.handle());
        own_connection.get().await?;
        let callers_connection = callers.map(|callers| {
            let connection = manager(callers.handle());
            (callers, connection)
        });
        if let Some((_, connection)) = &callers_connection {
            connection.get().await?;
        }
        let pooled = context.is_pooled();
        let promises = match (pooled, context.is_async()) {
            (false, false) => &PROMISES,
            (false, true) => &PROMISES_WITH_GRACE,
            (true, false) => &PROMISES_BEHIND_POOLER,
            (true, true) => &PROMISES_WITH_GRACE_BEHIND_POOLER,
        };
        let inner = Inner {
            context,
            callers_connection,
            own_connection,
            listener: (!pooled).then_some(listener),
            promises,
            waiting: WaitingClaims::default(),
            contended: ContendedNames::default(),
            unsent: UnsentClaims::default(),
            workers: WorkerMemories::default(),
            calls: AtomicU64::new(0),
            notifies_in_flight: AtomicU64::new(0),
            notifies_done: AtomicU64::new(0),
            own,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Starts the tasks on the engine's own thread: polling behind a pooler, and the sweep. They
    /// end with the engine.
    fn start_background_tasks(&self) {
        let handle = self.inner.own.handle();
        let weak = Arc::downgrade(&self.inner);
        if self.inner.listener.is_none() {
            let weak = Weak::clone(&weak);
            handle.spawn(async move {
                loop {
                    tokio::time::sleep(POLL_INTERVAL).await;
                    let Some(inner) = weak.upgrade() else { return };
                    inner.poll_waiters();
                }
            });
        }
        handle.spawn(async move {
            loop {
                // Jitter, so that many clients do not sweep at once.
                tokio::time::sleep(jitter::spread(SWEEP_INTERVAL)).await;
                let Some(inner) = weak.upgrade() else { return };
                let engine = Self { inner };
                let swept = match engine.sweep().await {
                    Ok(()) => engine.sweep_jobs().await,
                    failed => failed,
                };
                if let Err(error) = swept {
                    tracing::debug!("sweep of expired rows failed: {error}");
                }
            }
        });
    }

    /// Deletes expired rows of names that no client uses any more.
    async fn sweep(&self) -> Result<(), Error> {
        let pipeline = self.inner.own_connection.get().await?;
        let is_async = self.inner.context.is_async();
        let parameters: Parameters = vec![Box::new(pipeline.ns), Box::new(is_async)];
        let rows = pipeline.permit(Verb::Release).await.call(Function::Sweep, parameters).await;
        rows.map(drop).map_err(|error| call_failed(error.as_ref()))
    }
}

impl Engine for PostgresEngine {
    fn promises(&self) -> &Promises {
        self.inner.promises
    }

    boxed_verbs!();

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.register(session, listener);
    }

    optional_objects!(self:
        immediate => None,
        cells => Some(self),
        jobs => Some(self),
        rates => Some(self),
        fence_floor => Some(self),
        replication => None,
        partitions => None,
        diagnostics => Some(self),
        ownership_proof => None,
        deadlocks => Some(self),
        local => None,
    );
}
