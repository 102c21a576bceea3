//! The exclusive lock: capacity 1, weight 1. A name and options; `request.rs` acquires it.

use std::future::Future;
use std::time::Duration;

use super::guard::{LockStatus, MutexGuard};
use super::options::{Options, option_methods};
use super::request::{Request, acquire_methods, try_for_methods};
use crate::contract::{Error, Name, Part, Parts};
use crate::session::{Session, Wait};

/// An exclusive lock with a lease, a fair queue and a fencing token. Made by [`Tenure::mutex`].
///
/// Cheap to clone. Re-entrant for one owner inside a [`scope`](crate::scope).
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

    /// This lock as part of a set, for [`Tenure::lock_set`](crate::Tenure::lock_set). Only its name
    /// and kind: options belong on the set.
    #[must_use]
    pub fn part(&self) -> Part {
        Part::write(self.name.clone())
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
        Request::new(&self.session, &self.options, Ok(Parts::one(self.part())), wait)
    }
}
