//! Stories of single claims: granted, queued, refused, repeated, renewed, released, withdrawn.

use super::*;
use crate::contract::{Loss, Shape};

#[test]
fn a_free_slot_is_granted_at_once_and_nobody_needs_to_be_told() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]).session(1);
    world.granted(&one);
    assert_eq!(world.holders("a"), [1]);
    assert!(world.ledger.take_signals().is_empty());
}

#[test]
fn a_taken_slot_gives_a_place_in_line_and_the_first_expiry() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.pass(300);
    let queued = world.queued(&ask(2, &owner(2), [mutex("a")]));
    assert_eq!((queued.place, queued.first_expiry), (1, Some(millis(700))));
    let queued = world.queued(&ask(3, &owner(3), [mutex("a")]));
    assert_eq!((queued.place, queued.first_expiry), (2, Some(millis(700))));
}

/// Promise 2, and the hand-off: one release, one message, however many wait.
#[test]
fn a_release_hands_the_slot_to_the_head_of_the_line_and_tells_only_that_one() {
    let mut world = World::new();
    let asks = [1, 2, 3, 4].map(|n| ask(n, &owner(n), [mutex("a")]).session(n));
    for ask in &asks {
        world.claim(ask);
    }
    assert_eq!(world.release(&asks[0]), Released::Done);
    let signals = world.ledger.take_signals();
    let Renewed::Held(grant) = world.renew(&asks[1]) else { panic!("the head holds now") };
    assert_eq!(signals, [(session(2), Signal::Granted { claim: id(2), grant })]);
    assert_eq!((world.holders("a"), world.line("a")), (vec![2], vec![3, 4]));
}

#[test]
fn a_detached_claim_is_granted_though_nobody_can_be_told() {
    let mut world = World::new();
    let asks = [1, 2].map(|n| ask(n, &owner(n), [mutex("a")]));
    world.granted(&asks[0]);
    world.queued(&asks[1]);
    world.release(&asks[0]);
    assert_eq!(world.holders("a"), [2]);
    assert!(world.ledger.take_signals().is_empty());
}

#[test]
fn a_try_on_a_taken_slot_is_refused_with_the_holders_and_leaves_nothing_behind() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.queued(&ask(2, &owner(2), [mutex("a")]));
    let Refusal::Held { by, waiting } = world.refused(&ask(3, &owner(3), [mutex("a")]).trying())
    else {
        panic!("the slot is held")
    };
    assert_eq!((by.len(), by[0].claim, waiting), (1, id(1), 1));
    assert_eq!(world.line("a"), [2]);
}

#[test]
fn a_try_never_jumps_the_line() {
    let mut world = World::new();
    // Three permits, two held; two more asked for must wait, though one would fit.
    world.granted(&ask(1, &owner(1), [permits("s", 2, 3)]));
    world.queued(&ask(2, &owner(2), [permits("s", 2, 3)]));
    let one = ask(3, &owner(3), [permits("s", 1, 3)]);
    assert!(matches!(world.refused(&one.clone().trying()), Refusal::Held { waiting: 1, .. }));
    assert_eq!(world.queued(&one).place, 2);
    // Nor does a reader try past a writer that waits.
    world.granted(&ask(11, &owner(1), [read("rw")]));
    world.queued(&ask(12, &owner(2), [write("rw")]));
    assert!(matches!(
        world.refused(&ask(13, &owner(3), [read("rw")]).trying()),
        Refusal::Held { .. }
    ));
}

#[test]
fn a_try_on_a_slot_whose_holder_is_dead_is_granted() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.pass(LEASE);
    world.granted(&ask(2, &owner(2), [mutex("a")]).trying());
}

/// Promise 5.
#[test]
fn repeating_a_holder_renews_it_and_gives_the_same_answer() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    let first = world.granted(&one);
    world.pass(LEASE - 1);
    assert_eq!(world.granted(&one), first);
    world.pass(LEASE - 1);
    assert_eq!(world.holders("a"), [1], "the repeat renewed it");
    assert_eq!(world.renew(&one), Renewed::Held(first));
}

/// Promise 5.
#[test]
fn repeating_a_waiter_renews_it_and_it_keeps_its_place_and_its_number() {
    let mut world = World::new();
    let [one, two, three] = [1, 2, 3].map(|n| ask(n, &owner(n), [mutex("a")]));
    world.granted(&one);
    let first = world.queued(&two);
    world.queued(&three);
    world.pass(LEASE / 2);
    world.renew(&one);
    let again = world.queued(&two);
    assert_eq!((again.place, again.arrival), (1, first.arrival));
    world.pass(LEASE / 2);
    assert_eq!(world.line("a"), [2], "only the one that repeated itself lives on");
}

/// Promise 5.
#[test]
fn a_repeated_claim_that_was_granted_meanwhile_hears_that_it_holds() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [mutex("a")]));
    world.granted(&one);
    let queued = world.queued(&two);
    world.release(&one);
    assert_eq!(world.granted(&two).arrival, queued.arrival);
}

/// Promise 5.
#[test]
fn a_try_that_holds_is_renewed_by_its_repeat_and_not_refused() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]).trying();
    let first = world.granted(&one);
    world.queued(&ask(2, &owner(2), [mutex("a")]));
    assert_eq!(world.granted(&one), first);
}

#[test]
fn every_arrival_has_its_own_number_and_answers_name_it() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    let first = world.granted(&one);
    world.pass(LEASE);
    let second = world.granted(&one);
    assert!(first.arrival < second.arrival, "it came again after it had expired");
    assert!(first.fences.as_slice() < second.fences.as_slice());
    let Renewed::Held(renewed) = world.renew(&one) else { panic!("it holds") };
    assert_eq!(renewed.arrival, second.arrival);
}

#[test]
fn a_waiter_that_stalled_past_its_lease_comes_back_at_the_end_of_the_line_with_a_new_number() {
    let mut world = World::new();
    let [one, two, three] = [1, 2, 3].map(|n| ask(n, &owner(n), [mutex("a")]));
    world.granted(&one);
    let first = world.queued(&two);
    world.pass(LEASE / 2);
    world.renew(&one);
    world.queued(&three);
    world.pass(LEASE / 2);
    assert_eq!(world.renew(&two), Renewed::Gone(Loss::Forgotten));
    let second = world.queued(&two);
    assert!(first.arrival < second.arrival);
    assert_eq!(world.line("a"), [3, 2]);
}

#[test]
fn a_renewal_moves_the_expiry_of_holder_and_waiter_alike() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [mutex("a")]));
    world.granted(&one);
    world.queued(&two);
    for _ in 0..5 {
        world.pass(LEASE - 1);
        let batch = [one.to_ref(), two.to_ref()];
        let now = world.now();
        let answers = world.ledger.renew(&batch, now);
        assert!(matches!(answers[..], [Renewed::Held(_), Renewed::Waiting(_)]), "{answers:?}");
    }
    world.pass(LEASE);
    assert_eq!(world.renew(&one), Renewed::Gone(Loss::Forgotten));
    assert_eq!(world.renew(&two), Renewed::Gone(Loss::Forgotten));
}

#[test]
fn a_renewal_with_a_shorter_lease_ends_sooner() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    world.granted(&one);
    world.renew(&one.clone().lease(200));
    world.pass(200);
    world.granted(&ask(2, &owner(2), [mutex("a")]).trying());
}

#[test]
fn a_claim_nobody_knows_is_gone_for_renewal_and_release() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    assert_eq!(world.renew(&one), Renewed::Gone(Loss::Forgotten));
    assert_eq!(world.release(&one), Released::Gone);
    world.granted(&one);
    world.pass(LEASE);
    assert_eq!(world.release(&one), Released::Gone, "it had expired before");
}

/// Promise 9.
#[test]
fn a_release_acts_on_exactly_one_claim_even_of_the_same_owner() {
    let mut world = World::new();
    let asks = [1, 2, 3].map(|n| ask(n, &owner(1), [mutex("a")]));
    for ask in &asks {
        world.granted(ask);
    }
    world.release(&asks[1]);
    assert_eq!(world.holders("a"), [1, 3]);
}

/// Promise 9.
#[test]
fn a_late_release_or_renewal_never_touches_a_successor() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [mutex("a")]));
    world.granted(&one);
    world.queued(&two);
    world.pass(LEASE / 2);
    world.renew(&two);
    world.pass(LEASE / 2);
    assert_eq!(world.release(&one), Released::Gone);
    assert_eq!(world.renew(&one), Renewed::Gone(Loss::Forgotten));
    assert_eq!(world.holders("a"), [2]);
    world.pass(LEASE / 2);
    assert_eq!(world.slot("a"), None, "the late messages renewed nothing");
}

/// Promise 6.
#[test]
fn a_late_copy_of_a_withdrawn_claim_is_refused_for_a_lease_and_no_longer() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [mutex("a")]));
    world.granted(&one);
    world.queued(&two);
    assert_eq!(world.release_uncertain(&two), Released::Done);
    world.release(&one);
    assert_eq!(world.refused(&two), Refusal::Withdrawn);
    world.pass(LEASE - 1);
    assert_eq!(world.refused(&two), Refusal::Withdrawn);
    world.pass(1);
    world.granted(&two);
}

/// Promise 6: the release overtook the claim.
#[test]
fn a_release_that_arrives_before_its_claim_still_refuses_it() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    assert_eq!(world.release_uncertain(&one), Released::Gone);
    assert_eq!(world.refused(&one), Refusal::Withdrawn);
    assert_eq!(world.slot("a"), None);
}

#[test]
fn a_certain_release_leaves_no_tombstone() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    world.granted(&one);
    world.release(&one);
    let now = world.now();
    assert_eq!(world.ledger.census(now), super::super::Census::default());
}

#[test]
fn a_name_has_one_shape_while_anybody_holds_or_waits_and_no_longer() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    world.granted(&one);
    let others = [permits("a", 1, 1), permits("a", 1, 2), permits("a", 2, 2)];
    for (n, part) in (2..).zip(others.clone()) {
        let refusal = world.refused(&ask(n, &owner(n), [part]));
        assert_eq!(refusal, Refusal::Shape { name: name("a"), stands: Shape::Lock });
    }
    world.release(&one);
    for (n, part) in (2..).zip(others) {
        let other = ask(n, &owner(n), [part]);
        world.granted(&other);
        world.release(&other);
    }
}

#[test]
fn a_shape_stands_as_long_as_somebody_waits_though_nobody_holds() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).delay(5_000));
    world.pass(LEASE);
    // Closed by a lock delay: the first to come waits, with a shape of its own.
    let two = ask(2, &owner(2), [permits("a", 1, 3)]);
    world.queued(&two);
    let refusal = world.refused(&ask(3, &owner(3), [mutex("a")]));
    assert_eq!(refusal, Refusal::Shape { name: name("a"), stands: Shape::Semaphore(3) });
    world.release(&two);
    assert_eq!(world.queued(&ask(3, &owner(3), [mutex("a")])).place, 1);
}
