//! A guard's share of a grant. Every guard owns one; the last share to go releases the claim.
//!
//! A grant has as many shares as guards: re-entry adds one, and a set that was acquired name by
//! name ([`Joint`]) owns one of each member. `release` sends the claim back and waits for the
//! reply; dropping a share hands the claim to the keeper, which releases it in the background. In
//! both cases the right ends in this process before the store can hear of it, so that the next
//! holder never overlaps with this one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::effects::PendingRelease;
use super::entry::{Entry, Phase};
use super::joint::Joint;
use super::release::ReleaseCall;
use super::{AcquireRequest, Core, Hold, Wait};
use crate::contract::{Error, ErrorKind, Loss, Part, Parts, Release, Verb};
use crate::seeded::{self, Bug};
use crate::time::Tick;

/// One guard's share of a grant. Dropping it requests the release in the background.
pub(crate) struct Share {
    core: Arc<Core>,
    hold: Arc<Hold>,
    /// What few shares have. Boxed, so that guards stay small.
    extras: Option<Box<ShareExtras>>,
    /// The caller's timeout, which an upgrade of the guard uses again. In milliseconds, because a
    /// process may hold many guards.
    timeout_millis: u32,
    done: bool,
}

/// What few shares have.
#[derive(Default)]
struct ShareExtras {
    /// The grants that this share is made of, if it is a set that was acquired name by name.
    joint: Option<Arc<Joint>>,
    /// Held while the guard is outside the flow of its owner, see `deadlock.rs`.
    marker: Option<Share>,
}

/// There is no timeout. Longer timeouts than this count as none: 49 days.
const NO_TIMEOUT: u32 = u32::MAX;

impl Share {
    pub(super) fn new(core: Arc<Core>, hold: Arc<Hold>, timeout: Option<Duration>) -> Self {
        // Rounded up: a short timeout must not become none at all.
        let millis = |limit: Duration| limit.as_micros().div_ceil(1_000);
        let timeout = timeout.and_then(|limit| u32::try_from(millis(limit)).ok());
        let timeout_millis = timeout.unwrap_or(NO_TIMEOUT);
        Self { core, hold, extras: None, timeout_millis, done: false }
    }

    /// A share of several grants that are held as one.
    pub(super) fn of_joint(core: Arc<Core>, joint: Arc<Joint>, timeout: Option<Duration>) -> Self {
        let hold = Arc::clone(joint.hold());
        let mut share = Self::new(core, hold, timeout);
        share.extras_mut().joint = Some(joint);
        share
    }

    /// Gives the share to another guard or joint without releasing anything.
    pub(super) fn hand_over(mut self) {
        self.done = true;
    }

    /// Gives the share up. Returns the claims that have no share left: the caller releases them.
    fn leave(&self, now: Tick) -> SmallVec<[Release; 1]> {
        match self.joint() {
            Some(joint) => self.core.take_apart(joint, now),
            None => self.core.let_go(&self.hold, now).iter().map(Entry::to_release).collect(),
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        let millis = Some(self.timeout_millis).filter(|millis| *millis != NO_TIMEOUT);
        millis.map(|millis| Duration::from_millis(millis.into()))
    }

    fn joint(&self) -> Option<&Arc<Joint>> {
        self.extras.as_ref()?.joint.as_ref()
    }

    fn extras_mut(&mut self) -> &mut ShareExtras {
        self.extras.get_or_insert_default()
    }

    /// Returns how many guards the owner has on this name, in this process.
    pub(crate) fn depth(&self) -> u32 {
        if self.core.is_inherited() {
            return 0;
        }
        let claim = self.hold.claim();
        self.core.depth(claim.parts.first_name(), claim.lineage.owner())
    }

    pub(super) fn marker(&self) -> Option<&Self> {
        self.extras.as_ref()?.marker.as_ref()
    }

    pub(super) fn set_marker(&mut self, marker: Self) {
        self.extras_mut().marker = Some(marker);
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Builds the request that exchanges this share for `part` (upgrade, downgrade), for the same
    /// owner. The old claim ends when the new one is granted. A hold that has other guards, or that
    /// is part of a set, stays beside the new one.
    pub(crate) fn exchange_request(&self, part: Part) -> AcquireRequest {
        let claim = self.hold.claim();
        let (mut sole, mut scoped) = (false, false);
        if !self.core.is_inherited() {
            let table = self.core.lock();
            let entry = table.get(claim.id);
            sole = matches!(entry.map(|e| &e.phase), Some(Phase::Held { guards: 1, .. }));
            scoped = entry.is_some_and(|entry| entry.scoped);
        }
        let sole = sole && self.joint().is_none() && claim.parts.as_slice().len() == 1;
        let replaces = sole.then_some(claim.id);
        AcquireRequest {
            parts: Parts::one(part),
            lineage: claim.lineage.clone(),
            scoped,
            lease: claim.lease,
            wait: self.timeout().map_or(Wait::Unlimited, Wait::Limit),
            max_hold: self.hold.hold_left(),
            lock_delay: claim.lock_delay,
            replaces,
            about: claim.about.clone(),
        }
    }

    /// Releases the claim and waits until the store has confirmed it.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        self.done = true;
        let now = self.core.clock.now();
        let lost = self.hold.check_at(now).err();
        if let Some(error) = lost.as_ref().filter(|_| self.core.is_inherited()) {
            return Err(error.clone());
        }
        let safe_until = self.hold.safe_until();
        if seeded::on(Bug::RenewAfterReleaseIsLoss) && self.joint().is_none() {
            return self.release_before_forgetting().await;
        }
        let Some(mut call) = ReleaseCall::new(&self.core, self.leave(now)) else {
            // Another guard of the same owner holds it, or the keeper has released it already.
            return lost.map_or(Ok(()), Err);
        };
        let reply = call.send(now).await;
        match (lost, reply) {
            (Some(lost), _) => Err(lost),
            (None, Ok(None)) => Ok(()),
            // The release took longer than the lease: the right had ended before, in `leave`.
            (None, Ok(Some(_))) if self.core.clock.now() >= safe_until => Ok(()),
            (None, Ok(Some(gone))) => {
                let why = Loss::Forgotten;
                Err(Error::new(ErrorKind::Lost, format!("the lock was lost: {why}"))
                    .during(Verb::Release)
                    .on(&gone)
                    .because_of(why)
                    .with_help(
                        "what was done under this lock may have overlapped with another holder",
                    ))
            }
            (None, Err(error)) => Err(error),
        }
    }
}

impl Share {
    /// A seeded bug: keeps the claim in the table while its release is in flight.
    async fn release_before_forgetting(&self) -> Result<(), Error> {
        let batch = [Release { claim: self.hold.claim().to_ref(), uncertain: true }];
        let answer = self.core.limited(Verb::Release, || self.core.engine.release(&batch)).await;
        self.hold.check()?;
        if self.core.let_go(&self.hold, self.core.clock.now()).is_some() {
            drop(self.core.lock().releases_done(1));
        }
        answer.map(drop)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.done || self.core.is_inherited() {
            return;
        }
        let now = self.core.clock.now();
        let pending = self.leave(now).into_iter().map(PendingRelease::new);
        self.core.send_back(pending.collect());
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}
