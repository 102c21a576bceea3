//! Where slots and tombstones stand. Knows how to find them, not what they mean.
//!
//! The rules reach slots only through the methods here, so that an engine can keep them elsewhere.

use std::collections::HashMap;
use std::sync::Arc;

use super::slot::Slot;
use crate::contract::{ClaimId, IdMap, Name, Shape};
use crate::seeded::{self, Bug};
use crate::time::Tick;

/// How many slots or tombstones may gather before the next look for dead ones.
const SWEEP_FROM: usize = 1_024;

/// The slots and tombstones of one namespace.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    /// Boxed: a map has room to spare, and a slot is large.
    slots: HashMap<Name, Box<Slot>>,
    tombs: IdMap<ClaimId, Tomb>,
    sweep_at: usize,
    clear_at: usize,
}

/// What is remembered of a claim that must not come back.
#[derive(Clone, Debug)]
pub(super) struct Tomb {
    pub(super) until: Tick,
    /// The reason of a forced release, for a holder that missed the signal.
    pub(super) reason: Option<Arc<str>>,
}

impl Default for Shelf {
    fn default() -> Self {
        let (slots, tombs) = (HashMap::new(), IdMap::default());
        Self { slots, tombs, sweep_at: SWEEP_FROM, clear_at: SWEEP_FROM }
    }
}

impl Shelf {
    pub(super) fn slot(&mut self, name: &Name) -> Option<&mut Slot> {
        self.slots.get_mut(name).map(Box::as_mut)
    }

    pub(super) fn peek(&self, name: &Name) -> Option<&Slot> {
        self.slots.get(name).map(Box::as_ref)
    }

    /// The slot of this name; a vacant one takes the shape asked for.
    pub(super) fn open(&mut self, name: &Name, shape: Shape) -> &mut Slot {
        let slot = self.slots.entry(name.clone()).or_insert_with(|| Box::new(Slot::new(shape)));
        if slot.vacant() && slot.shape != shape {
            let (closed_until, last_fence) = (slot.closed_until, slot.last_fence);
            **slot = Slot { closed_until, last_fence, ..Slot::new(shape) };
        }
        slot
    }

    /// Forgets a slot. Returns its last fence, which must not be forgotten.
    pub(super) fn forget(&mut self, name: &Name) -> u64 {
        self.slots.remove(name).map_or(0, |slot| slot.last_fence)
    }

    pub(super) fn names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.slots.keys().cloned().collect();
        names.sort();
        names
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = (&Name, &Slot)> {
        self.slots.iter().map(|(name, slot)| (name, &**slot))
    }

    pub(super) fn tomb(&self, id: ClaimId, now: Tick) -> Option<&Tomb> {
        if self.tombs.is_empty() {
            return None;
        }
        self.tombs.get(&id).filter(|tomb| now < tomb.until)
    }

    pub(super) fn bury(&mut self, id: ClaimId, tomb: Tomb, now: Tick) {
        if seeded::on(Bug::NoTombstone) {
            return;
        }
        if self.tombs.len() >= self.clear_at {
            self.tombs.retain(|_, tomb| now < tomb.until);
            self.clear_at = (self.tombs.len() * 2).max(SWEEP_FROM);
        }
        self.tombs.insert(id, tomb);
    }

    pub(super) fn tombs(&self, now: Tick) -> usize {
        self.tombs.values().filter(|tomb| now < tomb.until).count()
    }

    /// Whether so many slots have gathered that the dead among them should be looked for. Answers
    /// yes once for every doubling, so that looking costs a constant per claim.
    pub(super) fn crowded(&mut self) -> bool {
        if self.slots.len() < self.sweep_at {
            return false;
        }
        self.sweep_at = self.slots.len() * 2;
        true
    }

    /// After a sweep: the next one comes when the number has doubled.
    pub(super) fn swept(&mut self) {
        self.sweep_at = (self.slots.len() * 2).max(SWEEP_FROM);
    }
}
