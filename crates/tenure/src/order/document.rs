//! Learned edges as a document: read and written as text, merged from several services, searched
//! for cycles, compared, and checked against a declared order. Pure: no session and no store.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use super::edge::OrderEdge;
use super::finder::{ClassId, CycleFinder, EdgeKey};
use super::report::{OrderReport, ReportKind};
use super::silence::SilencedEdges;
use crate::contract::{Error, ErrorKind};

/// The edges that services have learned: what `tenure order` works on.
///
/// # Examples
/// Two services that never deadlocked in their own tests:
/// ```
/// use tenure::{OrderEdge, OrderGraph};
///
/// let mut graph = OrderGraph::default();
/// let billing = OrderEdge::new("account:*", "ledger").service("billing");
/// let reports = OrderEdge::new("ledger", "account:*").service("reports");
/// graph.add(billing.places("bill.rs:7", "bill.rs:9"));
/// graph.add(reports.places("rep.rs:3", "rep.rs:5"));
/// let cycles = graph.cycles();
/// assert_eq!(cycles.len(), 1);
/// let text = cycles[0].to_string();
/// assert!(text.contains("bill.rs:9") && text.contains("rep.rs:5"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderGraph {
    edges: Vec<OrderEdge>,
}

/// The first line of a file with a graph.
const HEAD: &str = "tenure lock order 1";

impl OrderGraph {
    /// The edges.
    #[must_use]
    pub fn edges(&self) -> &[OrderEdge] {
        &self.edges
    }

    /// Adds an edge, or what it says to the one that is there.
    pub fn add(&mut self, edge: OrderEdge) {
        match self.edges.iter_mut().find(|other| other.identity() == edge.identity()) {
            Some(known) => {
                known.absorb(&edge);
            }
            None => self.edges.push(edge),
        }
    }

    /// Adds all edges of another graph.
    pub fn merge(&mut self, other: Self) {
        for edge in other.edges {
            self.add(edge);
        }
    }

    /// The graph without the edges that are silenced.
    #[must_use]
    pub fn without(mut self, silenced: &SilencedEdges) -> Self {
        self.edges.retain(|edge| !silenced.contains(&edge.held, &edge.acquired));
        self
    }

    /// The graph as text: a head, and one line for each edge, sorted.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines: Vec<String> = self.edges.iter().map(OrderEdge::to_line).collect();
        lines.sort();
        let mut text = format!("{HEAD}\n");
        for line in lines {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    /// The graph that [`to_text`](Self::to_text) wrote.
    ///
    /// # Errors
    /// `InvalidOption` with the number of the first line that is not an edge.
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let mut lines = text.lines().enumerate();
        if lines.next().map(|(_, line)| line) != Some(HEAD) {
            let what = format!("the first line is not {HEAD:?}");
            return Err(Error::new(ErrorKind::InvalidOption, what)
                .with_help("use a file that `tenure order export` wrote"));
        }
        let mut graph = Self::default();
        for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let edge = OrderEdge::from_line(line);
            graph.add(edge.map_err(|error| error.within(&format!("line {}", at + 1)))?);
        }
        Ok(graph)
    }

    /// All cycles that edges close, in the order in which they were first seen: deadlocks that have
    /// not happened yet. Names that are taken in contradicting orders count as well.
    #[must_use]
    pub fn cycles(&self) -> Vec<OrderReport> {
        let mut sorted: Vec<&OrderEdge> = self.edges.iter().collect();
        sorted.sort_by(|a, b| (a.first_seen, a.identity()).cmp(&(b.first_seen, b.identity())));
        let (mut finder, mut numbers) = (CycleFinder::default(), Numbers::default());
        let mut evidence: HashMap<EdgeKey, &OrderEdge> = HashMap::new();
        let mut reports = Vec::new();
        for edge in sorted {
            let key = numbers.key(edge);
            if key.held == key.acquired {
                reports.extend(self.contradiction(&mut finder, key.held, edge));
                continue;
            }
            let known = evidence.entry(key).or_insert(edge);
            // One unlimited wait makes the edge an unlimited one.
            if known.bounded && !edge.bounded {
                *known = edge;
            }
            if let Some(cycle) = finder.add(key) {
                let edges = cycle.iter().filter_map(|key| evidence.get(key));
                reports.push(cycle_report(edges.map(|edge| (*edge).clone()).collect()));
            }
        }
        reports
    }

    /// The report if an edge inside a class contradicts the ones before it.
    fn contradiction(
        &self,
        finder: &mut CycleFinder,
        class: ClassId,
        edge: &OrderEdge,
    ) -> Option<OrderReport> {
        if finder.add_pair(class, edge.orders) {
            return None;
        }
        let contradicts = |other: &&OrderEdge| {
            other.held == edge.held
                && other.acquired == edge.acquired
                && other.identity() != edge.identity()
        };
        let others = self.edges.iter().filter(contradicts).cloned();
        let edges = others.chain([edge.clone()]).collect();
        Some(OrderReport { kind: ReportKind::NamesOutOfOrder, edges, detail: String::new() })
    }

    /// The classes, each before those that are acquired while it is held, as far as there are no
    /// cycles.
    #[must_use]
    pub fn classes(&self) -> Vec<String> {
        let (mut finder, mut numbers) = (CycleFinder::default(), Numbers::default());
        for edge in &self.edges {
            let key = numbers.key(edge);
            if key.held != key.acquired {
                // Readers and writers stand in one order.
                finder.add(EdgeKey { held_shared: false, acquired_shared: false, ..key });
            }
        }
        let mut classes: Vec<_> = numbers.0.into_iter().collect();
        classes.sort_by(|a, b| (finder.position(a.1), &a.0).cmp(&(finder.position(b.1), &b.0)));
        classes.into_iter().map(|(class, _)| class).collect()
    }

    /// The edges that go against a declared order: a list of classes, of which each may be held
    /// while a later one is acquired. Classes that are not in the list are not judged.
    #[must_use]
    pub fn against<T: AsRef<str>>(&self, declared: &[T]) -> Vec<OrderReport> {
        let place = |class: &str| declared.iter().position(|other| other.as_ref() == class);
        let against = |edge: &&OrderEdge| match (place(&edge.held), place(&edge.acquired)) {
            (Some(held), Some(acquired)) => held > acquired,
            _ => false,
        };
        let report = |edge: &OrderEdge| OrderReport {
            kind: ReportKind::AgainstDeclaredOrder,
            edges: vec![edge.clone()],
            detail: format!("{} is declared before {}", edge.acquired, edge.held),
        };
        self.edges.iter().filter(against).map(report).collect()
    }

    /// The edges of `newer` that this graph does not have, and those of this graph that `newer`
    /// does not have: by classes and modes, whichever services were seen to do it.
    #[must_use]
    pub fn diff<'a>(&'a self, newer: &'a Self) -> (Vec<&'a OrderEdge>, Vec<&'a OrderEdge>) {
        let missing = |from: &'a Self, of: &'a Self| {
            let lacks =
                |edge: &&OrderEdge| !from.edges.iter().any(|other| other.pair() == edge.pair());
            of.edges.iter().filter(lacks).collect()
        };
        (missing(self, newer), missing(newer, self))
    }

    /// The graph for Graphviz. Edges of cycles are red.
    #[must_use]
    pub fn to_dot(&self) -> String {
        let mut text = "digraph order {\n".to_owned();
        for ((held, acquired), (services, in_cycle)) in self.drawn() {
            let colour = if in_cycle { ", color=red" } else { "" };
            let (held, acquired) = (quoted(&held), quoted(&acquired));
            let label = quoted(&services.join(", "));
            let _ = writeln!(text, "  {held} -> {acquired} [label={label}{colour}];");
        }
        text + "}\n"
    }

    /// The graph for Mermaid. Edges of cycles are thick.
    #[must_use]
    pub fn to_mermaid(&self) -> String {
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        let mut arrows = String::new();
        for ((held, acquired), (services, in_cycle)) in self.drawn() {
            let mut node = |class: &str| {
                let next = numbers.len();
                *numbers.entry(class.to_owned()).or_insert(next)
            };
            let (from, to) = (node(&held), node(&acquired));
            let arrow = if in_cycle { "==>" } else { "-->" };
            let label = entities(&services.join(", "));
            let label = if label.is_empty() { label } else { format!("|\"{label}\"|") };
            let _ = writeln!(arrows, "  c{from} {arrow}{label} c{to}");
        }
        let mut text = "graph TD\n".to_owned();
        for (class, number) in &numbers {
            let _ = writeln!(text, "  c{number}[\"{}\"]", entities(class));
        }
        text + &arrows
    }

    /// Each pair of classes, with the services that take it and whether it is part of a cycle.
    fn drawn(&self) -> BTreeMap<(String, String), (Vec<String>, bool)> {
        let cycles = self.cycles();
        let in_cycle = |edge: &OrderEdge| {
            let mut edges = cycles.iter().flat_map(|report| &report.edges);
            edges.any(|one| one.held == edge.held && one.acquired == edge.acquired)
        };
        let mut drawn: BTreeMap<_, (Vec<String>, bool)> = BTreeMap::new();
        for edge in &self.edges {
            let pair = (edge.held.clone(), edge.acquired.clone());
            let (services, marked) = drawn.entry(pair).or_default();
            if !services.contains(&edge.service) && !edge.service.is_empty() {
                services.push(edge.service.clone());
            }
            *marked |= in_cycle(edge);
        }
        drawn
    }
}

/// The report of a cycle with this evidence.
pub(super) fn cycle_report(edges: Vec<OrderEdge>) -> OrderReport {
    let heals = edges.iter().any(|edge| edge.bounded);
    let kind = if heals { ReportKind::SelfHealingCycle } else { ReportKind::Cycle };
    OrderReport { kind, edges, detail: String::new() }
}

/// Numbers for classes.
#[derive(Default)]
struct Numbers(BTreeMap<String, ClassId>);

impl Numbers {
    fn key(&mut self, edge: &OrderEdge) -> EdgeKey {
        EdgeKey {
            held: self.number(&edge.held),
            acquired: self.number(&edge.acquired),
            held_shared: edge.held_mode.is_shared(),
            acquired_shared: edge.acquired_mode.is_shared(),
        }
    }

    fn number(&mut self, class: &str) -> ClassId {
        let next = ClassId::try_from(self.0.len()).unwrap_or(ClassId::MAX);
        *self.0.entry(class.to_owned()).or_insert(next)
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn entities(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}
