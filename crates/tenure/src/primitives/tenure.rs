//! The front door: connect to a store, name locks, look, close. Knows all primitives.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::all::All;
use super::family::Family;
use super::mutex::Mutex;
use super::options::{Options, between};
use super::preset::{Preset, Presets};
use super::rwlock::RwLock;
use super::semaphore::Semaphore;
use crate::contract::{
    Cells, Engine, Error, ErrorKind, Evicted, Eviction, Fence, Finding, Name, Namespace, Part,
    Parts, Promises, Query, SessionId, Snapshot, Verb,
};
use crate::engine::{self, Terms};
use crate::limits;
use crate::session::{Session, Settings, Wait, Wanted, Witness};
use crate::time::{Clock, SystemClock};

/// One process's standing with one store. Cheap to clone; all clones share one session.
///
/// # Examples
/// ```
/// use tenure::Tenure;
/// # tenure::blocking::wait(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.mutex("reports")?.lock().await?;
/// guard.release().await?;
/// tenure.close().await;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Tenure {
    session: Session,
    options: Options,
}

impl Tenure {
    /// Connects to the store that a URL names, with default settings.
    ///
    /// `memory:` is a store of its own in this process, `memory:NAME` one that this process shares
    /// under a name.
    ///
    /// # Errors
    /// If the URL is none, names an engine that is not built in, or the store cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future opens nothing.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// A builder, for settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// An exclusive lock.
    ///
    /// # Errors
    /// If the name cannot be one.
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Mutex, Error> {
        Ok(Mutex::new(self.session.clone(), Name::try_from(name.as_ref())?, self.options.clone()))
    }

    /// A read-write lock.
    ///
    /// # Errors
    /// If the name cannot be one.
    pub fn rwlock(&self, name: impl AsRef<str>) -> Result<RwLock, Error> {
        Ok(RwLock::new(self.session.clone(), Name::try_from(name.as_ref())?, self.options.clone()))
    }

    /// A semaphore of this many permits. All who use the name must agree on the number.
    ///
    /// # Errors
    /// If the name cannot be one, or the number of permits is 0 or too large.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Semaphore, Error> {
        let name = Name::try_from(name.as_ref())?;
        Semaphore::new(self.session.clone(), name, permits, self.options.clone())
    }

    /// Several locks of any kind, taken in one step: [`Mutex::part`], [`RwLock::reader`] and
    /// [`RwLock::writer`], [`Semaphore::permits`]. Options belong on the set, not on its parts.
    ///
    /// # Errors
    /// If the set is empty, too large, or names one lock as two kinds.
    pub fn all(&self, parts: impl IntoIterator<Item = Part>) -> Result<All, Error> {
        Ok(All::new(self.session.clone(), Parts::set(parts)?, self.options.clone()))
    }

    /// One coarse lock for a family of names, such as `account:*`.
    ///
    /// # Errors
    /// If the pattern cannot be the name of a lock.
    pub fn family(&self, pattern: impl AsRef<str>) -> Result<Family, Error> {
        Ok(Family::new(
            self.session.clone(),
            Name::try_from(pattern.as_ref())?,
            self.options.clone(),
        ))
    }

    /// What the engine promises.
    #[must_use]
    pub fn promises(&self) -> &Promises {
        self.session.core().engine().promises()
    }

    /// This session's id, as others see it.
    #[must_use]
    pub fn session_id(&self) -> SessionId {
        self.session.core().id()
    }

    /// How many claims this session holds or waits for.
    #[must_use]
    pub fn claims(&self) -> usize {
        self.session.claims()
    }

    /// Looks at slots, holders and lines.
    ///
    /// # Errors
    /// If the store cannot be reached.
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    pub async fn inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        let core = self.session.core();
        core.limited(Verb::Inspect, core.engine().inspect(query)).await
    }

    /// Looks at the store with the eyes of an operator: its version, its clock, what it keeps when
    /// it restarts, who may do what, and what that means for locks. `tenure doctor` prints it. An
    /// engine without a server of its own has nothing to say.
    ///
    /// # Errors
    /// If the store cannot be reached. What it does not let us see is a finding.
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    ///
    /// # Examples
    /// ```
    /// # use tenure::{Tenure, contract::Health};
    /// # tenure::blocking::wait(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// for finding in tenure.examine().await? {
    ///     assert_ne!(finding.state, Health::Bad, "{}: {}", finding.check, finding.what);
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let core = self.session.core();
        core.limited(Verb::Inspect, core.engine().examine()).await
    }

    /// Releases by force exactly the grant of `name` with this fence. Its holder learns the reason.
    ///
    /// # Errors
    /// If the reason is empty or too long, or the store cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not release the grant.
    pub async fn evict(&self, name: &str, fence: Fence, reason: &str) -> Result<Evicted, Error> {
        let eviction = Eviction::new(Name::try_from(name)?, fence, reason)?;
        let core = self.session.core();
        core.limited(Verb::Evict, core.engine().evict(&eviction)).await
    }

    /// The store's cells: versioned values beside the locks.
    #[must_use]
    pub fn cells(&self) -> &dyn Cells {
        self.session.core().engine().cells()
    }

    /// The file whose lock says that this session lives, where the engine notices a death by one.
    ///
    /// A process that acts on behalf of this one (a guardian of its children) takes a shared record
    /// lock (`fcntl`) on it too: others take over when the last such lock is gone.
    #[must_use]
    pub fn liveness_file(&self) -> Option<PathBuf> {
        self.session.core().engine().liveness_file(self.session_id())
    }

    /// Ends every wait, gives everything back, and refuses whatever comes after. Guards that are
    /// still about are lost. Without it, the same happens when the last clone and guard are gone.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the giving back to the background.
    pub async fn close(&self) {
        self.session.close().await;
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Settings of a [`Tenure`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    namespace: Result<Namespace, Error>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    options: Options,
    presets: Presets,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            namespace: Ok(Namespace::default()),
            clock: Arc::new(SystemClock),
            settings: Settings::default(),
            options: Options::new(Arc::default()),
            presets: Presets::default(),
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

    /// The wait limit of locks that do not say otherwise. Default: none.
    pub fn wait(mut self, limit: Duration) -> Self {
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

    /// Hands out a guard only after so many replicas of the store have confirmed the grant, within
    /// a time of at most 1.5 s; otherwise the lock is given back, and the caller hears
    /// `Unavailable`. [`Held::replicas`](crate::Held::replicas) says how many did. Engines without
    /// replicas refuse to connect with `Unsupported`.
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

    /// Names this process to others instead of the one that holds the session, and no place in its
    /// code: for a helper that holds locks on behalf of the process people know.
    pub fn on_behalf_of(mut self, pid: u32) -> Self {
        self.settings.pid = Some(pid);
        self
    }

    /// Sees every event of the session: for histories and metrics.
    pub fn witness(mut self, witness: Arc<dyn Witness>) -> Self {
        self.settings.witness = Some(witness);
        self
    }

    /// Takes time from this clock: for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Connects to the store that a URL names.
    ///
    /// # Errors
    /// If a setting is outside its limits, the URL is none, names an engine that is not built in,
    /// or the store cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future opens nothing.
    pub async fn connect(self, url: &str) -> Result<Tenure, Error> {
        let namespace = self.check()?;
        let max_lease = self.settings.max_lease;
        let terms = Terms { namespace, max_lease, clock: Arc::clone(&self.clock) };
        let engine = engine::connect(url, terms).await?;
        self.open(engine)
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
                .next("leave `replicas` out, or use an engine that promises them"));
        }
        self.options.presets = Arc::new(self.presets);
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
            if let Some(Wanted { replicas, within }) = self.settings.replicas {
                let shortest = Duration::from_millis(1);
                between("time for replicas", within, shortest, limits::REPLICAS_WITHIN)?;
                if !(1..=limits::REPLICAS).contains(&replicas) {
                    let what = format!("replicas is {replicas}; it is 1 to {}", limits::REPLICAS);
                    return Err(Error::new(ErrorKind::InvalidOption, what)
                        .next("leave `replicas` out if none shall be waited for"));
                }
            }
            self.namespace.clone()
        };
        checked().map_err(|error| error.during(Verb::Connect))
    }
}
