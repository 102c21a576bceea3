//! Pairs that were never seen before: kept with their evidence, searched for cycles, reported.
//!
//! `own` are the edges that this very process has seen, `foreign` those in the store, one sighting
//! for each service and build. A report is made only of a cycle that an own edge is part of, so
//! that each service hears of its own part. A cycle is reported once, and once more if it turned
//! out to be worse than it looked (a wait in it had a limit, and then had none).
//!
//! The finder only grows. When an edge has left the store, because its build is gone, everything is
//! judged anew from the edges that are left: the verdicts about known pairs are dropped too, and
//! each pair is looked at again when it is next taken.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::checker::{
    ClassPair, KnownPair, OrderChecker, OrderRequest, WaitLimit, code, lock, place_text,
};
use super::document::{OrderGraph, cycle_report};
use super::edge::{LockMode, OrderEdge};
use super::finder::{ClassId, CycleFinder, EdgeKey};
use super::name_order::NameOrders;
use super::report::{OrderReport, ReportKind};
use crate::sync::PoisonError;
use crate::sync::atomic::Ordering;

/// What a checker has learned.
#[derive(Debug, Default)]
pub(super) struct Learned {
    finder: CycleFinder,
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
        self.finder = CycleFinder::default();
        self.own.retain(|key, _| !was_refused(*key));
        for (key, edge) in self.own_edges() {
            self.search(key, edge.orders);
        }
    }

    /// The sighting that a report shows: that of this process if it has one, else the first.
    fn evidence(&self, key: EdgeKey) -> Option<OrderEdge> {
        let foreign = self.foreign.get(&key).map(Vec::as_slice).unwrap_or_default();
        if let Some(own) = self.own_edge(key) {
            let mut own = own.clone();
            // Another process of this build may have seen it earlier.
            if let Some(same) = foreign.iter().find(|edge| edge.identity() == own.identity()) {
                own.absorb(same);
            }
            return Some(own);
        }
        // A cycle heals itself only if every service that takes this edge waits with a limit.
        let unlimited = foreign.iter().filter(|edge| !edge.bounded);
        let first = unlimited.min_by_key(|edge| edge.first_seen);
        first.or_else(|| foreign.iter().min_by_key(|edge| edge.first_seen)).cloned()
    }

    /// The report of a cycle, unless no edge of this process is part of it, and whether it is news.
    fn report_of(&mut self, cycle: &[EdgeKey]) -> Option<(OrderReport, bool)> {
        if !cycle.iter().any(|key| self.own.contains_key(key)) {
            return None;
        }
        let report = cycle_report(cycle.iter().filter_map(|key| self.evidence(*key)).collect());
        let news = self.is_news(cycle, report.kind);
        Some((report, news))
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

    /// Adds an edge to the finder. Returns the cycle that it closes: edges of one class form one
    /// by themselves.
    fn search(&mut self, key: EdgeKey, orders: NameOrders) -> Option<Vec<EdgeKey>> {
        if key.held == key.acquired {
            return (!self.finder.add_pair(key.held, orders)).then(|| vec![key]);
        }
        self.finder.add(key)
    }

    /// The report of names that were taken in contradicting orders. `last` is the pair of this
    /// process that shows it; otherwise one of its earlier pairs must be part of it.
    fn contradiction(&mut self, class: ClassId, last: Option<OrderEdge>) -> Option<OrderReport> {
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
        let kind = ReportKind::NamesOutOfOrder;
        let key =
            EdgeKey { held: class, acquired: class, held_shared: false, acquired_shared: false };
        self.is_news(&[key], kind).then(|| OrderReport { kind, edges, detail: String::new() })
    }
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
        let orders = edge.orders;
        let contradicts =
            key.held == key.acquired && learned.finder.orders(key.held).and(orders).is_empty();
        let mut report = None;
        let cycle = learned.search(key, orders);
        if contradicts {
            report = learned.contradiction(key.held, Some(edge)).map(|report| (report, true));
        } else {
            learned.sight(key, edge);
        }
        let news = before != learned.own_edge(key).map(|own| (own.bounded, own.orders));
        match cycle {
            Some(cycle) if !contradicts => report = learned.report_of(&cycle),
            // The edge was seen with a time limit, and closed a cycle then.
            None if before.is_some() && news => report = learned.worse_cycle(key),
            _ => {}
        }
        if news && !contradicts && !self.0.alone.load(Ordering::Relaxed) {
            learned.unshared.push(key);
        }
        let orders = learned.finder.orders(key.held);
        drop(learned);
        let mut known = KnownPair { refused: None, orders };
        if key.held != key.acquired {
            known.orders = NameOrders::ALL;
        }
        // A cycle through the same classes in other modes is no news, but refused all the same.
        let refused = report.as_ref().filter(|(report, _)| report.kind.is_refused());
        let mut refused = refused.map(|(report, _)| Arc::new(report.clone()));
        if contradicts {
            // Each pair of names is judged by itself: only those that contradict are refused.
            refused = refused.or_else(|| self.first_contradiction(key));
        } else {
            known.refused.clone_from(&refused);
        }
        self.know(code, known);
        if let Some((report, true)) = report {
            self.emit(report);
        }
        refused
    }

    /// The report of the first contradiction inside a class, for those that come after it.
    fn first_contradiction(&self, key: EdgeKey) -> Option<Arc<OrderReport>> {
        let class = self.class_name(key.held);
        let about = |report: &&OrderReport| {
            report.kind == ReportKind::NamesOutOfOrder
                && report.edges.first().is_some_and(|edge| *edge.held == *class)
        };
        self.reports().iter().find(about).cloned().map(Arc::new)
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
        let mut reports = Vec::new();
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
            let orders = edge.orders;
            learned.sight_foreign(key, edge);
            let Some(cycle) = learned.search(key, orders) else { continue };
            let report = if key.held == key.acquired {
                learned.contradiction(key.held, None).map(|report| (report, true))
            } else {
                learned.report_of(&cycle)
            };
            let Some((report, is_news)) = report else { continue };
            if report.kind.is_refused() {
                let refused = cycle.iter().filter(|key| news.contains(key));
                self.refuse(refused.copied(), &report);
            }
            if is_news {
                reports.push(report);
            }
        }
        drop(learned);
        for report in reports {
            self.emit(report);
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

impl Learned {
    /// A cycle through this edge that was reported as one that heals itself, and does not any more.
    fn worse_cycle(&mut self, key: EdgeKey) -> Option<(OrderReport, bool)> {
        let through =
            |classes: &Vec<(ClassId, ClassId)>| classes.contains(&(key.held, key.acquired));
        let healing = |kind: &ReportKind| *kind == ReportKind::SelfHealingCycle;
        let found = self.reported.iter().find(|(all, kind)| through(all) && healing(kind));
        let classes = found.map(|(classes, _)| classes.clone())?;
        let edge_of = |pair: &(ClassId, ClassId)| {
            let mut same = self.own.keys().chain(self.foreign.keys());
            same.find(|key| (key.held, key.acquired) == *pair).copied()
        };
        let cycle: Vec<EdgeKey> = classes.iter().filter_map(edge_of).collect();
        self.report_of(&cycle)
    }
}
