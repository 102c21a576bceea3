//! The exclusive lock: the writer of a read-write lock. A name and options; `request.rs` acquires
//! it.

use std::future::Future;
use std::time::Duration;

use super::guard::{LockStatus, MutexGuard};
use super::lock_set::SetPart;
use super::options::{Options, option_methods};
use super::request::{Request, acquire_methods, try_for_methods};
use crate::contract::{Error, Name, Part, Parts};
use crate::session::{Session, Wait};

/// An exclusive lock with a lease, a fair queue and a fencing token: the writer's side of the
/// [`RwLock`](crate::RwLock) of that name. Made by [`Tenure::mutex`].
///
/// Cheap to clone. Re-entrant for one owner inside a [`scope`](crate::scope).
///
/// # Examples
/// All options, which are the same on every kind of lock; a lock needs none of them:
/// ```
/// use std::time::Duration;
///
/// # tenure::block_on(async {
/// # let tenure = tenure::Tenure::connect("memory:").await?;
/// let lock = tenure
///     .mutex("reports")?
///     .preset("batch") // what is set explicitly wins
///     .lease(Duration::from_secs(10)) // without a renewal
///     .timeout(Duration::from_secs(5)) // of the wait; or `no_timeout`
///     .max_hold(Duration::from_secs(600))
///     .lock_delay(Duration::from_secs(1)) // after an expired lease
///     .label("nightly") // shown by `tenure ls`
///     .owner(&tenure::Owner::new()); // re-enters what this owner holds
/// lock.lock().await?.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
///
/// [`Tenure::mutex`]: crate::Tenure::mutex
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Mutex {
    session: Session,
    name: Name,
    options: Options,
}

impl Mutex {
    pub(super) fn new(session: Session, name: Name, options: Options) -> Self {
        Self { session, name, options }
    }

    option_methods!();

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// This lock as part of a set, for [`Tenure::lock_set`](crate::Tenure::lock_set). Options are
    /// set on the set: it refuses the part of a lock that has options of its own.
    pub fn part(&self) -> SetPart {
        SetPart::new(Part::write(self.name.clone()), &self.options)
    }

    acquire_methods! {
        MutexGuard, request(), "the lock", "tenure.mutex(\"reports\")?", "", "",
        /// # Fairness
        /// First come, first served, across processes.
        lock, try_lock, run, blocking_lock, blocking_try_lock, blocking_run,
    }

    try_for_methods! {
        MutexGuard, request(), "the lock", "tenure.mutex(\"reports\")?", "", "",
        try_lock_for, blocking_try_lock_for,
    }

    #[track_caller]
    fn request(&self, wait: Option<Wait>) -> Request {
        Request::new(
            &self.session,
            &self.options,
            Ok(Parts::one(Part::write(self.name.clone()))),
            wait,
        )
    }
}
