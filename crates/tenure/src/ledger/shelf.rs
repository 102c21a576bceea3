//! Storage of slots and tombstones in memory, by name and by id. Contains no rules.
//!
//! The rules reach slots only through [`Shelf`], so that an engine can keep them elsewhere.
//!
//! A slot lives from the first claim of its name to the last release, which for most locks is one
//! pair. So the memory of some slots that were forgotten is kept for the next ones.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::holds::{Holders, Holds};
use super::line::{Line, Queue};
use super::slot::Slot;
use crate::contract::{ClaimId, IdMap, Name, NameMap, Shape};
use crate::time::Tick;

/// How many slots or tombstones may gather before the next look for dead ones.
const SWEEP_FROM: usize = 1_024;

/// How many forgotten slots are kept for the next ones.
const SPARE_SLOTS: usize = 32;

/// The slots and tombstones of one namespace, wherever they are kept.
pub(crate) trait Shelf {
    /// How the line before a slot is kept.
    type Line: Line;
    /// How the holders of a slot are kept.
    type Holds: Holders;

    /// A slot, to change it.
    fn slot(&mut self, name: &Name) -> Option<&mut Slot<Self::Line, Self::Holds>>;

    /// A slot, to look at it.
    fn peek(&mut self, name: &Name) -> Option<&Slot<Self::Line, Self::Holds>>;

    /// The slot of this name; a vacant one takes the shape asked for.
    fn open(&mut self, name: &Name, shape: Shape) -> &mut Slot<Self::Line, Self::Holds>;

    /// Forgets a slot. Returns its last fence, which must not be forgotten.
    fn forget(&mut self, name: &Name) -> u64;

    /// The names of all slots, in order.
    fn names(&mut self) -> Vec<Name>;

    /// The names of all slots with a queue, in order; others may be among them.
    fn queued_names(&mut self) -> Vec<Name> {
        self.names()
    }

    /// What is remembered of a claim, if that still stands.
    fn tomb(&mut self, id: ClaimId, now: Tick) -> Option<Tomb>;

    /// Remembers a claim that must not come back.
    fn bury(&mut self, id: ClaimId, tomb: Tomb, now: Tick);

    /// How many tombstones stand.
    fn tombs(&mut self, now: Tick) -> usize;

    /// Whether so many slots have gathered that the dead among them should be looked for. Answers
    /// yes once for every doubling, so that looking costs a constant per claim.
    fn crowded(&mut self) -> bool;

    /// After a sweep: the next one comes when the number has doubled.
    fn swept(&mut self);
}

/// Slots and tombstones in this process's memory.
#[derive(Clone, Debug)]
pub(crate) struct Heap {
    /// Boxed: a map has room to spare, and a slot is large.
    slots: NameMap<Box<Slot<Queue>>>,
    /// Empty, and without a queue.
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<Slot<Queue>>>,
    tombs: IdMap<ClaimId, Tomb>,
    sweep_at: usize,
    clear_at: usize,
}

/// What is remembered of a claim that must not come back.
#[derive(Clone, Debug)]
pub(crate) struct Tomb {
    pub(crate) until: Tick,
    /// The reason of a forced release, for a holder that missed the signal.
    pub(crate) reason: Option<Arc<str>>,
}

impl Default for Heap {
    fn default() -> Self {
        let (slots, tombs) = (NameMap::default(), IdMap::default());
        Self { slots, spare: Vec::new(), tombs, sweep_at: SWEEP_FROM, clear_at: SWEEP_FROM }
    }
}

impl Heap {
    /// A new slot, if there is none of this name.
    pub(super) fn open_new(&mut self, name: &Name, shape: Shape) -> Option<&mut Slot<Queue>> {
        match self.slots.entry(name.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => Some(place.insert(new_slot(&mut self.spare, shape))),
        }
    }
}

/// A slot in the memory of a spare one, if there is one.
#[allow(clippy::vec_box, clippy::unnecessary_box_returns, reason = "the boxes are what is kept")]
fn new_slot(spare: &mut Vec<Box<Slot<Queue>>>, shape: Shape) -> Box<Slot<Queue>> {
    let Some(mut slot) = spare.pop() else {
        return Box::new(Slot::new(shape, Queue::default(), Holds::default()));
    };
    slot.take_shape(shape);
    slot
}

#[cfg(test)]
impl Heap {
    pub(super) fn slots(&self) -> impl Iterator<Item = (&Name, &Slot<Queue>)> {
        self.slots.iter().map(|(name, slot)| (name, &**slot))
    }
}

impl Shelf for Heap {
    type Line = Queue;
    type Holds = Holds;

    fn slot(&mut self, name: &Name) -> Option<&mut Slot<Queue>> {
        self.slots.get_mut(name).map(Box::as_mut)
    }

    fn peek(&mut self, name: &Name) -> Option<&Slot<Queue>> {
        self.slots.get(name).map(Box::as_ref)
    }

    fn open(&mut self, name: &Name, shape: Shape) -> &mut Slot<Queue> {
        let slot = self.slots.entry(name.clone());
        let slot = slot.or_insert_with(|| new_slot(&mut self.spare, shape));
        slot.take_shape(shape);
        slot
    }

    fn forget(&mut self, name: &Name) -> u64 {
        let Some(mut slot) = self.slots.remove(name) else { return 0 };
        let last = slot.last_fence;
        if self.spare.len() < SPARE_SLOTS && slot.holds.is_small() {
            slot.clear();
            self.spare.push(slot);
        }
        last
    }

    fn names(&mut self) -> Vec<Name> {
        let mut names: Vec<Name> = self.slots.keys().cloned().collect();
        names.sort();
        names
    }

    fn tomb(&mut self, id: ClaimId, now: Tick) -> Option<Tomb> {
        if self.tombs.is_empty() {
            return None;
        }
        self.tombs.get(&id).filter(|tomb| now < tomb.until).cloned()
    }

    fn bury(&mut self, id: ClaimId, tomb: Tomb, now: Tick) {
        if self.tombs.len() >= self.clear_at {
            self.tombs.retain(|_, tomb| now < tomb.until);
            self.clear_at = (self.tombs.len() * 2).max(SWEEP_FROM);
        }
        self.tombs.insert(id, tomb);
    }

    fn tombs(&mut self, now: Tick) -> usize {
        self.tombs.values().filter(|tomb| now < tomb.until).count()
    }

    fn crowded(&mut self) -> bool {
        if self.slots.len() < self.sweep_at {
            return false;
        }
        self.sweep_at = self.slots.len() * 2;
        true
    }

    fn swept(&mut self) {
        self.sweep_at = (self.slots.len() * 2).max(SWEEP_FROM);
    }
}
