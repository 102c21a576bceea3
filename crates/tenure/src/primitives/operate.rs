//! Calls for operators, on [`Tenure`]: check the store, release a lock by force, raise fences. Each
//! call goes through the session, which gives it a time limit and refuses it once the session is
//! closed.

use super::options::lacking;
use super::tenure::Tenure;
use crate::contract::{
    Error, ErrorKind, Evicted, Eviction, Fence, Finding, Name, Pending, Raised, Verb,
};
use crate::limits;
use crate::session::block_on;

impl Tenure {
    /// Checks the store as an operator would: its version, its clock, what it keeps when it
    /// restarts, who may do what, and what that means for locks. `tenure doctor` prints it. An
    /// engine without a server returns no findings.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect). What the store does not permit to see is a finding.
    ///
    /// # Cancel safety
    /// Checking changes nothing.
    ///
    /// # Examples
    /// ```
    /// # use tenure::{Health, Tenure};
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// for finding in tenure.doctor().await? {
    ///     assert_ne!(finding.state, Health::Bad, "{}: {}", finding.check, finding.what);
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn doctor(&self) -> Result<Vec<Finding>, Error> {
        let core = self.session.core();
        let examine = || match core.engine().diagnostics() {
            Some(diagnostics) => diagnostics.doctor(),
            None => Box::pin(std::future::ready(Ok(Vec::new()))),
        };
        core.limited(Verb::Inspect, examine).await
    }

    /// The blocking form of [`doctor`](Self::doctor): see there for an example.
    ///
    /// # Errors
    /// As [`doctor`](Self::doctor).
    pub fn blocking_doctor(&self) -> Result<Vec<Finding>, Error> {
        block_on(self.doctor())
    }

    /// Releases by force exactly the grant of `name` with this fence. Its holder loses the lock and
    /// learns the reason ([`Loss::Evicted`](crate::Loss::Evicted)); the next waiter is granted it.
    ///
    /// # Errors
    /// `InvalidOption` if the reason is empty or too long; otherwise as [`inspect`](Self::inspect).
    /// That no such grant is held is an answer: [`Evicted`].
    ///
    /// # Cancel safety
    /// Dropping the future may or may not release the grant.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Evicted, Tenure};
    ///
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let stuck = tenure.mutex("reports")?.lock().await?;
    /// let holder = tenure.holders("reports").await?.remove(0);
    /// let evicted = tenure.force_release("reports", holder.fence, "its host is gone").await?;
    /// assert!(matches!(evicted, Evicted::Done(_)));
    /// assert!(stuck.check().is_err());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn force_release(
        &self,
        name: &str,
        fence: Fence,
        reason: &str,
    ) -> Result<Evicted, Error> {
        let eviction = Eviction::new(Name::try_from(name)?, fence, reason)?;
        let core = self.session.core();
        core.limited(Verb::Evict, || core.engine().evict(&eviction)).await
    }

    /// The blocking form of [`force_release`](Self::force_release): see there for an example.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release).
    pub fn blocking_force_release(
        &self,
        name: &str,
        fence: Fence,
        reason: &str,
    ) -> Result<Evicted, Error> {
        block_on(self.force_release(name, fence, reason))
    }

    /// Raises the fences of this namespace: every later grant has a fence above `to`, whatever its
    /// name, also where a claim waits already. Holds keep the fence they have.
    ///
    /// For a service that moves here from another store, where fences have got further. See
    /// `docs/fencing.md` for the procedure.
    ///
    /// # Errors
    /// If `to` is not above [`highest_fence`](Self::highest_fence) (`Conflict`), or so large that
    /// fences would leave their range (2^53 less 2^40): nothing has changed then. If the
    /// engine has no floor of fences (`Unsupported`), the store cannot be reached, or this `Tenure`
    /// was closed.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not raise the fences; to call it again does no harm.
    ///
    /// # Examples
    /// ```
    /// # use tenure::{ErrorKind, Tenure};
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let moved_from = tenure.highest_fence().await?.get() + 3_000_000_000;
    /// tenure.raise_fences(moved_from).await?;
    /// assert!(tenure.mutex("reports")?.lock().await?.fence()?.get() > moved_from);
    /// let again = tenure.raise_fences(moved_from).await.unwrap_err();
    /// assert_eq!(again.kind(), ErrorKind::Conflict);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn raise_fences(&self, to: u64) -> Result<(), Error> {
        let failed = |error: Error| error.during(Verb::RaiseFences);
        if to > limits::FENCE_FLOOR {
            let most = limits::FENCE_FLOOR;
            let what = format!("fences cannot be raised above {most}, and {to} was asked for");
            let next = "fences stay below 2^53, with room to grow; see whether the number is one";
            return Err(failed(Error::new(ErrorKind::InvalidOption, what).with_help(next)));
        }
        match self.ask_fences(to).await? {
            Raised::Done => Ok(()),
            Raised::NotAbove(highest) => {
                let what =
                    format!("fences here may have reached {highest}, so {to} raises nothing");
                let next = format!("if they must be larger, raise them to more than {highest}");
                Err(failed(Error::new(ErrorKind::Conflict, what).with_help(next)))
            }
        }
    }

    /// The blocking form of [`raise_fences`](Self::raise_fences): see there for an example.
    ///
    /// # Errors
    /// As [`raise_fences`](Self::raise_fences).
    pub fn blocking_raise_fences(&self, to: u64) -> Result<(), Error> {
        block_on(self.raise_fences(to))
    }

    /// The largest fence of this namespace so far, or a number above it where the store keeps only
    /// a bound. 0 if none was given out. See [`raise_fences`](Self::raise_fences) for an example.
    ///
    /// # Errors
    /// If the engine has no floor of fences (`Unsupported`), or the store cannot be reached.
    ///
    /// # Cancel safety
    /// Inspecting changes nothing.
    pub async fn highest_fence(&self) -> Result<Fence, Error> {
        match self.ask_fences(0).await? {
            Raised::NotAbove(highest) => Ok(highest),
            Raised::Done => Ok(Fence::new(0)),
        }
    }

    /// The blocking form of [`highest_fence`](Self::highest_fence): see there for an example.
    ///
    /// # Errors
    /// As [`highest_fence`](Self::highest_fence).
    pub fn blocking_highest_fence(&self) -> Result<Fence, Error> {
        block_on(self.highest_fence())
    }

    async fn ask_fences(&self, to: u64) -> Result<Raised, Error> {
        let (core, promises) = (self.session.core(), self.promises());
        let ask = || -> Pending<'_, Raised> {
            if let Some(floor) = core.engine().fence_floor() {
                return floor.raise_fences(Fence::new(to));
            }
            let lacking = lacking(promises, "a floor of fences", |other| other.fence_floor);
            Box::pin(std::future::ready(Err(lacking.during(Verb::RaiseFences))))
        };
        core.limited(Verb::RaiseFences, ask).await
    }
}
