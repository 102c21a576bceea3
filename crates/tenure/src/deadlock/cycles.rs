//! From stuck actors to deadlocks: the reason of each, and the components that no reason leaves.
//!
//! A reason names facts that are enough to keep an actor out for ever, and the actors they are of.
//! Every stuck actor has one, and the actors it leads to are stuck too; so following reasons never
//! ends, and a strongly connected component that no reason leaves (a *sink*) exists. Its facts are
//! closed: as long as they stand, none of its members can be the first to be granted.

use std::sync::Arc;

use super::picture::{Evaluation, FlowId, InTheWay, Picture, Precedence};
use super::{Deadlock, DeadlockMember, MemberHold, MemberWait};
use crate::contract::ClaimAt;

/// Why an actor is stuck.
#[derive(Default)]
struct Reason<'a> {
    /// The ticket that cannot be granted; none for an actor that waits for its child process.
    ticket: Option<(usize, usize)>,
    /// Holds that keep it out, as slot and place among the holders.
    holds: Vec<(usize, usize)>,
    /// Tickets that it has to wait behind, or for which its slot is reserved.
    behind: Vec<(usize, usize)>,
    /// The actors of these facts.
    leads_to: Vec<FlowId>,
    /// An actor that can run may end it: the order of two tickets rests on what that one holds.
    may_end: bool,
    /// That it waits for a nested owner is assumed.
    assumed: bool,
    /// What it waits for outside the slots.
    outside: Option<&'a str>,
}

impl<'a> Picture<'a> {
    /// The deadlocks of the picture, in the order of their first member.
    pub(super) fn deadlocks(&self) -> Vec<Deadlock> {
        let mut reasons: Vec<Option<Reason<'a>>> = Vec::with_capacity(self.actors.len());
        for (at, actor) in self.actors.iter().enumerate() {
            reasons.push((!actor.can_run).then(|| self.reason(at)));
        }
        // A reason that may end closes no component: its actor counts as if it had none.
        let lasts = |reason: &&Reason<'_>| !reason.may_end;
        let edges: Vec<&[FlowId]> = reasons
            .iter()
            .map(|reason| reason.as_ref().filter(lasts).map_or(&[][..], |one| &one.leads_to))
            .collect();
        let sinks = sink_components(&edges);
        sinks.into_iter().map(|members| self.deadlock(&members, &reasons)).collect()
    }

    /// The reason of a stuck actor. Of several, one that nothing ends but the actors it leads to;
    /// of these, weights before places in a queue.
    fn reason(&self, actor: FlowId) -> Reason<'a> {
        let tickets = &self.actors[actor].tickets;
        let mut reasons = Vec::new();
        for (slot, place) in tickets.iter().copied() {
            let here = self.evaluate(slot);
            let ticket = Some((slot, place));
            let mut weights = Reason { ticket, ..Reason::default() };
            if self.add_weights(slot, place, &here, &mut weights) {
                if !weights.may_end {
                    return weights;
                }
                reasons.push(weights);
            }
            let mut queued = Reason { ticket, ..Reason::default() };
            if self.add_obstacles(slot, place, &here, &mut queued) {
                reasons.push(queued);
            }
        }
        // The last one, of those that are alike.
        let best = reasons.into_iter().rev().min_by_key(|reason| reason.may_end);
        best.unwrap_or_else(|| self.reason_of_parent(actor))
    }

    /// The reason of an actor that waits for the end of a nested one.
    fn reason_of_parent(&self, actor: FlowId) -> Reason<'a> {
        let children = self.actors[actor].children.iter();
        let stuck = children.filter(|link| !self.actors[link.child].can_run);
        // What is known before what is assumed.
        let link = stuck.min_by_key(|link| !link.known);
        Reason {
            leads_to: link.iter().map(|link| link.child).collect(),
            assumed: link.is_some_and(|link| !link.known && link.outside.is_none()),
            outside: link.and_then(|link| link.outside),
            ..Reason::default()
        }
    }

    /// Adds the holds and reserved parts that leave too little room for a ticket, as few as needed.
    /// Adds nothing and returns false if there is room.
    fn add_weights(
        &self,
        slot: usize,
        place: usize,
        here: &Evaluation,
        reason: &mut Reason<'_>,
    ) -> bool {
        let facts = &self.slots[slot];
        let mut in_the_way: Vec<InTheWay> = self.in_the_way(slot, place, here).collect();
        let may_end = |one: &InTheWay| {
            !one.hold && self.precedence(slot, one.at, place) == Precedence::MayEnd
        };
        // What stays before what may end; the heaviest first; holds before tickets.
        in_the_way.sort_by_key(|one| (may_end(one), std::cmp::Reverse(one.weight), !one.hold));
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
            if one.hold {
                reason.holds.push((slot, one.at));
                reason.leads_to.push(facts.holders[one.at]);
            } else {
                self.add_ticket(slot, one.at, place, reason);
            }
        }
        true
    }

    /// Adds a ticket that is before another one, and what keeps it there.
    fn add_ticket(&self, slot: usize, before: usize, after: usize, reason: &mut Reason<'_>) {
        let facts = &self.slots[slot];
        reason.behind.push((slot, before));
        reason.leads_to.push(facts.queue[before]);
        match self.precedence(slot, before, after) {
            Precedence::Stays => {}
            Precedence::WhileHeld(hold) => {
                reason.holds.push((slot, hold));
                reason.leads_to.push(facts.holders[hold]);
            }
            Precedence::MayEnd => reason.may_end = true,
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
        reason: &mut Reason<'_>,
    ) -> bool {
        let mut place = place;
        let mut found = false;
        loop {
            let may_end = |at: &usize| self.precedence(slot, *at, place) == Precedence::MayEnd;
            // The last one that stays there; min_by_key returns the first of those that are alike.
            let Some(before) = self.obstacles(slot, place, here).min_by_key(may_end) else { break };
            found = true;
            self.add_ticket(slot, before, place, reason);
            // The reason of an actor with one ticket is at this slot.
            let is_set = self.actors[self.slots[slot].queue[before]].tickets.len() > 1;
            if !is_set || self.add_weights(slot, before, here, reason) {
                break;
            }
            place = before;
        }
        found
    }

    fn deadlock(&self, actors: &[FlowId], reasons: &[Option<Reason<'_>>]) -> Deadlock {
        let (mut holds, mut waits) = (Vec::new(), Vec::new());
        let (mut by_task, mut by_nesting, mut by_database) = (false, false, false);
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
            by_database |= reason.outside.is_some();
            members.extend(self.member(*at, reason, actors, reasons));
        }
        for facts in [&mut holds, &mut waits] {
            facts.sort_unstable();
            facts.dedup();
        }
        let mut found =
            Deadlock { members, victim: None, by_task, by_nesting, by_database, holds, waits };
        if !found.is_suspected() {
            found.victim = Deadlock::choose_victim(&found.members);
        }
        found
    }

    /// Describes a member, with those of its holds that other members wait for.
    fn member(
        &self,
        at: FlowId,
        reason: &Reason<'_>,
        actors: &[FlowId],
        reasons: &[Option<Reason<'_>>],
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
            outside: reason.outside.map(Arc::from),
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
