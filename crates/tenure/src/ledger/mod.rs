//! The rules, once, as pure Rust: state + verb + now -> state + answers. No async, clock or I/O.
//!
//! Every lock is a slot with a capacity; every claim has a weight. A claim is granted when the
//! weights of the living holders plus its own fit the capacity, and no living claim of another
//! owner waits before it. Memory and embedded engines run this code; the other engines run the
//! same rules in their store's language and are compared with it step by step.
//!
//! Each slot drops its own dead when it is touched. A set is one claim with a part in several
//! slots and one expiry, so its parts die together wherever they are looked at.

#[allow(dead_code, reason = "for engines that a build may leave out")]
pub(crate) mod bytes;
pub(crate) mod cells;
mod claim;
mod deadlock;
mod free;
mod holds;
mod inspect;
#[allow(dead_code, reason = "for engines that a build may leave out")]
pub(crate) mod jobs;
mod line;
mod mint;
pub(crate) mod rates;
mod release;
mod renew;
pub(crate) mod seam;
mod shelf;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::SmallVec;

use self::holds::{Hold, Holders};
use self::line::{Line, Ticket};
use self::mint::Mint;
pub(crate) use self::shelf::Heap;
use self::shelf::Shelf;
use crate::contract::{
    Claim, ClaimId, Fence, Grant, Name, Parts, Queued, Raised, SessionId, Signal,
};
use crate::seeded::{self, Bug};
use crate::time::Tick;

/// The time of a verb, handed in by the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// The clock that leases are counted on.
    pub(crate) tick: Tick,
    /// The wall clock in microseconds, for fences.
    pub(crate) wall_micros: u64,
}

/// The state of one namespace, and the rules over it.
///
/// The state is kept in memory ([`Heap`]) or wherever another [`Shelf`] keeps it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger<S = Heap> {
    shelf: S,
    mint: Mint,
    signals: Vec<(SessionId, Signal)>,
}

#[allow(private_bounds, reason = "only engines of this crate keep the state elsewhere")]
impl<S: Shelf> Ledger<S> {
    /// The signals of the verbs since the last call, each with the session to tell.
    pub(crate) fn take_signals(&mut self) -> Vec<(SessionId, Signal)> {
        std::mem::take(&mut self.signals)
    }

    /// How many claims hold or wait, and how many tombstones stand: for leak checks.
    #[must_use]
    pub(crate) fn census(&mut self, now: Now) -> Census {
        let mut census = Census { tombs: self.shelf.tombs(now.tick), ..Census::default() };
        for name in self.shelf.names() {
            let Some(slot) = self.shelf.peek(&name) else { continue };
            census.holds += slot.holds.iter().filter(|hold| now.tick < hold.expires).count();
            census.tickets += slot.line.iter().filter(|one| now.tick < one.expires).count();
        }
        census
    }

    /// Lifts the floor, so that every later fence is above `to`; refused unless that is above
    /// every fence so far.
    pub(crate) fn raise_fences(&mut self, to: Fence) -> Raised {
        let mut highest = self.mint.floor.max(self.mint.top);
        for name in self.shelf.names() {
            highest = self.shelf.peek(&name).map_or(highest, |slot| slot.last_fence.max(highest));
        }
        if to.get() <= highest {
            return Raised::NotAbove(Fence::new(highest));
        }
        self.mint.floor = to.get();
        // As if it had been given out: engines that reserve fences ahead reserve past it.
        self.mint.top = to.get();
        Raised::Done
    }

    /// Drops what is dead in a slot, serves its line, tells who was granted, and forgets the slot
    /// if it is idle. Every verb does this first, and again where it has changed something.
    fn touch(&mut self, name: &Name, now: Now) {
        self.mint.wall_micros = now.wall_micros;
        let Some(slot) = self.shelf.slot(name) else { return };
        slot.expire(now.tick);
        if !slot.line.is_empty() {
            let granted = slot.promote(now.tick, &mut self.mint);
            for claim in granted {
                self.settle(&claim, now, true);
            }
        }
        if self.shelf.peek(name).is_some_and(|slot| slot.idle(now.tick)) {
            let last = self.shelf.forget(name);
            self.mint.floor = self.mint.floor.max(last);
        }
    }

    /// A part of the claim was just granted: if all parts are held, the claim holds and its
    /// session is told; otherwise the parts it has are reserved for it.
    fn settle(&mut self, claim: &Arc<Claim>, now: Now, tell: bool) {
        let complete = self.holds_all(claim.id, &claim.parts, now);
        for name in claim.parts.names() {
            if let Some(slot) = self.shelf.slot(name) {
                slot.holds.change(claim.id, |hold| hold.reserved = !complete);
            }
        }
        if !complete {
            return;
        }
        self.replace(claim, now);
        if let (true, Some(session)) = (tell, claim.session)
            && let Some(grant) = self.grant_of(claim.id, &claim.parts)
        {
            self.signals.push((session, Signal::Granted { claim: claim.id, grant }));
        }
    }

    /// Ends, in every slot it has, what a claim that now holds has come to replace.
    fn replace(&mut self, claim: &Claim, now: Now) {
        let Some(old) = claim.replaces else { return };
        let mut names = claim.parts.names();
        let parts = names.find_map(|name| {
            let hold = self.shelf.peek(name)?.holds.get(old)?;
            Some(hold.claim.parts.clone())
        });
        if let Some(parts) = parts {
            self.remove(old, &parts, now);
        }
    }

    fn holds_all(&mut self, id: ClaimId, parts: &Parts, now: Now) -> bool {
        parts.names().all(|name| {
            let slot = self.shelf.peek(name);
            slot.and_then(|slot| slot.holds.get(id)).is_some_and(|hold| now.tick < hold.expires)
        })
    }

    /// The grant of a claim that holds all its parts.
    fn grant_of(&mut self, id: ClaimId, parts: &Parts) -> Option<Grant> {
        let mut fences: SmallVec<[_; 1]> = SmallVec::new();
        let mut arrival = None;
        for name in parts.names() {
            let hold = self.shelf.peek(name)?.holds.get(id)?;
            fences.push(hold.fence);
            arrival.get_or_insert(hold.arrival);
        }
        Some(Grant { fences: fences.into_iter().collect(), arrival: arrival? })
    }

    /// The standing of a claim that waits for at least one part.
    fn queued(&mut self, id: ClaimId, parts: &Parts, now: Now) -> Option<Queued> {
        let mut queued: Option<Queued> = None;
        for name in parts.names() {
            let Some(slot) = self.shelf.peek(name) else { continue };
            let Some(ticket) = slot.line.get(id) else { continue };
            let place = slot.line.place(id).unwrap_or(slot.line.len());
            let first = slot.first_expiry(&ticket.claim.lineage, now.tick);
            let first = first.map(|at| at.since(now.tick));
            let all = queued.get_or_insert(Queued {
                place,
                first_expiry: first,
                arrival: ticket.arrival,
            });
            all.place = all.place.max(place);
            all.first_expiry = [all.first_expiry, first].into_iter().flatten().min();
        }
        queued
    }

    /// Takes a claim out of every slot, as if released, and serves their lines.
    fn remove(&mut self, id: ClaimId, parts: &Parts, now: Now) -> bool {
        let found = self.take_out(id, parts);
        for name in parts.names() {
            self.touch(name, now);
        }
        found
    }

    /// Takes a claim out of every slot, as if released, and leaves their lines as they are.
    fn take_out(&mut self, id: ClaimId, parts: &Parts) -> bool {
        let mut found = false;
        for name in parts.names() {
            let Some(slot) = self.shelf.slot(name) else { continue };
            let held = slot.end_hold(id, slot::End::Released).is_some();
            found |= held || slot.line.remove(id).is_some();
            if !found && seeded::on(Bug::ReleaseByName) {
                let other = slot.holds.iter().next().map(|hold| hold.claim.id);
                found = other.is_some_and(|id| slot.end_hold(id, slot::End::Released).is_some());
            }
        }
        found
    }
}

/// How much a ledger holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Living holds, each part of a set counted.
    pub holds: usize,
    /// Living tickets, each part of a set counted.
    pub tickets: usize,
    /// Tombstones that still stand.
    pub tombs: usize,
}
