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
use super::entry::Phase;
use super::joint::Joint;
use super::release::ReleaseCall;
use super::{AcquireRequest, Core, Hold, LockStatus, Wait};
use crate::contract::{Error, ErrorKind, Loss, Part, Parts, Release, Verb};
use crate::seeded::{self, Bug};
use crate::time::Tick;

/// One guard's share of a grant. Dropping it requests the release in the background.
pub(crate) struct Share {
    core: Arc<Core>,
    status: LockStatus,
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
        Self { core, status: LockStatus { hold }, extras: None, timeout_millis, done: false }
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

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.status.hold
    }

    /// The grant as its holder sees it.
    pub(crate) fn status(&self) -> &LockStatus {
        &self.status
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
        let claim = self.hold().claim();
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
        let claim = self.hold().claim();
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
            max_hold: self.hold().hold_left(),
            lock_delay: claim.lock_delay,
            replaces,
            about: claim.about.clone(),
        }
    }

    /// Releases the claim and waits until the store has confirmed it.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        if seeded::on(Bug::RenewAfterReleaseIsLoss) && self.joint().is_none() {
            self.done = true;
            return self.release_before_forgetting().await;
        }
        match self.begin_release() {
            ReleaseStep::Over(reply) => reply,
            ReleaseStep::Unsent(sending) => sending.send().await,
        }
    }

    /// Takes the claim out of the table and ends the hold. Releases the claim if the engine can do
    /// that without waiting.
    fn begin_release(mut self) -> ReleaseStep {
        self.done = true;
        let now = self.core.clock.now();
        let lost = self.hold().check_at(now).err();
        if let Some(error) = lost.as_ref().filter(|_| self.core.is_inherited()) {
            return ReleaseStep::Over(Err(error.clone()));
        }
        let safe_until = self.hold().safe_until();
        let releases = match self.leave(now) {
            Left::Unsent(releases) => releases,
            // Another guard of the same owner holds it, or the keeper has released it already; or
            // the engine has released it at once.
            Left::Nothing => return ReleaseStep::Over(lost.map_or(Ok(()), Err)),
        };
        match ReleaseCall::new(&self.core, releases) {
            // Of a set every member may have another share.
            None => ReleaseStep::Over(lost.map_or(Ok(()), Err)),
            Some(call) => {
                let extras = self.extras.take();
                ReleaseStep::Unsent(Sending { call, sent: now, lost, safe_until, extras })
            }
        }
    }

    /// Gives the share up. If it was the last one of a claim, ends the hold; the release is made at
    /// once if the engine can, and is the caller's to send otherwise.
    fn leave(&self, now: Tick) -> Left {
        if let Some(joint) = self.joint() {
            return Left::Unsent(self.core.take_apart(joint, now));
        }
        let claim = self.hold().claim();
        match self.core.let_go(self.hold(), now) {
            None => Left::Nothing,
            Some(last) if self.core.release_at_once(claim, &last) => Left::Nothing,
            Some(last) => Left::Unsent(SmallVec::from_buf([last.to_release(claim)])),
        }
    }
}

/// What is left to do for a share that was given up.
enum Left {
    Nothing,
    /// These releases have to be sent.
    Unsent(SmallVec<[Release; 1]>),
}

/// The state of a release that has begun.
enum ReleaseStep {
    Over(Result<(), Error>),
    Unsent(Sending),
}

/// A release that has to be sent.
struct Sending {
    call: ReleaseCall,
    sent: Tick,
    /// The error of a lock that had been lost before.
    lost: Option<Error>,
    safe_until: Tick,
    /// Dropped when the reply has come: until then the owner counts as able to run.
    #[allow(dead_code, reason = "it matters when it is dropped")]
    extras: Option<Box<ShareExtras>>,
}

impl Sending {
    /// Sends the release and waits for the reply of the store.
    async fn send(mut self) -> Result<(), Error> {
        let reply = self.call.send(self.sent).await;
        match (self.lost.take(), reply) {
            (Some(lost), _) => Err(lost),
            (None, Ok(None)) => Ok(()),
            // The release took longer than the lease: the right had ended before, in `leave`.
            (None, Ok(Some(_))) if self.call.core().clock.now() >= self.safe_until => Ok(()),
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
        let batch = [Release { claim: self.hold().claim().to_ref(), uncertain: true }];
        let answer = self.core.limited(Verb::Release, || self.core.engine.release(&batch)).await;
        self.hold().check()?;
        if self.core.let_go(self.hold(), self.core.clock.now()).is_some() {
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
        if let Left::Unsent(releases) = self.leave(self.core.clock.now()) {
            self.core.send_back(releases.into_iter().map(PendingRelease::new));
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold().fmt(f)
    }
}
