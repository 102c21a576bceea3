//! The counting semaphore: N permits, taken k at a time. Knows its name, size and options.

use std::future::Future;

use super::asking::Asking;
use super::guard::{Held, Permit};
use super::options::{Options, option_methods};
use super::run::under;
use crate::contract::{Error, Name, Part, Parts};
use crate::session::Session;

/// At most N holders at once, each with its own lease. Made by
/// [`Tenure::semaphore`](crate::Tenure::semaphore).
///
/// Permits add up: an owner that takes one and then another holds two.
#[derive(Clone, Debug)]
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

    /// `permits` of it as part of a set, for [`Tenure::all`](crate::Tenure::all).
    ///
    /// # Errors
    /// If that is none, or more than there are.
    pub fn permits(&self, permits: u32) -> Result<Part, Error> {
        Part::permits(self.name.clone(), permits, self.permits)
    }

    /// Waits until `permits` permits are ours, all at once.
    ///
    /// # Errors
    /// `InvalidOption` for no permits or more than there are, `TimedOut` when the wait limit
    /// passes, `Shape` if the name is in use with another size or as something else,
    /// `Unavailable` if the store cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in line; permits granted meanwhile are given back in
    /// the background.
    ///
    /// # Fairness
    /// First come, first served: a claim for many permits is not overtaken by claims for few.
    ///
    /// # Examples
    /// ```
    /// # use tenure::Tenure;
    /// # tenure::blocking::wait(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let permit = tenure.semaphore("encoders", 3)?.acquire(1).await?;
    /// # permit.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn acquire(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<Permit, Error>> + Send + use<> {
        self.asking(permits, true).wait()
    }

    /// Takes permits if that many are free and nobody waits. Never waits.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), except that it never times out.
    ///
    /// # Cancel safety
    /// Permits granted meanwhile are given back in the background.
    #[track_caller]
    pub fn try_acquire(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<Option<Permit>, Error>> + Send + use<> {
        self.asking(permits, false).attempt()
    }

    /// Runs work under one permit; it is dropped when the permit is lost.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); `Lost` if the permit was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the permit back in the background.
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
        under(self.acquire(1), work)
    }

    #[track_caller]
    fn asking(&self, permits: u32, may_wait: bool) -> Asking {
        match self.permits(permits) {
            Ok(part) => Asking::new(&self.session, &self.options, Parts::one(part), may_wait),
            Err(error) => Asking::failed(&self.session, error),
        }
    }
}
