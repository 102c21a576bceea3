//! The counting semaphore: N permits, taken k at a time. A name, a size and options; `request.rs`
//! acquires it.

use std::future::Future;
use std::time::Duration;

use super::guard::{LockStatus, SemaphorePermit};
use super::lock_set::SetPart;
use super::options::{Options, option_methods};
use super::request::{Request, acquire_methods, try_for_methods};
use crate::contract::{Error, Name, Part, Parts, Query, Verb};
use crate::session::{Session, Wait, block_on};

/// At most N permits at once, each acquisition with its own lease. Made by
/// [`Tenure::semaphore`](crate::Tenure::semaphore).
///
/// Permits add up: an owner that takes one and then another holds two.
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until permits are acquired"]
pub struct Semaphore {
    session: Session,
    name: Name,
    permits: u32,
    options: Options,
}

impl Semaphore {
    pub(super) fn new(
        session: Session,
        name: Name,
        permits: u32,
        options: Options,
    ) -> Result<Self, Error> {
        // Checks the capacity: one permit fits into any semaphore that makes sense.
        Part::permits(name.clone(), 1, permits)?;
        Ok(Self { session, name, permits, options })
    }

    option_methods!();

    /// The semaphore's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// How many permits there are in all.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.permits
    }

    /// `permits` permits as part of a set, for [`Tenure::lock_set`](crate::Tenure::lock_set).
    /// Options are set on the set: it refuses the part of a semaphore that has options of its own.
    ///
    /// # Errors
    /// `InvalidOption` for no permits or more than there are.
    pub fn part(&self, permits: u32) -> Result<SetPart, Error> {
        Ok(SetPart::new(self.take(permits)?, &self.options))
    }

    /// How many permits are free at the store: one call, and out of date when it returns. Claims
    /// that wait in the queue come first, so a try may fail although permits are free.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached, `Closed` after
    /// [`Tenure::close`](crate::Tenure::close).
    ///
    /// # Cancel safety
    /// Inspecting changes nothing.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let encoders = tenure.semaphore("encoders", 3)?;
    /// let permits = encoders.acquire_many(2).await?;
    /// assert_eq!(encoders.available_permits().await?, 1);
    /// # permits.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn available_permits(&self) -> Result<u32, Error> {
        let (core, query) = (self.session.core(), Query::Slot(self.name.clone()));
        let seen = core.limited(Verb::Inspect, || core.engine().inspect(&query)).await?;
        let holders = seen.slots.iter().flat_map(|slot| &slot.holders);
        let taken = holders.fold(0_u32, |sum, holder| sum.saturating_add(holder.weight));
        Ok(self.permits.saturating_sub(taken))
    }

    /// The blocking form of [`available_permits`](Self::available_permits): see there for an
    /// example.
    ///
    /// # Errors
    /// As [`available_permits`](Self::available_permits).
    pub fn blocking_available_permits(&self) -> Result<u32, Error> {
        block_on(self.available_permits())
    }

    acquire_methods! {
        SemaphorePermit, one(), "one permit", "tenure.semaphore(\"encoders\", 3)?", "", "",
        /// # Fairness
        /// First come, first served: a claim for many permits is not overtaken by claims for few.
        acquire, try_acquire, run, blocking_acquire, blocking_try_acquire, blocking_run,
    }

    try_for_methods! {
        SemaphorePermit, one(), "one permit", "tenure.semaphore(\"encoders\", 3)?", "", "",
        try_acquire_for, blocking_try_acquire_for,
    }

    acquire_methods! {
        SemaphorePermit, many(permits: u32), "several permits at once",
        "tenure.semaphore(\"encoders\", 3)?", "2", "2, ",
        /// `InvalidOption` for no permits or more than there are.
        ///
        /// # Fairness
        /// First come, first served: a claim for many permits is not overtaken by claims for few.
        acquire_many, try_acquire_many, run_many,
        blocking_acquire_many, blocking_try_acquire_many, blocking_run_many,
    }

    try_for_methods! {
        SemaphorePermit, many(permits: u32), "several permits at once",
        "tenure.semaphore(\"encoders\", 3)?", "2", "2, ",
        try_acquire_many_for, blocking_try_acquire_many_for,
    }

    fn take(&self, permits: u32) -> Result<Part, Error> {
        Part::permits(self.name.clone(), permits, self.permits)
    }

    #[track_caller]
    fn one(&self, wait: Option<Wait>) -> Request {
        self.many(1, wait)
    }

    #[track_caller]
    fn many(&self, permits: u32, wait: Option<Wait>) -> Request {
        Request::new(&self.session, &self.options, self.take(permits).map(Parts::one), wait)
    }
}
