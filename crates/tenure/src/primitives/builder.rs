//! The settings of a `Tenure`, and connecting with them.

use std::sync::Arc;
use std::time::Duration;

use super::options::{Options, between};
use super::preset::{Preset, Presets};
use super::tenure::Tenure;
use crate::contract::{Engine, Error, ErrorKind, Namespace, Verb};
use crate::engine::{self, Terms};
use crate::limits;
use crate::order::{Levels, LockOrder, OrderChecker};
use crate::session::{DeadlockMode, Session, Settings, Wait, WakeHook, Wanted, Witness, block_on};
use crate::time::{Clock, SystemClock};

/// The settings of a [`Tenure`]. Made by [`Tenure::builder`].
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use tenure::{Preset, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::builder()
///     .namespace("billing") // locks of other namespaces are other locks
///     .max_lease(Duration::from_secs(30)) // every client of the namespace states the same
///     .lease(Duration::from_secs(10)) // of locks that do not say otherwise
///     .timeout(Duration::from_secs(5))
///     .label("invoices")
///     .call_limit(Duration::from_secs(1)) // of one call to the store
///     .connect_timeout(Duration::from_secs(10)) // go on connecting while the store starts
///     .preset(Preset::new("nightly").lease(Duration::from_secs(20)))
///     .connect("memory:")
///     .await?;
/// # drop(tenure);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    namespace: Result<Namespace, Error>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    /// How long to go on connecting while the store is away.
    connect: Option<Duration>,
    options: Options,
    presets: Presets,
    /// What was said about the order checker; without it, the environment counts.
    order: Option<LockOrder>,
    checker: Option<OrderChecker>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            namespace: Ok(Namespace::default()),
            clock: Arc::new(SystemClock),
            settings: Settings::default(),
            connect: None,
            options: Options::new(Arc::default()),
            presets: Presets::default(),
            order: None,
            checker: None,
        }
    }
}

impl Builder {
    /// Keeps the locks of one application or environment apart. Default `default`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Namespace::try_from(namespace);
        self
    }

    /// The longest lease in this namespace. Every client must state the same. Default 60 s.
    pub fn max_lease(mut self, max_lease: Duration) -> Self {
        self.settings.max_lease = max_lease;
        self
    }

    /// The lease of locks that do not say otherwise. Default 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// The timeout of locks that do not say otherwise. Default: none.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.options.wait = Some(Wait::Limit(limit));
        self
    }

    /// The label of locks that do not say otherwise.
    pub fn label(mut self, label: &str) -> Self {
        self.options.set_label(label);
        self
    }

    /// The time limit of one call to the store. Default 2 s.
    pub fn call_limit(mut self, limit: Duration) -> Self {
        self.settings.call = limit;
        self
    }

    /// How long [`Tenure::close`] waits for the store to confirm that everything was given back.
    /// Default 3 s. After that the leases are the backstop.
    pub fn close_limit(mut self, limit: Duration) -> Self {
        self.settings.close = limit;
        self
    }

    /// How long [`connect`](Self::connect) goes on while the store is away: it tries again with
    /// exponential back-off and jitter. Without it a store that is away is an error at once.
    ///
    /// Once connected, a session needs no such limit: it reconnects by itself, and a lock that may
    /// wait goes on waiting through an outage.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect = Some(limit);
        self
    }

    /// Hands out a guard only after so many replicas of the store have confirmed the grant, within
    /// a time of at most 1.5 s; otherwise the lock is given back, and the caller hears
    /// `Unavailable`. [`LockStatus::replicas`](crate::LockStatus::replicas) says how many did.
    /// Engines without replicas refuse to connect with `Unsupported`.
    ///
    /// Costs one more call for each lock, and as long as the replicas need; two waits in the worst
    /// case, because one is under way at a time. What it gives: after a fail-over to a replica that
    /// confirmed, the lock is still held. What it does not give: consistency. The store may make
    /// another replica the primary, a replica that restarts without a disk forgets, and renewals
    /// and releases are not waited for. Only fences make a late writer harmless.
    pub fn replicas(mut self, replicas: u32, within: Duration) -> Self {
        self.settings.replicas = Some(Wanted { replicas, within });
        self
    }

    /// What to do about deadlocks: owners that hold locks and wait for each other for ever. Default
    /// [`DeadlockMode::Break`]: one wait of each deadlock fails with
    /// [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock).
    pub fn deadlocks(mut self, mode: DeadlockMode) -> Self {
        self.settings.deadlocks.mode = mode;
        self
    }

    /// How long a claim waits before it looks for a deadlock. Default 1 s, from 10 ms to an hour. A
    /// wait that ends before makes no call for it.
    pub fn deadlock_delay(mut self, delay: Duration) -> Self {
        self.settings.deadlocks.delay = delay;
        self
    }

    /// The victim priority of locks that do not say otherwise, see
    /// [`Mutex::victim_priority`](crate::Mutex::victim_priority).
    pub fn victim_priority(mut self, priority: i8) -> Self {
        self.options.set_victim_priority(priority);
        self
    }

    /// Adds a preset, or replaces one of the same name.
    pub fn preset(mut self, preset: Preset) -> Self {
        if let Err(error) = self.presets.add(preset) {
            self.options.mistake.get_or_insert(error);
        }
        self
    }

    /// Adds the presets of a TOML file:
    ///
    /// ```toml
    /// [presets.nightly]
    /// lease = "30s"
    /// wait = "forever"
    /// max_hold = "6h"
    /// lock_delay = "10s"
    /// ```
    ///
    /// # Errors
    /// If the file cannot be read, or has a mistake: unknown keys are mistakes too.
    #[cfg(feature = "config")]
    pub fn presets_from(mut self, path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        for preset in super::preset::file::read(path.as_ref())? {
            self.presets.add(preset)?;
        }
        Ok(self)
    }

    /// Turns the order checker on: an [`OrderMode`](crate::OrderMode), or all settings as a
    /// [`LockOrder`], which has an example. Without it, the variable `TENURE_ORDER` counts: `off`,
    /// `warn` or `deny`.
    pub fn order(mut self, order: impl Into<LockOrder>) -> Self {
        let levels = self.order.take().and_then(LockOrder::take_levels);
        let order: LockOrder = order.into();
        self.order = Some(order.or_levels(levels));
        self
    }

    /// Shares the order checker of another `Tenure`: for several sessions with one namespace.
    pub fn order_checker(mut self, checker: &OrderChecker) -> Self {
        self.checker = Some(checker.clone());
        self
    }

    /// The levels of locks. See [`Levels`] for an example.
    pub fn levels(mut self, levels: Levels) -> Self {
        let order = self.order.take().map_or_else(LockOrder::from_env, Ok);
        match order {
            Ok(order) => self.order = Some(order.levels(levels)),
            Err(error) => {
                self.options.mistake.get_or_insert(error);
            }
        }
        self
    }

    /// Names this process to others instead of the one that holds the session, and no place in its
    /// code: for a helper that holds locks on behalf of the process people know.
    pub fn on_behalf_of(mut self, pid: u32) -> Self {
        self.settings.pid = Some(pid);
        self
    }

    /// Sees every event of the session: for histories and metrics. See [`Witness`] for an example.
    pub fn witness(mut self, witness: Arc<dyn Witness>) -> Self {
        self.settings.witnesses.push(witness);
        self
    }

    /// Takes time from this clock: for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Connects to the store that a URL names. See [`Builder`] for an example.
    ///
    /// # Errors
    /// If a setting is outside its limits, the URL is none, names an engine that is not built in,
    /// or the store cannot be reached: at once, or in [`connect_timeout`](Self::connect_timeout).
    ///
    /// # Cancel safety
    /// Dropping the future opens nothing.
    pub async fn connect(self, url: &str) -> Result<Tenure, Error> {
        let namespace = self.check()?;
        let max_lease = self.settings.max_lease;
        let terms = Terms { namespace, max_lease, clock: Arc::clone(&self.clock) };
        let engine = match self.connect {
            // Boxed: few programs connect with a limit, and the rest must not pay for its size.
            Some(limit) => Box::pin(engine::connect_within(url, terms, limit)).await?,
            None => engine::connect(url, terms).await?,
        };
        self.open(engine)
    }

    /// The blocking form of [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn blocking_connect(self, url: &str) -> Result<Tenure, Error> {
        block_on(self.connect(url))
    }

    /// Opens a session with an engine that is there already: one of your own, or one that several
    /// sessions of a test share.
    ///
    /// # Errors
    /// If a setting is outside its limits, or the session's thread cannot be started.
    pub fn open(mut self, engine: Arc<dyn Engine>) -> Result<Tenure, Error> {
        self.check()?;
        let promises = engine.promises();
        if self.settings.replicas.is_some() && !promises.replicas {
            let what = format!("the engine {} has no replicas to ask", promises.engine);
            return Err(Error::new(ErrorKind::Unsupported, what)
                .during(Verb::Connect)
                .with_help("leave `replicas` out, or use an engine that promises them"));
        }
        self.presets.fit(self.settings.max_lease);
        self.options.presets = Arc::new(self.presets);
        let checker = match (self.checker, self.order) {
            (Some(checker), _) => checker,
            (None, Some(order)) => OrderChecker::new(order),
            (None, None) => OrderChecker::new(LockOrder::from_env()?),
        };
        self.settings.on_wake = checker.hold_watch().map(WakeHook::new);
        self.options.order = Some(checker).filter(|checker| !checker.is_idle());
        let session = Session::open(engine, self.clock, self.settings)?;
        Ok(Tenure { session, options: self.options })
    }

    fn check(&self) -> Result<Namespace, Error> {
        let checked = || {
            if let Some(mistake) = &self.options.mistake {
                return Err(mistake.clone());
            }
            let (max_lease, call) = (self.settings.max_lease, self.settings.call);
            between("max_lease", max_lease, limits::MIN_LEASE, limits::MAX_LEASE)?;
            let lease = self.options.lease.unwrap_or(limits::MIN_LEASE);
            between("lease", lease, limits::MIN_LEASE, limits::MAX_LEASE)?;
            self.presets.check(max_lease)?;
            between("call limit", call, Duration::from_millis(1), Duration::from_secs(60))?;
            between("close limit", self.settings.close, Duration::ZERO, limits::MAX_LEASE)?;
            let (least, most) = (limits::MIN_DEADLOCK_DELAY, limits::MAX_DEADLOCK_DELAY);
            between("deadlock delay", self.settings.deadlocks.delay, least, most)?;
            let shortest = Duration::from_millis(1);
            let connect = self.connect.unwrap_or(shortest);
            between("connect timeout", connect, shortest, limits::MAX_WAIT)?;
            if let Some(Wanted { replicas, within }) = self.settings.replicas {
                between("time for replicas", within, shortest, limits::REPLICAS_WITHIN)?;
                if !(1..=limits::REPLICAS).contains(&replicas) {
                    let what = format!("replicas is {replicas}; it is 1 to {}", limits::REPLICAS);
                    return Err(Error::new(ErrorKind::InvalidOption, what)
                        .with_help("leave `replicas` out if none shall be waited for"));
                }
            }
            self.namespace.clone()
        };
        checked().map_err(|error| error.during(Verb::Connect))
    }
}
