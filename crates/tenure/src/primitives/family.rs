//! The coarse lock: one lock for a whole family of names. A pattern and options; `request.rs`
//! acquires it.

use std::future::Future;
use std::time::Duration;

use super::guard::{LockStatus, MutexGuard};
use super::options::{Options, option_methods};
use super::request::{Request, acquire_methods, try_for_methods};
use crate::contract::{Error, ErrorKind, Name, Part, Parts, Pattern};
use crate::session::{Session, Wait};

/// One lock that covers a family of names, for programs that prefer simplicity over parallel work.
/// Made by [`Tenure::family`](crate::Tenure::family).
///
/// All members share one lock, whose name is the pattern itself. Locks acquired by a member's own
/// name do not know of it: use either the family or its members, not both.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Family {
    session: Session,
    name: Name,
    pattern: Pattern,
    options: Options,
}

impl Family {
    pub(super) fn new(session: Session, name: Name, options: Options) -> Self {
        let pattern = Pattern::new(name.as_str());
        Self { session, name, pattern, options }
    }

    option_methods!();

    /// The name of the lock: the pattern.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Whether a name belongs to the family.
    #[must_use]
    pub fn covers(&self, member: &str) -> bool {
        self.pattern.matches(member)
    }

    acquire_methods! {
        MutexGuard, request(member: &str), "the family's lock", "tenure.family(\"account:*\")?",
        "\"account:17\"", "\"account:17\", ",
        /// The member is shown as the label unless the lock has one. `InvalidName` if the member
        /// does not belong to the family.
        ///
        /// # Fairness
        /// First come, first served over all members.
        lock, try_lock, run, blocking_lock, blocking_try_lock, blocking_run,
    }

    try_for_methods! {
        MutexGuard, request(member: &str), "the family's lock", "tenure.family(\"account:*\")?",
        "\"account:17\"", "\"account:17\", ",
        try_lock_for, blocking_try_lock_for,
    }

    #[track_caller]
    fn request(&self, member: &str, wait: Option<Wait>) -> Request {
        let mut options = self.options.clone();
        if options.label.is_none() && member.len() <= crate::limits::LABEL_BYTES {
            options.set_label(member);
        }
        Request::new(&self.session, &options, self.parts_for(member), wait)
    }

    fn parts_for(&self, member: &str) -> Result<Parts, Error> {
        Name::try_from(member)?;
        if !self.covers(member) {
            let what = format!("{member:?} does not belong to this family");
            let error = Error::new(ErrorKind::InvalidName, what).on(&self.name);
            return Err(error.with_help("lock it by its own name"));
        }
        Ok(Parts::one(Part::write(self.name.clone())))
    }
}
