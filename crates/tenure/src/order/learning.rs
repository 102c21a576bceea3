//! Pairs that were never seen before: kept with their evidence, searched for cycles, reported.
//!
//! `own` are the edges that this very process has seen, `foreign` those in the store, one sighting
//! for each service and build. A report is made only of a cycle that an own edge is part of, so
//! that each service hears of its own part. If an edge from the store closes a cycle of other
//! services, a cycle through each own edge is searched for: the same edge may close both. A cycle
//! is reported once, and once more if it turned out to be worse than it looked (a wait in it had a
//! limit, and then had none).
//!
//! The search only grows. When an edge has left the store, because its build is gone, everything is
//! judged anew from the edges that are left: the verdicts about known pairs are dropped too, and
//! each pair is looked at again when it is next taken.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::checker::{
    ClassPair, KnownPair, OrderChecker, OrderRequest, WaitLimit, code, hash_byte, lock,
    place_number, place_text,
};
use super::document::{OrderGraph, cycle_report};
use super::edge::{LockMode, OrderEdge};
use super::finder::{ClassId, EdgeKey};
use super::name_order::NameOrders;
use super::report::{OrderReport, ReportKind};
use super::search::{CycleSearch, FoundCycle};
use super::settings::OrderMode;
use crate::sync::PoisonError;
use crate::sync::atomic::Ordering;

/// What a checker has learned.
#[derive(Debug, Default)]
pub(super) struct Learned {
    search: CycleSearch,
    /// The sightings in the store of each edge, one for each service and build.
    foreign: HashMap<EdgeKey, Vec<OrderEdge>>,
    /// The edges that this process has seen itself.
    own: HashMap<EdgeKey, OrderEdge>,
    /// Those of them that the store has not been told.
    pub(super) unshared: Vec<EdgeKey>,
    /// The edges of this build that the store has, and for how many seconds it keeps them.
    pub(super) stored: HashMap<EdgeKey, (OrderEdge, u64)>,
    /// The store's edges were read once.
    pub(super) loaded: bool,
    /// The cycles that were reported, by their classes, and as what.
    reported: HashMap<Vec<(ClassId, ClassId)>, ReportKind>,
}

/// A report that is due, or was made before.
struct Finding {
    report: OrderReport,
    is_news: bool,
    /// The edges that are refused for it.
    edges: Vec<EdgeKey>,
}

impl Learned {
    /// The edges that this process has seen itself.
    pub(super) fn own_graph(&self) -> OrderGraph {
        let mut graph = OrderGraph::default();
        for edge in self.own.values() {
            graph.add(edge.clone());
        }
        graph
    }

    /// The edges that this process has seen itself, in the order in which it did.
    pub(super) fn own_edges(&self) -> Vec<(EdgeKey, OrderEdge)> {
        let mut all: Vec<_> = self.own.iter().map(|(key, edge)| (*key, edge.clone())).collect();
        all.sort_by_key(|(key, edge)| (edge.first_seen, *key));
        all
    }

    pub(super) fn own_edge(&self, key: EdgeKey) -> Option<&OrderEdge> {
        self.own.get(&key)
    }

    /// Adds a sighting of this process.
    fn sight(&mut self, key: EdgeKey, edge: OrderEdge) {
        match self.own.get_mut(&key) {
            Some(known) => {
                known.absorb(&edge);
            }
            None => {
                self.own.insert(key, edge);
            }
        }
    }

    /// Adds a sighting from the store.
    fn sight_foreign(&mut self, key: EdgeKey, edge: OrderEdge) {
        let all = self.foreign.entry(key).or_default();
        match all.iter_mut().find(|known| known.identity() == edge.identity()) {
            Some(known) => *known = edge,
            None => all.push(edge),
        }
    }

    /// Whether a sighting is known that is not in this list any more.
    fn has_more_than(&self, listed: &[(EdgeKey, OrderEdge, u64)]) -> bool {
        let present: HashSet<_> =
            listed.iter().map(|(key, edge, _)| (*key, &*edge.service, &*edge.build)).collect();
        let mut known =
            self.foreign.iter().flat_map(|(key, all)| all.iter().map(move |e| (key, e)));
        known.any(|(key, edge)| !present.contains(&(*key, &*edge.service, &*edge.build)))
    }

    /// Forgets what came from the store, and the own edges that were refused: they are judged anew.
    fn start_over(&mut self, was_refused: impl Fn(EdgeKey) -> bool) {
        self.foreign.clear();
        self.search = CycleSearch::default();
        self.own.retain(|key, _| !was_refused(*key));
        for (key, edge) in self.own_edges() {
            self.search.add(key, edge.bounded, edge.orders);
        }
    }

    /// The sighting that a report shows: that of this process if it has one, else the first. The
    /// waits of a cycle that does not heal itself are shown where they have no limit.
    fn evidence(&self, key: EdgeKey, kind: ReportKind) -> Option<OrderEdge> {
        let foreign = self.foreign.get(&key).map(Vec::as_slice).unwrap_or_default();
        let own = self.own_edge(key).map(|own| {
            let mut own = own.clone();
            // Another process of this build may have seen it earlier.
            if let Some(same) = foreign.iter().find(|edge| edge.identity() == own.identity()) {
                own.absorb(same);
            }
            own
        });
        // A cycle heals itself only if every service that takes this edge waits with a limit.
        let unlimited = foreign.iter().filter(|edge| !edge.bounded);
        let unlimited = unlimited.min_by_key(|edge| edge.first_seen).cloned();
        match own {
            Some(own) if kind == ReportKind::Cycle && own.bounded => unlimited.or(Some(own)),
            Some(own) => Some(own),
            None => {
                let first = || foreign.iter().min_by_key(|edge| edge.first_seen).cloned();
                unlimited.or_else(first)
            }
        }
    }

    /// The report of a cycle, unless no edge of this process is part of it.
    fn report_of(&mut self, (kind, cycle): &FoundCycle) -> Option<Finding> {
        if !cycle.iter().any(|key| self.own.contains_key(key)) {
            return None;
        }
        let edges = cycle.iter().filter_map(|key| self.evidence(*key, *kind)).collect();
        let report = cycle_report(*kind, edges);
        let is_news = self.is_news(cycle, *kind);
        Some(Finding { report, is_news, edges: cycle.clone() })
    }

    /// The reports of cycles through edges of this process.
    fn own_cycles(&mut self) -> Vec<Finding> {
        let own: Vec<EdgeKey> = self.own_edges().into_iter().map(|(key, _)| key).collect();
        let cycles = self.search.cycles_through(&own);
        cycles.iter().filter_map(|cycle| self.report_of(cycle)).collect()
    }

    /// Whether a cycle was not reported before, or as something less bad. From now on it was.
    fn is_news(&mut self, cycle: &[EdgeKey], kind: ReportKind) -> bool {
        let mut classes: Vec<_> = cycle.iter().map(|key| (key.held, key.acquired)).collect();
        classes.sort_unstable();
        let before = self.reported.get(&classes).copied();
        // The worse kind comes first in the order of kinds.
        let news = before.is_none_or(|before| before > kind);
        if news {
            self.reported.insert(classes, kind);
        }
        news
    }

    /// The report of names that were taken in contradicting orders. `last` is the pair of this
    /// process that shows it; otherwise one of its earlier pairs must be part of it.
    fn contradiction(&self, class: ClassId, last: Option<OrderEdge>) -> Option<OrderReport> {
        let inside = |key: &EdgeKey| key.held == class && key.acquired == class;
        if last.is_none() && !self.own.keys().any(inside) {
            return None;
        }
        let foreign = self.foreign.iter().filter(|(key, _)| inside(key));
        let mut edges: Vec<OrderEdge> = foreign.flat_map(|(_, all)| all.iter().cloned()).collect();
        for (_, own) in self.own_edges().into_iter().filter(|(key, _)| inside(key)) {
            edges.retain(|edge| edge.identity() != own.identity());
            edges.push(own);
        }
        edges.extend(last);
        Some(OrderReport { kind: ReportKind::NamesOutOfOrder, edges, detail: String::new() })
    }

    /// The same for pairs that were learned before, told once for each class. `edges` are refused.
    fn earlier_contradiction(&mut self, class: ClassId, edges: Vec<EdgeKey>) -> Option<Finding> {
        let report = self.contradiction(class, None)?;
        let is_news = self.is_news(&[pair_of_readers(class)], report.kind);
        Some(Finding { report, is_news, edges })
    }
}

/// The edge of a reader that acquires another lock of the class as a reader.
fn pair_of_readers(class: ClassId) -> EdgeKey {
    EdgeKey { held: class, acquired: class, held_shared: true, acquired_shared: true }
}

impl OrderChecker {
    /// Learns a pair. Returns why it is refused, if it is.
    pub(super) fn learn(
        &self,
        request: &OrderRequest<'_>,
        pair: &ClassPair<'_>,
        at: u64,
    ) -> Option<Arc<OrderReport>> {
        let edge = self.edge(request, pair, at);
        let code = pair.code(request.wait);
        let key = pair.key;
        if self.0.settings.silenced.contains(&edge.held, &edge.acquired) {
            self.know(code, KnownPair { refused: None, orders: NameOrders::from_bits(0) });
            return None;
        }
        let mut learned = lock(&self.0.learned);
        let before = learned.own_edge(key).map(|own| (own.bounded, own.orders));
        let (bounded, orders) = (edge.bounded, edge.orders);
        let found = learned.search.add(key, bounded, orders);
        let mut findings = Vec::new();
        if found.contradicts {
            // Each place in the code is told of once, and in mode `deny` refused each time.
            let place = place_number(request.about.place.as_ref());
            let place = key.held.to_le_bytes().into_iter().fold(place, hash_byte);
            let is_news = self.first_of(ReportKind::NamesOutOfOrder, place);
            if is_news || self.mode() == OrderMode::Deny {
                let report = learned.contradiction(key.held, Some(edge));
                findings.extend(report.map(|report| Finding { report, is_news, edges: vec![key] }));
            }
        } else {
            learned.sight(key, edge);
        }
        let news = before != learned.own_edge(key).map(|own| (own.bounded, own.orders));
        for class in found.readers_contradict {
            self.forget_readers(class);
            let refused = if key.held == key.acquired { Vec::new() } else { vec![key] };
            findings.extend(learned.earlier_contradiction(class, refused));
        }
        if let Some(cycle) = found.cycle {
            match learned.report_of(&cycle) {
                Some(finding) => findings.push(finding),
                None => findings.extend(learned.own_cycles()),
            }
        }
        if news && !self.0.alone.load(Ordering::Relaxed) {
            learned.unshared.push(key);
        }
        let pair_orders = learned.search.orders(key);
        let orders = if key.held == key.acquired { pair_orders } else { NameOrders::ALL };
        drop(learned);
        // A cycle through the same classes in other modes is no news, but refused all the same. A
        // wait with a limit is no part of a cycle that does not heal itself.
        let refuses = |one: &&Finding| match one.report.kind {
            ReportKind::Cycle => !bounded,
            kind => kind.is_refused() && one.edges.contains(&key),
        };
        let refused = findings.iter().find(refuses).map(|one| Arc::new(one.report.clone()));
        // Each pair of names is judged by itself: only those that contradict are refused.
        let always = refused.clone().filter(|_| !found.contradicts);
        self.know(code, KnownPair { refused: always, orders });
        for finding in findings.into_iter().filter(|finding| finding.is_news) {
            self.emit(finding.report);
        }
        refused
    }

    /// Looks again at pairs of readers when they are next taken: their class has a writer now.
    fn forget_readers(&self, class: ClassId) {
        let mut all = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
        for bounded in [false, true] {
            all.remove(&code(pair_of_readers(class), bounded));
        }
    }

    pub(super) fn know(&self, code: u64, known: KnownPair) {
        let mut all = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(code, known);
    }

    fn edge(&self, request: &OrderRequest<'_>, pair: &ClassPair<'_>, at: u64) -> OrderEdge {
        let key = pair.key;
        let mut edge = OrderEdge::new(&*self.class_name(key.held), &*self.class_name(key.acquired))
            .service(&self.0.service)
            .build(self.build())
            .places(place_text(&pair.held.claim.about), place_text(request.about));
        edge.held_mode = LockMode::of(key.held_shared);
        edge.acquired_mode = LockMode::of(key.acquired_shared);
        edge.bounded = request.wait == WaitLimit::Bounded;
        edge.orders = pair.orders();
        (edge.first_seen, edge.last_seen) = (at, at);
        edge
    }

    /// Takes over all edges that the store has, except those of builds that are gone: cycles with
    /// edges of this process are reported, and those of `news` are refused from now on.
    pub(super) fn merge(&self, edges: Vec<(OrderEdge, u64)>, news: &[EdgeKey]) {
        let silenced = &self.0.settings.silenced;
        let edges =
            edges.into_iter().filter(|(edge, _)| !silenced.contains(&edge.held, &edge.acquired));
        let listed: Vec<(EdgeKey, OrderEdge, u64)> =
            edges.filter_map(|(edge, kept)| Some((self.key_of(&edge)?, edge, kept))).collect();
        let mut findings = Vec::new();
        let mut others_cycle = false;
        let mut learned = lock(&self.0.learned);
        learned.loaded = true;
        learned.stored.clear();
        if learned.has_more_than(&listed) {
            learned.start_over(|key| self.refused(key).is_some());
            self.0.known.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
        for (key, edge, kept) in listed {
            if edge.service == self.0.service && edge.build == self.build() {
                learned.stored.insert(key, (edge.clone(), kept));
            }
            let (bounded, orders) = (edge.bounded, edge.orders);
            learned.sight_foreign(key, edge);
            let found = learned.search.add(key, bounded, orders);
            if found.contradicts {
                findings.extend(learned.earlier_contradiction(key.held, vec![key]));
            }
            for class in found.readers_contradict {
                self.forget_readers(class);
                findings.extend(learned.earlier_contradiction(class, Vec::new()));
            }
            if let Some(cycle) = found.cycle {
                match learned.report_of(&cycle) {
                    Some(finding) => findings.push(finding),
                    None => others_cycle = true,
                }
            }
        }
        if others_cycle {
            findings.extend(learned.own_cycles());
        }
        drop(learned);
        for finding in findings {
            if finding.report.kind.is_refused() {
                let refused = finding.edges.iter().filter(|key| news.contains(key));
                self.refuse(refused.copied(), &finding.report);
            }
            if finding.is_news {
                self.emit(finding.report);
            }
        }
    }

    /// Refuses edges from now on, whatever their wait.
    fn refuse(&self, keys: impl Iterator<Item = EdgeKey>, report: &OrderReport) {
        let report = Arc::new(report.clone());
        for key in keys {
            for bounded in [false, true] {
                let refused = (!bounded).then(|| Arc::clone(&report));
                self.know(code(key, bounded), KnownPair { refused, orders: NameOrders::ALL });
            }
        }
    }

    /// Why an edge is refused, if it is.
    pub(super) fn refused(&self, key: EdgeKey) -> Option<Arc<OrderReport>> {
        let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&code(key, false)).and_then(|known| known.refused.clone())
    }

    fn key_of(&self, edge: &OrderEdge) -> Option<EdgeKey> {
        Some(EdgeKey {
            held: self.number(&edge.held)?,
            acquired: self.number(&edge.acquired)?,
            held_shared: edge.held_mode.is_shared(),
            acquired_shared: edge.acquired_mode.is_shared(),
        })
    }
}
