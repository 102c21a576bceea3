//! The coarse lock: one lock for a whole family of names. Knows a pattern and options.

use std::future::Future;

use super::asking::Asking;
use super::guard::{Guard, Held};
use super::options::{Options, option_methods};
use super::run::under;
use crate::contract::{Error, ErrorKind, Name, Part, Parts, Pattern};
use crate::session::Session;

/// One lock that covers a family of names, for those who prefer simplicity over parallel work.
/// Made by [`Tenure::family`](crate::Tenure::family).
///
/// All members share one lock, whose name is the pattern itself. Locks taken by a member's own
/// name do not know of it: use either the family or its members, not both.
#[derive(Clone, Debug)]
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

    /// Waits until the family's lock is ours, for work on this member. The member is shown as the
    /// label unless there is one.
    ///
    /// # Errors
    /// `InvalidName` if the member does not belong to the family; otherwise as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in line; if the lock was granted meanwhile it is
    /// given back in the background.
    ///
    /// # Fairness
    /// First come, first served over all members.
    ///
    /// # Examples
    /// ```
    /// # use tenure::Tenure;
    /// # tenure::blocking::wait(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let accounts = tenure.family("account:*")?;
    /// let guard = accounts.lock("account:17").await?;
    /// assert!(accounts.try_lock("account:18").await?.is_none());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn lock(&self, member: &str) -> impl Future<Output = Result<Guard, Error>> + Send + use<> {
        self.asking(member, true).wait()
    }

    /// Takes the family's lock if it is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), except that it never times out.
    ///
    /// # Cancel safety
    /// If the lock was granted meanwhile it is given back in the background.
    #[track_caller]
    pub fn try_lock(
        &self,
        member: &str,
    ) -> impl Future<Output = Result<Option<Guard>, Error>> + Send + use<> {
        self.asking(member, false).attempt()
    }

    /// Runs work under the family's lock; it is dropped when the lock is lost.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); `Lost` if the lock was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the lock back in the background.
    #[track_caller]
    pub fn run<W, F, T>(
        &self,
        member: &str,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<W, F, T>
    where
        W: FnOnce(Held) -> F + Send,
        F: Future<Output = T> + Send,
        T: Send,
    {
        under(self.lock(member), work)
    }

    #[track_caller]
    fn asking(&self, member: &str, may_wait: bool) -> Asking {
        if let Err(error) = Name::try_from(member) {
            return Asking::failed(&self.session, error);
        }
        if !self.covers(member) {
            let what = format!("{member:?} does not belong to this family");
            let error = Error::new(ErrorKind::InvalidName, what).on(&self.name);
            return Asking::failed(&self.session, error.next("lock it by its own name"));
        }
        let mut options = self.options.clone();
        if options.label.is_none() && member.len() <= crate::limits::LABEL_BYTES {
            options.set_label(member);
        }
        let parts = Parts::one(Part::mutex(self.name.clone()));
        Asking::new(&self.session, &options, parts, may_wait)
    }
}
