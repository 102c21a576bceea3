//! Finds cycles among edges between classes of locks, edge by edge.
//!
//! An edge says: while a lock of class `held` was held, one of class `acquired` was waited for.
//! Edges that form a cycle are a deadlock that has not happened yet, if at each class the wait of
//! one edge conflicts with the hold of the next. Readers do not conflict with readers, unless a
//! writer of the class may wait between them: a reader waits behind a writer that came first.
//!
//! So each class is two nodes of the [`Topology`]: one for waits to read and one for other waits.
//! The edge (`A` held, `B` acquired) is an arc from each node of `A` whose wait conflicts with that
//! hold to the node of `B` for its own wait. Hence a cycle of arcs is exactly a cycle of edges that
//! conflict all the way round. A hold to read conflicts with a wait to read only after a writer of
//! the class was seen, when the arcs of earlier readers are added.
//!
//! Edges from a class to itself are judged by [`NameOrders`] instead. Those of readers alone are
//! kept apart until the class has a writer, and count from then on.

use std::collections::HashMap;

use super::name_order::NameOrders;
use super::topology::{Node, Topology};

/// The number of a class.
pub(super) type ClassId = u32;

/// An edge as far as cycles are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EdgeKey {
    pub(super) held: ClassId,
    pub(super) acquired: ClassId,
    /// Held to read.
    pub(super) held_shared: bool,
    /// Waited for to read.
    pub(super) acquired_shared: bool,
}

/// The edges so far, and an order of the classes.
#[derive(Debug, Default)]
pub(super) struct CycleFinder {
    topology: Topology,
    /// Which edge made an arc first.
    arcs: HashMap<(Node, Node), EdgeKey>,
    classes: Vec<ClassFacts>,
}

/// What is known of a class.
#[derive(Debug)]
struct ClassFacts {
    /// A lock of it was held or waited for by more than a reader.
    written: bool,
    /// The edges of those that held it to read.
    readers: Vec<EdgeKey>,
    /// The orders that all pairs of its members agree with, but those in `reader_orders`.
    orders: NameOrders,
    /// The orders that all pairs of readers agreed with which came before any writer; none may be
    /// left, since nothing makes these readers wait.
    reader_orders: NameOrders,
}

/// What an edge closed.
#[derive(Debug, Default)]
pub(super) struct ClosedCycles {
    /// The edges of a cycle: the new edge comes last, or one that became dangerous with it.
    pub(super) cycle: Option<Vec<EdgeKey>>,
    /// The edge is a pair of one class that agrees with no order of names which was left. It did
    /// not narrow the orders.
    pub(super) contradicts: bool,
    /// Classes of which readers were taken in contradicting orders: now a writer was seen.
    pub(super) readers_contradict: Vec<ClassId>,
}

impl CycleFinder {
    /// Adds an edge; `orders` are those of its names, if both are of one class. Of several cycles
    /// that it closes, one through the edge itself is returned.
    pub(super) fn add(&mut self, edge: EdgeKey, orders: NameOrders) -> ClosedCycles {
        self.reach(edge.held.max(edge.acquired));
        let mut closed = ClosedCycles::default();
        if !edge.held_shared {
            self.written(edge.held, &mut closed);
        }
        if !edge.acquired_shared {
            self.written(edge.acquired, &mut closed);
        }
        if edge.held == edge.acquired {
            closed.contradicts = !self.add_pair(edge, orders);
            return closed;
        }
        let facts = self.class(edge.held);
        if edge.held_shared && !facts.readers.contains(&edge) {
            facts.readers.push(edge);
        }
        let conflicts_with_readers = facts.written;
        let to = node(edge.acquired, edge.acquired_shared);
        let mut cycle = self.arc(edge, node(edge.held, false), to);
        if conflicts_with_readers {
            let shared = self.arc(edge, node(edge.held, true), to);
            cycle = cycle.or(shared);
        }
        closed.cycle = cycle.or(closed.cycle);
        closed
    }

    /// Notes that a class has writers. Adds no edge for them.
    pub(super) fn add_writer(&mut self, class: ClassId) -> ClosedCycles {
        self.reach(class);
        let mut closed = ClosedCycles::default();
        self.written(class, &mut closed);
        closed
    }

    /// Narrows the orders of a class by a pair of its members. Returns false if no order would be
    /// left: the pair contradicts what was seen before, and changes nothing.
    fn add_pair(&mut self, pair: EdgeKey, orders: NameOrders) -> bool {
        let class = self.class(pair.held);
        if pair.held_shared && pair.acquired_shared && !class.written {
            class.reader_orders = class.reader_orders.and(orders);
            return true;
        }
        let left = class.orders.and(orders);
        if left.is_empty() {
            return false;
        }
        class.orders = left;
        true
    }

    /// The orders of names that are no news for a pair of one class.
    pub(super) fn orders(&self, pair: EdgeKey) -> NameOrders {
        match self.classes.get(pair.held as usize) {
            None => NameOrders::ALL,
            Some(class) if pair.held_shared && pair.acquired_shared && !class.written => {
                class.reader_orders
            }
            Some(class) => class.orders,
        }
    }

    /// A cycle through each of these edges that is part of one.
    pub(super) fn cycles_through(&mut self, edges: &[EdgeKey]) -> Vec<Vec<EdgeKey>> {
        let tangled = self.topology.tangled();
        let mut cycles = Vec::new();
        for edge in edges.iter().filter(|edge| edge.held != edge.acquired) {
            let to = node(edge.acquired, edge.acquired_shared);
            let steps = [false, true].map(|shared| (node(edge.held, shared), to));
            let cycle = steps.into_iter().find_map(|(from, to)| {
                let possible =
                    tangled.contains(&from) && tangled.contains(&to) && self.topology.has(from, to);
                let path = possible.then(|| self.topology.path(to, from)).flatten()?;
                Some(self.edges_of(&path, *edge))
            });
            cycles.extend(cycle);
        }
        cycles
    }

    /// Where a class stands in an order that all edges agree with, but those that closed a cycle.
    pub(super) fn position(&self, class: ClassId) -> u32 {
        self.topology.position(node(class, false))
    }

    /// Notes that a class has writers. The readers before now conflict with each other.
    fn written(&mut self, class: ClassId, closed: &mut ClosedCycles) {
        let facts = self.class(class);
        if std::mem::replace(&mut facts.written, true) {
            return;
        }
        let left = facts.orders.and(facts.reader_orders);
        if left.is_empty() {
            closed.readers_contradict.push(class);
        } else {
            facts.orders = left;
        }
        for edge in facts.readers.clone() {
            let to = node(edge.acquired, edge.acquired_shared);
            let found = self.arc(edge, node(class, true), to);
            closed.cycle = closed.cycle.take().or(found);
        }
    }

    fn arc(&mut self, edge: EdgeKey, from: Node, to: Node) -> Option<Vec<EdgeKey>> {
        self.arcs.entry((from, to)).or_insert(edge);
        let path = self.topology.add(from, to)?;
        Some(self.edges_of(&path, edge))
    }

    /// The edges of a path, and the one that leads from its end to its start.
    fn edges_of(&self, path: &[Node], last: EdgeKey) -> Vec<EdgeKey> {
        let steps = path.iter().copied().zip(path.iter().copied().skip(1));
        let edges = steps.filter_map(|step| self.arcs.get(&step).copied());
        edges.chain([last]).collect()
    }

    fn class(&mut self, class: ClassId) -> &mut ClassFacts {
        &mut self.classes[class as usize]
    }

    fn reach(&mut self, class: ClassId) {
        while self.classes.len() <= class as usize {
            self.classes.push(ClassFacts {
                written: false,
                readers: Vec::new(),
                orders: NameOrders::ALL,
                reader_orders: NameOrders::ALL,
            });
        }
        self.topology.reach(node(class, true));
    }
}

/// The node of a class for waits to read, or for other waits.
fn node(class: ClassId, shared: bool) -> Node {
    class * 2 + Node::from(shared)
}
