//! What stands in a ledger, and, from the design alone, who fits and who is next.
//!
//! Written as plainly as the design says it: over lists, pair by pair, without any of the ledger's
//! sums and indexes. Reads the ledger's state, never its rules.

use std::collections::BTreeMap;

use super::super::Line;
use super::*;
use crate::contract::{Arrival, Shape};
use crate::limits;

/// One claim's part in one slot, holding (with a fence) or waiting (without).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) claim: Arc<Claim>,
    pub(super) weight: u32,
    pub(super) arrival: Arrival,
    pub(super) expires: Tick,
    pub(super) fence: Option<Fence>,
    pub(super) reserved: bool,
}

impl Seat {
    /// One life of one claim.
    pub(super) fn life(&self) -> (ClaimId, Arrival) {
        (self.claim.id, self.arrival)
    }

    pub(super) fn lineage(&self) -> &Lineage {
        &self.claim.lineage
    }

    pub(super) fn owner(&self) -> OwnerId {
        self.claim.lineage.owner()
    }
}

/// One slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) shape: Shape,
    pub(super) closed_until: Tick,
    /// In the order in which they came in.
    pub(super) holders: Vec<Seat>,
    /// Next first.
    pub(super) line: Vec<Seat>,
}

/// All slots.
pub(super) type Facts = BTreeMap<Name, Scene>;

pub(super) fn facts(ledger: &Ledger) -> Facts {
    let scene = |slot: &super::super::slot::Slot<super::super::line::Queue>| {
        let holders = slot.holds.iter().map(|hold| Seat {
            claim: Arc::clone(&hold.claim),
            weight: hold.weight,
            arrival: hold.arrival,
            expires: hold.expires,
            fence: Some(hold.fence),
            reserved: hold.reserved,
        });
        let line = slot.line.iter().map(|ticket| Seat {
            claim: Arc::clone(&ticket.claim),
            weight: ticket.weight,
            arrival: ticket.arrival,
            expires: ticket.expires,
            fence: None,
            reserved: false,
        });
        let (holders, line) = (holders.collect(), line.collect());
        Scene { shape: slot.shape, closed_until: slot.closed_until, holders, line }
    };
    ledger.shelf.slots().map(|(name, slot)| (name.clone(), scene(slot))).collect()
}

impl Scene {
    pub(super) fn seats(&self) -> impl Iterator<Item = &Seat> {
        self.holders.iter().chain(&self.line)
    }

    /// Only what lives at `now`.
    pub(super) fn living(&self, now: Tick) -> Self {
        let mut scene = self.clone();
        scene.holders.retain(|seat| now < seat.expires);
        scene.line.retain(|seat| now < seat.expires);
        scene
    }

    /// Promise 1, pair by pair: a claim that needs the slot alone shares it only with its owner,
    /// ancestors and descendants. Permits are counted.
    pub(super) fn too_heavy(&self) -> bool {
        if let Shape::Semaphore(permits) = self.shape {
            let taken: u64 = self.holders.iter().map(|seat| u64::from(seat.weight)).sum();
            return taken > u64::from(permits);
        }
        let related =
            |a: &Seat, b: &Seat| a.lineage().includes(b.owner()) || b.lineage().includes(a.owner());
        let clash = |a: &Seat, b: &Seat| (self.alone(a) || self.alone(b)) && !related(a, b);
        self.holders.iter().any(|a| self.holders.iter().any(|b| clash(a, b)))
    }

    /// Returns true if all holders of the slot are the claim's owner and its ancestors.
    fn alone(&self, seat: &Seat) -> bool {
        match self.shape {
            Shape::Lock => seat.weight == limits::FULL_WEIGHT,
            Shape::Semaphore(_) => false,
        }
    }

    fn counts_owners(&self) -> bool {
        !matches!(self.shape, Shape::Semaphore(_))
    }

    /// The holders that keep a claim out: all but its owner and ancestors, if either needs the
    /// slot alone.
    fn in_the_way<'a>(&'a self, seat: &'a Seat) -> impl Iterator<Item = &'a Seat> {
        let stranger = |holder: &&Seat| !seat.lineage().includes(holder.owner());
        let clashes = |holder: &&Seat| self.alone(seat) || self.alone(holder);
        self.holders.iter().filter(stranger).filter(clashes)
    }

    /// The same owner holds at least as much already.
    pub(super) fn reenters(&self, seat: &Seat) -> bool {
        let mut own = self.holders.iter().filter(|holder| holder.owner() == seat.owner());
        self.counts_owners() && own.any(|holder| holder.weight >= seat.weight)
    }

    fn fits(&self, seat: &Seat, now: Tick) -> bool {
        let owns = self.holders.iter().any(|holder| holder.owner() == seat.owner());
        if now < self.closed_until && !(owns && self.counts_owners()) {
            return false;
        }
        if let Shape::Semaphore(permits) = self.shape {
            let taken: u64 = self.holders.iter().map(|holder| u64::from(holder.weight)).sum();
            return taken + u64::from(seat.weight) <= u64::from(permits);
        }
        self.in_the_way(seat).next().is_none()
    }

    /// Ahead of the line: the owner or an ancestor holds.
    pub(super) fn ahead(&self, seat: &Seat) -> bool {
        let mut holders = self.holders.iter();
        self.counts_owners() && holders.any(|holder| seat.lineage().includes(holder.owner()))
    }

    /// Whether `other` stands before `seat` and `seat` has to wait for that.
    pub(super) fn waits_behind(&self, seat: &Seat, other: &Seat) -> bool {
        let place = |seat: &Seat| (!self.ahead(seat), seat.arrival);
        if place(other) >= place(seat) {
            return false;
        }
        // Waiting behind who waits for oneself, or for one's ancestors, would never end.
        let of_mine = |holder: &Seat| seat.lineage().includes(holder.owner());
        let same_flow = self.counts_owners()
            && (other.owner() == seat.owner() || self.in_the_way(other).any(of_mine));
        !same_flow
    }

    /// The one rule: it fits, and no living claim of another owner waits before it.
    pub(super) fn eligible(&self, seat: &Seat, now: Tick) -> bool {
        self.reenters(seat)
            || self.fits(seat, now) && !self.line.iter().any(|other| self.waits_behind(seat, other))
    }
}
