//! Learned edges as a document: read and written as text, merged from several services, searched
//! for cycles, compared, and checked against a declared order. Pure: no session and no store.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::edge::OrderEdge;
use super::finder::{ClassId, CycleFinder, EdgeKey};
use super::name_order::NameOrders;
use super::report::{OrderReport, ReportKind};
use super::search::CycleSearch;
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
#[derive(Clone, Default)]
pub struct OrderGraph {
    edges: Vec<OrderEdge>,
    /// Where edges are in the vector, by a hash of their identity.
    index: HashMap<u64, Vec<usize>>,
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
        let mut hasher = DefaultHasher::new();
        edge.identity().hash(&mut hasher);
        let places = self.index.entry(hasher.finish()).or_default();
        let known = places.iter().find(|at| self.edges[**at].identity() == edge.identity());
        if let Some(at) = known {
            self.edges[*at].absorb(&edge);
        } else {
            places.push(self.edges.len());
            self.edges.push(edge);
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
    pub fn without(self, silenced: &SilencedEdges) -> Self {
        let mut graph = Self::default();
        let left = |edge: &OrderEdge| !silenced.contains(&edge.held, &edge.acquired);
        self.edges.into_iter().filter(left).for_each(|edge| graph.add(edge));
        graph
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
        let (mut search, mut numbers) = (CycleSearch::default(), Numbers::default());
        let mut evidence: HashMap<EdgeKey, &OrderEdge> = HashMap::new();
        let mut reports = Vec::new();
        for edge in sorted {
            let key = numbers.key(edge);
            let known = evidence.entry(key).or_insert(edge);
            // One unlimited wait makes the edge an unlimited one.
            if known.bounded && !edge.bounded {
                *known = edge;
            }
            let found = search.add(key, edge.bounded, edge.orders);
            for class in found.readers_contradict {
                let class = if class == key.held { &edge.held } else { &edge.acquired };
                reports.push(self.contradiction(class, None));
            }
            if found.contradicts {
                reports.push(self.contradiction(&edge.held, Some(edge)));
            }
            if let Some((kind, cycle)) = found.cycle {
                let edges = cycle.iter().filter_map(|key| evidence.get(key));
                reports.push(cycle_report(kind, edges.map(|edge| (*edge).clone()).collect()));
            }
        }
        reports
    }

    /// The report of edges inside a class that contradict each other, with the one that shows it
    /// at the end.
    fn contradiction(&self, class: &str, last: Option<&OrderEdge>) -> OrderReport {
        let inside = |edge: &&OrderEdge| {
            edge.held == class
                && edge.acquired == class
                && last.is_none_or(|last| last.identity() != edge.identity())
        };
        let edges = self.edges.iter().filter(inside).chain(last).cloned().collect();
        OrderReport { kind: ReportKind::NamesOutOfOrder, edges, detail: String::new() }
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
                let key = EdgeKey { held_shared: false, acquired_shared: false, ..key };
                finder.add(key, NameOrders::ALL);
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
            let present: HashSet<_> = from.edges.iter().map(OrderEdge::pair).collect();
            of.edges.iter().filter(|edge| !present.contains(&edge.pair())).collect()
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
        let edges = cycles.iter().flat_map(|report| &report.edges);
        let in_cycles: HashSet<_> = edges.map(|edge| (&edge.held, &edge.acquired)).collect();
        let mut drawn: BTreeMap<_, (Vec<String>, bool)> = BTreeMap::new();
        for edge in &self.edges {
            let pair = (edge.held.clone(), edge.acquired.clone());
            let (services, marked) = drawn.entry(pair).or_default();
            if !services.contains(&edge.service) && !edge.service.is_empty() {
                services.push(edge.service.clone());
            }
            *marked |= in_cycles.contains(&(&edge.held, &edge.acquired));
        }
        drawn
    }
}

impl PartialEq for OrderGraph {
    fn eq(&self, other: &Self) -> bool {
        self.edges == other.edges
    }
}

impl Eq for OrderGraph {}

impl fmt::Debug for OrderGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderGraph").field("edges", &self.edges).finish_non_exhaustive()
    }
}

/// The report of a cycle with this evidence.
pub(super) fn cycle_report(kind: ReportKind, edges: Vec<OrderEdge>) -> OrderReport {
    let mut detail = String::new();
    if kind == ReportKind::SelfHealingCycle && !edges.iter().any(|edge| edge.bounded) {
        detail.push_str("the readers wait behind writers whose waits have a time limit");
    }
    OrderReport { kind, edges, detail }
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
