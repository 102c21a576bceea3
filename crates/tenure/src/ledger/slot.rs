//! The rules of one slot: who fits, who is next, which fence. Knows one name, no other slot.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;

use super::holds::{Hold, Holders, Holds};
use super::line::{Line, Queue, Ticket};
use super::mint::Mint;
use crate::contract::{Arrival, Claim, ClaimId, Fence, Lineage, OwnerId, Shape};
use crate::limits;
use crate::seeded::{self, Bug};
use crate::time::Tick;

/// Everything the ledger knows of one lock name.
#[derive(Clone, Debug)]
pub(crate) struct Slot<L, H = Holds> {
    pub(crate) shape: Shape,
    pub(crate) holds: H,
    pub(crate) line: L,
    /// No new grant before this instant: the lock delay after an expired lease.
    pub(crate) closed_until: Tick,
    /// The last fence given out here.
    pub(crate) last_fence: u64,
    /// Rare, so that it should cost little while there are none.
    pub(crate) groups: Vec<Group>,
}

/// Claims that share one fence: re-entries, and owners nested in each other.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) key: u64,
    pub(crate) fence: Fence,
    /// A member ended by expiry and may still write with the fence: the next grant or renewal in
    /// the group brings a new one.
    pub(crate) spent: bool,
    pub(crate) members: usize,
}

/// From when a hold counts, and until when it lives without a renewal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) from: Tick,
    pub(super) until: Tick,
}

/// How a hold or a ticket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its owner gave it back, or it was released by force.
    Released,
    /// Its lease ran out, or its session died, at this instant.
    Expired(Tick),
}

impl Slot<Queue> {
    /// Makes the slot as new, but keeps the memory of its holders.
    pub(super) fn clear(&mut self) {
        self.holds.clear();
        self.line = Queue::default();
        self.closed_until = Tick::ZERO;
        self.last_fence = 0;
        self.groups.clear();
    }
}

impl<L: Line, H: Holders> Slot<L, H> {
    /// An empty slot with this line before it, which is empty too, as are its holders.
    pub(crate) fn new(shape: Shape, line: L, mut holds: H) -> Self {
        holds.reset(!shape.reentrant());
        Self { shape, holds, line, closed_until: Tick::ZERO, last_fence: 0, groups: Vec::new() }
    }

    /// Returns true if there is no holder and no waiter: the slot may take any shape.
    pub(super) fn vacant(&self) -> bool {
        self.holds.is_empty() && self.line.is_empty()
    }

    /// Takes the requested shape, if there is no holder and no waiter.
    pub(crate) fn take_shape(&mut self, shape: Shape) {
        if self.vacant() && self.shape != shape {
            self.shape = shape;
            self.holds.reset(!shape.reentrant());
        }
    }

    /// Vacant, and nothing has to be remembered but the fence.
    pub(super) fn idle(&self, now: Tick) -> bool {
        self.vacant() && self.closed_until <= now
    }

    /// Whether this claim is the only one here, holds, and leaves an idle slot when it is released.
    pub(super) fn is_lone(&self, id: ClaimId, now: Tick) -> bool {
        let alone = self.holds.len() == 1 && self.line.is_empty() && self.groups.is_empty();
        let holds = |hold: H::Seen<'_>| now < hold.expires && !hold.reserved;
        alone && self.closed_until <= now && self.holds.get(id).is_some_and(holds)
    }

    /// Whether the claim's weight fits beside the living holders. Holds of the own owner and its
    /// ancestors do not count against it, except on a semaphore, where permits add up.
    fn fits(&self, lineage: &Lineage, weight: u32, now: Tick) -> bool {
        if self.reenters(lineage, weight) {
            return true;
        }
        // The lock delay concerns new holders: an owner that still holds the slot may claim again.
        if now < self.closed_until && !self.owns(lineage) {
            return false;
        }
        // An owner and its ancestors count once, so their holds are subtracted, never below zero:
        // `kin_weight` sums holds that `weight` contains.
        let others = self.holds.weight() - self.kin_weight(lineage);
        others + u64::from(weight) <= u64::from(self.shape.capacity())
    }

    /// Whether a new claim may come in at once: it fits, and no living claim of another owner
    /// waits before it.
    pub(super) fn admits(&self, lineage: &Lineage, weight: u32, now: Tick) -> bool {
        if !self.fits(lineage, weight, now) {
            return false;
        }
        if seeded::on(Bug::Barging) {
            return true;
        }
        if self.line.is_empty() || self.reenters(lineage, weight) {
            return true;
        }
        // Permits of a semaphore add up, so no ticket may be passed, not even one of the same
        // owner.
        if !self.shape.reentrant() {
            return false;
        }
        if self.kin(lineage) == 0 {
            return self.line.iter().all(|ticket| ticket.claim.lineage.owner() == lineage.owner());
        }
        // A claim with kin queues among the tickets ahead; those behind them do not concern it.
        self.line.ahead().all(|ticket| self.passes(lineage, &ticket))
    }

    /// How many of the claim's owner and ancestors hold this slot.
    pub(super) fn kin(&self, lineage: &Lineage) -> u32 {
        if !self.shape.reentrant() || self.holds.is_empty() {
            return 0;
        }
        let holding = lineage.all().filter(|owner| self.holds.heaviest_of(*owner).is_some());
        u32::try_from(holding.count()).unwrap_or(u32::MAX)
    }

    /// The ticket of another reader that waits to write and that this claim, which wants the same,
    /// could only wait for in vain: each holds what the other waits for.
    pub(super) fn rival_upgrade(&self, lineage: &Lineage, weight: u32) -> Option<L::Seen<'_>> {
        let base = self.base(lineage)?;
        if base.weight >= weight {
            return None;
        }
        self.line.ahead().find(|ticket| {
            let theirs = &ticket.claim.lineage;
            self.base(theirs).is_some_and(|base| base.weight < ticket.weight)
                && self.blocks(lineage, theirs, ticket.weight)
                && self.blocks(theirs, lineage, weight)
        })
    }

    /// Grants the claim its part of this slot. Returns the fence that it has.
    pub(super) fn grant(
        &mut self,
        claim: &Arc<Claim>,
        weight: u32,
        arrival: Arrival,
        life: Life,
        mint: &mut Mint,
    ) -> Fence {
        let (fence, group) = self.fence_for(&claim.lineage, weight, mint);
        let owner = claim.lineage.owner();
        let first = self.holds.is_empty() || self.holds.heaviest_of(owner).is_none();
        self.holds.insert(Hold {
            claim: Arc::clone(claim),
            weight,
            fence,
            group,
            arrival,
            since: life.from,
            expires: life.until,
            reserved: false,
        });
        // The first hold of an owner moves the tickets of its kin ahead of the queue.
        if first && self.shape.reentrant() {
            self.line.owner_holds(owner, true);
        }
        fence
    }

    /// Takes a place in line.
    pub(super) fn enqueue(&mut self, claim: &Arc<Claim>, weight: u32, at: Arrival, now: Tick) {
        let kin = self.kin(&claim.lineage);
        self.line.push(Ticket::new(claim, weight, at, now), kin);
    }

    /// Drops every hold and ticket that is dead at `now`.
    pub(super) fn expire(&mut self, now: Tick) {
        while let Some(id) = self.holds.dead(now) {
            let at = self.holds.get(id).map_or(now, |hold| hold.expires);
            if self.end_hold(id, End::Expired(at)).is_none() {
                // A store that cannot be read says so when the step ends.
                break;
            }
        }
        if seeded::on(Bug::DeadHeadServed) {
            return;
        }
        while let Some(id) = self.line.dead(now) {
            if self.line.remove(id).is_none() {
                // A store that cannot be read says so when the step ends.
                break;
            }
        }
    }

    /// Serves the line: grants, in order, whatever fits now. Returns who was granted.
    pub(super) fn promote(&mut self, now: Tick, mint: &mut Mint) -> SmallVec<[Arc<Claim>; 1]> {
        let mut granted = SmallVec::new();
        // Other tickets of owners that came in, which fit the weight their owner has now.
        let mut again = BTreeSet::new();
        while self.holds.len() < limits::HOLDERS {
            // Searched anew after each grant: the grant may have let the next ticket in, or closed
            // the slot.
            let in_line = self.next_in_line(now).map(|ticket| (ticket.arrival, ticket.claim.id));
            let Some(next) = in_line.into_iter().chain(again.first().copied()).min() else { break };
            // A step grants at most so many; the rest is granted by the step that the head's
            // renewal makes.
            if !mint.admit() {
                break;
            }
            again.remove(&next);
            let Some(ticket) = self.line.remove(next.1) else { break };
            let grows = !self.reenters(&ticket.claim.lineage, ticket.weight);
            self.let_in(&ticket, now, mint);
            if grows {
                again.extend(self.tickets_again(ticket.claim.lineage.owner()));
            }
            granted.push(ticket.claim);
        }
        granted
    }

    /// Grants a ticket whose owner has this weight by now, past the tickets before it: where owners
    /// and their other tickets are not granted in one step. None if its owner has not.
    #[allow(dead_code, reason = "for engines that a build may leave out")]
    pub(super) fn promote_again(
        &mut self,
        id: ClaimId,
        now: Tick,
        mint: &mut Mint,
    ) -> Option<Arc<Claim>> {
        let ticket = self.line.get(id)?;
        let again = self.reenters(&ticket.claim.lineage, ticket.weight);
        drop(ticket);
        if !again {
            return None;
        }
        let ticket = self.line.remove(id)?;
        self.let_in(&ticket, now, mint);
        Some(ticket.claim)
    }

    fn let_in(&mut self, ticket: &Ticket, now: Tick, mint: &mut Mint) {
        // One expiry, waiting or holding: being granted does not renew.
        let renews = seeded::on(Bug::PromotionRenews);
        let until = if renews { now + ticket.claim.lease } else { ticket.expires };
        let life = Life { from: now, until };
        self.grant(&ticket.claim, ticket.weight, ticket.arrival, life, mint);
    }

    /// Ends a hold. What would replace it and still waits ends with it.
    pub(super) fn end_hold(&mut self, id: ClaimId, how: End) -> Option<Hold> {
        let hold = self.holds.remove(id)?;
        let owner = hold.owner();
        if self.shape.reentrant() && self.holds.heaviest_of(owner).is_none() {
            self.line.owner_holds(owner, false);
        }
        self.leave_group(&hold, how);
        // Counted from the expiry, not from now: a slot that is touched late is not closed for
        // longer.
        if let End::Expired(at) = how {
            self.closed_until = self.closed_until.max(at + hold.delay());
        }
        let replaces = |ticket: &L::Seen<'_>| ticket.claim.replaces == Some(id);
        // An upgrade that waits was for the hold that ends here. Left in the queue it would wait
        // for a hold that it can no longer replace.
        let orphans = self.line.kin_of(owner).filter(replaces).map(|ticket| ticket.claim.id);
        for orphan in orphans.collect::<SmallVec<[ClaimId; 1]>>() {
            self.line.remove(orphan);
        }
        Some(hold)
    }

    /// Renews a hold and returns its fence, which is new if the group's was spent.
    pub(super) fn renew_hold(
        &mut self,
        id: ClaimId,
        until: Tick,
        mint: &mut Mint,
    ) -> Option<Fence> {
        let (fence, group) = self.holds.renew(id, until)?;
        // A re-entered hold shares the fence of its group. When a member expires, that fence is
        // spent, and the members that live get a new one at their next renewal.
        let Some(key) = group else { return Some(fence) };
        let fence = self.group_fence(key, mint)?;
        self.holds.change(id, |hold| hold.fence = fence);
        Some(fence)
    }

    /// The instant at which the first holder's time has passed, lock delay included where it
    /// concerns a waiter of this lineage.
    pub(super) fn first_expiry(&self, lineage: &Lineage, now: Tick) -> Option<Tick> {
        let delayed = !self.owns(lineage);
        let closed = (delayed && self.closed_until > now).then_some(self.closed_until);
        self.holds.first_end(delayed).into_iter().chain(closed).min()
    }

    /// The first ticket, in order, that fits and is not behind a claim of another owner.
    ///
    /// Behind a head that must wait only these can come in: lighter tickets of the head's owner,
    /// and tickets whose own lineage holds what those before them wait for. Both are found by
    /// owner, so that a long line is not walked through.
    fn next_in_line(&self, now: Tick) -> Option<L::Seen<'_>> {
        let head = self.line.iter().next()?;
        if self.fits(&head.claim.lineage, head.weight, now) {
            return Some(head);
        }
        if !self.shape.reentrant() {
            return None;
        }
        let lineage = &head.claim.lineage;
        let comes_in = |ticket: &L::Seen<'_>| {
            self.fits(&ticket.claim.lineage, ticket.weight, now) && self.unhindered(ticket)
        };
        let lighter = |ticket: &L::Seen<'_>| ticket.weight < head.weight;
        // A head of weight 1 has no lighter ticket behind it.
        let own = (head.weight > 1).then(|| self.line.kin_of(lineage.owner()));
        let own = own.into_iter().flatten().filter(lighter).find(comes_in);
        let holders = head.ahead().then(|| self.holds.iter().map(|hold| hold.owner()));
        let holders = holders.into_iter().flatten().filter(|owner| !lineage.includes(*owner));
        let kin = holders.filter_map(|owner| self.line.kin_of(owner).find(comes_in));
        kin.chain(own).min_by_key(|ticket| ticket.arrival)
    }

    /// The tickets of an owner that fit the weight it has.
    fn tickets_again(&self, owner: OwnerId) -> impl Iterator<Item = (Arrival, ClaimId)> {
        let again = move |ticket: &L::Seen<'_>| {
            let lineage = &ticket.claim.lineage;
            lineage.owner() == owner && self.reenters(lineage, ticket.weight)
        };
        self.line.kin_of(owner).filter(again).map(|ticket| (ticket.arrival, ticket.claim.id))
    }

    /// Whether no claim that this ticket must wait for stands before it.
    fn unhindered(&self, ticket: &Ticket) -> bool {
        let mut before = self.line.iter().take_while(|other| other.claim.id != ticket.claim.id);
        before.all(|other| self.passes(&ticket.claim.lineage, &other))
    }

    /// Whether a claim need not wait behind this ticket: it is of the same owner, or it waits for
    /// the claim's own owner or ancestors, so that waiting behind it would be waiting for oneself.
    fn passes(&self, lineage: &Lineage, ticket: &Ticket) -> bool {
        let theirs = &ticket.claim.lineage;
        theirs.owner() == lineage.owner() || self.blocks(lineage, theirs, ticket.weight)
    }

    /// Whether what `holder` and its ancestors hold keeps a claim of `waiter` out.
    fn blocks(&self, holder: &Lineage, waiter: &Lineage, weight: u32) -> bool {
        let in_the_way = holder.all().filter(|owner| !waiter.includes(*owner));
        let held: u64 = in_the_way.map(|owner| self.holds.owner_weight(owner)).sum();
        held > 0 && held + u64::from(weight) > u64::from(self.shape.capacity())
    }

    /// Whether the claim's own owner has this weight already: to come in again adds nothing, so
    /// nothing stands in its way.
    fn reenters(&self, lineage: &Lineage, weight: u32) -> bool {
        self.shape.reentrant() && self.holds.owner_weight(lineage.owner()) >= u64::from(weight)
    }

    fn owns(&self, lineage: &Lineage) -> bool {
        self.shape.reentrant() && self.holds.heaviest_of(lineage.owner()).is_some()
    }

    fn kin_weight(&self, lineage: &Lineage) -> u64 {
        if !self.shape.reentrant() || self.holds.is_empty() {
            return 0;
        }
        lineage.all().map(|owner| self.holds.owner_weight(owner)).sum()
    }

    /// The hold a nested or repeated claim leans on: the heaviest of the own owner, else of the
    /// nearest ancestor that holds.
    fn base(&self, lineage: &Lineage) -> Option<H::Seen<'_>> {
        if !self.shape.reentrant() || self.holds.is_empty() {
            return None;
        }
        lineage.all().find_map(|owner| self.holds.heaviest_of(owner))
    }

    /// The fence of a new grant, and the group it shares it with.
    ///
    /// A claim that asks no more than its base has shares the base's fence. One that asks for more
    /// is an upgrade: a new fence, which the whole group has from its next renewal.
    fn fence_for(
        &mut self,
        lineage: &Lineage,
        weight: u32,
        mint: &mut Mint,
    ) -> (Fence, Option<u64>) {
        let Some(base) = self.base(lineage) else {
            return (mint.fence(&mut self.last_fence), None);
        };
        let upgrade = base.weight < weight && !seeded::on(Bug::UpgradeKeepsFence);
        let (id, fence, group) = (base.claim.id, base.fence, base.group);
        drop(base);
        let key = group.unwrap_or_else(|| {
            let key = fence.get();
            self.groups.push(Group { key, fence, spent: false, members: 1 });
            key
        });
        self.holds.change(id, |base| base.group = Some(key));
        if let Some(group) = self.groups.iter_mut().find(|group| group.key == key) {
            group.members += 1;
            group.spent |= upgrade;
        }
        let fence = self.group_fence(key, mint).unwrap_or(fence);
        (fence, Some(key))
    }

    /// The group's fence, replaced first if it was spent.
    fn group_fence(&mut self, key: u64, mint: &mut Mint) -> Option<Fence> {
        let group = self.groups.iter_mut().find(|group| group.key == key)?;
        if group.spent {
            group.spent = false;
            group.fence = mint.fence(&mut self.last_fence);
        }
        Some(group.fence)
    }

    fn leave_group(&mut self, hold: &Hold, how: End) {
        let Some(key) = hold.group else { return };
        let Some(at) = self.groups.iter().position(|group| group.key == key) else { return };
        self.groups[at].members -= 1;
        if self.groups[at].members == 0 {
            self.groups.remove(at);
        } else if matches!(how, End::Expired(_)) {
            self.groups[at].spent = true;
        }
    }
}
