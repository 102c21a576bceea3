//! Pairs that were never seen before: kept with their evidence, searched for cycles, reported.
//!
//! `edges` has what is known of each edge, one sighting for each service; those of other services
//! come from the store. `own` are the edges that this very process has seen: a report is made only
//! of a cycle that one of them is part of, so that each service hears of its own part. A cycle is
//! reported once, and once more if it turned out to be worse than it looked (a wait in it had a
//! limit, and then had none).

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
    /// The sightings of each edge, one for each service.
    edges: HashMap<EdgeKey, Vec<OrderEdge>>,
    /// The edges that this process has seen itself.
    own: HashSet<EdgeKey>,
    /// Those of them that the store has not been told.
    pub(super) unshared: Vec<EdgeKey>,
    /// The edges of this service that the store has, and for how many seconds it keeps them.
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
        for key in &self.own {
            // The sighting of this service is the first one: see `sight`.
            if let Some(edge) = self.edges.get(key).and_then(|all| all.first()) {
                graph.add(edge.clone());
            }
        }
        graph
    }

    /// The sighting of this process's own service.
    pub(super) fn own_edge(&self, key: EdgeKey) -> Option<&OrderEdge> {
        self.own.contains(&key).then(|| self.edges.get(&key)?.first()).flatten()
    }

    /// Adds a sighting. Those of this process's own service stand first.
    fn sight(&mut self, key: EdgeKey, edge: OrderEdge, own: bool) {
        let all = self.edges.entry(key).or_default();
        match all.iter_mut().find(|known| known.service == edge.service) {
            Some(known) => {
                known.absorb(&edge);
            }
            None if own => all.insert(0, edge),
            None => all.push(edge),
        }
    }

    /// The sighting that a report shows: that of this service if it has one, else the first.
    fn evidence(&self, key: EdgeKey) -> Option<OrderEdge> {
        let all = self.edges.get(&key)?;
        if let Some(own) = self.own_edge(key) {
            return Some(own.clone());
        }
        // A cycle heals itself only if every service that takes this edge waits with a limit.
        let unlimited = all.iter().filter(|edge| !edge.bounded).min_by_key(|edge| edge.first_seen);
        unlimited.or_else(|| all.iter().min_by_key(|edge| edge.first_seen)).cloned()
    }

    /// The report of a cycle, unless it was made before or no edge of this process is part of it.
    fn report_of(&mut self, cycle: &[EdgeKey]) -> Option<OrderReport> {
        if !cycle.iter().any(|key| self.own.contains(key)) {
            return None;
        }
        let report = cycle_report(cycle.iter().filter_map(|key| self.evidence(*key)).collect());
        self.once(cycle, report)
    }

    fn once(&mut self, cycle: &[EdgeKey], report: OrderReport) -> Option<OrderReport> {
        let mut classes: Vec<_> = cycle.iter().map(|key| (key.held, key.acquired)).collect();
        classes.sort_unstable();
        let before = self.reported.get(&classes).copied();
        // The worse kind comes first in the order of kinds.
        let news = before.is_none_or(|before| before > report.kind);
        news.then(|| {
            self.reported.insert(classes, report.kind);
            report
        })
    }

    /// Adds an edge to the finder. Returns the cycle that it closes: edges of one class form one
    /// by themselves.
    fn search(&mut self, key: EdgeKey, orders: NameOrders) -> Option<Vec<EdgeKey>> {
        if key.held == key.acquired {
            return (!self.finder.add_pair(key.held, orders)).then(|| vec![key]);
        }
        self.finder.add(key)
    }

    /// The report of names that were taken in contradicting orders.
    fn contradiction(&mut self, key: EdgeKey, last: Option<OrderEdge>) -> Option<OrderReport> {
        if !self.own.iter().any(|own| own.held == key.held && own.acquired == key.held) {
            return None;
        }
        let others = self.edges.iter().filter(|(other, _)| other.held == other.acquired);
        let others = others.filter(|(other, _)| other.held == key.held);
        let mut edges: Vec<OrderEdge> = others.flat_map(|(_, all)| all.iter().cloned()).collect();
        edges.extend(last);
        let kind = ReportKind::NamesOutOfOrder;
        self.once(&[key], OrderReport { kind, edges, detail: String::new() })
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
        learned.own.insert(key);
        let cycle = learned.search(key, orders);
        let report = match &cycle {
            Some(_) if contradicts => learned.contradiction(key, Some(edge.clone())),
            _ => None,
        };
        if !contradicts {
            learned.sight(key, edge, true);
        }
        let news = before != learned.own_edge(key).map(|own| (own.bounded, own.orders));
        let report = match cycle {
            Some(cycle) if !contradicts => learned.report_of(&cycle),
            // The edge was seen with a time limit, and closed a cycle then.
            None if before.is_some() && news => learned.worse_cycle(key),
            _ => report,
        };
        if news && !contradicts && !self.0.alone.load(Ordering::Relaxed) {
            learned.unshared.push(key);
        }
        let orders = learned.finder.orders(key.held);
        drop(learned);
        let mut known = KnownPair { refused: None, orders };
        if key.held != key.acquired {
            known.orders = NameOrders::ALL;
        }
        let refused = report.as_ref().filter(|report| report.kind.is_refused());
        let mut refused = refused.map(|report| Arc::new(report.clone()));
        if contradicts {
            // Each pair of names is judged by itself: only those that contradict are refused.
            refused = refused.or_else(|| self.first_contradiction(key));
        } else {
            known.refused.clone_from(&refused);
        }
        self.know(code, known);
        if let Some(report) = report {
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
            .places(place_text(&pair.held.claim.about), place_text(request.about));
        edge.held_mode = LockMode::of(key.held_shared);
        edge.acquired_mode = LockMode::of(key.acquired_shared);
        edge.bounded = request.wait == WaitLimit::Bounded;
        edge.orders = pair.orders();
        (edge.first_seen, edge.last_seen) = (at, at);
        edge
    }

    /// Takes over the edges that the store has. Returns nothing: cycles with edges of this process
    /// are reported, and those of `news` are refused from now on.
    pub(super) fn merge(&self, edges: Vec<(OrderEdge, u64)>, news: &[EdgeKey]) {
        let mut reports = Vec::new();
        let mut learned = lock(&self.0.learned);
        learned.loaded = true;
        for (edge, kept) in edges {
            if self.0.settings.silenced.contains(&edge.held, &edge.acquired) {
                continue;
            }
            let Some(key) = self.key_of(&edge) else { continue };
            if edge.service == self.0.service {
                learned.stored.insert(key, (edge.clone(), kept));
            }
            let orders = edge.orders;
            learned.sight(key, edge, false);
            let Some(cycle) = learned.search(key, orders) else { continue };
            let report = if key.held == key.acquired {
                learned.contradiction(key, None)
            } else {
                learned.report_of(&cycle)
            };
            let Some(report) = report else { continue };
            if report.kind.is_refused() {
                let refused = cycle.iter().filter(|key| news.contains(key));
                self.refuse(refused.copied(), &report);
            }
            reports.push(report);
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
    fn worse_cycle(&mut self, key: EdgeKey) -> Option<OrderReport> {
        let through =
            |classes: &Vec<(ClassId, ClassId)>| classes.contains(&(key.held, key.acquired));
        let healing = |kind: &ReportKind| *kind == ReportKind::SelfHealingCycle;
        let found = self.reported.iter().find(|(all, kind)| through(all) && healing(kind));
        let classes = found.map(|(classes, _)| classes.clone())?;
        let edge_of = |pair: &(ClassId, ClassId)| {
            let mut same = self.edges.keys().filter(|key| (key.held, key.acquired) == *pair);
            same.next().copied()
        };
        let cycle: Vec<EdgeKey> = classes.iter().filter_map(edge_of).collect();
        self.report_of(&cycle)
    }
}
