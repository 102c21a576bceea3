//! A claim from its first request to its grant: when it tries, what an attempt comes to, and how it
//! waits in between. Knows attempts as a whole; `trying.rs` knows what nodes answer.

use std::sync::Arc;

use super::Quorum;
use super::errors;
use super::hints::Pause;
use super::node::Lane;
use super::renewing::grant;
use super::rules::Token;
use super::trying::{Came, Taken};
use crate::contract::{
    Arrival, Claim, ClaimId, Error, Name, Patience as Wish, Queued, Refusal, Verdict,
};
use crate::engine::redis::client::ReplyTo as Reply;

impl Quorum {
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

    /// Asks all nodes to publish no longer when the name is free.
    fn unsubscribe(&self, name: &Name) {
        let channel = self.site.keys.free(name);
        for node in &self.nodes {
            drop(node.wire(self.hearing()).unsubscribe(channel.as_bytes()));
        }
        // A waiter that came meanwhile may have subscribed before.
        if self.hints.is_waited_for(name) {
            self.subscribe(name);
        }
    }

    /// Asks all nodes to publish when the name is free.
    fn subscribe(&self, name: &Name) {
        let channel = self.site.keys.free(name);
        for node in &self.nodes {
            let wire = node.wire(self.hearing());
            wire.subscribe(channel.as_bytes(), Reply::Many(Box::new(drop)));
        }
    }
}

/// Whether a claim waits for its turn. A try does not, nor does a claim of no session, which
/// nothing can wake.
fn waits(claim: &Claim) -> bool {
    claim.patience == Wish::Wait && claim.session.is_some()
}
