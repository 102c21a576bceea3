//! Guards: a held lock as a value. A guard is one share of a lease, seen as a [`LockStatus`].
//!
//! Guards are owned and `Send`. Dropping one requests the release in the background and returns at
//! once: the name may stay taken for the moment that takes, or, if the store cannot be reached, for
//! the rest of the lease. `release().await` confirms.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{
    ClaimId, Error, ErrorKind, Fence, Fencing, Loss, Name, Ownership, Part, Pending, Verb,
};
use crate::session::{Hold, Lost, Outcome, Share, block_on};

/// The status of a lock that was acquired: fence, time left, loss. Cheap to clone. It only watches:
/// a `LockStatus` does not keep the lock, and outlives it. Every guard dereferences to one.
#[derive(Clone)]
#[must_use]
pub struct LockStatus {
    hold: Arc<Hold>,
}

impl LockStatus {
    pub(super) fn new(lease: &Share) -> Self {
        Self { hold: Arc::clone(lease.hold()) }
    }

    /// A clone that watches the lock without keeping it: for other tasks and threads.
    pub fn status(&self) -> Self {
        self.clone()
    }

    /// The name; of a set, the first.
    #[must_use]
    pub fn name(&self) -> &Name {
        self.hold.claim().parts.first_name()
    }

    /// All names of a set, sorted.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.hold.claim().parts.names()
    }

    /// The claim's id. Of a set that was taken one by one, that of its first name.
    #[must_use]
    pub fn claim_id(&self) -> ClaimId {
        self.hold.claim().id
    }

    /// The fence to hand to the protected resource. Of a set: the largest of its fences, which
    /// grows from one holder of the same set to the next.
    ///
    /// # Errors
    /// If the lock was lost. Reads the clock itself, so that a process which was stopped for too
    /// long never gets a fence to write with.
    pub fn fence(&self) -> Result<Fence, Error> {
        self.hold.fence()
    }

    /// How far fences of this lock grow: always, or after a loss of the store's memory (a crash, a
    /// fail-over that lost writes) only as far as clocks agree. What they rest on is said by
    /// [`Promises::fencing_rests_on`](crate::contract::Promises::fencing_rests_on).
    #[must_use]
    pub fn fencing(&self) -> Fencing {
        self.hold.fencing()
    }

    /// The fence of one name of a set.
    ///
    /// # Errors
    /// If the lock was lost, or the name is not part of it.
    pub fn fence_of(&self, name: &str) -> Result<Fence, Error> {
        let fences = self.hold.fences()?;
        let mut pairs = self.names().zip(fences.as_slice());
        let found = pairs.find(|(other, _)| other.as_str() == name);
        found.map(|(_, fence)| *fence).ok_or_else(|| {
            let names: Vec<_> = self.names().map(ToString::to_string).collect();
            Error::new(ErrorKind::InvalidOption, format!("{name:?} is not part of this lock"))
                .on(self.name())
                .with_help(format!("use one of: {}", names.join(", ")))
        })
    }

    /// Resolves to the reason when the lock is lost, before another holder can be granted it.
    pub fn lost(&self) -> Lost {
        self.hold.lost()
    }

    /// Blocks the thread until the lock is lost, and returns the reason.
    #[must_use]
    pub fn blocking_lost(&self) -> Loss {
        block_on(self.lost())
    }

    /// An error if the lock is lost at this instant. Costs no call.
    ///
    /// # Errors
    /// If the lock was lost: the error says why.
    pub fn check(&self) -> Result<(), Error> {
        self.hold.check()
    }

    /// How long the lock may still be trusted without another renewal; zero when it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// How many replicas of the store had the grant before the guard was handed out, where
    /// [`Builder::replicas`](crate::Builder::replicas) asked for any; `None` where it did not.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        self.hold.replicas()
    }

    /// Runs work under the lock and drops it when the lock is lost.
    ///
    /// # Errors
    /// If the lock was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work; the lock stays with its guard.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        super::run::until_lost(self, work).await
    }
}

impl fmt::Debug for LockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}

/// What all guards have in common.
pub(super) trait AnyGuard: Deref<Target = LockStatus> + Send {
    fn new(lease: Share) -> Self;

    fn into_share(self) -> Share;
}

async fn ownership(status: &LockStatus, lease: &Share) -> Result<Ownership, Error> {
    status.check()?;
    let (core, name) = (lease.core(), status.name());
    let ask = || -> Pending<'_, Option<Ownership>> {
        if let Some(proof) = core.engine().ownership_proof() {
            return proof.ownership(name, status.claim_id());
        }
        let what = "this store has no transactions in which a lock could be checked";
        let help = "pass the fence to the resource that the lock protects, and check it there";
        let error = Error::new(ErrorKind::Unsupported, what).on(name).with_help(help);
        Box::pin(std::future::ready(Err(error)))
    };
    let found = core.limited(Verb::Inspect, ask).await?;
    found.ok_or_else(|| {
        Error::new(ErrorKind::Lost, "the lock was lost: the store no longer knows it")
            .on(name)
            .because_of(Loss::Forgotten)
    })
}

/// Declares a guard type: a lease, seen as [`LockStatus`].
macro_rules! guard {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "if unused, the lock is released at once"]
        pub struct $name {
            pub(super) status: LockStatus,
            pub(super) lease: Share,
        }

        impl AnyGuard for $name {
            fn new(lease: Share) -> Self {
                Self { status: LockStatus::new(&lease), lease }
            }

            fn into_share(self) -> Share {
                self.lease
            }
        }

        impl $name {
            /// Releases the lock and waits for the store to confirm it.
            ///
            /// # Errors
            /// `Lost` if the lock had been lost before. If the store could not be reached, the lock
            /// is released in the background, and the lease is the backstop.
            ///
            /// # Cancel safety
            /// Dropping the future still releases the lock, in the background.
            pub async fn release(self) -> Result<(), Error> {
                self.lease.release().await
            }

            /// The blocking form of [`release`](Self::release).
            ///
            /// # Errors
            /// As [`release`](Self::release).
            pub fn blocking_release(self) -> Result<(), Error> {
                block_on(self.release())
            }

            /// Where the lock stands in its store, for a comparison in a transaction of your own;
            /// of a set, its first name. One call.
            ///
            /// # Errors
            /// If the lock was lost, or the store has no transactions for this (see
            /// [`Ownership`]: etcd has).
            ///
            /// # Cancel safety
            /// Dropping the future changes nothing.
            pub async fn ownership(&self) -> Result<Ownership, Error> {
                ownership(&self.status, &self.lease).await
            }

            /// The blocking form of [`ownership`](Self::ownership).
            ///
            /// # Errors
            /// As [`ownership`](Self::ownership).
            pub fn blocking_ownership(&self) -> Result<Ownership, Error> {
                block_on(self.ownership())
            }
        }

        impl Deref for $name {
            type Target = LockStatus;

            fn deref(&self) -> &LockStatus {
                &self.status
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.status).finish()
            }
        }
    };
}

guard! {
    /// The holder of a [`Mutex`](crate::Mutex) or a [`Family`](crate::Family).
    ///
    /// A guard can be released only once: `release` takes it.
    ///
    /// ```compile_fail
    /// # async fn twice(guard: tenure::MutexGuard) {
    /// guard.release().await;
    /// guard.release().await;
    /// # }
    /// ```
    MutexGuard
}
guard! {
    /// A reader of an [`RwLock`](crate::RwLock).
    RwLockReadGuard
}
guard! {
    /// The writer of an [`RwLock`](crate::RwLock).
    RwLockWriteGuard
}
guard! {
    /// Permits of a [`Semaphore`](crate::Semaphore).
    SemaphorePermit
}
guard! {
    /// The holder of a [`LockSet`](crate::LockSet).
    LockSetGuard
}

/// Declares `depth` for the guards of locks that are re-entrant.
macro_rules! depth {
    ($($name:ident),*) => {$(
        impl $name {
            /// How many guards on this name its owner has in this process: 1 for a lock that was
            /// not entered again, 0 once it is lost. See [`scope`](crate::scope).
            ///
            /// # Examples
            /// ```
            /// # tenure::block_on(tenure::scope(async {
            /// let tenure = tenure::Tenure::connect("memory:").await?;
            /// let outer = tenure.mutex("reports")?.lock().await?;
            /// let inner = tenure.mutex("reports")?.lock().await?;
            /// assert_eq!((outer.depth(), inner.depth()), (2, 2));
            /// inner.release().await?;
            /// assert_eq!(outer.depth(), 1);
            /// # Ok::<(), tenure::Error>(()) })).unwrap();
            /// ```
            #[must_use]
            pub fn depth(&self) -> u32 {
                self.lease.depth()
            }
        }
    )*};
}
depth!(MutexGuard, RwLockReadGuard, RwLockWriteGuard);

impl RwLockReadGuard {
    /// Becomes the writer: at once if this is the only reader, otherwise ahead of the queue when
    /// the other readers have left. No other writer comes in between. The fence is a new one.
    ///
    /// # Errors
    /// An [`UpgradeError`], which holds the [`Error`] and the read guard; `?` turns it into an
    /// [`Error`] and drops the guard. [`ErrorKind::UpgradeConflict`] at once if another reader
    /// already waits to write: both could only wait for each other; the read guard is still held.
    /// `TimedOut` if the timeout expires, or `Unavailable`: the store may have made the exchange
    /// already, so the read lock is given up too, and the guard in the error is lost. `Lost` if the
    /// read lock had been lost.
    ///
    /// # Cancel safety
    /// Dropping the future gives up both the wait and the read lock.
    ///
    /// # Examples
    /// ```
    /// # use tenure::Tenure;
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let reader = tenure.rwlock("config")?.read().await?;
    /// let writer = reader.upgrade().await?;
    /// let reader = writer.downgrade().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn upgrade(self) -> Result<RwLockWriteGuard, UpgradeError<Self>> {
        let part = Part::write(self.name().clone());
        match exchange(&self.lease, part).await {
            Ok(lease) => Ok(RwLockWriteGuard::new(lease)),
            Err(error) => Err(UpgradeError { error, guard: self }),
        }
    }

    /// The blocking form of [`upgrade`](Self::upgrade).
    ///
    /// # Errors
    /// As [`upgrade`](Self::upgrade).
    pub fn blocking_upgrade(self) -> Result<RwLockWriteGuard, UpgradeError<Self>> {
        block_on(self.upgrade())
    }
}

impl RwLockWriteGuard {
    /// Becomes a reader without letting another writer in between. The fence stays.
    ///
    /// # Errors
    /// `Lost` if the lock was lost, or trouble with the store, which may have made the exchange
    /// already: the lock is given up then, and the guard in the error is lost.
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock up.
    pub async fn downgrade(self) -> Result<RwLockReadGuard, UpgradeError<Self>> {
        let part = Part::read(self.name().clone());
        match exchange(&self.lease, part).await {
            Ok(lease) => Ok(RwLockReadGuard::new(lease)),
            Err(error) => Err(UpgradeError { error, guard: self }),
        }
    }

    /// The blocking form of [`downgrade`](Self::downgrade).
    ///
    /// # Errors
    /// As [`downgrade`](Self::downgrade).
    pub fn blocking_downgrade(self) -> Result<RwLockReadGuard, UpgradeError<Self>> {
        block_on(self.downgrade())
    }
}

/// Claims `part` for the same owner; the old claim ends in the step that grants the new one.
async fn exchange(old: &Share, part: Part) -> Result<Share, Error> {
    old.hold().check()?;
    let ask = old.exchange_request(part);
    let stays = ask.replaces.is_none();
    let outcome = Arc::clone(old.core()).acquire(ask).await;
    match outcome.map_err(Error::while_holding)? {
        Outcome::Held(lease) => {
            // A hold that stayed beside the new one may have been lost meanwhile, and then somebody
            // else may have written. One that was replaced has simply ended.
            if stays {
                old.hold().check()?;
            }
            Ok(lease)
        }
        Outcome::No => Err(Error::new(ErrorKind::TimedOut, "it is held")
            .during(Verb::Claim)
            .on(old.hold().claim().parts.first_name())
            .while_holding()),
    }
}

/// An upgrade or downgrade that failed: the error, and the guard as it was. Converts into the
/// [`Error`] by `?`.
///
/// # Examples
/// ```
/// use tenure::{ErrorKind, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let reader = tenure.rwlock("config")?.read().await?;
/// match reader.upgrade().await {
///     Ok(writer) => writer.release().await?,
///     Err(failed) if failed.error.kind() == ErrorKind::UpgradeConflict => {
///         // Another reader waits to write: release, and start over as a writer.
///         failed.guard.release().await?;
///     }
///     Err(failed) => return Err(failed.into()),
/// }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
pub struct UpgradeError<G> {
    /// What went wrong.
    pub error: Error,
    /// The guard, still what it was after an `UpgradeConflict`, and lost otherwise: ask `check`.
    pub guard: G,
}

impl<G> From<UpgradeError<G>> for Error {
    /// Keeps the error and drops the guard, which gives the lock back.
    fn from(unchanged: UpgradeError<G>) -> Self {
        unchanged.error
    }
}

impl<G> fmt::Display for UpgradeError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G> fmt::Debug for UpgradeError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<G> std::error::Error for UpgradeError<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
