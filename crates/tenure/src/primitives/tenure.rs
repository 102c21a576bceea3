//! `Tenure`, the handle of a session with a store: makes locks, inspects, closes. Each async method
//! has a blocking form beside it, which runs the same future with `block_on`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::builder::Builder;
use super::cells::CellStore;
use super::election::Election;
use super::family::Family;
use super::lock_set::{LockSet, SetPart};
use super::mutex::Mutex;
use super::options::Options;
use super::preset::Preset;
use super::rate::Rate;
use super::rwlock::RwLock;
use super::semaphore::Semaphore;
use super::update::{UpdatableCell, UpdateBounds, Updated};
use super::update_stages::CellsUpdate;
use crate::contract::{
    Error, HolderView, Name, Parts, Pattern, Promises, Query, SessionId, Snapshot, Verb,
};
use crate::order::{OrderChecker, OrderGraph, stored_graph};
use crate::session::{Closed, Sampler, Session, block_on};

/// A session of this process with a store. Cheap to clone; all clones share the session.
///
/// # Examples
/// ```
/// use tenure::Tenure;
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.mutex("reports")?.lock().await?;
/// guard.release().await?;
/// tenure.close().await;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Tenure {
    pub(super) session: Session,
    pub(super) options: Options,
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
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:reports").await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// The blocking form of [`connect`](Self::connect), for programs without an async runtime.
    ///
    /// Every async method of the library has such a form, called `blocking_` and its name. They
    /// need no runtime and work inside one too: while the thread is blocked, nothing that it waits
    /// for runs on its runtime. Prefer the async methods there: a blocked worker serves no other
    /// task.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Examples
    /// ```
    /// use tenure::Tenure;
    ///
    /// let tenure = Tenure::blocking_connect("memory:")?;
    /// let guard = tenure.mutex("reports")?.blocking_lock()?;
    /// println!("fence {}", guard.fence()?);
    /// guard.blocking_release()?;
    /// tenure.blocking_close();
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn blocking_connect(url: &str) -> Result<Self, Error> {
        block_on(Self::connect(url))
    }

    /// A builder, for settings other than the defaults. See [`Builder`] for an example.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// An exclusive lock. See [`Mutex`] for examples.
    ///
    /// # Errors
    /// If the name is empty, too long or has control characters.
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Mutex, Error> {
        Ok(Mutex::new(self.session.clone(), Name::try_from(name.as_ref())?, self.options.clone()))
    }

    /// A read-write lock. See [`RwLock::read`] and [`RwLock::write`] for examples.
    ///
    /// # Errors
    /// If the name is empty, too long or has control characters.
    pub fn rwlock(&self, name: impl AsRef<str>) -> Result<RwLock, Error> {
        Ok(RwLock::new(self.session.clone(), Name::try_from(name.as_ref())?, self.options.clone()))
    }

    /// A semaphore of this many permits. Every user of the name states the same number. See
    /// [`Semaphore::acquire`] for an example.
    ///
    /// # Errors
    /// If the name cannot be one, or the number of permits is 0 or too large.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Semaphore, Error> {
        let name = Name::try_from(name.as_ref())?;
        Semaphore::new(self.session.clone(), name, permits, self.options.clone())
    }

    /// The election of one leader. See [`Election`] for an example. An election and a lock of one
    /// name are two things.
    ///
    /// # Errors
    /// If the name cannot be one, or has more than 245 bytes.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election, Error> {
        Election::new(self.session.clone(), Name::try_from(name.as_ref())?, self.options.clone())
    }

    /// Several locks of any kind as one: [`Mutex::part`], [`RwLock::read_part`] and
    /// [`RwLock::write_part`], [`Semaphore::part`]. Options are set on the set. See [`LockSet`]
    /// and [`SetPart`] for examples.
    ///
    /// # Errors
    /// If the set is empty, too large, or names one lock as two kinds; `InvalidOption` if an option
    /// was set on one of its locks, where it would have no effect.
    pub fn lock_set<P>(&self, parts: impl IntoIterator<Item = P>) -> Result<LockSet, Error>
    where
        P: Into<SetPart>,
    {
        let parts: Result<Vec<_>, _> =
            parts.into_iter().map(|part| part.into().into_part()).collect();
        Ok(LockSet::new(self.session.clone(), Parts::set(parts?)?, self.options.clone()))
    }

    /// One coarse lock for a family of names, such as `account:*`. See [`Family::lock`] for an
    /// example.
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
    ///
    /// # Examples
    /// ```
    /// let tenure = tenure::Tenure::blocking_connect("memory:")?;
    /// assert!(tenure.promises().queue, "first come, first served");
    /// # Ok::<(), tenure::Error>(())
    /// ```
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
    pub fn claim_count(&self) -> usize {
        self.session.claims()
    }

    /// The presets that [`preset`](Mutex::preset) knows here, by name: the built-in ones and those
    /// of the [`Builder`].
    ///
    /// # Examples
    /// ```
    /// let tenure = tenure::Tenure::blocking_connect("memory:")?;
    /// let names: Vec<_> = tenure.presets().map(|preset| preset.name()).collect();
    /// assert_eq!(names, ["batch", "cache", "financial"]);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn presets(&self) -> impl Iterator<Item = &Preset> {
        self.options.presets.all()
    }

    /// Inspects slots: holders and waiters, since when, from which process and place in the code.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached, `Closed` after [`close`](Self::close).
    ///
    /// # Cancel safety
    /// Inspecting changes nothing.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Page, Query, Tenure};
    ///
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let guard = tenure.mutex("reports")?.label("nightly").lock().await?;
    /// let seen = tenure.inspect(&Query::Page(Page::default())).await?;
    /// for slot in &seen.slots {
    ///     println!("{}: {} holders, {} waiters", slot.name, slot.holders.len(), slot.queue.len());
    /// }
    /// # guard.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        let core = self.session.core();
        let behind = match query {
            Query::Page(page) => Some(Query::Page(page.without_reserved())),
            Query::Slot(_) | Query::Reach(_) => None,
        };
        let query = behind.as_ref().unwrap_or(query);
        core.limited(Verb::Inspect, || core.engine().inspect(query)).await
    }

    /// Looks at the slots that match again and again, at this interval: for everything that shows
    /// a live picture. See [`Sampler`] for an example.
    #[must_use]
    pub fn sampler(&self, pattern: Pattern, interval: Duration) -> Sampler {
        Sampler::new(self.session.clone(), pattern, interval)
    }

    /// The blocking form of [`inspect`](Self::inspect): see there for an example.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    pub fn blocking_inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        block_on(self.inspect(query))
    }

    /// The holders of a name, longest first. Empty if it is free. Of a set that still waits for
    /// other names, what it has been granted counts as held.
    ///
    /// # Errors
    /// `InvalidName`; otherwise as [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    /// Inspecting changes nothing.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let guard = tenure.mutex("reports")?.lock().await?;
    /// for holder in tenure.holders("reports").await? {
    ///     println!("process {} since {:?}", holder.about.pid, holder.held_for);
    /// }
    /// assert!(tenure.is_locked("reports").await?);
    /// guard.release().await?;
    /// assert!(!tenure.is_locked("reports").await?);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn holders(&self, name: &str) -> Result<Vec<HolderView>, Error> {
        let name = Name::try_from(name)?;
        let seen = self.inspect(&Query::Slot(name.clone())).await?;
        let slot = seen.slots.into_iter().find(|slot| slot.name == name);
        Ok(slot.map(|slot| slot.holders).unwrap_or_default())
    }

    /// The blocking form of [`holders`](Self::holders): see there for an example.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    pub fn blocking_holders(&self, name: &str) -> Result<Vec<HolderView>, Error> {
        block_on(self.holders(name))
    }

    /// Whether a name is held, as any kind of lock. Out of date when it returns: to act on a lock,
    /// acquire it. See [`holders`](Self::holders) for an example.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    ///
    /// # Cancel safety
    /// Inspecting changes nothing.
    pub async fn is_locked(&self, name: &str) -> Result<bool, Error> {
        Ok(!self.holders(name).await?.is_empty())
    }

    /// The blocking form of [`is_locked`](Self::is_locked): see there for an example.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    pub fn blocking_is_locked(&self, name: &str) -> Result<bool, Error> {
        block_on(self.is_locked(name))
    }

    /// The order checker, if this `Tenure` has anything to check: its reports, and the edges that
    /// this process has learned. See [`LockOrder`](crate::LockOrder) for an example.
    #[must_use]
    pub fn order(&self) -> Option<&OrderChecker> {
        self.options.order.as_ref()
    }

    /// The edges that all services have learned and written to the store.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect); `Unsupported` if the store has no cells.
    ///
    /// # Cancel safety
    /// Reading changes nothing.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// for cycle in tenure.stored_order().await?.cycles() {
    ///     println!("{cycle}");
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn stored_order(&self) -> Result<OrderGraph, Error> {
        stored_graph(&**self.session.core()).await
    }

    /// The blocking form of [`stored_order`](Self::stored_order): see there for an example.
    ///
    /// # Errors
    /// As [`stored_order`](Self::stored_order).
    pub fn blocking_stored_order(&self) -> Result<OrderGraph, Error> {
        block_on(self.stored_order())
    }

    /// The store's cells: versioned values beside the locks. See [`CellStore`] for an example.
    pub fn cells(&self) -> CellStore<'_> {
        CellStore::new(&self.session)
    }

    /// A queue of jobs. See [`JobQueue`](crate::JobQueue) for an example.
    ///
    /// # Errors
    /// If the name is empty, too long or has control characters.
    #[cfg(feature = "jobs")]
    pub fn queue(&self, name: impl AsRef<str>) -> Result<super::JobQueue, Error> {
        let name = Name::try_from(name.as_ref())?;
        super::JobQueue::new(self.session.clone(), name, self.options.clone())
    }

    /// The names of all queues of jobs in the namespace.
    ///
    /// # Errors
    /// `Unsupported` if the engine has no jobs, `Unavailable` if the store cannot be reached.
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    #[cfg(feature = "jobs")]
    pub async fn queues(&self) -> Result<Vec<Name>, Error> {
        crate::contract::Jobs::queues(&**self.session.core()).await
    }

    /// The blocking form of [`queues`](Self::queues).
    ///
    /// # Errors
    /// As [`queues`](Self::queues).
    #[cfg(feature = "jobs")]
    pub fn blocking_queues(&self) -> Result<Vec<Name>, Error> {
        block_on(self.queues())
    }

    /// A cell to be updated by a function. See [`UpdatableCell`] for an example.
    ///
    /// # Errors
    /// If the name is empty, too long or has control characters.
    pub fn cell(&self, name: impl AsRef<str>) -> Result<UpdatableCell, Error> {
        let name = Name::try_from(name.as_ref())?;
        Ok(UpdatableCell::new(self.session.clone(), name, self.options.clone()))
    }

    /// Updates several cells in one step: the function gets what is in them and returns what shall
    /// be, both in the order of `names`; `None` is no value. What it only read counts too: if any
    /// of the cells is changed meanwhile, it is applied again. See [`UpdatableCell::update`].
    ///
    /// # Errors
    /// As [`UpdatableCell::update`]; `Unsupported` if the engine cannot write several cells at
    /// once; `InvalidOption` for more than 16 cells, or if the function returns another number of
    /// values.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not write the cells: all of them once, or none.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// tenure.cell("from")?.update(|_| "7").await?;
    /// let number = |value: &Option<Vec<u8>>| -> u32 {
    ///     value.as_ref().and_then(|v| std::str::from_utf8(v).ok()?.parse().ok()).unwrap_or(0)
    /// };
    /// let names = ["from".parse()?, "to".parse()?];
    /// tenure.update_many(&names, |olds| {
    ///     let (from, to) = (number(&olds[0]) - 2, number(&olds[1]) + 2);
    ///     [from, to].map(|new| Some(new.to_string().into_bytes())).to_vec()
    /// }).await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn update_many(
        &self,
        names: &[Name],
        mut apply: impl FnMut(&[Option<Vec<u8>>]) -> Vec<Option<Vec<u8>>>,
    ) -> Result<Vec<Updated>, Error> {
        let bounds = UpdateBounds::default();
        let mut update = CellsUpdate::new(&self.session, &self.options, names, bounds)?;
        update.run(|olds| std::future::ready(Ok(apply(&olds)))).await
    }

    /// A rate: exact limits for how much is done in how much time. See [`Rate`] for an example. A
    /// rate and a lock of one name are two things.
    ///
    /// # Errors
    /// If the name is empty, too long or has control characters.
    pub fn rate(&self, name: impl AsRef<str>) -> Result<Rate, Error> {
        Ok(Rate::new(self.session.clone(), Name::try_from(name.as_ref())?))
    }

    /// The file whose lock says that this session lives, where the engine notices a death by one.
    ///
    /// A process that acts on behalf of this one (a guardian of its children) takes a shared record
    /// lock (`fcntl`) on it too: others take over when the last such lock is gone.
    #[must_use]
    pub fn liveness_file(&self) -> Option<PathBuf> {
        let core = self.session.core();
        core.check_process(Verb::Inspect).ok()?;
        core.engine().local()?.liveness_file(self.session_id())
    }

    /// Closes the session: ends every wait, releases everything, and refuses every later call.
    /// Guards that still exist are lost; they, and whatever awaits
    /// [`LockStatus::lost`](crate::LockStatus::lost), are notified before anything is sent to the
    /// store. Without `close` the same happens when the last clone and guard are dropped.
    ///
    /// Waits until the store has confirmed the releases, at most for [`Builder::close_limit`]. The
    /// answer says whether it has; if not, the locks end with their leases.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the releases to the background.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Closed, Tenure};
    ///
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let guard = tenure.mutex("reports")?.lock().await?;
    /// match tenure.close().await {
    ///     Closed::Confirmed => assert!(guard.check().is_err()),
    ///     Closed::Unconfirmed { free_within, .. } => println!("free in {free_within:?}"),
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn close(&self) -> Closed {
        self.session.close().await
    }

    /// The blocking form of [`close`](Self::close): see there for an example.
    #[allow(clippy::must_use_candidate, reason = "most callers close and go")]
    pub fn blocking_close(&self) -> Closed {
        block_on(self.close())
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("session", &self.session).finish_non_exhaustive()
    }
}
