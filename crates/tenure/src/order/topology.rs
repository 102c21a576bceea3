//! A directed graph without cycles whose topological order is kept up to date while arcs are added
//! (the algorithm of Pearce and Kelly).
//!
//! Every node has a position, and invariant 1 is: each arc of `forward` leads from a smaller
//! position to a larger one. An arc `a -> b` that already agrees with the positions costs one
//! comparison. Otherwise only nodes with positions from that of `b` to that of `a` can be affected:
//! those that `b` reaches and those that reach `a` are searched inside that window, and share out
//! their old positions among themselves, the latter before the former. If the search from `b`
//! meets `a`, the arc would close a cycle.
//!
//! Such an arc is not lost, because a later arc may close another cycle through it: it is kept in
//! `closing`. As long as `closing` is empty the positions alone decide. After that, an arc that
//! agrees with them is searched for once more over all arcs, which costs as much as the graph is
//! large; a program with a reported cycle pays that for its new arcs, never for known ones.

use std::collections::{HashMap, HashSet};

/// Numbers of nodes, from 0 without gaps.
pub(super) type Node = u32;

/// The graph and its order.
#[derive(Debug, Default)]
pub(super) struct Topology {
    position: Vec<u32>,
    forward: Vec<Vec<Node>>,
    backward: Vec<Vec<Node>>,
    /// Arcs that agree with the positions.
    arcs: HashSet<(Node, Node)>,
    /// Arcs that closed a cycle, by their start.
    closing: HashMap<Node, Vec<Node>>,
    /// In which search a node was seen last: no set to clear for each search.
    seen: Vec<u64>,
    search: u64,
}

impl Topology {
    /// Adds nodes up to this one.
    pub(super) fn reach(&mut self, node: Node) {
        while self.position.len() <= node as usize {
            self.position.push(u32::try_from(self.position.len()).unwrap_or(u32::MAX));
            self.forward.push(Vec::new());
            self.backward.push(Vec::new());
            self.seen.push(0);
        }
    }

    /// Where a node stands in the order.
    pub(super) fn position(&self, node: Node) -> u32 {
        self.position.get(node as usize).copied().unwrap_or(u32::MAX)
    }

    /// Adds an arc between two nodes that exist. Returns the nodes of a cycle if the arc closes
    /// one: they begin with `to` and end with `from`, and each has an arc to the next. An arc that
    /// is there already is no news, whether or not it closed a cycle when it came.
    pub(super) fn add(&mut self, from: Node, to: Node) -> Option<Vec<Node>> {
        if self.has(from, to) {
            return None;
        }
        let cycle = match self.path_in_window(from, to) {
            Err(path) => Some(path),
            // The positions know nothing of the arcs that closed cycles before.
            Ok(()) if !self.closing.is_empty() => self.path(to, from),
            Ok(()) => None,
        };
        if cycle.is_some() {
            self.closing.entry(from).or_default().push(to);
            return cycle;
        }
        self.reorder(from, to);
        self.arcs.insert((from, to));
        self.forward[from as usize].push(to);
        self.backward[to as usize].push(from);
        None
    }

    fn closes(&self, from: Node, to: Node) -> bool {
        self.closing.get(&from).is_some_and(|ends| ends.contains(&to))
    }

    /// Whether `to` reaches `from` by arcs that agree with the positions: then the path is the
    /// error.
    fn path_in_window(&mut self, from: Node, to: Node) -> Result<(), Vec<Node>> {
        if from == to {
            return Err(vec![from]);
        }
        let last = self.position(from);
        if last < self.position(to) {
            return Ok(());
        }
        let mut before: HashMap<Node, Node> = HashMap::new();
        let mut stack = vec![to];
        self.begin_search(to);
        while let Some(node) = stack.pop() {
            for at in 0..self.forward[node as usize].len() {
                let next = self.forward[node as usize][at];
                if self.position(next) > last || !self.first_visit(next) {
                    continue;
                }
                before.insert(next, node);
                if next == from {
                    return Err(trace(&before, to, from));
                }
                stack.push(next);
            }
        }
        Ok(())
    }

    /// Whether an arc was added, whether or not it closed a cycle.
    pub(super) fn has(&self, from: Node, to: Node) -> bool {
        self.arcs.contains(&(from, to)) || self.closes(from, to)
    }

    /// The nodes that a cycle can lead through: every cycle has an arc that closed one, so its
    /// nodes are reached from the end of such an arc and reach the start of such an arc.
    pub(super) fn tangled(&mut self) -> HashSet<Node> {
        let ends: Vec<Node> = self.closing.values().flatten().copied().collect();
        let starts: Vec<Node> = self.closing.keys().copied().collect();
        let behind: HashSet<Node> = self.collect(ends, |_, _| true, false).into_iter().collect();
        let ahead = self.collect(starts, |_, _| true, true);
        ahead.into_iter().filter(|node| behind.contains(node)).collect()
    }

    /// A path over all arcs, those that closed cycles included.
    pub(super) fn path(&mut self, start: Node, end: Node) -> Option<Vec<Node>> {
        let mut before: HashMap<Node, Node> = HashMap::new();
        let mut stack = vec![start];
        self.begin_search(start);
        while let Some(node) = stack.pop() {
            let closing = self.closing.get(&node).cloned().unwrap_or_default();
            let ordinary = self.forward[node as usize].clone();
            for next in ordinary.into_iter().chain(closing) {
                if !self.first_visit(next) {
                    continue;
                }
                before.insert(next, node);
                if next == end {
                    return Some(trace(&before, start, end));
                }
                stack.push(next);
            }
        }
        None
    }

    /// Moves the affected nodes so that `from` stands before `to`. There is no path back.
    fn reorder(&mut self, from: Node, to: Node) {
        let (first, last) = (self.position(to), self.position(from));
        if last < first {
            return;
        }
        let mut after = self.collect(vec![to], |this, node| this.position(node) <= last, false);
        let mut ahead = self.collect(vec![from], |this, node| this.position(node) >= first, true);
        after.sort_unstable_by_key(|node| self.position(*node));
        ahead.sort_unstable_by_key(|node| self.position(*node));
        let nodes: Vec<Node> = ahead.into_iter().chain(after).collect();
        let mut free: Vec<u32> = nodes.iter().map(|node| self.position(*node)).collect();
        free.sort_unstable();
        for (node, position) in nodes.into_iter().zip(free) {
            self.position[node as usize] = position;
        }
    }

    /// The nodes reached from the start nodes, themselves included, through nodes inside the window
    /// and over arcs that agree with the positions.
    fn collect(
        &mut self,
        starts: Vec<Node>,
        inside: impl Fn(&Self, Node) -> bool,
        backwards: bool,
    ) -> Vec<Node> {
        self.search += 1;
        let mut found = starts;
        found.retain(|node| self.first_visit(*node));
        let mut next = 0;
        while let Some(node) = found.get(next).copied() {
            next += 1;
            let count = self.arcs_of(node, backwards).len();
            for at in 0..count {
                let other = self.arcs_of(node, backwards)[at];
                if inside(self, other) && self.first_visit(other) {
                    found.push(other);
                }
            }
        }
        found
    }

    fn arcs_of(&self, node: Node, backwards: bool) -> &[Node] {
        let arcs = if backwards { &self.backward } else { &self.forward };
        &arcs[node as usize]
    }

    fn begin_search(&mut self, start: Node) {
        self.search += 1;
        self.seen[start as usize] = self.search;
    }

    fn first_visit(&mut self, node: Node) -> bool {
        std::mem::replace(&mut self.seen[node as usize], self.search) != self.search
    }
}

/// The path from `start` to `end` that a search has left in `before`.
fn trace(before: &HashMap<Node, Node>, start: Node, end: Node) -> Vec<Node> {
    let mut path = vec![end];
    let mut node = end;
    while node != start {
        node = before[&node];
        path.push(node);
    }
    path.reverse();
    path
}
