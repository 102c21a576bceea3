//! The picture: nodes and edges from a snapshot, cut down to what can be looked at.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tenure::contract::short;
use tenure::deadlock::Deadlock;
use tenure::{About, Name, OwnerId, Snapshot, WaiterView};

use crate::output::DeadlockRow;

/// Most nodes of a picture; of a larger one only the slots with the most waiters are shown.
const MOST_NODES: usize = 200;
/// How many slots a picture shows that is too large.
const WORST: usize = 10;
/// How many waiters of one slot are shown; the rest is counted.
const MOST_WAITERS: usize = 5;

/// Nodes, edges and deadlocks.
#[derive(Debug, Serialize)]
pub(super) struct Picture {
    pub(super) nodes: Vec<Node>,
    pub(super) edges: Vec<Edge>,
    pub(super) deadlocks: Vec<DeadlockRow>,
    /// Something was left out.
    pub(super) truncated: bool,
    #[serde(skip)]
    pub(super) sentences: Vec<String>,
}

/// An owner or a slot.
#[derive(Debug, Serialize)]
pub(super) struct Node {
    pub(super) id: String,
    pub(super) kind: &'static str,
    pub(super) label: String,
    /// It is part of a deadlock.
    pub(super) deadlocked: bool,
}

/// A wait (owner to slot), a hold (slot to owner), or a child process (owner to owner).
#[derive(Debug, Serialize)]
pub(super) struct Edge {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) kind: &'static str,
    pub(super) label: String,
}

impl Picture {
    pub(super) fn new(seen: &Snapshot, name: Option<&Name>, deadlocks: &[Deadlock]) -> Self {
        let (slots, mut truncated) = chosen(seen, name, deadlocks);
        let members: BTreeSet<OwnerId> =
            deadlocks.iter().flat_map(|one| one.members.iter().map(|m| m.owner)).collect();
        let mut owners: BTreeMap<OwnerId, String> = BTreeMap::new();
        let mut picture = Self {
            nodes: Vec::new(),
            edges: Vec::new(),
            deadlocks: deadlocks.iter().map(DeadlockRow::new).collect(),
            truncated: false,
            sentences: deadlocks.iter().map(Deadlock::words).collect(),
        };
        for (slot, number) in slots.iter().map(|at| &seen.slots[*at]).zip(1..) {
            let id = format!("s{number}");
            let mut deadlocked = false;
            for holder in &slot.holders {
                let owner = holder.lineage.owner();
                deadlocked |= members.contains(&owner);
                let node = picture.owner(owner, &holder.about, &mut owners, &members);
                let label = format!("held {}, fence {}", short(holder.held_for), holder.fence);
                picture.edge(id.clone(), node, "holds", label);
            }
            let mut hidden = 0;
            for (at, waiter) in slot.queue.iter().enumerate() {
                let owner = waiter.lineage.owner();
                if at >= MOST_WAITERS && !members.contains(&owner) {
                    hidden += 1;
                    continue;
                }
                let node = picture.owner(owner, &waiter.about, &mut owners, &members);
                let label = format!("place {}, waits {}", at + 1, short(waiter.waited_for));
                picture.edge(node, id.clone(), "waits", label);
            }
            let mut label = slot.name.shown().into_owned();
            if hidden > 0 {
                label = format!("{label} (+ {hidden} more waiters)");
                truncated = true;
            }
            picture.nodes.push(Node { id, kind: "slot", label, deadlocked });
        }
        picture.truncated = truncated;
        for waiter in slots.iter().flat_map(|at| &seen.slots[*at].queue) {
            picture.link_parent(waiter, &owners);
        }
        picture
    }

    fn owner(
        &mut self,
        owner: OwnerId,
        about: &About,
        owners: &mut BTreeMap<OwnerId, String>,
        members: &BTreeSet<OwnerId>,
    ) -> String {
        let number = owners.len() + 1;
        let id = owners.entry(owner).or_insert_with(|| format!("w{number}")).clone();
        if !self.nodes.iter().any(|node| node.id == id) {
            let (label, deadlocked) = (about.to_string(), members.contains(&owner));
            self.nodes.push(Node { id: id.clone(), kind: "owner", label, deadlocked });
        }
        id
    }

    /// Links an owner with the one nested in it that waits: whose end it waits for, or may.
    fn link_parent(&mut self, waiter: &WaiterView, owners: &BTreeMap<OwnerId, String>) {
        let parent = waiter.lineage.ancestors().first();
        let child = owners.get(&waiter.lineage.owner());
        if let (Some(parent), Some(child)) = (parent.and_then(|one| owners.get(one)), child) {
            let known = waiter.about.conduct.held_up > 0;
            let label = if known { "waits for its child process" } else { "runs" };
            self.edge(parent.clone(), child.clone(), "runs", label.to_owned());
        }
    }

    fn edge(&mut self, from: String, to: String, kind: &'static str, label: String) {
        self.edges.push(Edge { from, to, kind, label });
    }

    /// The label of a node.
    pub(super) fn label<'a>(&'a self, id: &'a str) -> &'a str {
        let node = self.nodes.iter().find(|node| node.id == id);
        node.map_or(id, |node| node.label.as_str())
    }
}

/// The slots to show, by their places in the snapshot; whether others were left out.
fn chosen(seen: &Snapshot, name: Option<&Name>, deadlocks: &[Deadlock]) -> (Vec<usize>, bool) {
    let mut all: Vec<usize> = (0..seen.slots.len()).collect();
    if let Some(name) = name {
        all = connected(seen, name);
    }
    let nodes: usize = all
        .iter()
        .map(|at| 1 + seen.slots[*at].holders.len() + seen.slots[*at].queue.len().min(MOST_WAITERS))
        .sum();
    if nodes <= MOST_NODES {
        return (all, false);
    }
    let part = |name: &Name| {
        let waits = |member: &tenure::deadlock::DeadlockMember| {
            member.wait.as_ref().is_some_and(|wait| wait.name == *name)
        };
        deadlocks.iter().any(|one| one.members.iter().any(waits))
    };
    let mut worst = all.clone();
    worst.sort_by_key(|at| std::cmp::Reverse(seen.slots[*at].queue.len()));
    worst.truncate(WORST);
    all.retain(|at| worst.contains(at) || part(&seen.slots[*at].name));
    (all, true)
}

/// The slots that are connected with a slot by owners that hold or wait at both.
fn connected(seen: &Snapshot, name: &Name) -> Vec<usize> {
    let owners = |at: usize| {
        let slot = &seen.slots[at];
        // Ancestors too: an outer run may wait for an inner one.
        let holders = slot.holders.iter().flat_map(|one| one.lineage.all());
        holders.chain(slot.queue.iter().flat_map(|one| one.lineage.all())).collect::<BTreeSet<_>>()
    };
    let mut found: BTreeSet<usize> =
        (0..seen.slots.len()).filter(|at| seen.slots[*at].name == *name).collect();
    let mut known: BTreeSet<OwnerId> = found.iter().flat_map(|at| owners(*at)).collect();
    loop {
        let more: Vec<usize> = (0..seen.slots.len())
            .filter(|at| !found.contains(at) && !owners(*at).is_disjoint(&known))
            .collect();
        if more.is_empty() {
            return found.into_iter().collect();
        }
        known.extend(more.iter().flat_map(|at| owners(*at)));
        found.extend(more);
    }
}
