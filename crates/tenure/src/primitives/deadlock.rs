//! What users call about deadlocks: look for them, and run work again that was refused as a victim.

use std::future::Future;

#[cfg(feature = "postgres")]
use super::guard::LockSetGuard;
#[cfg(feature = "postgres")]
use super::owner::Owner;
use super::owner::scope;
use super::tenure::Tenure;
use crate::contract::{Error, ErrorKind};
#[cfg(feature = "postgres")]
use crate::contract::{Name, Part};
use crate::deadlock::Deadlock;
use crate::limits;
use crate::session::{block_on, sleep_until};

impl Tenure {
    /// Finds the deadlocks of the namespace: owners of any process that hold locks and wait for
    /// each
    /// other for ever. Refuses nothing. Also finds what looks like one and is never broken: among
    /// locks that one task took without a scope
    /// ([`Deadlock::by_task`](crate::deadlock::Deadlock::by_task)), and through owners that are
    /// nested in others ([`Deadlock::by_nesting`](crate::deadlock::Deadlock::by_nesting)).
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached, `Closed` after [`close`](Self::close).
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// for deadlock in tenure.deadlocks().await? {
    ///     println!("{}", deadlock.words());
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn deadlocks(&self) -> Result<Vec<Deadlock>, Error> {
        self.session.core().all_deadlocks().await
    }

    /// The blocking form of [`deadlocks`](Self::deadlocks).
    ///
    /// # Errors
    /// As [`deadlocks`](Self::deadlocks).
    pub fn blocking_deadlocks(&self) -> Result<Vec<Deadlock>, Error> {
        block_on(self.deadlocks())
    }

    /// Says that an owner uses a connection to the database of this session, by the process of the
    /// server and its start in microseconds. For the crate `tenure-postgres`, which documents it.
    ///
    /// # Errors
    /// As those of a lock that is free.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    #[cfg(feature = "postgres")]
    #[doc(hidden)]
    pub async fn name_backend(
        &self,
        owner: &Owner,
        pid: i32,
        started: i64,
    ) -> Result<LockSetGuard, Error> {
        // Readers of one name never exclude each other.
        let part = Part::read(Name::reserved_for_backend(pid, started));
        self.lock_set([part])?.owner(owner).lock().await
    }

    /// Runs work in a scope, and again from the beginning if one of its locks was refused to break
    /// a
    /// deadlock: after its guards are gone and a pause with jitter, at most 16 times. Each run has
    /// a
    /// scope of its own, so that its locks have one owner and the detector can see what it holds.
    ///
    /// The work has to be undone by itself when it is dropped or returns the error: what it did
    /// under
    /// locks that it held before the refusal is done again.
    ///
    /// # Errors
    /// What the work returns; `Deadlock` only if it was refused in every run.
    ///
    /// # Cancel safety
    /// As safe as the work itself.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let moved = tenure
    ///     .retry_on_deadlock(|| async {
    ///         let _from = tenure.mutex("account:1")?.lock().await?;
    ///         let _to = tenure.mutex("account:2")?.lock().await?;
    ///         Ok(42)
    ///     })
    ///     .await?;
    /// assert_eq!(moved, 42);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn retry_on_deadlock<T, F>(&self, mut work: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut refused = 0;
        loop {
            match scope(work()).await {
                Err(error)
                    if error.kind() == ErrorKind::Deadlock
                        && refused < limits::DEADLOCK_RETRIES =>
                {
                    refused += 1;
                    let core = self.session.core();
                    sleep_until(core, core.now() + core.pause(refused)).await;
                }
                done => return done,
            }
        }
    }
}
