//! The queue of one slot: its tickets, their order and their expiries. Contains no weights.
//!
//! The order is a function of the present state alone: first the tickets with kin (the owner or an
//! ancestor holds the slot), then the others, each by arrival. The rules use only the methods of
//! [`Line`], so that an engine can keep a long queue elsewhere.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::contract::{Arrival, Claim, ClaimId, IdMap, OwnerId, SessionId};
use crate::time::Tick;

/// One claim's place in line.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) claim: Arc<Claim>,
    pub(crate) weight: u32,
    pub(crate) arrival: Arrival,
    pub(crate) since: Tick,
    pub(crate) expires: Tick,
    /// How many of its owner and ancestors hold the slot; ahead of the line while any does.
    pub(crate) kin: u32,
}

impl Ticket {
    pub(super) fn new(claim: &Arc<Claim>, weight: u32, arrival: Arrival, now: Tick) -> Self {
        let expires = now + claim.lease;
        Self { claim: Arc::clone(claim), weight, arrival, since: now, expires, kin: 0 }
    }

    pub(crate) fn ahead(&self) -> bool {
        self.kin > 0
    }
}

/// The line before one slot, wherever it is kept.
pub(crate) trait Line {
    /// A ticket that is looked at: borrowed where it stands in memory, read where it does not.
    type Seen<'a>: Deref<Target = Ticket>
    where
        Self: 'a;

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, id: ClaimId) -> Option<Self::Seen<'_>>;

    /// The tickets in the order in which they are served.
    fn iter(&self) -> impl Iterator<Item = Self::Seen<'_>>;

    /// The tickets that stand ahead of the line, in order.
    fn ahead(&self) -> impl Iterator<Item = Self::Seen<'_>>;

    /// The tickets of an owner or its descendants, by arrival.
    fn kin_of(&self, owner: OwnerId) -> impl Iterator<Item = Self::Seen<'_>>;

    /// The tickets before this one, the nearest first.
    fn before(&self, id: ClaimId) -> impl Iterator<Item = Self::Seen<'_>>;

    /// The sessions of the `nearest` tickets before this one.
    fn sessions_before(&self, id: ClaimId, nearest: usize) -> Vec<Option<SessionId>> {
        self.before(id).take(nearest).map(|ticket| ticket.claim.session).collect()
    }

    /// The place of a ticket, counted from 1.
    fn place(&self, id: ClaimId) -> Option<usize>;

    /// Takes a place in line. `kin` of the ticket's owner and ancestors hold the slot.
    fn push(&mut self, ticket: Ticket, kin: u32);

    fn remove(&mut self, id: ClaimId) -> Option<Ticket>;

    /// Keeps a ticket alive until `expires`.
    fn renew(&mut self, id: ClaimId, expires: Tick);

    /// One ticket that is dead at `now`, if there is one.
    fn dead(&self, now: Tick) -> Option<ClaimId>;

    /// `owner` has begun to hold the slot, or no longer does: its tickets and those of its
    /// descendants move ahead of the line, or back to where they arrived.
    fn owner_holds(&mut self, owner: OwnerId, holds: bool);
}

/// A queue in this process's memory. Most slots never have one, so it is made when a claim first
/// waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue(Option<Box<Tickets>>);

impl Line for Queue {
    type Seen<'a> = &'a Ticket;

    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |line| line.by_claim.len())
    }

    fn get(&self, id: ClaimId) -> Option<&Ticket> {
        self.0.as_ref()?.by_claim.get(&id)
    }

    fn iter(&self) -> impl Iterator<Item = &Ticket> {
        self.0.iter().flat_map(|line| line.iter())
    }

    fn ahead(&self) -> impl Iterator<Item = &Ticket> {
        self.0.iter().flat_map(|line| line.ahead())
    }

    fn kin_of(&self, owner: OwnerId) -> impl Iterator<Item = &Ticket> {
        self.0.iter().flat_map(move |line| line.kin_of(owner))
    }

    fn before(&self, id: ClaimId) -> impl Iterator<Item = &Ticket> {
        let mut before: Vec<_> = self.iter().take_while(|ticket| ticket.claim.id != id).collect();
        before.reverse();
        before.into_iter()
    }

    fn place(&self, id: ClaimId) -> Option<usize> {
        self.0.as_ref()?.place(id)
    }

    fn push(&mut self, ticket: Ticket, kin: u32) {
        self.0.get_or_insert_default().push(ticket, kin);
    }

    fn remove(&mut self, id: ClaimId) -> Option<Ticket> {
        self.0.as_mut()?.remove(id)
    }

    fn renew(&mut self, id: ClaimId, expires: Tick) {
        if let Some(line) = &mut self.0 {
            line.renew(id, expires);
        }
    }

    fn dead(&self, now: Tick) -> Option<ClaimId> {
        self.0.as_ref()?.dead(now)
    }

    fn owner_holds(&mut self, owner: OwnerId, holds: bool) {
        if let Some(line) = &mut self.0 {
            line.owner_holds(owner, holds);
        }
    }
}

/// A queue that has, or had, a ticket.
#[derive(Clone, Debug, Default)]
struct Tickets {
    ahead: VecDeque<(Arrival, ClaimId)>,
    rest: VecDeque<(Arrival, ClaimId)>,
    by_claim: IdMap<ClaimId, Ticket>,
    expiries: BTreeSet<(Tick, ClaimId)>,
    /// The tickets of each owner and its descendants, by arrival.
    kin: IdMap<OwnerId, SmallVec<[(Arrival, ClaimId); 2]>>,
}

impl Tickets {
    fn iter(&self) -> impl Iterator<Item = &Ticket> {
        self.ahead.iter().chain(&self.rest).filter_map(|(_, id)| self.by_claim.get(id))
    }

    fn ahead(&self) -> impl Iterator<Item = &Ticket> {
        self.ahead.iter().filter_map(|(_, id)| self.by_claim.get(id))
    }

    fn kin_of(&self, owner: OwnerId) -> impl Iterator<Item = &Ticket> {
        self.kin.get(&owner).into_iter().flatten().filter_map(|(_, id)| self.by_claim.get(id))
    }

    fn place(&self, id: ClaimId) -> Option<usize> {
        let ticket = self.by_claim.get(&id)?;
        let (queue, before) =
            if ticket.ahead() { (&self.ahead, 0) } else { (&self.rest, self.ahead.len()) };
        let at = queue.binary_search_by_key(&ticket.arrival, |(arrival, _)| *arrival).ok()?;
        Some(before + at + 1)
    }

    fn push(&mut self, mut ticket: Ticket, kin: u32) {
        ticket.kin = kin;
        let (id, arrival) = (ticket.claim.id, ticket.arrival);
        self.expiries.insert((ticket.expires, id));
        for owner in ticket.claim.lineage.all() {
            // Arrivals only grow, so the end is its place.
            self.kin.entry(owner).or_default().push((arrival, id));
        }
        let queue = if ticket.ahead() { &mut self.ahead } else { &mut self.rest };
        insert(queue, arrival, id);
        self.by_claim.insert(id, ticket);
    }

    fn remove(&mut self, id: ClaimId) -> Option<Ticket> {
        let ticket = self.by_claim.remove(&id)?;
        self.expiries.remove(&(ticket.expires, id));
        for owner in ticket.claim.lineage.all() {
            let Some(kin) = self.kin.get_mut(&owner) else { continue };
            if let Ok(at) = kin.binary_search_by_key(&ticket.arrival, |(arrival, _)| *arrival) {
                kin.remove(at);
            }
            if kin.is_empty() {
                self.kin.remove(&owner);
            }
        }
        let queue = if ticket.ahead() { &mut self.ahead } else { &mut self.rest };
        take(queue, ticket.arrival);
        Some(ticket)
    }

    fn renew(&mut self, id: ClaimId, expires: Tick) {
        if let Some(ticket) = self.by_claim.get_mut(&id) {
            self.expiries.remove(&(ticket.expires, id));
            ticket.expires = expires;
            self.expiries.insert((expires, id));
        }
    }

    fn dead(&self, now: Tick) -> Option<ClaimId> {
        self.expiries.first().filter(|(expires, _)| *expires <= now).map(|(_, id)| *id)
    }

    fn owner_holds(&mut self, owner: OwnerId, holds: bool) {
        let Some(kin) = self.kin.get(&owner) else { return };
        for (_, id) in kin {
            let Some(ticket) = self.by_claim.get_mut(id) else { continue };
            let was_ahead = ticket.ahead();
            ticket.kin = if holds { ticket.kin + 1 } else { ticket.kin.saturating_sub(1) };
            match (was_ahead, ticket.ahead()) {
                (false, true) => {
                    take(&mut self.rest, ticket.arrival);
                    insert(&mut self.ahead, ticket.arrival, *id);
                }
                (true, false) => {
                    take(&mut self.ahead, ticket.arrival);
                    insert(&mut self.rest, ticket.arrival, *id);
                }
                _ => {}
            }
        }
    }
}

fn insert(queue: &mut VecDeque<(Arrival, ClaimId)>, arrival: Arrival, id: ClaimId) {
    let at = queue.partition_point(|(other, _)| *other < arrival);
    queue.insert(at, (arrival, id));
}

fn take(queue: &mut VecDeque<(Arrival, ClaimId)>, arrival: Arrival) {
    if let Ok(at) = queue.binary_search_by_key(&arrival, |(other, _)| *other) {
        queue.remove(at);
    }
}
