//! The holders of one slot, and what they weigh together. Knows sums, not who may come in.

use std::sync::Arc;

use crate::contract::{Arrival, Claim, ClaimId, Fence, OwnerId};
use crate::time::Tick;

/// One claim's hold on one slot.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) claim: Arc<Claim>,
    pub(super) weight: u32,
    /// The fence its holder was told.
    pub(super) fence: Fence,
    /// The sharing group it belongs to, if it shares its fence with others.
    pub(super) group: Option<u64>,
    pub(super) arrival: Arrival,
    pub(super) since: Tick,
    pub(super) expires: Tick,
    /// Part of a set that still waits for other parts.
    pub(super) reserved: bool,
}

impl Hold {
    pub(super) fn owner(&self) -> OwnerId {
        self.claim.lineage.owner()
    }
}

/// The holders of one slot.
///
/// Kept in a plain vector: nearly every slot has one holder, and even thousands of readers are
/// scanned faster than a store answers. The instant of the first expiry is kept beside it, so
/// that the scan for the dead is skipped while nobody can be dead.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds {
    all: Vec<Hold>,
    weight: u64,
    /// No hold expires before this instant. Renewals make it stale, never wrong.
    calm_until: Tick,
    additive: bool,
}

impl Holds {
    /// No holders. If `additive`, the weights of one owner's claims add up.
    pub(super) fn new(additive: bool) -> Self {
        Self { all: Vec::new(), weight: 0, calm_until: Tick::NEVER, additive }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.all.iter()
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<&Hold> {
        self.all.iter().find(|hold| hold.claim.id == id)
    }

    pub(super) fn get_mut(&mut self, id: ClaimId) -> Option<&mut Hold> {
        self.all.iter_mut().find(|hold| hold.claim.id == id)
    }

    pub(super) fn of_owner(&self, owner: OwnerId) -> impl Iterator<Item = &Hold> {
        self.all.iter().filter(move |hold| hold.owner() == owner)
    }

    /// What all holders weigh, each owner counted once where its claims do not add up.
    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    /// What one owner weighs: its heaviest claim, or the sum of them.
    pub(super) fn owner_weight(&self, owner: OwnerId) -> u64 {
        let weights = self.of_owner(owner).map(|hold| u64::from(hold.weight));
        if self.additive { weights.sum() } else { weights.max().unwrap_or(0) }
    }

    pub(super) fn insert(&mut self, hold: Hold) {
        let owner = hold.owner();
        self.calm_until = self.calm_until.min(hold.expires);
        self.reweigh(owner, |all| all.push(hold));
    }

    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Hold> {
        let at = self.all.iter().position(|hold| hold.claim.id == id)?;
        let owner = self.all[at].owner();
        // In order of arrival, so that people see the longest holder first.
        self.reweigh(owner, |all| Some(all.remove(at)))
    }

    /// One hold that is dead at `now`, if there is one.
    pub(super) fn dead(&mut self, now: Tick) -> Option<ClaimId> {
        if now < self.calm_until {
            return None;
        }
        let dead = self.all.iter().find(|hold| hold.expires <= now);
        if let Some(dead) = dead {
            return Some(dead.claim.id);
        }
        self.calm_until = self.all.iter().map(|hold| hold.expires).min().unwrap_or(Tick::NEVER);
        None
    }

    fn reweigh<T>(&mut self, owner: OwnerId, change: impl FnOnce(&mut Vec<Hold>) -> T) -> T {
        let before = self.owner_weight(owner);
        let changed = change(&mut self.all);
        self.weight = self.weight - before + self.owner_weight(owner);
        changed
    }
}
