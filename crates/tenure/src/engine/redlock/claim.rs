//! A claim from its first request to its grant: when it tries, what an attempt comes to, and how it
//! waits in between. Knows attempts as a whole; `attempt.rs` knows what nodes answer.

use std::sync::Arc;

use super::Quorum;
use super::attempt::{Came, Taken};
use super::errors;
use super::node::Lane;
use super::renew::{Hold, grant};
use super::rules::Token;
use super::signals::Pause;
use crate::contract::{
    Arrival, Claim, ClaimId, Error, Name, Patience as Wish, Queued, Refusal, Renewed, Verdict,
};

impl Quorum {
    pub(super) async fn claim(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Verdict, Error> {
        errors::unless_plain(claim)?;
        let lane = self.lane();
        if let Some(standing) = self.claims.get(claim.id)
            && let Some(fence) = standing.fence
        {
            let reference = claim.to_ref();
            let hold = Hold { claim: &reference, token: standing.token(), fence };
            match self.extend(lane, &[hold]).await.pop() {
                Some(Renewed::Held(grant)) => return Ok(Verdict::Granted(grant)),
                Some(Renewed::Gone(_)) => {}
                _ => return Err(self.too_few(0, std::iter::empty())),
            }
        }
        self.advance(lane, claim).await
    }

    /// Makes another attempt for a claim if it is its turn, and says how the claim stands then.
    pub(super) async fn advance(
        self: &Arc<Self>,
        lane: Lane,
        claim: &Arc<Claim>,
    ) -> Result<Verdict, Error> {
        // Two rounds: acquire, and raise.
        let limit = 2 * self.site.node_limit(claim.lease);
        if waits(claim)
            && let Err(pause) = self.hints.ask(claim, limit)
        {
            let attempt = self.claims.wait(claim);
            return Ok(self.queued(claim, attempt, &pause));
        }
        let token = self.claims.begin(claim);
        match self.attempt(lane, claim, token).await {
            Ok(Came::Won(fence)) => Ok(self.won(lane, claim, token, fence)),
            Ok(Came::Withdrawn) => {
                self.claims.end(claim.id);
                self.stop_waiting(claim.parts.first_name(), claim.id);
                Ok(Verdict::Refused(Refusal::Withdrawn))
            }
            Ok(Came::Taken(others)) => self.taken(claim, token, others),
            Err(error) => {
                self.hints.failed(claim.parts.first_name());
                Err(error)
            }
        }
    }

    fn won(self: &Arc<Self>, lane: Lane, claim: &Claim, token: Token, fence: u64) -> Verdict {
        let held = self.claims.won(token, fence);
        if waits(claim) && self.hints.won(claim) {
            self.unsubscribe(claim.parts.first_name());
        }
        if held {
            return Verdict::Granted(grant(token, fence));
        }
        // Given back while it was under way: that release went out before or behind it.
        self.withdraw(lane, claim, token);
        Verdict::Refused(Refusal::Withdrawn)
    }

    fn taken(&self, claim: &Arc<Claim>, token: Token, others: Taken) -> Result<Verdict, Error> {
        self.refuse_kin(claim, &others)?;
        if !waits(claim) && claim.patience == Wish::Try {
            self.claims.end(claim.id);
            return Ok(Verdict::Refused(Refusal::Held { by: others.by, waiting: 0 }));
        }
        let pause = self.hints.lost(claim, &others);
        Ok(self.queued(claim, token.attempt, &pause))
    }

    /// The answer to a claim that waits.
    fn queued(&self, claim: &Claim, attempt: u32, pause: &Pause) -> Verdict {
        if pause.subscribe {
            self.subscribe(claim.parts.first_name());
        }
        let arrival = Arrival(attempt.into());
        Verdict::Queued(Queued { place: 0, first_expiry: pause.length, arrival })
    }

    /// An owner that asks for what it or an ancestor holds through another process would wait for
    /// itself.
    fn refuse_kin(&self, claim: &Claim, taken: &Taken) -> Result<(), Error> {
        let kin = taken.by.iter().find(|holder| {
            let theirs = holder.lineage.owner();
            let elsewhere = holder.session != claim.session;
            let above = claim.lineage.ancestors().contains(&theirs);
            let standing = elsewhere || self.claims.get(holder.claim).is_some();
            (above && standing) || (theirs == claim.lineage.owner() && elsewhere)
        });
        let Some(holder) = kin else { return Ok(()) };
        self.claims.end(claim.id);
        self.stop_waiting(claim.parts.first_name(), claim.id);
        Err(errors::reentry(holder).on(claim.parts.first_name()))
    }

    /// The claim waits no longer, if it did.
    pub(super) fn stop_waiting(&self, name: &Name, claim: ClaimId) {
        if self.hints.leave(name, claim) {
            self.unsubscribe(name);
        }
    }
}

/// Whether a claim waits for its turn. A try does not, nor does a claim of no session, which
/// nothing can wake.
fn waits(claim: &Claim) -> bool {
    claim.patience == Wish::Wait && claim.session.is_some()
}
