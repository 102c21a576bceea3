//! The verb that refuses a deadlock's victim: compares the facts that the verdict rests on, and
//! ends
//! one waiting claim if all of them stand. Does not know how a deadlock is found.

use std::collections::HashSet;
use std::sync::Arc;

use super::shelf::Tomb;
use super::{Holders, Ledger, Line, Now, Shelf};
use crate::contract::{
    ClaimAt, DeadlockCase, Loss, OwnerId, Signal, VictimVerdict, concurrency_marker,
};
use crate::seeded::{self, Bug};

#[allow(private_bounds, reason = "see `Ledger`")]
impl<S: Shelf> Ledger<S> {
    /// Refuses the victim if every fact of the case stands; otherwise changes nothing but what time
    /// has ended already.
    pub(crate) fn refuse_victim(&mut self, case: &DeadlockCase, now: Now) -> VictimVerdict {
        for name in case.names().iter().chain(&case.markers()) {
            self.touch(name, now);
        }
        let blind = seeded::on(Bug::VictimUnchecked);
        let stands = self.facts_stand(case) && self.owners_are_stuck(case, now);
        if !stands && !blind {
            return VictimVerdict::Changed;
        }
        let slot = self.shelf.peek(&case.victim.name);
        let ticket = slot.and_then(|slot| slot.line.get(case.victim.claim));
        let Some(claim) = ticket.map(|ticket| Arc::clone(&ticket.claim)) else {
            return VictimVerdict::Changed;
        };
        let reason = Some(Loss::deadlock_reason(&case.words));
        self.bury(claim.id, Tomb { until: now.tick + claim.lease, reason }, now);
        self.remove(claim.id, &claim.parts, now);
        if let Some(session) = claim.session {
            let loss = Loss::Deadlock { words: Arc::clone(&case.words) };
            self.signals.push((session, Signal::Ended { claim: claim.id, loss }));
        }
        VictimVerdict::Refused
    }

    /// Whether all claims hold and wait where the case says.
    fn facts_stand(&mut self, case: &DeadlockCase) -> bool {
        let mut holds = |fact: &ClaimAt| {
            let slot = self.shelf.peek(&fact.name);
            slot.is_some_and(|slot| slot.holds.get(fact.claim).is_some())
        };
        let stand = case.holds.iter().all(&mut holds);
        let mut waits = |fact: &ClaimAt| {
            let slot = self.shelf.peek(&fact.name);
            slot.is_some_and(|slot| slot.line.get(fact.claim).is_some())
        };
        stand && case.waits.iter().all(&mut waits)
    }

    /// Whether no owner of the case has another flow of control: none has a marker, none waits with
    /// a claim that the case does not name, and nested in none that waits is another that does.
    fn owners_are_stuck(&mut self, case: &DeadlockCase, now: Now) -> bool {
        for owner in &case.owners {
            let marker = self.shelf.peek(&concurrency_marker(*owner));
            if marker.is_some_and(|slot| !slot.holds.is_empty()) {
                return false;
            }
        }
        let mut waiting: HashSet<OwnerId> = HashSet::new();
        for fact in &case.waits {
            let slot = self.shelf.peek(&fact.name);
            let ticket = slot.and_then(|slot| slot.line.get(fact.claim));
            waiting.extend(ticket.map(|ticket| ticket.claim.lineage.owner()));
        }
        for name in self.shelf.queued_names() {
            let Some(slot) = self.shelf.peek(&name) else { continue };
            for owner in &case.owners {
                let mut kin = slot.line.kin_of(*owner);
                let unnamed = kin.any(|ticket| {
                    let id = ticket.claim.id;
                    (ticket.claim.lineage.owner() == *owner || waiting.contains(owner))
                        && now.tick < ticket.expires
                        && !case.waits.iter().any(|fact| fact.claim == id)
                });
                if unnamed {
                    return false;
                }
            }
        }
        true
    }
}
