//! Random sequences of edges, with a search over the edges themselves as the oracle: an edge leads
//! to another if it waits for the class that the other holds, and the two conflict there.

use crate::order::finder::{CycleFinder, EdgeKey};

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

fn conflict(wait: EdgeKey, hold: EdgeKey, all: &[EdgeKey]) -> bool {
    let class = wait.acquired;
    let written = |edge: &EdgeKey| {
        edge.held == class && !edge.held_shared || edge.acquired == class && !edge.acquired_shared
    };
    class == hold.held && (!wait.acquired_shared || !hold.held_shared || all.iter().any(written))
}

/// Whether some edge leads back to itself.
fn has_cycle(all: &[EdgeKey]) -> bool {
    all.iter().any(|start| leads_to(*start, *start, all))
}

fn leads_to(start: EdgeKey, end: EdgeKey, all: &[EdgeKey]) -> bool {
    let mut seen = Vec::new();
    let mut stack = vec![start];
    while let Some(edge) = stack.pop() {
        for next in all.iter().filter(|next| conflict(edge, **next, all)) {
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
fn is_cycle(cycle: &[EdgeKey], all: &[EdgeKey]) -> bool {
    let next = cycle.iter().cycle().skip(1);
    !cycle.is_empty() && cycle.iter().zip(next).all(|(one, two)| conflict(*one, *two, all))
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
            let before = !known && has_cycle(&all);
            if !known {
                all.push(edge);
            }
            let told = finder.add(edge);
            if let Some(cycle) = &told {
                assert!(is_cycle(cycle, &all), "seed {seed}: {cycle:?} of {all:?}");
            }
            assert!(!known || told.is_none(), "seed {seed}: a known edge is told again");
            if !known && !before {
                assert_eq!(told.is_some(), has_cycle(&all), "seed {seed}: {edge:?} in {all:?}");
            }
            // A cycle through the new edge is told although others were there before, unless it
            // leads through the same classes as one of those.
            let same =
                |other: &&EdgeKey| (other.held, other.acquired) == (edge.held, edge.acquired);
            let repeats = all.iter().filter(same).count() > 1;
            if !known && before && !repeats && leads_to(edge, edge, &all) {
                assert!(told.is_some(), "seed {seed}: {edge:?} closes another cycle of {all:?}");
            }
        }
        if has_cycle(&all) { found += 1 } else { clean += 1 }
    }
    assert!(found > sequences / 10 && clean > sequences / 10, "{found} with, {clean} without");
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
            assert_eq!(finder.add(edge), None, "seed {seed}");
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
    assert_eq!(finder.add(read(0, 1)), None);
    assert_eq!(finder.add(read(1, 0)), None);
    assert_eq!(finder.add(write(2, 0)), None, "one of the two classes has a writer");
    let cycle = finder.add(write(2, 1)).unwrap();
    assert_eq!(cycle.len(), 2, "{cycle:?}");
}
