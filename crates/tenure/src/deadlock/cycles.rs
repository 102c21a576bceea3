//! From stuck actors to deadlocks: the reason of each, and the components that no reason leaves.
//!
//! A reason names facts that are enough to keep an actor out for ever, and the actors they are of.
//! Every stuck actor has one, and the actors it leads to are stuck too; so following reasons never
//! ends, and a strongly connected component that no reason leaves (a *sink*) exists. Its facts are
//! closed: as long as they stand, none of its members can be the first to be granted.

use super::picture::{Evaluation, FlowId, InTheWay, Picture};
use super::{Deadlock, DeadlockMember, MemberHold, MemberWait};
use crate::contract::ClaimAt;

/// Why an actor is stuck.
#[derive(Default)]
struct Reason {
    /// The ticket that cannot be granted; none for an actor that waits for its child process.
    ticket: Option<(usize, usize)>,
    /// Holds that keep it out, as slot and place among the holders.
    holds: Vec<(usize, usize)>,
    /// Tickets that it has to wait behind, or for which its slot is reserved.
    behind: Vec<(usize, usize)>,
    /// The actors of these facts.
    leads_to: Vec<FlowId>,
    /// That it waits for a nested owner is assumed.
    assumed: bool,
}

impl Picture<'_> {
    /// The deadlocks of the picture, in the order of their first member.
    pub(super) fn deadlocks(&self) -> Vec<Deadlock> {
        let mut reasons: Vec<Option<Reason>> = Vec::with_capacity(self.actors.len());
        for (at, actor) in self.actors.iter().enumerate() {
            reasons.push((!actor.can_run).then(|| self.reason(at)));
        }
        let edges: Vec<&[FlowId]> = reasons
            .iter()
            .map(|reason| reason.as_ref().map_or(&[][..], |reason| &reason.leads_to))
            .collect();
        let sinks = sink_components(&edges);
        sinks.into_iter().map(|members| self.deadlock(&members, &reasons)).collect()
    }

    fn reason(&self, actor: FlowId) -> Reason {
        let tickets = &self.actors[actor].tickets;
        let mut queued = None;
        for (slot, place) in tickets.iter().copied() {
            let here = self.evaluate(slot);
            let mut reason = Reason { ticket: Some((slot, place)), ..Reason::default() };
            if self.add_weights(slot, place, &here, &mut reason) {
                return reason;
            }
            if self.add_obstacles(slot, place, &here, &mut reason) {
                queued = Some(reason);
            }
        }
        queued.unwrap_or_else(|| {
            let children = self.actors[actor].children.iter();
            let stuck = children.filter(|link| !self.actors[link.child].can_run);
            // What is known before what is assumed.
            let link = stuck.min_by_key(|link| !link.known);
            Reason {
                leads_to: link.iter().map(|link| link.child).collect(),
                assumed: link.is_some_and(|link| !link.known),
                ..Reason::default()
            }
        })
    }

    /// Adds the holds and reserved parts that leave too little room for a ticket, as few as needed.
    /// Adds nothing and returns false if there is room.
    fn add_weights(
        &self,
        slot: usize,
        place: usize,
        here: &Evaluation,
        reason: &mut Reason,
    ) -> bool {
        let facts = &self.slots[slot];
        let mut in_the_way: Vec<InTheWay> = self.in_the_way(slot, place, here).collect();
        // The heaviest first; holds before tickets.
        in_the_way.sort_by_key(|one| (std::cmp::Reverse(one.weight), !one.hold));
        let capacity = u64::from(facts.view.shape.capacity());
        let mut sum = u64::from(self.waiter((slot, place)).weight);
        let mut enough = 0;
        while sum <= capacity && enough < in_the_way.len() {
            sum += u64::from(in_the_way[enough].weight);
            enough += 1;
        }
        if sum <= capacity || enough == 0 {
            return false;
        }
        for one in &in_the_way[..enough] {
            let (list, actors) = if one.hold {
                (&mut reason.holds, &facts.holders)
            } else {
                (&mut reason.behind, &facts.queue)
            };
            list.push((slot, one.at));
            reason.leads_to.push(actors[one.at]);
            if !one.hold {
                self.add_place(slot, one.at, reason);
            }
        }
        true
    }

    /// A ticket is ahead of the queue by a hold of its owner or an ancestor, and goes back to its
    /// place when that ends. Adds the hold to a reason that rests on the ticket.
    fn add_place(&self, slot: usize, at: usize, reason: &mut Reason) {
        let facts = &self.slots[slot];
        let ticket = &facts.view.queue[at];
        if !ticket.ahead {
            return;
        }
        let holders = facts.view.holders.iter().zip(&facts.holders).enumerate();
        let kin = holders.filter(|(_, (view, _))| ticket.lineage.includes(view.lineage.owner()));
        // One that stays, if there is one; else the place depends on an actor that can run.
        let hold = kin.min_by_key(|(_, (_, actor))| self.actors[**actor].can_run);
        if let Some((place, (_, actor))) = hold {
            reason.holds.push((slot, place));
            reason.leads_to.push(*actor);
        }
    }

    /// Adds the ticket that a ticket has to wait behind, and what keeps that one out of this slot.
    /// A set may have its own reason at another slot: then, if this slot were left, its part here
    /// would be reserved, and there might be room beside it. Returns false if there is no such
    /// ticket.
    fn add_obstacles(
        &self,
        slot: usize,
        place: usize,
        here: &Evaluation,
        reason: &mut Reason,
    ) -> bool {
        let actors = &self.slots[slot].queue;
        let mut place = place;
        let mut found = false;
        while let Some(before) = self.obstacle(slot, place, here) {
            found = true;
            reason.behind.push((slot, before));
            reason.leads_to.push(actors[before]);
            self.add_place(slot, before, reason);
            // The reason of an actor with one ticket is at this slot.
            let is_set = self.actors[actors[before]].tickets.len() > 1;
            if !is_set || self.add_weights(slot, before, here, reason) {
                break;
            }
            place = before;
        }
        found
    }

    fn deadlock(&self, actors: &[FlowId], reasons: &[Option<Reason>]) -> Deadlock {
        let (mut holds, mut waits) = (Vec::new(), Vec::new());
        let (mut by_task, mut by_nesting) = (false, false);
        let mut members: Vec<DeadlockMember> = Vec::with_capacity(actors.len());
        for at in actors {
            let Some(reason) = &reasons[*at] else { continue };
            for (slot, place) in reason.ticket.iter().chain(&reason.behind) {
                let name = self.slots[*slot].view.name.clone();
                waits.push(ClaimAt { name, claim: self.waiter((*slot, *place)).claim });
            }
            for hold in &reason.holds {
                let name = self.slots[hold.0].view.name.clone();
                holds.push(ClaimAt { name, claim: self.holder(*hold).claim });
            }
            by_task |= self.actors[*at].by_task;
            by_nesting |= reason.assumed;
            members.extend(self.member(*at, reason, actors, reasons));
        }
        for facts in [&mut holds, &mut waits] {
            facts.sort_unstable();
            facts.dedup();
        }
        let victim = Deadlock::choose_victim(&members).filter(|_| !by_task && !by_nesting);
        Deadlock { members, victim, by_task, by_nesting, holds, waits }
    }

    /// Describes a member, with those of its holds that other members wait for.
    fn member(
        &self,
        at: FlowId,
        reason: &Reason,
        actors: &[FlowId],
        reasons: &[Option<Reason>],
    ) -> Option<DeadlockMember> {
        let actor = &self.actors[at];
        let wanted = actors.iter().filter_map(|other| reasons[*other].as_ref());
        let mut holds: Vec<(usize, usize)> = wanted
            .flat_map(|reason| reason.holds.iter().copied())
            .filter(|hold| actor.holds.contains(hold))
            .collect();
        holds.sort_unstable();
        holds.dedup();
        let hold = |hold: &(usize, usize)| {
            let view = self.holder(*hold);
            let name = self.slots[hold.0].view.name.clone();
            MemberHold { name, held_for: view.held_for, fence: view.fence }
        };
        let wait = reason.ticket.map(|ticket| {
            let view = self.waiter(ticket);
            let name = self.slots[ticket.0].view.name.clone();
            MemberWait { name, claim: view.claim, waited_for: view.waited_for }
        });
        let ticket = reason.ticket.map(|ticket| self.waiter(ticket));
        Some(DeadlockMember {
            owner: ticket.map_or(*actor.owners.first()?, |ticket| ticket.lineage.owner()),
            about: ticket.map_or(actor.shown?, |ticket| &ticket.about).clone(),
            wait,
            holds: holds.iter().map(hold).collect(),
        })
    }
}

/// The strongly connected components that no edge leaves and that have an edge, each in the order
/// in which a walk along the edges meets its members. Tarjan's algorithm, with a stack of its own:
/// chains of waiters may be long.
fn sink_components(edges: &[&[FlowId]]) -> Vec<Vec<FlowId>> {
    const UNSEEN: usize = usize::MAX;
    let mut index = vec![UNSEEN; edges.len()];
    let mut low = vec![0; edges.len()];
    let mut component = vec![UNSEEN; edges.len()];
    let mut sinks: Vec<Vec<FlowId>> = Vec::new();
    let (mut open, mut next, mut components) = (Vec::new(), 0, 0);
    for root in (0..edges.len()).filter(|root| !edges[*root].is_empty()) {
        if index[root] != UNSEEN {
            continue;
        }
        let mut walk = vec![(root, 0)];
        while let Some((node, step)) = walk.pop() {
            if step == 0 {
                (index[node], low[node]) = (next, next);
                next += 1;
                open.push(node);
            } else {
                low[node] = low[node].min(low[edges[node][step - 1]]);
            }
            let unseen = (step..edges[node].len()).find(|at| {
                let to = edges[node][*at];
                if index[to] != UNSEEN && component[to] == UNSEEN {
                    low[node] = low[node].min(index[to]);
                }
                index[to] == UNSEEN
            });
            if let Some(at) = unseen {
                walk.push((node, at + 1));
                walk.push((edges[node][at], 0));
                continue;
            }
            if low[node] != index[node] {
                continue;
            }
            let from = open.iter().rposition(|one| *one == node).unwrap_or(0);
            let members: Vec<FlowId> = open.drain(from..).collect();
            for member in &members {
                component[*member] = components;
            }
            let leaves = |one: &FlowId| edges[*one].iter().any(|to| component[*to] != components);
            let has_edge = members.iter().any(|one| !edges[*one].is_empty());
            if has_edge && !members.iter().any(leaves) {
                sinks.push(members);
            }
            components += 1;
        }
    }
    sinks
}
