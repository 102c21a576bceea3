//! Random sequences of edges, with a search over the edges themselves as the oracle: an edge leads
//! to another if it waits for the class that the other holds, and the two conflict there.

use crate::order::finder::{CycleFinder, EdgeKey};
use crate::order::search::CycleSearch;
use crate::order::{LockMode, NameOrders, OrderEdge, OrderGraph, ReportKind};

/// A generator that repeats itself for the same seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 11) % u64::from(end)).unwrap()
    }
}

/// Edges, and the classes in which readers wait behind writers.
#[derive(Debug)]
struct Picture {
    edges: Vec<EdgeKey>,
    written: Vec<u32>,
}

impl Picture {
    /// The picture of edges that have all been seen.
    fn of(edges: &[EdgeKey]) -> Self {
        let sightings: Vec<Sighting> = edges.iter().map(|edge| (*edge, false)).collect();
        Self::of_sightings(&sightings, true)
    }

    /// The picture of all edges, or of those that were seen without a limit of the wait. To hold a
    /// class to write shows that there is a writer, whatever the edge waits for next.
    fn of_sightings(sightings: &[Sighting], bounded_too: bool) -> Self {
        let mut picture = Self { edges: Vec::new(), written: Vec::new() };
        for (edge, bounded) in sightings {
            let counts = bounded_too || !bounded;
            if counts && !picture.edges.contains(edge) {
                picture.edges.push(*edge);
            }
            if !edge.held_shared {
                picture.written.push(edge.held);
            }
            if counts && !edge.acquired_shared {
                picture.written.push(edge.acquired);
            }
        }
        picture
    }

    fn conflict(&self, wait: EdgeKey, hold: EdgeKey) -> bool {
        let class = wait.acquired;
        let between_readers = self.written.contains(&class);
        class == hold.held && (!wait.acquired_shared || !hold.held_shared || between_readers)
    }

    /// Whether some edge leads back to itself.
    fn has_cycle(&self) -> bool {
        self.edges.iter().any(|start| self.leads_to(*start, *start))
    }

    fn leads_to(&self, start: EdgeKey, end: EdgeKey) -> bool {
        let mut seen = Vec::new();
        let mut stack = vec![start];
        while let Some(edge) = stack.pop() {
            for next in self.edges.iter().filter(|next| self.conflict(edge, **next)) {
                if *next == end {
                    return true;
                }
                if !seen.contains(next) {
                    seen.push(*next);
                    stack.push(*next);
                }
            }
        }
        false
    }

    /// Whether a reported cycle is one.
    fn is_cycle(&self, cycle: &[EdgeKey]) -> bool {
        let next = cycle.iter().cycle().skip(1);
        !cycle.is_empty()
            && cycle.iter().all(|edge| self.edges.contains(edge))
            && cycle.iter().zip(next).all(|(one, two)| self.conflict(*one, *two))
    }
}

/// An edge, and whether its wait had a limit.
type Sighting = (EdgeKey, bool);

/// Adds an edge to a finder alone. Returns the cycle that it closes.
fn add(finder: &mut CycleFinder, edge: EdgeKey) -> Option<Vec<EdgeKey>> {
    finder.add(edge, NameOrders::ALL).cycle
}

fn random_edge(dice: &mut Dice, classes: u32) -> EdgeKey {
    let held = dice.below(classes);
    let acquired = (held + 1 + dice.below(classes - 1)) % classes;
    let (held_shared, acquired_shared) = (dice.below(3) == 0, dice.below(3) == 0);
    EdgeKey { held, acquired, held_shared, acquired_shared }
}

#[test]
fn no_cycle_is_missed_and_none_is_invented_in_random_sequences_of_edges() {
    let sequences = 100_000;
    let (mut found, mut clean) = (0, 0);
    for seed in 0..sequences {
        let mut dice = Dice::new(seed + 1);
        let (classes, count) = (2 + dice.below(5), 2 + dice.below(8));
        let mut finder = CycleFinder::default();
        let mut all: Vec<EdgeKey> = Vec::new();
        for _ in 0..count {
            let edge = random_edge(&mut dice, classes);
            let known = all.contains(&edge);
            let before = !known && Picture::of(&all).has_cycle();
            if !known {
                all.push(edge);
            }
            let picture = Picture::of(&all);
            let told = add(&mut finder, edge);
            if let Some(cycle) = &told {
                assert!(picture.is_cycle(cycle), "seed {seed}: {cycle:?} of {all:?}");
            }
            assert!(!known || told.is_none(), "seed {seed}: a known edge is told again");
            if !known && !before {
                let expected = picture.has_cycle();
                assert_eq!(told.is_some(), expected, "seed {seed}: {edge:?} in {all:?}");
            }
            // A cycle through the new edge is told although others were there before, unless it
            // leads through the same classes as one of those.
            let same =
                |other: &&EdgeKey| (other.held, other.acquired) == (edge.held, edge.acquired);
            let repeats = all.iter().filter(same).count() > 1;
            if !known && before && !repeats && picture.leads_to(edge, edge) {
                assert!(told.is_some(), "seed {seed}: {edge:?} closes another cycle of {all:?}");
                let told = told.unwrap_or_default();
                assert_eq!(told.last(), Some(&edge), "seed {seed}: one through the edge itself");
            }
        }
        if Picture::of(&all).has_cycle() { found += 1 } else { clean += 1 }
    }
    assert!(found > sequences / 10 && clean > sequences / 10, "{found} with, {clean} without");
}

/// Three services, each of which waits with a limit here and without one there.
#[test]
fn a_cycle_without_limits_is_told_whatever_other_sightings_came_before_it() {
    let sequences = 40_000;
    let (mut hangs, mut heals, mut late) = (0, 0, 0);
    for seed in 0..sequences {
        let mut dice = Dice::new(seed + 1);
        let (classes, count) = (2 + dice.below(4), 2 + dice.below(9));
        let mut search = CycleSearch::default();
        let mut graph = OrderGraph::default();
        let mut seen: Vec<Sighting> = Vec::new();
        for at in 0..count {
            let (edge, bounded) = (random_edge(&mut dice, classes), dice.below(2) == 0);
            let before = [true, false].map(|all| Picture::of_sightings(&seen, all).has_cycle());
            seen.push((edge, bounded));
            let [all, unlimited] = [true, false].map(|all| Picture::of_sightings(&seen, all));
            let told = search.add(edge, bounded, NameOrders::ALL).cycle;
            match &told {
                Some((ReportKind::Cycle, cycle)) => {
                    assert!(unlimited.is_cycle(cycle), "seed {seed}: {cycle:?} of {seen:?}");
                }
                Some((_, cycle)) => {
                    assert!(all.is_cycle(cycle), "seed {seed}: {cycle:?} of {seen:?}");
                }
                None => {}
            }
            let kind = told.map(|(kind, _)| kind);
            if unlimited.has_cycle() && !before[1] {
                assert_eq!(kind, Some(ReportKind::Cycle), "seed {seed}: {seen:?}");
                late += u32::from(before[0]);
            } else if all.has_cycle() && !before[0] {
                assert_eq!(kind, Some(ReportKind::SelfHealingCycle), "seed {seed}: {seen:?}");
            }
            graph.add(sighted(edge, bounded, dice.below(3), at));
        }
        let [all, unlimited] = [true, false].map(|all| Picture::of_sightings(&seen, all));
        let reports = graph.cycles();
        let worst = reports.iter().map(|report| report.kind).min();
        let expected = match (unlimited.has_cycle(), all.has_cycle()) {
            (true, _) => Some(ReportKind::Cycle),
            (false, true) => Some(ReportKind::SelfHealingCycle),
            (false, false) => None,
        };
        assert_eq!(worst, expected, "seed {seed}: {seen:?}: {reports:?}");
        let shown = reports.iter().filter(|report| report.kind == ReportKind::Cycle);
        for edge in shown.flat_map(|report| &report.edges) {
            assert!(!edge.bounded, "seed {seed}: {edge:?}");
        }
        hangs += u32::from(expected == Some(ReportKind::Cycle));
        heals += u32::from(expected == Some(ReportKind::SelfHealingCycle));
    }
    assert!(hangs > 4_000 && heals > 4_000 && late > 1_000, "{hangs}, {heals}, {late}");
}

/// The edge of a document that one of the services has seen.
fn sighted(key: EdgeKey, bounded: bool, service: u32, at: u32) -> OrderEdge {
    let mut edge = OrderEdge::new(key.held.to_string(), key.acquired.to_string())
        .service(format!("service {service}"));
    edge.held_mode = LockMode::of(key.held_shared);
    edge.acquired_mode = LockMode::of(key.acquired_shared);
    (edge.bounded, edge.first_seen) = (bounded, u64::from(at));
    edge
}

/// Any own edge of a cycle is found, though the arc that closed it belongs to a shorter one.
#[test]
fn a_cycle_through_an_edge_is_found_if_there_is_one_and_only_then() {
    let (mut with, mut without) = (0, 0);
    for seed in 0..5_000 {
        let mut dice = Dice::new(seed + 3);
        let (classes, count) = (2 + dice.below(5), 2 + dice.below(10));
        let mut finder = CycleFinder::default();
        let mut all: Vec<EdgeKey> = Vec::new();
        for _ in 0..count {
            let edge = random_edge(&mut dice, classes);
            add(&mut finder, edge);
            all.push(edge);
        }
        let picture = Picture::of(&all);
        for edge in all {
            let cycles = finder.cycles_through(&[edge]);
            let expected = picture.leads_to(edge, edge);
            assert_eq!(!cycles.is_empty(), expected, "seed {seed}: {edge:?} in {picture:?}");
            for cycle in cycles {
                assert!(picture.is_cycle(&cycle) && cycle.contains(&edge), "seed {seed}");
            }
            if expected { with += 1 } else { without += 1 }
        }
    }
    assert!(with > 1_000 && without > 1_000, "{with} with, {without} without");
}

#[test]
fn the_order_agrees_with_every_edge_of_a_graph_without_cycles() {
    for seed in 0..200 {
        let mut dice = Dice::new(seed + 7);
        let classes = 40;
        // A hidden order, and edges that follow it.
        let mut rank: Vec<u32> = (0..classes).collect();
        for at in (1..classes).rev() {
            rank.swap(at as usize, dice.below(at + 1) as usize);
        }
        let mut finder = CycleFinder::default();
        let mut edges = Vec::new();
        for _ in 0..300 {
            let (a, b) = (dice.below(classes), dice.below(classes));
            if rank[a as usize] >= rank[b as usize] {
                continue;
            }
            let edge = EdgeKey { held: a, acquired: b, held_shared: false, acquired_shared: false };
            assert_eq!(add(&mut finder, edge), None, "seed {seed}");
            edges.push(edge);
        }
        for edge in edges {
            let (held, acquired) = (finder.position(edge.held), finder.position(edge.acquired));
            assert!(held < acquired, "seed {seed}: {edge:?}");
        }
    }
}

#[test]
fn readers_in_both_orders_wait_for_each_other_only_once_writers_stand_between_them() {
    let read =
        |held, acquired| EdgeKey { held, acquired, held_shared: true, acquired_shared: true };
    let write =
        |held, acquired| EdgeKey { held, acquired, held_shared: false, acquired_shared: false };
    let mut finder = CycleFinder::default();
    assert_eq!(add(&mut finder, read(0, 1)), None);
    assert_eq!(add(&mut finder, read(1, 0)), None);
    assert_eq!(add(&mut finder, write(2, 0)), None, "one of the two classes has a writer");
    let cycle = add(&mut finder, write(2, 1)).unwrap();
    assert_eq!(cycle.len(), 2, "{cycle:?}");
}
