//! The holders of one slot, and what they weigh together. Knows sums, not who may come in.
//!
//! The rules ask only through [`Holders`], so that an engine can keep many holders elsewhere and
//! read those that a step asks for.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::contract::{Arrival, Claim, ClaimId, Fence, IdMap, OwnerId};
use crate::time::Tick;

/// One claim's hold on one slot.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) claim: Arc<Claim>,
    pub(crate) weight: u32,
    /// The fence its holder was told.
    pub(crate) fence: Fence,
    /// The sharing group it belongs to, if it shares its fence with others.
    pub(crate) group: Option<u64>,
    pub(crate) arrival: Arrival,
    pub(crate) since: Tick,
    pub(crate) expires: Tick,
    /// Part of a set that still waits for other parts.
    pub(crate) reserved: bool,
}

impl Hold {
    pub(crate) fn owner(&self) -> OwnerId {
        self.claim.lineage.owner()
    }

    /// How long the slot stays closed if this hold expires. What was only reserved did no work.
    pub(crate) fn delay(&self) -> Duration {
        if self.reserved { Duration::ZERO } else { self.claim.lock_delay }
    }
}

/// The holders of one slot, wherever they are kept.
pub(crate) trait Holders {
    /// A hold that is looked at: borrowed where it stands in memory, read where it does not.
    type Seen<'a>: Deref<Target = Hold>
    where
        Self: 'a;

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The holds in the order in which they came in.
    fn iter(&self) -> impl Iterator<Item = Self::Seen<'_>>;

    fn get(&self, id: ClaimId) -> Option<Self::Seen<'_>>;

    /// The heaviest hold of an owner, the latest among equals.
    fn heaviest_of(&self, owner: OwnerId) -> Option<Self::Seen<'_>>;

    /// What one owner weighs where its claims do not add up: its heaviest claim.
    fn owner_weight(&self, owner: OwnerId) -> u64 {
        self.heaviest_of(owner).map_or(0, |hold| u64::from(hold.weight))
    }

    /// What all holders weigh, each owner counted once where its claims do not add up.
    fn weight(&self) -> u64;

    /// The first instant at which a hold has expired; if `delayed`, with its lock delay behind it.
    fn first_end(&self, delayed: bool) -> Option<Tick> {
        let end = |hold: Self::Seen<'_>| {
            let delay = if delayed { hold.delay() } else { Duration::ZERO };
            hold.expires + delay
        };
        self.iter().map(end).min()
    }

    fn insert(&mut self, hold: Hold);

    fn remove(&mut self, id: ClaimId) -> Option<Hold>;

    /// Changes anything of a hold but its weight, its expiry, and of its claim all but the session.
    fn change(&mut self, id: ClaimId, change: impl FnOnce(&mut Hold));

    /// Keeps a hold alive until `expires`, which may be sooner than before. Its fence, and the
    /// group it shares that with.
    fn renew(&mut self, id: ClaimId, expires: Tick) -> Option<(Fence, Option<u64>)>;

    /// One hold that is dead at `now`, if there is one.
    fn dead(&mut self, now: Tick) -> Option<ClaimId>;

    /// Begins anew without holders. If `additive`, the weights of one owner's claims add up.
    fn reset(&mut self, additive: bool);
}

/// From how many holders on an index finds them; fewer are found faster by looking.
const INDEX_FROM: usize = if cfg!(test) { 3 } else { 32 };

/// The holders of one slot, in the order in which they came in.
///
/// Nearly every slot has one holder, so they stand in a plain row, with the instant of the first
/// expiry beside it: the look for the dead is skipped while no hold can have expired. Thousands of
/// readers get an index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    /// Each with its number, which only grows.
    all: VecDeque<(u64, Hold)>,
    next: u64,
    weight: u64,
    /// No hold expires before this instant. Later renewals make it stale, never wrong.
    calm_until: Tick,
    additive: bool,
    index: Option<Box<Index>>,
}

/// The numbers of the holds, by what is asked for.
#[derive(Clone, Debug, Default)]
struct Index {
    claims: IdMap<ClaimId, u64>,
    /// Each owner's, the heaviest last.
    owners: IdMap<OwnerId, SmallVec<[(u32, u64); 1]>>,
    expiries: BTreeSet<(Tick, u64)>,
}

impl Holds {
    /// No holders. If `additive`, the weights of one owner's claims add up.
    pub(crate) fn new(additive: bool) -> Self {
        Self { calm_until: Tick::NEVER, additive, ..Self::default() }
    }

    /// Drops all holders and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.next = 0;
        self.weight = 0;
        self.calm_until = Tick::NEVER;
        self.index = None;
    }

    /// Whether it is worth keeping the memory of these holders.
    pub(super) fn is_small(&self) -> bool {
        self.all.capacity() <= 4
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.all.iter().map(|(_, hold)| hold)
    }

    pub(crate) fn insert(&mut self, hold: Hold) {
        let (number, owner, weight) = (self.next, hold.owner(), u64::from(hold.weight));
        let alone = self.additive || self.all.is_empty();
        let before = if alone { 0 } else { self.owner_weight(owner) };
        self.weight += weight.saturating_sub(before);
        self.calm_until = self.calm_until.min(hold.expires);
        if let Some(index) = &mut self.index {
            index.insert(number, &hold);
        }
        self.next += 1;
        if self.all.capacity() == 0 {
            // Most slots have one holder: room for four would be wasted.
            self.all.reserve_exact(1);
        }
        self.all.push_back((number, hold));
        if self.index.is_none() && self.all.len() >= INDEX_FROM {
            let mut index = Box::<Index>::default();
            for (number, hold) in &self.all {
                index.insert(*number, hold);
            }
            self.index = Some(index);
        }
    }

    fn position(&self, id: ClaimId) -> Option<usize> {
        match &self.index {
            Some(index) => index.claims.get(&id).and_then(|number| self.at(*number)),
            None => self.all.iter().position(|(_, hold)| hold.claim.id == id),
        }
    }

    fn at(&self, number: u64) -> Option<usize> {
        self.all.binary_search_by_key(&number, |(number, _)| *number).ok()
    }
}

impl Holders for Holds {
    type Seen<'a> = &'a Hold;

    fn len(&self) -> usize {
        self.all.len()
    }

    fn iter(&self) -> impl Iterator<Item = &Hold> {
        Self::iter(self)
    }

    fn get(&self, id: ClaimId) -> Option<&Hold> {
        self.position(id).map(|at| &self.all[at].1)
    }

    fn heaviest_of(&self, owner: OwnerId) -> Option<&Hold> {
        let Some(index) = &self.index else {
            return self.iter().filter(|hold| hold.owner() == owner).max_by_key(|hold| hold.weight);
        };
        let (_, number) = index.owners.get(&owner)?.last()?;
        self.at(*number).map(|at| &self.all[at].1)
    }

    fn weight(&self) -> u64 {
        self.weight
    }

    fn insert(&mut self, hold: Hold) {
        Self::insert(self, hold);
    }

    fn remove(&mut self, id: ClaimId) -> Option<Hold> {
        // In order of arrival, so that people see the longest holder first.
        let (number, hold) = self.position(id).and_then(|at| self.all.remove(at))?;
        if let Some(index) = &mut self.index {
            index.remove(number, &hold);
        }
        if self.all.is_empty() {
            self.index = None;
        }
        let after = if self.additive { 0 } else { self.owner_weight(hold.owner()) };
        self.weight -= u64::from(hold.weight).saturating_sub(after);
        Some(hold)
    }

    fn change(&mut self, id: ClaimId, change: impl FnOnce(&mut Hold)) {
        if let Some(at) = self.position(id) {
            change(&mut self.all[at].1);
        }
    }

    fn renew(&mut self, id: ClaimId, expires: Tick) -> Option<(Fence, Option<u64>)> {
        let at = self.position(id)?;
        let (number, hold) = &mut self.all[at];
        if let Some(index) = &mut self.index {
            index.expiries.remove(&(hold.expires, *number));
            index.expiries.insert((expires, *number));
        }
        hold.expires = expires;
        self.calm_until = self.calm_until.min(expires);
        Some((hold.fence, hold.group))
    }

    fn dead(&mut self, now: Tick) -> Option<ClaimId> {
        if now < self.calm_until {
            return None;
        }
        let first = match &self.index {
            Some(index) => index.expiries.first().and_then(|(_, number)| self.at(*number)),
            None => (0..self.all.len()).min_by_key(|at| self.all[*at].1.expires),
        };
        let first = first.map(|at| &self.all[at].1);
        if let Some(dead) = first.filter(|hold| hold.expires <= now) {
            return Some(dead.claim.id);
        }
        self.calm_until = first.map_or(Tick::NEVER, |hold| hold.expires);
        None
    }

    fn reset(&mut self, additive: bool) {
        *self = Self::new(additive);
    }
}

impl Index {
    fn insert(&mut self, number: u64, hold: &Hold) {
        self.claims.insert(hold.claim.id, number);
        let own = self.owners.entry(hold.owner()).or_default();
        let at = own.partition_point(|other| *other < (hold.weight, number));
        own.insert(at, (hold.weight, number));
        self.expiries.insert((hold.expires, number));
    }

    fn remove(&mut self, number: u64, hold: &Hold) {
        self.claims.remove(&hold.claim.id);
        self.expiries.remove(&(hold.expires, number));
        let Some(own) = self.owners.get_mut(&hold.owner()) else { return };
        if let Ok(at) = own.binary_search(&(hold.weight, number)) {
            own.remove(at);
        }
        if own.is_empty() {
            self.owners.remove(&hold.owner());
        }
    }
}
