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
//! Edges from a class to itself are judged by [`NameOrders`] instead.

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
    /// The orders that all pairs of its members agree with.
    orders: NameOrders,
}

impl CycleFinder {
    /// Adds an edge between two classes. Returns the edges of a cycle if it closes one: the new
    /// edge, or one that became dangerous with it, comes last.
    pub(super) fn add(&mut self, edge: EdgeKey) -> Option<Vec<EdgeKey>> {
        self.reach(edge.held.max(edge.acquired));
        let mut cycle = None;
        if edge.held_shared {
            let readers = &mut self.class(edge.held).readers;
            if !readers.contains(&edge) {
                readers.push(edge);
            }
        } else {
            cycle = self.written(edge.held);
        }
        if !edge.acquired_shared {
            let other = self.written(edge.acquired);
            cycle = cycle.or(other);
        }
        let to = node(edge.acquired, edge.acquired_shared);
        let exclusive = self.arc(edge, node(edge.held, false), to);
        cycle = cycle.or(exclusive);
        if !edge.held_shared || self.class(edge.held).written {
            let shared = self.arc(edge, node(edge.held, true), to);
            cycle = cycle.or(shared);
        }
        cycle
    }

    /// Narrows the orders of a class by a pair of its members. Returns false if no order would be
    /// left: the pair contradicts what was seen before, and changes nothing.
    pub(super) fn add_pair(&mut self, class: ClassId, orders: NameOrders) -> bool {
        self.reach(class);
        let class = self.class(class);
        let left = class.orders.and(orders);
        if left.is_empty() {
            return false;
        }
        class.orders = left;
        true
    }

    /// The orders that all pairs of a class agree with.
    pub(super) fn orders(&self, class: ClassId) -> NameOrders {
        self.classes.get(class as usize).map_or(NameOrders::ALL, |class| class.orders)
    }

    /// Where a class stands in an order that all edges agree with, but those that closed a cycle.
    pub(super) fn position(&self, class: ClassId) -> u32 {
        self.topology.position(node(class, false))
    }

    /// Notes that a class has writers. The readers before now conflict with each other.
    fn written(&mut self, class: ClassId) -> Option<Vec<EdgeKey>> {
        if std::mem::replace(&mut self.class(class).written, true) {
            return None;
        }
        let mut cycle = None;
        for edge in self.class(class).readers.clone() {
            let to = node(edge.acquired, edge.acquired_shared);
            let found = self.arc(edge, node(class, true), to);
            cycle = cycle.or(found);
        }
        cycle
    }

    fn arc(&mut self, edge: EdgeKey, from: Node, to: Node) -> Option<Vec<EdgeKey>> {
        self.arcs.entry((from, to)).or_insert(edge);
        let path = self.topology.add(from, to)?;
        let steps = path.iter().copied().zip(path.iter().copied().skip(1));
        let edges = steps.filter_map(|step| self.arcs.get(&step).copied());
        Some(edges.chain([edge]).collect())
    }

    fn class(&mut self, class: ClassId) -> &mut ClassFacts {
        &mut self.classes[class as usize]
    }

    fn reach(&mut self, class: ClassId) {
        while self.classes.len() <= class as usize {
            let orders = NameOrders::ALL;
            self.classes.push(ClassFacts { written: false, readers: Vec::new(), orders });
        }
        self.topology.reach(node(class, true));
    }
}

/// The node of a class for waits to read, or for other waits.
fn node(class: ClassId, shared: bool) -> Node {
    class * 2 + Node::from(shared)
}
