//! `Tenure`, the handle of a session with a store: makes locks, inspects, closes. Each async method
//! has a blocking form beside it, which runs the same future with `block_on`.

use std::fmt;
use std::path::PathBuf;

use super::builder::Builder;
use super::cells::CellStore;
use super::family::Family;
use super::lock_set::LockSet;
use super::mutex::Mutex;
use super::options::{Options, lacking};
use super::preset::Preset;
use super::rwlock::RwLock;
use super::semaphore::Semaphore;
use crate::contract::{
    Error, ErrorKind, Evicted, Eviction, Fence, Finding, HolderView, Name, Part, Parts, Pending,
    Promises, Query, Raised, SessionId, Snapshot, Verb,
};
use crate::limits;
use crate::session::{Closed, Session, block_on};

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

    /// Several locks of any kind as one: [`Mutex::part`], [`RwLock::read_part`] and
    /// [`RwLock::write_part`], [`Semaphore::part`]. Options belong on the set, not on its parts.
    ///
    /// # Errors
    /// If the set is empty, too large, or names one lock as two kinds.
    pub fn lock_set(&self, parts: impl IntoIterator<Item = Part>) -> Result<LockSet, Error> {
        Ok(LockSet::new(self.session.clone(), Parts::set(parts)?, self.options.clone()))
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

    /// Inspects slots: who holds, who waits, since when, from where.
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
    ///     println!("{}: {} holders, {} waiters", slot.name, slot.holders.len(), slot.line.len());
    /// }
    /// # guard.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        let core = self.session.core();
        core.limited(Verb::Inspect, || core.engine().inspect(query)).await
    }

    /// The blocking form of [`inspect`](Self::inspect).
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    pub fn blocking_inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        block_on(self.inspect(query))
    }

    /// Who holds a name, longest first. Empty if it is free. Of a set that still waits for other
    /// names, what it has been granted counts as held.
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

    /// The blocking form of [`holders`](Self::holders).
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    pub fn blocking_holders(&self, name: &str) -> Result<Vec<HolderView>, Error> {
        block_on(self.holders(name))
    }

    /// Whether a name is held, as any kind of lock. Out of date when it returns: to act on a lock,
    /// acquire it.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    ///
    /// # Cancel safety
    /// Inspecting changes nothing.
    pub async fn is_locked(&self, name: &str) -> Result<bool, Error> {
        Ok(!self.holders(name).await?.is_empty())
    }

    /// The blocking form of [`is_locked`](Self::is_locked).
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    pub fn blocking_is_locked(&self, name: &str) -> Result<bool, Error> {
        block_on(self.is_locked(name))
    }

    /// Checks the store as an operator would: its version, its clock, what it keeps when it
    /// restarts, who may do what, and what that means for locks. `tenure doctor` prints it. An
    /// engine without a server returns no findings.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect). What the store does not permit to see is a finding.
    ///
    /// # Cancel safety
    /// Checking changes nothing.
    ///
    /// # Examples
    /// ```
    /// # use tenure::{Health, Tenure};
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// for finding in tenure.doctor().await? {
    ///     assert_ne!(finding.state, Health::Bad, "{}: {}", finding.check, finding.what);
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn doctor(&self) -> Result<Vec<Finding>, Error> {
        let core = self.session.core();
        let examine = || match core.engine().diagnostics() {
            Some(diagnostics) => diagnostics.doctor(),
            None => Box::pin(std::future::ready(Ok(Vec::new()))),
        };
        core.limited(Verb::Inspect, examine).await
    }

    /// The blocking form of [`doctor`](Self::doctor).
    ///
    /// # Errors
    /// As [`doctor`](Self::doctor).
    pub fn blocking_doctor(&self) -> Result<Vec<Finding>, Error> {
        block_on(self.doctor())
    }

    /// Releases by force exactly the grant of `name` with this fence. Its holder loses the lock and
    /// learns the reason ([`Loss::Evicted`](crate::Loss::Evicted)); the next waiter is granted it.
    ///
    /// # Errors
    /// `InvalidOption` if the reason is empty or too long; otherwise as [`inspect`](Self::inspect).
    /// That no such grant is held is an answer: [`Evicted`].
    ///
    /// # Cancel safety
    /// Dropping the future may or may not release the grant.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Evicted, Tenure};
    ///
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let stuck = tenure.mutex("reports")?.lock().await?;
    /// let holder = tenure.holders("reports").await?.remove(0);
    /// let evicted = tenure.force_release("reports", holder.fence, "its host is gone").await?;
    /// assert!(matches!(evicted, Evicted::Done(_)));
    /// assert!(stuck.check().is_err());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn force_release(
        &self,
        name: &str,
        fence: Fence,
        reason: &str,
    ) -> Result<Evicted, Error> {
        let eviction = Eviction::new(Name::try_from(name)?, fence, reason)?;
        let core = self.session.core();
        core.limited(Verb::Evict, || core.engine().evict(&eviction)).await
    }

    /// The blocking form of [`force_release`](Self::force_release).
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release).
    pub fn blocking_force_release(
        &self,
        name: &str,
        fence: Fence,
        reason: &str,
    ) -> Result<Evicted, Error> {
        block_on(self.force_release(name, fence, reason))
    }

    /// Raises the fences of this namespace: every later grant has a fence above `to`, whatever its
    /// name, also where a claim waits already. Holds keep the fence they have.
    ///
    /// For a service that moves here from another store, where fences have got further. See
    /// `docs/fencing.md` for the procedure.
    ///
    /// # Errors
    /// If `to` is not above [`highest_fence`](Self::highest_fence) (`Conflict`), or so large that
    /// fences would leave their range (2^53 less 2^40): nothing has changed then. If the
    /// engine has no floor of fences (`Unsupported`), the store cannot be reached, or this `Tenure`
    /// was closed.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not raise the fences; to call it again does no harm.
    ///
    /// # Examples
    /// ```
    /// # use tenure::{ErrorKind, Tenure};
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let moved_from = tenure.highest_fence().await?.get() + 3_000_000_000;
    /// tenure.raise_fences(moved_from).await?;
    /// assert!(tenure.mutex("reports")?.lock().await?.fence()?.get() > moved_from);
    /// let again = tenure.raise_fences(moved_from).await.unwrap_err();
    /// assert_eq!(again.kind(), ErrorKind::Conflict);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn raise_fences(&self, to: u64) -> Result<(), Error> {
        let failed = |error: Error| error.during(Verb::RaiseFences);
        if to > limits::FENCE_FLOOR {
            let most = limits::FENCE_FLOOR;
            let what = format!("fences cannot be raised above {most}, and {to} was asked for");
            let next = "fences stay below 2^53, with room to grow; see whether the number is one";
            return Err(failed(Error::new(ErrorKind::InvalidOption, what).with_help(next)));
        }
        match self.ask_fences(to).await? {
            Raised::Done => Ok(()),
            Raised::NotAbove(highest) => {
                let what =
                    format!("fences here may have reached {highest}, so {to} raises nothing");
                let next = format!("if they must be larger, raise them to more than {highest}");
                Err(failed(Error::new(ErrorKind::Conflict, what).with_help(next)))
            }
        }
    }

    /// The blocking form of [`raise_fences`](Self::raise_fences).
    ///
    /// # Errors
    /// As [`raise_fences`](Self::raise_fences).
    pub fn blocking_raise_fences(&self, to: u64) -> Result<(), Error> {
        block_on(self.raise_fences(to))
    }

    /// The largest fence of this namespace so far, or a number above it where the store keeps only
    /// a bound. 0 if none was given out.
    ///
    /// # Errors
    /// If the engine has no floor of fences (`Unsupported`), or the store cannot be reached.
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    pub async fn highest_fence(&self) -> Result<Fence, Error> {
        match self.ask_fences(0).await? {
            Raised::NotAbove(highest) => Ok(highest),
            Raised::Done => Ok(Fence::new(0)),
        }
    }

    /// The blocking form of [`highest_fence`](Self::highest_fence).
    ///
    /// # Errors
    /// As [`highest_fence`](Self::highest_fence).
    pub fn blocking_highest_fence(&self) -> Result<Fence, Error> {
        block_on(self.highest_fence())
    }

    async fn ask_fences(&self, to: u64) -> Result<Raised, Error> {
        let (core, promises) = (self.session.core(), self.promises());
        let ask = || -> Pending<'_, Raised> {
            if let Some(floor) = core.engine().fence_floor() {
                return floor.raise_fences(Fence::new(to));
            }
            let lacking = lacking(promises, "a floor of fences", |other| other.fence_floor);
            Box::pin(std::future::ready(Err(lacking.during(Verb::RaiseFences))))
        };
        core.limited(Verb::RaiseFences, ask).await
    }

    /// The store's cells: versioned values beside the locks.
    pub fn cells(&self) -> CellStore<'_> {
        CellStore::new(self.session.core())
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
    pub async fn close(&self) -> Closed {
        self.session.close().await
    }

    /// The blocking form of [`close`](Self::close).
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
