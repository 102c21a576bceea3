//! The inspect verb: views of slots, pages of them, and what an owner can reach. Changes nothing
//! but what time has ended already.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{Hold, Holders, Ledger, Line, Now, Shelf, Ticket};
use crate::contract::{
    HolderView, Name, OwnerId, Page, Query, SlotView, Snapshot, WaiterView, concurrency_marker,
};
use crate::limits;

#[allow(private_bounds, reason = "see `Ledger`")]
impl<S: Shelf> Ledger<S> {
    /// Looks at one slot, a page of slots, or everything reachable from an owner.
    pub(crate) fn inspect(&mut self, query: &Query, now: Now) -> Snapshot {
        match query {
            Query::Slot(name) => self.one(name, now),
            Query::Page(page) => self.page(page, now),
            Query::Reach(owner) => self.reach(*owner, now),
        }
    }

    fn one(&mut self, name: &Name, now: Now) -> Snapshot {
        self.touch(name, now);
        let slots = self.view(name, now).into_iter().collect();
        Snapshot { slots, ..Snapshot::default() }
    }

    fn page(&mut self, page: &Page, now: Now) -> Snapshot {
        let limit = page.limit.clamp(1, limits::PAGE);
        let mut snapshot = Snapshot::default();
        for name in self.shelf.names() {
            let passed = page.after.as_ref().is_none_or(|after| name > *after);
            if !passed || !page.pattern.matches(name.as_str()) {
                continue;
            }
            self.touch(&name, now);
            let Some(view) = self.view(&name, now) else { continue };
            if page.contended && view.queue.is_empty() {
                continue;
            }
            if snapshot.slots.len() == limit {
                snapshot.more_after = snapshot.slots.last().map(|last| last.name.clone());
                break;
            }
            snapshot.slots.push(view);
        }
        snapshot
    }

    /// Looks at these slots. `contended` leaves out those without a queue.
    #[allow(dead_code, reason = "for engines that a build may leave out")]
    pub(crate) fn look_at(&mut self, names: &[Name], contended: bool, now: Now) -> Vec<SlotView> {
        let mut views = Vec::new();
        for name in names {
            self.touch(name, now);
            let view = self.view(name, now);
            views.extend(view.filter(|view| !contended || !view.queue.is_empty()));
        }
        views
    }

    fn reach(&mut self, owner: OwnerId, now: Now) -> Snapshot {
        let waits = self.waits();
        let mut slots: BTreeSet<Name> = BTreeSet::new();
        let mut seen: HashSet<OwnerId> = HashSet::from([owner]);
        let mut next = vec![owner];
        while let Some(owner) = next.pop() {
            for name in waits.get(&owner).into_iter().flatten() {
                if slots.contains(name) {
                    continue;
                }
                self.touch(name, now);
                let Some(slot) = self.shelf.peek(name) else { continue };
                if slot.line.kin_of(owner).next().is_none() {
                    // It came in, or died, when the slot was touched.
                    continue;
                }
                if slots.len() == limits::REACH_SLOTS {
                    return self.picture(slots, true, now);
                }
                let owners = slot.holds.iter().map(|hold| hold.owner());
                let owners = owners.chain(slot.line.iter().map(|t| t.claim.lineage.owner()));
                next.extend(owners.filter(|other| seen.insert(*other)));
                slots.insert(name.clone());
            }
        }
        for owner in seen {
            // Its holders say that the owner has another flow of control.
            let marker = concurrency_marker(owner);
            self.touch(&marker, now);
            if self.shelf.peek(&marker).is_some() {
                slots.insert(marker);
            }
        }
        self.picture(slots, false, now)
    }

    fn picture(&mut self, names: BTreeSet<Name>, truncated: bool, now: Now) -> Snapshot {
        let slots = names.into_iter().filter_map(|name| self.view(&name, now)).collect();
        Snapshot { slots, truncated, ..Snapshot::default() }
    }

    /// The slots that each owner and its descendants wait for, those included where time has ended
    /// the wait. An ancestor may do nothing until its descendant has ended.
    fn waits(&mut self) -> HashMap<OwnerId, BTreeSet<Name>> {
        let mut waits: HashMap<OwnerId, BTreeSet<Name>> = HashMap::new();
        for name in self.shelf.queued_names() {
            let Some(slot) = self.shelf.peek(&name) else { continue };
            for ticket in slot.line.iter() {
                for owner in ticket.claim.lineage.all() {
                    waits.entry(owner).or_default().insert(name.clone());
                }
            }
        }
        waits
    }

    fn view(&mut self, name: &Name, now: Now) -> Option<SlotView> {
        let slot = self.shelf.peek(name)?;
        let closed_for = slot.closed_until.since(now.tick);
        Some(SlotView {
            name: name.clone(),
            shape: slot.shape,
            holders: slot.holds.iter().map(|hold| holder_view(&hold, now)).collect(),
            queue: slot.line.iter().map(|ticket| waiter_view(&ticket, now)).collect(),
            closed_for: (!closed_for.is_zero()).then_some(closed_for),
        })
    }
}

pub(super) fn holder_view(hold: &Hold, now: Now) -> HolderView {
    HolderView {
        claim: hold.claim.id,
        session: hold.claim.session,
        lineage: hold.claim.lineage.clone(),
        weight: hold.weight,
        fence: hold.fence,
        reserved: hold.reserved,
        held_for: now.tick.since(hold.since),
        expires_in: hold.expires.since(now.tick),
        about: hold.claim.about.clone(),
    }
}

fn waiter_view(ticket: &Ticket, now: Now) -> WaiterView {
    WaiterView {
        claim: ticket.claim.id,
        session: ticket.claim.session,
        lineage: ticket.claim.lineage.clone(),
        weight: ticket.weight,
        ahead: ticket.ahead(),
        arrival: ticket.arrival,
        waited_for: now.tick.since(ticket.since),
        expires_in: ticket.expires.since(now.tick),
        about: ticket.claim.about.clone(),
    }
}
