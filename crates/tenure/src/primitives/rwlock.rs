//! The read-write lock: a reader weighs 1, a writer everything. A name and options; `request.rs`
//! acquires it.

use std::future::Future;
use std::time::Duration;

use super::guard::{LockStatus, RwLockReadGuard, RwLockWriteGuard};
use super::lock_set::SetPart;
use super::options::{Options, option_methods};
use super::request::{Request, acquire_methods, try_for_methods};
use crate::contract::{Error, Name, Part, Parts};
use crate::session::{Session, Wait};

/// Many readers or one writer. Made by [`Tenure::rwlock`](crate::Tenure::rwlock).
///
/// Neither starves the other: readers and writers wait in one queue, and readers that arrive behind
/// a waiting writer wait for it. A reader may [upgrade](RwLockReadGuard::upgrade), a writer may
/// [downgrade](RwLockWriteGuard::downgrade).
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct RwLock {
    session: Session,
    name: Name,
    options: Options,
}

impl RwLock {
    pub(super) fn new(session: Session, name: Name, options: Options) -> Self {
        Self { session, name, options }
    }

    option_methods!();

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// A reader as part of a set, for [`Tenure::lock_set`](crate::Tenure::lock_set). Options are
    /// set on the set: it refuses the part of a lock that has options of its own.
    pub fn read_part(&self) -> SetPart {
        SetPart::new(Part::read(self.name.clone()), &self.options)
    }

    /// The writer as part of a set, for [`Tenure::lock_set`](crate::Tenure::lock_set). Options are
    /// set on the set: it refuses the part of a lock that has options of its own.
    pub fn write_part(&self) -> SetPart {
        SetPart::new(Part::write(self.name.clone()), &self.options)
    }

    acquire_methods! {
        RwLockReadGuard, read_request(), "a read lock", "tenure.rwlock(\"config\")?", "", "",
        /// # Fairness
        /// First come, first served, readers and writers in one queue.
        read, try_read, run_read, blocking_read, blocking_try_read, blocking_run_read,
    }

    try_for_methods! {
        RwLockReadGuard, read_request(), "a read lock", "tenure.rwlock(\"config\")?", "", "",
        try_read_for, blocking_try_read_for,
    }

    acquire_methods! {
        RwLockWriteGuard, write_request(), "the write lock", "tenure.rwlock(\"config\")?", "", "",
        /// Inside a scope that already reads, this is an upgrade: it fails with `UpgradeConflict`
        /// if another reader already waits to write.
        ///
        /// # Fairness
        /// First come, first served, readers and writers in one queue.
        write, try_write, run_write, blocking_write, blocking_try_write, blocking_run_write,
    }

    try_for_methods! {
        RwLockWriteGuard, write_request(), "the write lock", "tenure.rwlock(\"config\")?", "", "",
        try_write_for, blocking_try_write_for,
    }

    #[track_caller]
    fn read_request(&self, wait: Option<Wait>) -> Request {
        Request::new(
            &self.session,
            &self.options,
            Ok(Parts::one(Part::read(self.name.clone()))),
            wait,
        )
    }

    #[track_caller]
    fn write_request(&self, wait: Option<Wait>) -> Request {
        Request::new(
            &self.session,
            &self.options,
            Ok(Parts::one(Part::write(self.name.clone()))),
            wait,
        )
    }
}
