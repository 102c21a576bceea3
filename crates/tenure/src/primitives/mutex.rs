//! The exclusive lock: capacity 1, weight 1. Knows its name and options.

use std::future::Future;

use super::asking::Asking;
use super::guard::{Guard, Held};
use super::options::{Options, option_methods};
use super::run::under;
use crate::contract::{Error, Name, Part, Parts};
use crate::session::Session;

/// An exclusive lock with a lease, a fair line and a fence. Made by [`Tenure::mutex`].
///
/// Cheap to clone. Re-entrant for one owner inside a [`scope`](crate::scope).
///
/// [`Tenure::mutex`]: crate::Tenure::mutex
#[derive(Clone, Debug)]
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

    /// This lock as part of a set, for [`Tenure::all`](crate::Tenure::all). Only its name and
    /// kind: options belong on the set.
    #[must_use]
    pub fn part(&self) -> Part {
        Part::mutex(self.name.clone())
    }

    /// Waits until the lock is ours.
    ///
    /// # Errors
    /// `TimedOut` when the wait limit passes (with who holds it and our place in line), `Shape`
    /// if the name is in use as something else, `Unavailable` if the store cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in line; if the lock was granted meanwhile it is
    /// given back in the background.
    ///
    /// # Fairness
    /// First come, first served, across processes.
    ///
    /// # Examples
    /// ```
    /// # use tenure::Tenure;
    /// # tenure::blocking::wait(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let guard = tenure.mutex("reports")?.lock().await?;
    /// println!("fence {}", guard.fence()?);
    /// guard.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<Guard, Error>> + Send + use<> {
        self.asking(true).wait()
    }

    /// Takes the lock if it is free and nobody waits for it. Never waits: `None` is an answer.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), except that it never times out.
    ///
    /// # Cancel safety
    /// If the lock was granted meanwhile it is given back in the background.
    #[track_caller]
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<Guard>, Error>> + Send + use<> {
        self.asking(false).attempt()
    }

    /// Locks, runs the work, and releases. The work is dropped when the lock is lost.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); `Lost` if the lock was lost before the work was done, with the
    /// reason.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the lock back in the background.
    ///
    /// # Examples
    /// ```
    /// # use tenure::Tenure;
    /// # tenure::blocking::wait(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let fence = tenure.mutex("reports")?.run(|held| async move { held.fence() }).await??;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn run<W, F, T>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<W, F, T>
    where
        W: FnOnce(Held) -> F + Send,
        F: Future<Output = T> + Send,
        T: Send,
    {
        under(self.lock(), work)
    }

    #[track_caller]
    fn asking(&self, may_wait: bool) -> Asking {
        Asking::new(&self.session, &self.options, Parts::one(self.part()), may_wait)
    }
}
