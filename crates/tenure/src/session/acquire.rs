//! The acquire path. Sends one claim request; if the slot is taken, waits in the queue until the
//! grant is pushed, the timeout expires or the future is dropped. Contains no engine-specific code
//! and no admission rules.
//!
//! ```text
//! reenter -> Attempt::begin -> Attempt::claim -> granted: return the share
//!                  ^               |-> refused: "no", or an error
//!                  |               '-> queued: wait_for_grant -> granted, timeout, or
//!                  '------------- new claim id <---------------- the ticket has expired
//! ```
//!
//! Where the engine answers for a free lock at once (`Engine::immediate`), the first attempt is
//! made without a future ([`Core::acquire_at_once`]): a grant is the end of it, and if the engine
//! declines, the same attempt goes on with an ordinary call. Only then the long way is boxed.
//!
//! An [`Attempt`] is one claim id; `attempt.rs` has what happens to it.

use std::sync::Arc;

use super::attempt::{Attempt, ClaimReply};
use super::joint::Joint;
use super::one_by_one;
use super::request::{AcquireRequest, Outcome, Wait};
use super::retry::Retry;
use super::{Core, Hold, Share, WaitEnd};
use crate::contract::{Error, Refusal, Verb};
use crate::time::Tick;

impl Core {
    /// Acquires the requested parts.
    ///
    /// Dropping the future withdraws the claim; if it was granted meanwhile, it is released.
    pub(crate) async fn acquire(self: &Arc<Self>, ask: AcquireRequest) -> Result<Outcome, Error> {
        match self.acquire_at_once(ask)? {
            AtOnce::Held(share) => Ok(Outcome::Held(share)),
            // Boxed, so that the future of a plain lock stays small.
            AtOnce::Begun(begun) => Box::pin(self.acquire_begun(begun)).await,
        }
    }

    /// Acquires a free lock without waiting, if the engine can. Otherwise returns what is left to
    /// do, for [`acquire_begun`](Self::acquire_begun).
    pub(crate) fn acquire_at_once(
        self: &Arc<Self>,
        ask: AcquireRequest,
    ) -> Result<AtOnce<'_>, Error> {
        self.check_process(Verb::Claim).map_err(|error| error.on(ask.parts.first_name()))?;
        let plain = ask.parts.as_slice().len() == 1 && ask.replaces.is_none();
        let immediate = self.engine.immediate().filter(|_| plain);
        let Some(immediate) = immediate.filter(|_| self.settings.replicas.is_none()) else {
            return Ok(AtOnce::Begun(Begun::Request(ask)));
        };
        if let Some(share) = self.reenter(&ask)? {
            return Ok(AtOnce::Held(share));
        }
        let mut attempt = Attempt::begin(self, ask, None)?;
        let Some(grant) = immediate.claim_free(&attempt.claim) else {
            return Ok(AtOnce::Begun(Begun::Claim { attempt, reply: None }));
        };
        match attempt.handle_grant(grant, attempt.sent)? {
            ClaimReply::Granted(share) => Ok(AtOnce::Held(share)),
            reply => Ok(AtOnce::Begun(Begun::Claim { attempt, reply: Some(reply) })),
        }
    }

    /// Goes on with an acquisition that could not be done at once.
    pub(crate) async fn acquire_begun(
        self: &Arc<Self>,
        begun: Begun<'_>,
    ) -> Result<Outcome, Error> {
        match begun {
            Begun::Request(ask) => {
                let set = ask.parts.as_slice().len() > 1;
                if set && !self.engine.promises().atomic_sets {
                    return Box::pin(one_by_one::acquire(Arc::clone(self), ask)).await;
                }
                let deadline = self.deadline(ask.wait);
                self.acquire_one(ask, deadline, None).await
            }
            Begun::Claim { ref attempt, .. } => {
                let deadline = attempt.wait.deadline(attempt.sent);
                self.claim_until_granted(begun, deadline, None).await
            }
        }
    }

    /// Acquires by one claim. `behind` are the grants that were acquired for the same set before.
    pub(super) async fn acquire_one(
        self: &Arc<Self>,
        ask: AcquireRequest,
        deadline: Tick,
        behind: Option<&Arc<Joint>>,
    ) -> Result<Outcome, Error> {
        match self.settings.replicas {
            None => self.claim_until_granted(Begun::Request(ask), deadline, behind).await,
            Some(wanted) => self.acquire_confirmed(wanted, &ask, deadline, behind).await,
        }
    }

    /// Returns when a wait that begins now times out.
    pub(crate) fn deadline(&self, wait: Wait) -> Tick {
        if matches!(wait, Wait::Try | Wait::Unlimited) {
            return Tick::NEVER;
        }
        wait.deadline(self.clock.now())
    }

    /// Claims, and waits until the claim is granted or refused, or the wait is over.
    pub(super) async fn claim_until_granted(
        self: &Arc<Self>,
        begun: Begun<'_>,
        deadline: Tick,
        behind: Option<&Arc<Joint>>,
    ) -> Result<Outcome, Error> {
        let (mut attempt, mut answered) = match begun {
            Begun::Claim { attempt, reply } => (attempt, reply),
            Begun::Request(ask) => {
                if let Some(share) = self.reenter(&ask)? {
                    return Ok(Outcome::Held(share));
                }
                (Attempt::begin(self, ask, behind)?, None)
            }
        };
        let mut retry = Retry::new(attempt.wait, deadline, attempt.sent);
        loop {
            let reply = match answered.take() {
                Some(reply) => reply,
                None => attempt.claim(&mut retry).await?,
            };
            let next = match reply {
                ClaimReply::Granted(lease) => return Ok(Outcome::Held(lease)),
                ClaimReply::Refused(Refusal::Held { .. }) if attempt.wait == Wait::Try => {
                    return Ok(Outcome::No);
                }
                ClaimReply::Refused(refusal) => return Err(attempt.refused(refusal)),
                ClaimReply::Stale => attempt.request().anew(),
                ClaimReply::Queued => {
                    attempt.report_own_hold();
                    let outcome = attempt.wait(deadline).await;
                    match attempt.wait_ended(outcome, &mut retry)? {
                        AfterWait::Granted(hold) => {
                            return Ok(Outcome::Held(attempt.into_share(hold)));
                        }
                        AfterWait::TimedOut(place) => return attempt.timed_out(place).await,
                        AfterWait::Again(ask) => *ask,
                    }
                }
            };
            // Dropping the attempt withdraws the claim, before the next one is made: a copy that
            // arrives later is refused.
            attempt.end = WaitEnd::ClaimedAnew;
            drop(attempt);
            attempt = Attempt::begin(self, next, behind)?;
        }
    }
}

/// The outcome of [`Core::acquire_at_once`].
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once; a box is what is spared")]
pub(crate) enum AtOnce<'a> {
    Held(Share),
    /// The lock is not free, or the engine has to be waited for.
    Begun(Begun<'a>),
}

/// An acquisition that goes on.
pub(crate) enum Begun<'a> {
    /// Nothing was done yet.
    Request(AcquireRequest),
    /// The claim is in the table. If it has a reply, that is not final.
    Claim { attempt: Attempt<'a>, reply: Option<ClaimReply> },
}

/// What follows from the end of a wait.
pub(super) enum AfterWait {
    Granted(Arc<Hold>),
    /// The wait limit has passed; the claim stands at this place.
    TimedOut(usize),
    /// The ticket is gone, but the wait is not over.
    Again(Box<AcquireRequest>),
}
