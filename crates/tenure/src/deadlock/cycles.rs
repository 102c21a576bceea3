//! From stuck actors to deadlocks: the reason of each, and the components that no reason leaves.
//!
//! A reason names facts that are enough to keep an actor out for ever, and the actors they are of.
//! Every stuck actor has one, and the actors it leads to are stuck too; so following reasons never
//! ends, and a strongly connected component that no reason leaves (a *sink*) exists. Its facts are
//! closed: as long as they stand, none of its members can be the first to be granted.

use super::picture::{FlowId, InTheWay, Picture};
use super::{Deadlock, DeadlockMember, MemberHold, MemberWait};
use crate::contract::ClaimAt;

/// Why an actor is stuck.
#[derive(Default)]
struct Reason {
    /// The ticket that cannot be granted; none for an actor that waits for its child process.
    ticket: Option<(usize, usize)>,
    /// Holds that keep it out, as slot and place among the holders.
    holds: Vec<(usize, usize)>,
    /// Tickets that it has to wait behind, or for whom what it wants is reserved.
    behind: Vec<(usize, usize)>,
    /// The actors of these facts.
    leads_to: Vec<FlowId>,
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
            let reason = Reason { ticket: Some((slot, place)), ..Reason::default() };
            let facts = &self.slots[slot];
            let here = self.evaluate(slot);
            let mut in_the_way: Vec<InTheWay> = self.in_the_way(slot, place, &here).collect();
            // The heaviest first: as few as suffice; holds before tickets.
            in_the_way.sort_by_key(|one| (std::cmp::Reverse(one.weight), !one.hold));
            let wanted = u64::from(self.waiter((slot, place)).weight);
            let capacity = u64::from(facts.view.shape.capacity());
            let mut sum = wanted;
            let mut enough = reason;
            for one in in_the_way {
                if sum > capacity {
                    break;
                }
                sum += u64::from(one.weight);
                let (list, actors) = if one.hold {
                    (&mut enough.holds, &facts.holders)
                } else {
                    (&mut enough.behind, &facts.queue)
                };
                list.push((slot, one.at));
                enough.leads_to.push(actors[one.at]);
            }
            if sum > capacity && !enough.leads_to.is_empty() {
                return enough;
            }
            if let Some(before) = self.obstacle(slot, place, &here) {
                queued = Some(Reason {
                    ticket: enough.ticket,
                    behind: vec![(slot, before)],
                    leads_to: vec![facts.queue[before]],
                    holds: Vec::new(),
                });
            }
        }
        queued.unwrap_or_else(|| {
            let children = self.actors[actor].children.iter().copied();
            let child = children.filter(|child| !self.actors[*child].can_run).take(1);
            Reason { leads_to: child.collect(), ..Reason::default() }
        })
    }

    fn deadlock(&self, actors: &[FlowId], reasons: &[Option<Reason>]) -> Deadlock {
        let (mut holds, mut waits) = (Vec::new(), Vec::new());
        let mut by_task = false;
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
            members.extend(self.member(*at, reason, actors, reasons));
        }
        for facts in [&mut holds, &mut waits] {
            facts.sort_unstable();
            facts.dedup();
        }
        let victim = Deadlock::choose_victim(&members).filter(|_| !by_task);
        Deadlock { members, victim, by_task, holds, waits }
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
