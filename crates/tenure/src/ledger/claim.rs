//! The claim verb: grant at once, take a place in line, or refuse. Knows sets and re-entry.

use std::sync::Arc;

use smallvec::SmallVec;

use super::inspect::holder_view;
use super::slot::Life;
use super::{Holders, Ledger, Line, Now, Shelf};
use crate::contract::{Claim, Name, Part, Patience, Refusal, Renewed, Verdict};
use crate::limits;
use crate::seeded::{self, Bug};

#[allow(private_bounds, reason = "see `Ledger`")]
impl<S: Shelf> Ledger<S> {
    /// Asks for weight on one slot or on a set of slots.
    ///
    /// Repeating a living claim by its id renews it and gives the same answer. A hold belongs to
    /// the session that the latest copy names: one that names none makes it detached. A claim that
    /// was withdrawn or released before this copy of it arrived is refused.
    pub(crate) fn claim(&mut self, claim: &Arc<Claim>, now: Now) -> Verdict {
        if self.shelf.crowded() {
            self.sweep(now);
        }
        for name in claim.parts.names() {
            self.touch(name, now);
        }
        if self.shelf.tomb(claim.id, now.tick).is_some() {
            return Verdict::Refused(Refusal::Withdrawn);
        }
        if self.knows(claim) {
            match self.renew_one(&claim.to_ref(), now) {
                Renewed::Held(grant) => {
                    self.move_to_session_of(claim);
                    return Verdict::Granted(grant);
                }
                Renewed::Waiting(queued) => return Verdict::Queued(queued),
                // Some part of it had ended: it is gone, and this copy arrives anew.
                Renewed::Gone(_) | Renewed::Unanswered(_) => {}
            }
        }
        let parts = claim.parts.as_slice().iter();
        let free: SmallVec<[bool; 1]> = parts.map(|part| self.is_free(claim, part, now)).collect();
        if let Some(refusal) = self.refusal(claim, &free) {
            return Verdict::Refused(refusal);
        }
        self.admit(claim, &free, now)
    }

    /// Makes what a claim holds part of the session that this copy of the claim names.
    fn move_to_session_of(&mut self, claim: &Claim) {
        for name in claim.parts.names() {
            let Some(slot) = self.shelf.slot(name) else { continue };
            if slot.holds.get(claim.id).is_some_and(|hold| hold.claim.session != claim.session) {
                let session = claim.session;
                slot.holds
                    .change(claim.id, |hold| Arc::make_mut(&mut hold.claim).session = session);
            }
        }
    }

    /// Grants the parts that are free, and queues or refuses the rest.
    fn admit(&mut self, claim: &Arc<Claim>, free: &[bool], now: Now) -> Verdict {
        let parts = claim.parts.as_slice();
        let all_free = free.iter().all(|free| *free);
        if !all_free && claim.patience == Patience::Try {
            if seeded::on(Bug::SetTakenPiecemeal) {
                self.take_free_parts(claim, free, now);
            }
            return Verdict::Refused(self.held(claim, now));
        }
        let arrival = self.mint.arrival();
        let life = Life { from: now.tick, until: now.tick + claim.lease };
        let mut waiting = false;
        for (part, free) in parts.iter().zip(free) {
            let slot = self.shelf.open(part.name(), part.shape());
            if *free {
                slot.grant(claim, part.weight(), arrival, life, &mut self.mint);
            } else {
                slot.enqueue(claim, part.weight(), arrival, now.tick);
            }
            waiting |= !slot.line.is_empty();
        }
        if !all_free || claim.replaces.is_some() {
            self.settle(claim, now, false);
        }
        if waiting {
            // A new holder moves its kin ahead of the line.
            for part in parts {
                self.touch(part.name(), now);
            }
        }
        self.standing(claim, now)
    }

    /// What a seeded bug does: takes the parts that are free although the set is refused.
    fn take_free_parts(&mut self, claim: &Arc<Claim>, free: &[bool], now: Now) {
        let arrival = self.mint.arrival();
        let life = Life { from: now.tick, until: now.tick + claim.lease };
        let parts = claim.parts.as_slice().iter().zip(free).filter(|(_, free)| **free);
        for (part, _) in parts {
            let slot = self.shelf.open(part.name(), part.shape());
            slot.grant(claim, part.weight(), arrival, life, &mut self.mint);
        }
    }

    fn is_free(&mut self, claim: &Claim, part: &Part, now: Now) -> bool {
        match self.shelf.peek(part.name()) {
            None => true,
            // A vacant slot may take any shape, so only a lock delay can keep it closed.
            Some(slot) if slot.vacant() => slot.closed_until <= now.tick,
            Some(slot) => slot.admits(&claim.lineage, part.weight(), now.tick),
        }
    }

    fn standing(&mut self, claim: &Claim, now: Now) -> Verdict {
        if let Some(queued) = self.queued(claim.id, &claim.parts, now) {
            return Verdict::Queued(queued);
        }
        let grant = self.grant_of(claim.id, &claim.parts);
        // Every part was granted or queued just above, in this same step.
        grant.map_or(Verdict::Refused(Refusal::Withdrawn), Verdict::Granted)
    }

    fn knows(&mut self, claim: &Claim) -> bool {
        claim.parts.names().any(|name| {
            self.shelf.peek(name).is_some_and(|slot| {
                slot.holds.get(claim.id).is_some() || slot.line.get(claim.id).is_some()
            })
        })
    }

    /// What makes this claim impossible now, whether its parts are free or not.
    fn refusal(&mut self, claim: &Claim, free: &[bool]) -> Option<Refusal> {
        let waits = claim.patience == Patience::Wait;
        let mut replaces_something = claim.replaces.is_none();
        for (part, free) in claim.parts.as_slice().iter().zip(free) {
            let Some(slot) = self.shelf.peek(part.name()) else { continue };
            let name = part.name();
            if !slot.vacant() && slot.shape != part.shape() {
                return Some(Refusal::Shape { name: name.clone(), stands: slot.shape });
            }
            if *free && slot.holds.len() >= limits::HOLDERS {
                return Some(Refusal::Full { name: name.clone(), limit: limits::HOLDERS });
            }
            if !*free && waits && slot.line.len() >= limits::WAITERS {
                return Some(Refusal::Full { name: name.clone(), limit: limits::WAITERS });
            }
            let old = claim.replaces.and_then(|id| slot.holds.get(id));
            replaces_something |= old.is_some_and(|old| old.owner() == claim.lineage.owner());
            if waits && let Some(rival) = slot.rival_upgrade(&claim.lineage, part.weight()) {
                return Some(Refusal::Upgrade { by: rival.claim.about.clone() });
            }
        }
        (!replaces_something).then_some(Refusal::NothingToReplace)
    }

    fn held(&mut self, claim: &Claim, now: Now) -> Refusal {
        let mut by = Vec::new();
        let mut waiting = 0;
        for name in claim.parts.names() {
            let Some(slot) = self.shelf.peek(name) else { continue };
            let room = limits::NAMED_HOLDERS.saturating_sub(by.len());
            by.extend(slot.holds.iter().take(room).map(|hold| holder_view(&hold, now)));
            waiting += slot.line.len();
        }
        Refusal::Held { by, waiting }
    }

    /// Removes expired claims from all slots: there may never be another call for their names.
    pub(super) fn sweep(&mut self, now: Now) {
        let names = self.shelf.names();
        self.sweep_these(&names, now);
        self.shelf.swept();
    }

    /// Drops what has expired in these slots, also if no claim asks for them.
    pub(crate) fn sweep_these(&mut self, names: &[Name], now: Now) {
        for name in names {
            self.touch(name, now);
        }
    }
}
