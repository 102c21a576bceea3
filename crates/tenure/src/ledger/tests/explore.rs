//! All short programs over small worlds, each step audited.
//!
//! A world is a few claims and the steps that may be taken with them. The walk goes on from each
//! state once, by the shortest program that leads there; states that differ only in the time of
//! day or in the numbers of fences and arrivals are the same.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::audit::{Auditor, Step, story};
use super::facts::{Seat, facts};
use super::*;

/// Walks all programs of `depth` steps, and of longer ones when the long run was asked for.
fn explore(cast: &[Ask], steps: &[Step], depth: usize) {
    let depth = if nightly() { depth + 4 } else { depth };
    let start = Auditor::new(cast.iter().cloned());
    let mut seen = HashSet::from([key(&start)]);
    let mut edge: Vec<(Vec<Step>, Auditor)> = vec![(Vec::new(), start)];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (program, from) in edge {
            for step in steps {
                let mut auditor = from.clone();
                let checked = auditor.perform(*step);
                let program: Vec<Step> = program.iter().chain([step]).copied().collect();
                if let Err(wrong) = checked {
                    panic!("{}", story(cast, &program, &wrong));
                }
                if seen.insert(key(&auditor)) {
                    next.push((program, auditor));
                }
            }
        }
        edge = next;
    }
    assert!(seen.len() > 500, "only {} states: is the world too small?", seen.len());
}

/// What the future of a state depends on.
fn key(auditor: &Auditor) -> u64 {
    let now = auditor.world.tick;
    let mut hasher = DefaultHasher::new();
    for (name, scene) in facts(&auditor.world.ledger) {
        (&name, scene.shape, scene.closed_until.since(now)).hash(&mut hasher);
        for seat in scene.seats() {
            let (left, delay) = (seat.expires.since(now), seat.claim.lock_delay);
            let delayed = (seat.expires + delay).since(now);
            let seat_key = (seat.claim.id, left, delayed, seat.reserved, seat.fence.is_some());
            (seat_key, auditor.family(&name, seat)).hash(&mut hasher);
        }
        // The order of arrival across holders and line, for those that go back to their place.
        let mut order: Vec<&Seat> = scene.seats().collect();
        order.sort_by_key(|seat| seat.arrival);
        for seat in order {
            seat.claim.id.hash(&mut hasher);
        }
    }
    for (id, until) in auditor.tombs() {
        (id, until.since(now)).hash(&mut hasher);
    }
    hasher.finish()
}

/// For each claim: claim it, release it, renew it.
fn usual(claims: usize, renewed: &[usize]) -> Vec<Step> {
    let claim = (0..claims).map(Step::Claim);
    let release = (0..claims).map(|at| Step::Release { at, uncertain: false });
    let renew = renewed.iter().map(|at| Step::Renew(*at));
    claim.chain(release).chain(renew).collect()
}

#[test]
fn every_short_program_of_nested_owners_on_a_mutex_keeps_the_promises() {
    let a = || [mutex("a")];
    let cast = [
        ask(1, &owner(1), a()).lease(2_000),
        ask(2, &nested(2, &[1]), a()),
        ask(3, &nested(3, &[1]), a()),
        ask(4, &nested(4, &[2, 1]), a()),
        ask(5, &nested(5, &[2, 1]), a()),
        ask(6, &owner(6), a()),
    ];
    let mut steps = usual(cast.len(), &[0, 2]);
    steps.push(Step::Pass(1_000));
    explore(&cast, &steps, 5);
}

#[test]
fn every_short_program_of_re_entry_with_two_claims_each_keeps_the_promises() {
    let cast = [
        ask(1, &owner(1), [mutex("a")]),
        ask(2, &owner(1), [mutex("a")]).lease(2_000),
        ask(3, &nested(2, &[1]), [mutex("a")]),
        ask(4, &nested(2, &[1]), [mutex("a")]),
        ask(5, &owner(3), [mutex("a")]).session(1),
        ask(6, &owner(3), [mutex("a")]).trying(),
    ];
    let mut steps = usual(cast.len(), &[1]);
    steps.push(Step::Pass(1_000));
    explore(&cast, &steps, 5);
}

#[test]
fn every_short_program_of_readers_writers_and_upgrades_keeps_the_promises() {
    let (r, w) = (|| [read("a")], || [write("a")]);
    let reader = ask(1, &owner(1), r());
    let other = ask(3, &owner(2), r()).lease(2_000);
    let cast = [
        reader.clone(),
        ask(2, &owner(1), w()).replaces(&reader).lease(2_000),
        other.clone(),
        ask(4, &owner(2), w()).replaces(&other),
        ask(5, &nested(3, &[1]), r()),
        ask(6, &owner(4), w()),
    ];
    let mut steps = usual(cast.len(), &[0, 3]);
    steps.push(Step::Pass(1_000));
    explore(&cast, &steps, 6);
}

#[test]
fn every_short_program_of_nested_readers_and_writers_keeps_the_promises() {
    let (r, w) = (|| [read("a")], || [write("a")]);
    let cast = [
        ask(1, &owner(1), w()).lease(2_000),
        ask(2, &nested(2, &[1]), r()),
        ask(3, &nested(2, &[1]), w()),
        ask(4, &nested(3, &[1]), r()),
        ask(5, &nested(3, &[1]), w()),
        ask(6, &nested(4, &[2, 1]), w()),
    ];
    let mut steps = usual(cast.len(), &[0]);
    steps.push(Step::Pass(1_000));
    explore(&cast, &steps, 5);
}

#[test]
fn every_short_program_of_sets_keeps_the_promises() {
    let cast = [
        ask(1, &owner(1), [mutex("a"), mutex("b")]).session(1),
        ask(2, &owner(2), [mutex("b"), mutex("a")]).session(2),
        ask(3, &owner(3), [mutex("a")]).session(2).lease(2_000),
        ask(4, &nested(4, &[1]), [mutex("b")]),
        ask(5, &owner(5), [mutex("a"), mutex("b")]).trying(),
    ];
    let mut steps = usual(cast.len(), &[0, 1]);
    steps.extend([Step::Pass(1_000), Step::Evict(0), Step::EndSession(2)]);
    explore(&cast, &steps, 7);
}

#[test]
fn every_short_program_of_weighted_permits_keeps_the_promises() {
    let s = |permits_wanted| [permits("s", permits_wanted, 3)];
    let cast = [
        ask(1, &owner(1), s(1)),
        ask(2, &owner(1), s(2)).lease(2_000),
        ask(3, &owner(2), s(3)),
        ask(4, &nested(3, &[1]), s(1)),
        ask(5, &owner(4), s(2)).trying(),
        ask(6, &owner(5), s(1)).session(1),
    ];
    let mut steps = usual(cast.len(), &[2]);
    steps.push(Step::Pass(1_000));
    explore(&cast, &steps, 6);
}

#[test]
fn every_short_program_with_lock_delays_keeps_the_promises() {
    let cast = [
        ask(1, &owner(1), [read("a")]).delay(1_000).session(1),
        ask(2, &nested(2, &[1]), [write("a")]).delay(500).lease(500),
        ask(3, &owner(3), [read("a")]).lease(2_000),
        ask(4, &owner(3), [write("a")]).lease(2_000).delay(1_000),
        ask(5, &owner(5), [mutex("a"), mutex("b")]).delay(500),
    ];
    let mut steps = usual(cast.len(), &[2]);
    steps.extend([Step::Pass(500), Step::EndSession(1), Step::Look(0)]);
    explore(&cast, &steps, 5);
}

#[test]
fn every_short_program_with_late_copies_keeps_the_promises() {
    let cast = [
        ask(1, &owner(1), [mutex("a")]).session(1),
        ask(2, &owner(2), [mutex("a")]).session(2).lease(2_000),
        ask(3, &nested(3, &[1]), [mutex("a")]),
        ask(4, &owner(4), [mutex("a"), mutex("b")]),
    ];
    let mut steps = usual(cast.len(), &[0, 1]);
    steps.extend((0..4).map(|at| Step::Release { at, uncertain: true }));
    steps.extend([Step::Evict(0), Step::Pass(1_000), Step::Wall(0)]);
    explore(&cast, &steps, 6);
}
