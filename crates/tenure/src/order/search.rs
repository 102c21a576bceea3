//! Searches each edge for cycles twice: among all edges, and among those alone whose wait has no
//! limit.
//!
//! A cycle ends by itself if a wait in it has a limit. One finder is not enough to tell: of several
//! cycles that an edge closes it returns one, and that one may have a wait with a limit while
//! another has none; and an edge whose waits all had a limit may be seen without one later, when
//! the cycle through it is known. So a cycle that the finder of unlimited waits returns is a
//! [`ReportKind::Cycle`], and any other one a [`ReportKind::SelfHealingCycle`].
//!
//! A reader waits for another reader only behind a writer that waits between them. An edge that
//! holds a class to write shows that such a wait exists, and nothing of its limit: it counts for
//! both finders. An edge that waits to write, with a limit, makes readers wait for no longer than
//! that: it counts for the finder of all edges alone.

use super::finder::{ClassId, CycleFinder, EdgeKey};
use super::name_order::NameOrders;
use super::report::ReportKind;

/// The edges so far.
#[derive(Debug, Default)]
pub(super) struct CycleSearch {
    all: CycleFinder,
    unlimited: CycleFinder,
}

/// A cycle, and whether it ends by itself.
pub(super) type FoundCycle = (ReportKind, Vec<EdgeKey>);

/// What an edge closed.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) cycle: Option<FoundCycle>,
    /// The edge is a pair of one class that agrees with no order of names which was left.
    pub(super) contradicts: bool,
    /// Classes of which readers were taken in contradicting orders: now a writer was seen.
    pub(super) readers_contradict: Vec<ClassId>,
}

impl CycleSearch {
    /// Adds an edge, seen with a limit of its wait or without.
    pub(super) fn add(&mut self, edge: EdgeKey, bounded: bool, orders: NameOrders) -> Findings {
        let all = self.all.add(edge, orders);
        let unlimited = if !bounded {
            self.unlimited.add(edge, orders).cycle
        } else if !edge.held_shared {
            self.unlimited.add_writer(edge.held).cycle
        } else {
            None
        };
        let unlimited = unlimited.map(|cycle| (ReportKind::Cycle, cycle));
        let healing = all.cycle.map(|cycle| (ReportKind::SelfHealingCycle, cycle));
        Findings {
            cycle: unlimited.or(healing),
            contradicts: all.contradicts,
            readers_contradict: all.readers_contradict,
        }
    }

    /// A cycle through each of these edges that is part of one, the worse kind if there are both.
    pub(super) fn cycles_through(&mut self, edges: &[EdgeKey]) -> Vec<FoundCycle> {
        let unlimited = self.unlimited.cycles_through(edges);
        let worse = |edge: &&EdgeKey| unlimited.iter().any(|cycle| cycle.last() == Some(*edge));
        let others: Vec<EdgeKey> = edges.iter().filter(|edge| !worse(edge)).copied().collect();
        let healing = self.all.cycles_through(&others);
        let unlimited = unlimited.into_iter().map(|cycle| (ReportKind::Cycle, cycle));
        let healing = healing.into_iter().map(|cycle| (ReportKind::SelfHealingCycle, cycle));
        unlimited.chain(healing).collect()
    }

    /// The orders of names that are no news for a pair of one class.
    pub(super) fn orders(&self, pair: EdgeKey) -> NameOrders {
        self.all.orders(pair)
    }
}
