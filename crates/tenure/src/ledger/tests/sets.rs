//! Stories of sets: several slots, one claim, one expiry, all or nothing.

use super::*;
use crate::contract::Loss;

#[test]
fn a_set_is_granted_whole_in_one_step() {
    let mut world = World::new();
    let grant = world.granted(&ask(1, &owner(1), [mutex("a"), write("b"), permits("c", 2, 2)]));
    assert_eq!(grant.fences.as_slice().len(), 3);
    for text in ["a", "b", "c"] {
        assert_eq!(world.holders(text), [1]);
        assert!(!world.slot(text).unwrap().holders[0].reserved);
    }
}

#[test]
fn a_set_takes_all_its_places_at_once_and_reserves_parts_as_their_turns_come() {
    let mut world = World::new();
    let [a, b] = [(1, "a"), (2, "b")].map(|(n, text)| ask(n, &owner(n), [mutex(text)]));
    world.granted(&a);
    world.granted(&b);
    let set = ask(3, &owner(3), [mutex("a"), mutex("b"), mutex("c")]).session(3);
    let queued = world.queued(&set);
    assert_eq!(queued.place, 1);
    let slot = world.slot("c").unwrap();
    assert!(slot.holders[0].reserved, "free, but of no use yet");
    world.release(&a);
    assert!(world.slot("a").unwrap().holders[0].reserved);
    assert!(world.told().is_empty());
    assert!(matches!(world.renew(&set), Renewed::Waiting(_)));
    world.release(&b);
    let signals = world.ledger.take_signals();
    let Renewed::Held(grant) = world.renew(&set) else { panic!("all parts are there") };
    assert_eq!(grant.arrival, queued.arrival);
    assert_eq!(signals, [(session(3), Signal::Granted { claim: id(3), grant })]);
    for text in ["a", "b", "c"] {
        assert!(!world.slot(text).unwrap().holders[0].reserved);
    }
}

#[test]
fn the_place_of_a_set_is_the_worst_of_its_places() {
    let mut world = World::new();
    for n in [1, 2, 3] {
        world.claim(&ask(n, &owner(n), [mutex("b")]));
    }
    world.granted(&ask(4, &owner(4), [mutex("a")]));
    assert_eq!(world.queued(&ask(5, &owner(5), [mutex("a"), mutex("b")])).place, 3);
}

/// Promise 4.
#[test]
fn a_set_has_one_expiry_wherever_it_is_looked_at() {
    let mut world = World::new();
    let holder = ask(1, &owner(1), [mutex("b")]).lease(9 * LEASE);
    world.granted(&holder);
    let set = ask(2, &owner(2), [mutex("a"), mutex("b")]);
    world.queued(&set);
    world.pass(600);
    world.release(&holder);
    for text in ["a", "b"] {
        assert_eq!(world.slot(text).unwrap().holders[0].expires_in, millis(400));
    }
    world.renew(&set);
    for text in ["a", "b"] {
        assert_eq!(world.slot(text).unwrap().holders[0].expires_in, millis(LEASE));
    }
    world.pass(LEASE);
    assert_eq!(world.renew(&set), Renewed::Gone(Loss::Forgotten));
    assert_eq!((world.slot("a"), world.slot("b")), (None, None));
}

#[test]
fn a_try_takes_all_or_nothing() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("b")]));
    let set = ask(2, &owner(2), [mutex("a"), mutex("b"), mutex("c")]).trying();
    let Refusal::Held { by, .. } = world.refused(&set) else { panic!("one part is held") };
    assert_eq!(by[0].claim, id(1));
    assert_eq!((world.slot("a"), world.slot("c")), (None, None));
}

#[test]
fn losing_one_part_loses_all_and_lets_the_next_in_everywhere() {
    let mut world = World::new();
    let set = ask(1, &owner(1), [mutex("a"), mutex("b")]).session(1);
    let grant = world.granted(&set);
    world.queued(&ask(2, &owner(2), [mutex("a")]).session(2));
    world.queued(&ask(3, &owner(3), [mutex("b")]).session(3));
    world.evict("b", fences(&grant)[1], "stuck");
    assert_eq!(world.holders("a"), [2]);
    assert_eq!(world.holders("b"), [3]);
    let reason = Arc::from("stuck");
    assert_eq!(world.renew(&set), Renewed::Gone(Loss::Evicted { reason }));
}

#[test]
fn losing_a_reserved_part_loses_the_places_too() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("b")]));
    let set = ask(2, &owner(2), [mutex("a"), mutex("b")]);
    world.queued(&set);
    let reserved = world.slot("a").unwrap().holders[0].fence;
    world.evict("a", reserved, "needed elsewhere");
    assert_eq!((world.slot("a"), world.line("b")), (None, vec![]));
}

/// A step in one slot serves the other slots of a set; the dead there are skipped too.
#[test]
fn evicting_a_set_skips_a_dead_head_in_the_line_of_its_other_part() {
    let mut world = World::new();
    let set = ask(1, &owner(1), [mutex("a"), mutex("b")]).lease(9 * LEASE);
    let grant = world.granted(&set);
    world.queued(&ask(2, &owner(2), [mutex("b")]).session(2));
    world.queued(&ask(3, &owner(3), [mutex("b")]).session(3).lease(9 * LEASE));
    world.pass(LEASE);
    world.evict("a", fences(&grant)[0], "stuck");
    assert_eq!(world.told(), [3]);
}

#[test]
fn releasing_or_withdrawing_a_set_frees_every_part() {
    let mut world = World::new();
    let first = ask(1, &owner(1), [mutex("a"), mutex("b")]);
    let second = ask(2, &owner(2), [mutex("b"), mutex("c")]);
    world.granted(&first);
    world.queued(&second);
    assert_eq!(world.release(&second), Released::Done);
    assert_eq!(world.slot("c"), None);
    assert_eq!(world.release(&first), Released::Done);
    let now = world.now();
    assert_eq!(world.ledger.census(now), super::super::Census::default());
}

#[test]
fn sets_in_opposite_orders_never_deadlock() {
    let mut world = World::new();
    let holder = ask(9, &owner(9), [mutex("b")]);
    world.granted(&holder);
    let one = ask(1, &owner(1), [mutex("a"), mutex("b")]).session(1);
    let two = ask(2, &owner(2), [mutex("b"), mutex("a")]).session(2);
    world.queued(&one);
    world.queued(&two);
    world.release(&holder);
    assert_eq!(world.told(), [1]);
    world.release(&one);
    assert_eq!(world.told(), [2]);
}

#[test]
fn a_ring_of_sets_always_goes_round() {
    let mut world = World::new();
    let names = ["a", "b", "c", "d"];
    let holder = ask(9, &owner(9), names.map(mutex));
    world.granted(&holder);
    let ring: Vec<Ask> = (0..4)
        .map(|n| (n as u128 + 1, [mutex(names[n]), mutex(names[(n + 1) % 4])]))
        .map(|(n, parts)| ask(n, &owner(n), parts).session(n))
        .collect();
    for set in &ring {
        world.queued(set);
    }
    world.release(&holder);
    let mut served = world.told();
    while let Some(next) = served.last().copied() {
        let before = served.len();
        for holding in served.clone() {
            world.release(&ring[usize::try_from(holding).unwrap() - 1]);
        }
        served.extend(world.told());
        assert!(served.len() > before || served.len() == 4, "stuck after {next}: {served:?}");
        if served.len() == 4 {
            break;
        }
    }
}

#[test]
fn sets_and_single_claims_share_one_line() {
    let mut world = World::new();
    let holder = ask(9, &owner(9), [mutex("a")]);
    world.granted(&holder);
    let set = ask(1, &owner(1), [mutex("a"), mutex("b")]).session(1);
    world.queued(&set);
    world.queued(&ask(2, &owner(2), [mutex("b")]).session(2));
    world.queued(&ask(3, &owner(3), [mutex("a")]).session(3));
    world.refused(&ask(4, &owner(4), [mutex("b")]).trying());
    world.release(&holder);
    assert_eq!(world.told(), [1]);
    world.release(&set);
    assert_eq!((world.holders("a"), world.holders("b")), (vec![3], vec![2]));
}

/// Promise 5.
#[test]
fn a_repeated_set_keeps_its_places_and_its_number() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("b")]).lease(9 * LEASE));
    let set = ask(2, &owner(2), [mutex("a"), mutex("b")]);
    let first = world.queued(&set);
    world.pass(LEASE - 1);
    let again = world.queued(&set);
    assert_eq!((again.place, again.arrival), (first.place, first.arrival));
    world.pass(LEASE - 1);
    assert_eq!((world.holders("a"), world.line("b")), (vec![2], vec![2]));
}

#[test]
fn an_upgrade_of_a_set_keeps_what_it_replaces_until_all_of_it_is_granted() {
    let mut world = World::new();
    let me = owner(1);
    let old = ask(1, &me, [read("a"), read("b")]);
    world.granted(&old);
    let other = ask(2, &owner(2), [read("b")]);
    world.granted(&other);
    let new = ask(3, &me, [write("a"), write("b")]).replaces(&old).session(1);
    world.queued(&new);
    assert!(matches!(world.renew(&old), Renewed::Held(_)), "it still reads both");
    world.release(&other);
    assert_eq!(world.told(), [3]);
    assert_eq!((world.holders("a"), world.holders("b")), (vec![3], vec![3]));
}

#[test]
fn what_replaces_a_set_ends_every_part_of_it() {
    let mut world = World::new();
    let me = owner(1);
    let old = ask(1, &me, [write("a"), write("b")]);
    world.granted(&old);
    world.queued(&ask(2, &owner(2), [write("b")]).session(2));
    world.granted(&ask(3, &me, [read("a")]).replaces(&old));
    assert_eq!((world.holders("a"), world.holders("b")), (vec![3], vec![2]));
    assert_eq!(world.told(), [2]);
}
