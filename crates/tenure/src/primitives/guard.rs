//! Guards: the right to act, in a value. Knows how to ask and how to give back, not how it was got.
//!
//! Guards are owned and `Send`. Dropping one asks for release in the background and returns at
//! once: the name may stay taken for the moment that takes, or, if the store cannot be reached, for
//! the rest of the lease. `release().await` confirms.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{
    ClaimId, Error, ErrorKind, Fence, Fencing, Loss, Name, Ownership, Part, Verb,
};
use crate::session::{Hold, Lease, Lost, Outcome};

/// A held lock as its holder sees it: fence, time left, loss. Cheap to clone; a clone only
/// watches, it does not keep the lock.
#[derive(Clone)]
pub struct Held {
    hold: Arc<Hold>,
}

impl Held {
    pub(super) fn new(lease: &Lease) -> Self {
        Self { hold: Arc::clone(lease.hold()) }
    }

    /// A handle of its own that watches the lock without keeping it.
    #[must_use]
    pub fn held(&self) -> Self {
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
                .next(format!("use one of: {}", names.join(", ")))
        })
    }

    /// Resolves to the reason when the lock is lost, before anybody else can hold it.
    pub fn lost(&self) -> Lost {
        self.hold.lost()
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

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}

/// What all guards have in common.
pub(super) trait AnyGuard: Deref<Target = Held> + Send {
    fn new(lease: Lease) -> Self;

    fn into_lease(self) -> Lease;
}

async fn ownership(held: &Held, lease: &Lease) -> Result<Ownership, Error> {
    held.check()?;
    let (core, name) = (lease.core(), held.name());
    let asked = core.engine().ownership(name, held.claim_id());
    let found = core.limited(Verb::Inspect, asked).await?;
    found.ok_or_else(|| {
        Error::new(ErrorKind::Lost, "the lock was lost: the store no longer knows it")
            .on(name)
            .because_of(Loss::Forgotten)
    })
}

/// Declares a guard type: a lease, seen as [`Held`].
macro_rules! guard {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "if unused, the lock is released at once"]
        pub struct $name {
            pub(super) held: Held,
            pub(super) lease: Lease,
        }

        impl AnyGuard for $name {
            fn new(lease: Lease) -> Self {
                Self { held: Held::new(&lease), lease }
            }

            fn into_lease(self) -> Lease {
                self.lease
            }
        }

        impl $name {

            /// Gives the lock back and waits for the store's word.
            ///
            /// # Errors
            /// If the lock had been lost before, or the store could not be reached; then it is
            /// released in the background, and the lease is the backstop.
            ///
            /// # Cancel safety
            /// Dropping the future still gives the lock back, in the background.
            pub async fn release(self) -> Result<(), Error> {
                self.lease.release().await
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
                ownership(&self.held, &self.lease).await
            }
        }

        impl Deref for $name {
            type Target = Held;

            fn deref(&self) -> &Held {
                &self.held
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.held).finish()
            }
        }
    };
}

guard! {
    /// The one holder of a mutex.
    ///
    /// A guard can be released only once: `release` takes it.
    ///
    /// ```compile_fail
    /// # async fn twice(guard: tenure::Guard) {
    /// guard.release().await;
    /// guard.release().await;
    /// # }
    /// ```
    Guard
}
guard! {
    /// A reader of a read-write lock.
    ReadGuard
}
guard! {
    /// The one writer of a read-write lock.
    WriteGuard
}
guard! {
    /// Permits of a semaphore.
    Permit
}
guard! {
    /// The holder of several locks at once, taken and given back together.
    SetGuard
}

impl ReadGuard {
    /// Becomes the writer: at once if this is the only reader, otherwise ahead of the line when the
    /// other readers have left. Nobody writes in between. The fence is a new one.
    ///
    /// # Errors
    /// [`ErrorKind::UpgradeConflict`] at once if another reader already waits to write: both could
    /// only wait for each other; the error brings the read guard back as it was. `TimedOut` when
    /// the wait limit passes, or trouble with the store: the store may have made the exchange
    /// already, so the read lock is given up too, and the guard in the error is lost. `Lost` if the
    /// read lock had been lost.
    ///
    /// # Cancel safety
    /// Dropping the future gives up both the wait and the read lock.
    ///
    /// # Examples
    /// ```
    /// # use tenure::Tenure;
    /// # tenure::blocking::wait(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let reader = tenure.rwlock("config")?.read().await?;
    /// let writer = reader.upgrade().await?;
    /// let reader = writer.downgrade().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn upgrade(self) -> Result<WriteGuard, Unchanged<Self>> {
        let part = Part::write(self.name().clone());
        match exchange(&self.lease, part).await {
            Ok(lease) => Ok(WriteGuard::new(lease)),
            Err(error) => Err(Unchanged { error, guard: self }),
        }
    }
}

impl WriteGuard {
    /// Becomes a reader without letting another writer in between. The fence stays.
    ///
    /// # Errors
    /// `Lost` if the lock was lost, or trouble with the store, which may have made the exchange
    /// already: the lock is given up then, and the guard in the error is lost.
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock up.
    pub async fn downgrade(self) -> Result<ReadGuard, Unchanged<Self>> {
        let part = Part::read(self.name().clone());
        match exchange(&self.lease, part).await {
            Ok(lease) => Ok(ReadGuard::new(lease)),
            Err(error) => Err(Unchanged { error, guard: self }),
        }
    }
}

/// Claims `part` for the same owner; the old claim ends in the step that grants the new one.
async fn exchange(old: &Lease, part: Part) -> Result<Lease, Error> {
    old.hold().check()?;
    let ask = old.ask_instead(part);
    let stays = ask.replaces.is_none();
    match Arc::clone(old.core()).acquire(ask).await? {
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
            .on(old.hold().claim().parts.first_name())),
    }
}

/// An upgrade or downgrade that did not happen: the error, and the guard as it was.
pub struct Unchanged<G> {
    /// What went wrong.
    pub error: Error,
    /// The guard, still what it was after an `UpgradeConflict`, and lost otherwise: ask `check`.
    pub guard: G,
}

impl<G> From<Unchanged<G>> for Error {
    /// Keeps the error and drops the guard, which gives the lock back.
    fn from(unchanged: Unchanged<G>) -> Self {
        unchanged.error
    }
}

impl<G> fmt::Display for Unchanged<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G> fmt::Debug for Unchanged<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<G> std::error::Error for Unchanged<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
