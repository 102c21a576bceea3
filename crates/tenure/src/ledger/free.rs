//! Claim and release of a lock that nothing else wants, with one look at its slot each. The same
//! rules as `claim.rs` and `release.rs` in the case that is nearly all of them: a claim of one name
//! that has no slot, and a release of the only hold of a slot without a line. Everything else is
//! declined, and nothing has changed then but what time has ended already.
//!
//! Why it is the same: without a slot there is no holder, no ticket, no shape and no lock delay, so
//! the claim is admitted with a new fence. A slot without a line serves no ticket, and after its
//! only hold was released it is idle and would be forgotten; its last fence goes into the floor.

use std::sync::Arc;

use super::slot::Life;
use super::{Heap, Ledger, Now, Shelf};
use crate::contract::{Claim, Grant};
use crate::time::Tick;

impl Ledger<Heap> {
    /// Grants a claim of one name that has no slot.
    pub(crate) fn claim_free(&mut self, claim: &Arc<Claim>, now: Now) -> Option<Grant> {
        let [part] = claim.parts.as_slice() else { return None };
        if claim.replaces.is_some() || self.shelf.tomb(claim.id, now.tick).is_some() {
            return None;
        }
        if self.shelf.crowded() {
            self.sweep(now);
        }
        let slot = self.shelf.open_new(part.name(), part.shape())?;
        self.mint.wall_micros = now.wall_micros;
        let arrival = self.mint.arrival();
        let life = Life { from: now.tick, until: now.tick + claim.lease };
        let fence = slot.grant(claim, part.weight(), arrival, life, &mut self.mint);
        Some(Grant { fences: std::iter::once(fence).collect(), arrival })
    }

    /// Releases a claim that is the only hold of its slot and has not expired.
    pub(crate) fn release_lone(&mut self, claim: &Claim, now: Tick) -> bool {
        let [part] = claim.parts.as_slice() else { return false };
        let lone = self.shelf.peek(part.name()).is_some_and(|slot| slot.is_lone(claim.id, now));
        if lone {
            let last = self.shelf.forget(part.name());
            self.mint.floor = self.mint.floor.max(last);
        }
        lone
    }
}
