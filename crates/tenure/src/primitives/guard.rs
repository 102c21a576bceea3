//! Guards: a held lock as a value. A guard is one share of a lease, seen as a [`LockStatus`].
//!
//! Guards are owned and `Send`. Dropping one requests the release in the background and returns at
//! once: the name may stay taken for the moment that takes, or, if the store cannot be reached, for
//! the rest of the lease. `release().await` confirms.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use crate::contract::{
    ClaimId, Error, ErrorKind, Fence, Fencing, Loss, Name, Ownership, Pending, Verb,
};
use crate::order::HoldMark;
pub use crate::session::LockStatus;
use crate::session::{Lost, Share, block_on};

impl LockStatus {
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

    /// Resolves to the reason when the lock is lost, before another holder can be granted it. See
    /// [`LockStatus`] for an example.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn lost(&self) -> Lost {
        self.hold.lost()
    }

    /// Blocks the thread until the lock is lost, and returns the reason: the blocking form of
    /// [`lost`](Self::lost).
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
    fn new(lease: Share, mark: Option<HoldMark>) -> Self;

    fn into_share(self) -> Share;
}

async fn ownership(lease: &Share) -> Result<Ownership, Error> {
    let status = lease.status();
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
            pub(super) lease: Share,
            /// The place of this guard in the order checker's table, where there is a checker.
            pub(super) mark: Option<HoldMark>,
        }

        impl AnyGuard for $name {
            fn new(lease: Share, mark: Option<HoldMark>) -> Self {
                Self { lease, mark }
            }

            fn into_share(self) -> Share {
                self.lease
            }
        }

        impl $name {
            /// Releases the lock and waits for the store to confirm it.
            #[doc = concat!("[`", stringify!($name), "`] has an example.")]
            ///
            /// # Errors
            /// `Lost` if the lock had been lost before. If the store could not be reached, the lock
            /// is released in the background, and the lease is the backstop.
            ///
            /// # Cancel safety
            /// Dropping the future still releases the lock, in the background.
            pub async fn release(self) -> Result<(), Error> {
                // It stops counting as held now, also for what is acquired meanwhile.
                drop(self.mark);
                self.lease.release().await
            }

            /// The blocking form of [`release`](Self::release).
            ///
            /// # Errors
            /// As [`release`](Self::release).
            pub fn blocking_release(self) -> Result<(), Error> {
                block_on(self.release())
            }

            /// Says that this guard leaves the flow of its owner: it moves to another task, or to
            /// another part of the program that may release it while the owner waits. Until the
            /// guard is released, the owner counts as able to run, so that no deadlock is seen
            /// where there is none. With an order checker, the flow no longer holds the lock; so
            /// say it also of a guard that was acquired outside a scope and leaves its task or
            /// thread. An upgrade or downgrade makes a new guard: say it again.
            ///
            /// # Errors
            /// If the store cannot be reached, or the session is closed.
            ///
            /// # Cancel safety
            /// Dropping the future leaves the guard as it was.
            ///
            /// # Examples
            /// ```
            /// # tenure::block_on(async {
            /// let tenure = tenure::Tenure::connect("memory:").await?;
            /// let guard = tenure::scope(async {
            ///     let mut guard = tenure.mutex("reports")?.lock().await?;
            ///     guard.detach().await?; // it outlives the scope
            ///     Ok::<_, tenure::Error>(guard)
            /// })
            /// .await?;
            /// guard.release().await?;
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            pub async fn detach(&mut self) -> Result<(), Error> {
                self.lease.detach().await?;
                if let Some(mark) = &self.mark {
                    mark.leave_flow();
                }
                Ok(())
            }

            /// The blocking form of [`detach`](Self::detach).
            ///
            /// # Errors
            /// As [`detach`](Self::detach).
            pub fn blocking_detach(&mut self) -> Result<(), Error> {
                block_on(self.detach())
            }

            /// Where the lock stands in its store, for a comparison in a transaction of your own;
            /// of a set, its first name. One call. [`Ownership`] has an example.
            ///
            /// # Errors
            /// If the lock was lost, or the store has no transactions for this (see
            /// [`Ownership`]: etcd has).
            ///
            /// # Cancel safety
            /// Dropping the future changes nothing.
            pub async fn ownership(&self) -> Result<Ownership, Error> {
                ownership(&self.lease).await
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
                self.lease.status()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(self.lease.status()).finish()
            }
        }
    };
}

guard! {
    /// The holder of a [`Mutex`](crate::Mutex) or a [`Family`](crate::Family).
    ///
    /// Dropping it releases the lock in the background.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let guard = tenure.mutex("reports")?.lock().await?;
    /// println!("write with fence {}", guard.fence()?); // an error once the lock is lost
    /// guard.release().await?; // confirmed by the store
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    MutexGuard
}
guard! {
    /// A reader of an [`RwLock`](crate::RwLock).
    ///
    /// Dropping it releases the lock in the background.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let config = tenure.rwlock("config")?;
    /// let (one, two) = (config.read().await?, config.read().await?);
    /// assert!(config.try_write().await?.is_none());
    /// one.release().await?;
    /// two.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    RwLockReadGuard
}
guard! {
    /// The writer of an [`RwLock`](crate::RwLock).
    ///
    /// Dropping it releases the lock in the background.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let writer = tenure.rwlock("config")?.write().await?;
    /// assert!(tenure.mutex("config")?.try_lock().await?.is_none()); // the same lock
    /// writer.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    RwLockWriteGuard
}
guard! {
    /// Permits of a [`Semaphore`](crate::Semaphore).
    ///
    /// Dropping it releases the permits in the background.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let encoders = tenure.semaphore("encoders", 3)?;
    /// let (one, two) = (encoders.acquire().await?, encoders.acquire_many(2).await?);
    /// assert!(encoders.try_acquire().await?.is_none());
    /// one.release().await?;
    /// two.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    SemaphorePermit
}
guard! {
    /// The holder of a [`LockSet`](crate::LockSet).
    ///
    /// Dropping it releases all its locks in the background.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let parts = [tenure.mutex("account:1")?.part(), tenure.mutex("account:2")?.part()];
    /// let both = tenure.lock_set(parts)?.lock().await?;
    /// println!("write account 2 with fence {}", both.fence_of("account:2")?);
    /// both.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    LockSetGuard
}

/// Declares `depth` for the guards of locks that are re-entrant.
macro_rules! depth {
    ($($name:ident),*) => {$(
        impl $name {
            /// How many guards on this name its owner has in this process: 1 for a lock that was
            /// not entered again, 0 once it is lost. See [`scope`](crate::scope) for an example.
            #[must_use]
            pub fn depth(&self) -> u32 {
                self.lease.depth()
            }
        }
    )*};
}
depth!(MutexGuard, RwLockReadGuard, RwLockWriteGuard);
