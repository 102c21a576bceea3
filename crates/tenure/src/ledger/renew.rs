//! The renew verb: keeps holders and waiters alive. Knows one claim at a time.

use super::{Holders, Ledger, Line, Now, Shelf};
use crate::contract::{ClaimRef, Loss, Renewed};

#[allow(private_bounds, reason = "see `Ledger`")]
impl<S: Shelf> Ledger<S> {
    /// Keeps claims alive, holders and waiters alike. One answer for each, in their order.
    pub(crate) fn renew(&mut self, batch: &[ClaimRef], now: Now) -> Vec<Renewed> {
        let mut answers = Vec::with_capacity(batch.len());
        for claim in batch {
            for name in claim.parts.names() {
                self.touch(name, now);
            }
            answers.push(self.renew_one(claim, now));
        }
        answers
    }

    /// Renews a claim whose slots were touched already.
    pub(super) fn renew_one(&mut self, claim: &ClaimRef, now: Now) -> Renewed {
        let until = now.tick + claim.lease;
        let whole = claim.parts.names().all(|name| {
            self.shelf.peek(name).is_some_and(|slot| {
                slot.holds.get(claim.id).is_some() || slot.line.get(claim.id).is_some()
            })
        });
        if !whole {
            // Losing one part releases all.
            self.remove(claim.id, &claim.parts, now);
            return Renewed::Gone(self.epitaph(claim, now));
        }
        for name in claim.parts.names() {
            if let Some(slot) = self.shelf.slot(name)
                && slot.renew_hold(claim.id, until, &mut self.mint).is_none()
            {
                slot.line.renew(claim.id, until);
            }
        }
        if let Some(queued) = self.queued(claim.id, &claim.parts, now) {
            return Renewed::Waiting(queued);
        }
        match self.grant_of(claim.id, &claim.parts) {
            Some(grant) => Renewed::Held(grant),
            None => Renewed::Gone(Loss::Forgotten),
        }
    }

    /// Why a claim is gone, as far as the ledger remembers.
    fn epitaph(&mut self, claim: &ClaimRef, now: Now) -> Loss {
        let tomb = self.shelf.tomb(claim.id, now.tick);
        match tomb.and_then(|tomb| tomb.reason.clone()) {
            Some(reason) => Loss::of_reason(&reason),
            None => Loss::Forgotten,
        }
    }
}
