//! Upgrade and downgrade of a read-write lock: a guard of one kind becomes one of the other.
//!
//! The new claim names the old one as what it replaces, and the store exchanges them in one step.
//! After a call that failed midway it is not known which of the two the store has, so both are
//! given up, except where the store refused the exchange.

use std::fmt;
use std::future::Future;
use std::panic::Location;

use super::guard::{AnyGuard, RwLockReadGuard, RwLockWriteGuard};
use super::ordered::OrderedRequest;
use crate::contract::{Error, ErrorKind, Part, Verb};
use crate::order::HoldMark;
use crate::session::{Outcome, Share, block_on};

impl RwLockReadGuard {
    /// Becomes the writer: at once if this is the only reader, otherwise ahead of the queue when
    /// the other readers have left. No other writer comes in between. The fence is a new one.
    ///
    /// # Errors
    /// An [`UpgradeError`], which holds the [`Error`] and the read guard; `?` turns it into an
    /// [`Error`] and drops the guard. [`ErrorKind::UpgradeConflict`] at once if another reader
    /// already waits to write: both could only wait for each other; the read guard is still held.
    /// [`ErrorKind::Order`] if it is against the order of locks: the read guard is still held.
    /// `TimedOut` if the timeout expires, or `Unavailable`: the store may have made the exchange
    /// already, so the read lock is given up too, and the guard in the error is lost. `Lost` if the
    /// read lock had been lost.
    ///
    /// # Cancel safety
    /// Dropping the future gives up both the wait and the read lock.
    ///
    /// # Examples
    /// ```
    /// # use tenure::Tenure;
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let reader = tenure.rwlock("config")?.read().await?;
    /// let writer = reader.upgrade().await?;
    /// let reader = writer.downgrade().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn upgrade(
        self,
    ) -> impl Future<Output = Result<RwLockWriteGuard, UpgradeError<Self>>> + Send {
        let place = Location::caller();
        async move {
            let part = Part::write(self.name().clone());
            match exchange(&self.lease, part, self.mark.as_ref().map(|mark| (mark, place))).await {
                Ok(lease) => {
                    let mark = moved(self.mark, &lease);
                    Ok(RwLockWriteGuard::new(lease, mark))
                }
                Err(error) => Err(UpgradeError { error, guard: self }),
            }
        }
    }

    /// The blocking form of [`upgrade`](Self::upgrade): see there for an example.
    ///
    /// # Errors
    /// As [`upgrade`](Self::upgrade).
    #[track_caller]
    pub fn blocking_upgrade(self) -> Result<RwLockWriteGuard, UpgradeError<Self>> {
        block_on(self.upgrade())
    }
}

impl RwLockWriteGuard {
    /// Becomes a reader without letting another writer in between. The fence stays.
    ///
    /// # Errors
    /// `Lost` if the lock was lost, or trouble with the store, which may have made the exchange
    /// already: the lock is given up then, and the guard in the error is lost.
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock up.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let writer = tenure.rwlock("config")?.write().await?;
    /// let reader = writer.downgrade().await?;
    /// assert!(tenure.rwlock("config")?.try_read().await?.is_some());
    /// # reader.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn downgrade(self) -> Result<RwLockReadGuard, UpgradeError<Self>> {
        let part = Part::read(self.name().clone());
        match exchange(&self.lease, part, None).await {
            Ok(lease) => {
                let mark = moved(self.mark, &lease);
                Ok(RwLockReadGuard::new(lease, mark))
            }
            Err(error) => Err(UpgradeError { error, guard: self }),
        }
    }

    /// The blocking form of [`downgrade`](Self::downgrade): see there for an example.
    ///
    /// # Errors
    /// As [`downgrade`](Self::downgrade).
    pub fn blocking_downgrade(self) -> Result<RwLockReadGuard, UpgradeError<Self>> {
        block_on(self.downgrade())
    }
}

/// The mark of the old guard, for the claim of the new one.
fn moved(mark: Option<HoldMark>, lease: &Share) -> Option<HoldMark> {
    mark.inspect(|mark| mark.replace_claim(lease.hold().claim()))
}

/// Claims `part` for the same owner; the old claim ends in the step that grants the new one. An
/// upgrade waits: where its guard has a mark, the order checker is asked first.
async fn exchange(
    old: &Share,
    part: Part,
    upgrade: Option<(&HoldMark, &'static Location<'static>)>,
) -> Result<Share, Error> {
    old.hold().check()?;
    let mut ask = old.exchange_request(part);
    if let Some((mark, place)) = upgrade {
        let checked = OrderedRequest::check_upgrade(mark, old.core(), &mut ask, place).await;
        checked.map_err(Error::while_holding)?;
    }
    let stays = ask.replaces.is_none();
    let outcome = old.core().acquire(ask).await;
    match outcome.map_err(Error::while_holding)? {
        Outcome::Held(lease) => {
            // A hold that stayed beside the new one may have been lost meanwhile, and then another
            // writer may have come in. One that was replaced has simply ended.
            if stays {
                old.hold().check()?;
            }
            Ok(lease)
        }
        Outcome::No => Err(Error::new(ErrorKind::TimedOut, "it is held")
            .during(Verb::Claim)
            .on(old.hold().claim().parts.first_name())
            .while_holding()),
    }
}

/// An upgrade or downgrade that failed: the error, and the guard as it was. Converts into the
/// [`Error`] by `?`.
///
/// # Examples
/// ```
/// use tenure::{ErrorKind, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let reader = tenure.rwlock("config")?.read().await?;
/// match reader.upgrade().await {
///     Ok(writer) => writer.release().await?,
///     Err(failed) if failed.error.kind() == ErrorKind::UpgradeConflict => {
///         // Another reader waits to write: release, and start over as a writer.
///         failed.guard.release().await?;
///     }
///     Err(failed) => return Err(failed.into()),
/// }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
pub struct UpgradeError<G> {
    /// What went wrong.
    pub error: Error,
    /// The guard, still what it was after an `UpgradeConflict` or an error of the order of locks,
    /// and lost otherwise: ask `check`.
    pub guard: G,
}

impl<G> From<UpgradeError<G>> for Error {
    /// Keeps the error and drops the guard, which releases the lock.
    fn from(unchanged: UpgradeError<G>) -> Self {
        unchanged.error
    }
}

impl<G> fmt::Display for UpgradeError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G> fmt::Debug for UpgradeError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<G> std::error::Error for UpgradeError<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
