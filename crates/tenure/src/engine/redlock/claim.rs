//! The claim verb: from the first request to the grant.
//!
//! ```text
//! claim ── its turn in the process's queue? ── yes ──> attempt ── won ──> Granted
//!              │ no                                      │ taken
//!              ▼                                         ▼
//!            Queued, with a pause  <──────────────── Queued, with a pause
//! ```
//!
//! Nodes keep no queue, so `Queued` only means that the session calls again: after the pause, when
//! `Signal::Again` arrives, or with the next renewal. A copy of a claim that holds extends the
//! hold. A claim that is released while its attempt is in flight has left `claims`, and an attempt
//! that wins after that is withdrawn.

use std::sync::Arc;

use super::Quorum;
use super::attempt::{AttemptOutcome, Taken};
use super::errors;
use super::node::Placement;
use super::renew::{HeldClaim, grant};
use super::rules::AttemptId;
use super::signals::Pause;
use crate::contract::{
    Arrival, Claim, ClaimId, Error, Name, Patience, Queued, Refusal, Renewed, Verdict,
};

impl Quorum {
    pub(super) async fn claim(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Verdict, Error> {
        errors::unless_plain(claim)?;
        let placement = self.placement();
        if let Some(state) = self.claims.get(claim.id)
            && let Some(fence) = state.fence
        {
            let reference = claim.to_ref();
            let hold = HeldClaim { claim: &reference, token: state.token(), fence };
            match self.extend(placement, &[hold]).await.pop() {
                Some(Renewed::Held(grant)) => return Ok(Verdict::Granted(grant)),
                Some(Renewed::Gone(_)) => {}
                _ => return Err(self.too_few_replies(0, std::iter::empty())),
            }
        }
        self.try_or_queue(placement, claim).await
    }

    /// Makes an attempt if it is the claim's turn. Returns the verdict after it.
    pub(super) async fn try_or_queue(
        self: &Arc<Self>,
        placement: Placement,
        claim: &Arc<Claim>,
    ) -> Result<Verdict, Error> {
        // Two rounds: acquire, and raise.
        let limit = 2 * self.context.round_limit(claim.lease);
        if is_queued(claim)
            && let Err(pause) = self.waiters.may_try(claim, limit)
        {
            let attempt = self.claims.wait(claim);
            return Ok(self.queued(claim, attempt, &pause));
        }
        let token = self.claims.begin(claim);
        match self.attempt(placement, claim, token).await {
            Ok(AttemptOutcome::Won(fence)) => Ok(self.won(placement, claim, token, fence)),
            Ok(AttemptOutcome::Withdrawn) => {
                self.claims.end(claim.id);
                self.leave_queue(claim.parts.first_name(), claim.id);
                Ok(Verdict::Refused(Refusal::Withdrawn))
            }
            Ok(AttemptOutcome::Taken(others)) => self.taken(claim, token, others),
            Err(error) => {
                self.waiters.failed(claim.parts.first_name());
                Err(error)
            }
        }
    }

    fn won(
        self: &Arc<Self>,
        placement: Placement,
        claim: &Claim,
        token: AttemptId,
        fence: u64,
    ) -> Verdict {
        let held = self.claims.won(token, fence);
        if is_queued(claim) && self.waiters.won(claim) {
            self.unsubscribe(claim.parts.first_name());
        }
        if held {
            return Verdict::Granted(grant(token, fence));
        }
        // Released while the attempt was in flight: the release may have overtaken it.
        self.withdraw(placement, claim, token);
        Verdict::Refused(Refusal::Withdrawn)
    }

    fn taken(&self, claim: &Arc<Claim>, token: AttemptId, others: Taken) -> Result<Verdict, Error> {
        self.refuse_own_hold(claim, &others)?;
        if !is_queued(claim) && claim.patience == Patience::Try {
            self.claims.end(claim.id);
            return Ok(Verdict::Refused(Refusal::Held { by: others.by, waiting: 0 }));
        }
        let pause = self.waiters.lost(claim, &others);
        Ok(self.queued(claim, token.attempt, &pause))
    }

    /// Builds the verdict of a claim that waits.
    fn queued(&self, claim: &Claim, attempt: u32, pause: &Pause) -> Verdict {
        if pause.subscribe {
            self.subscribe(claim.parts.first_name());
        }
        let arrival = Arrival(attempt.into());
        Verdict::Queued(Queued { place: 0, first_expiry: pause.length, arrival })
    }

    /// Refuses a claim for a name that its owner holds through another process, or that an ancestor
    /// holds: it would wait for itself.
    fn refuse_own_hold(&self, claim: &Claim, taken: &Taken) -> Result<(), Error> {
        let kin = taken.by.iter().find(|holder| {
            let owner = holder.lineage.owner();
            let elsewhere = holder.session != claim.session;
            let ancestor = claim.lineage.ancestors().contains(&owner);
            let held = elsewhere || self.claims.get(holder.claim).is_some();
            (ancestor && held) || (owner == claim.lineage.owner() && elsewhere)
        });
        let Some(holder) = kin else { return Ok(()) };
        self.claims.end(claim.id);
        self.leave_queue(claim.parts.first_name(), claim.id);
        Err(errors::reentry(holder).on(claim.parts.first_name()))
    }

    /// Takes the claim out of the queue of this process, if it is in it.
    pub(super) fn leave_queue(&self, name: &Name, claim: ClaimId) {
        if self.waiters.leave(name, claim) {
            self.unsubscribe(name);
        }
    }
}

/// Returns whether a claim takes part in the queue. A try does not, nor does a claim without a
/// session, which cannot be woken.
fn is_queued(claim: &Claim) -> bool {
    claim.patience == Patience::Wait && claim.session.is_some()
}
