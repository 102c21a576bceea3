//! Stories of the queue: which ticket is next, which is skipped, and when one has expired.

use super::*;
use crate::contract::Loss;

/// Promise 2.
#[test]
fn waiters_are_served_in_the_order_in_which_they_came() {
    let mut world = World::new();
    let asks: Vec<Ask> = (1..=6).map(|n| ask(n, &owner(n), [mutex("a")]).session(n)).collect();
    for ask in &asks {
        world.claim(ask);
    }
    let mut served = Vec::new();
    for ask in &asks {
        world.release(ask);
        served.extend(world.told());
    }
    assert_eq!(served, [2, 3, 4, 5, 6]);
}

#[test]
fn a_dead_holder_is_replaced_by_whoever_looks_first_a_waiter_s_renewal_included() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [mutex("a")]));
    let two = two.lease(2 * LEASE);
    world.granted(&one);
    world.queued(&two);
    world.pass(LEASE - 1);
    assert!(matches!(world.renew(&two), Renewed::Waiting(_)));
    world.pass(1);
    assert!(matches!(world.renew(&two), Renewed::Held(_)), "its own renewal found it out");
}

/// Promise 2.
#[test]
fn a_dead_head_is_skipped_in_the_step_that_would_have_served_it() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]).lease(3 * LEASE);
    let two = ask(2, &owner(2), [mutex("a")]).session(2);
    let three = ask(3, &owner(3), [mutex("a")]).lease(3 * LEASE).session(3);
    world.granted(&one);
    world.queued(&two);
    world.queued(&three);
    world.pass(LEASE);
    world.release(&one);
    assert_eq!(world.told(), [3]);
    assert_eq!(world.renew(&two), Renewed::Gone(Loss::Forgotten));
}

/// Promise 2.
#[test]
fn a_whole_row_of_dead_waiters_is_skipped_at_once() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]).lease(3 * LEASE);
    world.granted(&one);
    for n in 2..50 {
        world.queued(&ask(n, &owner(n), [mutex("a")]));
    }
    let last = ask(50, &owner(50), [mutex("a")]).lease(3 * LEASE);
    world.queued(&last);
    world.pass(LEASE);
    assert_eq!(world.queued(&last).place, 1, "the places of the dead are closed up");
    world.release(&one);
    assert_eq!(world.holders("a"), [50]);
}

/// Promise 2, when holder and head of the queue died together and no call touched the slot for a
/// while.
#[test]
fn after_a_long_silence_the_first_living_waiter_is_served() {
    let mut world = World::new();
    for n in 1..=3 {
        world.claim(&ask(n, &owner(n), [mutex("a")]));
    }
    let four = ask(4, &owner(4), [mutex("a")]).lease(10 * LEASE);
    world.queued(&four);
    world.pass(5 * LEASE);
    assert!(matches!(world.renew(&four), Renewed::Held(_)));
}

/// Promise 4.
#[test]
fn being_granted_does_not_change_the_expiry() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [mutex("a")]));
    world.granted(&one);
    world.queued(&two);
    world.pass(600);
    world.release(&one);
    let slot = world.slot("a").unwrap();
    assert_eq!((slot.holders[0].claim, slot.holders[0].expires_in), (id(2), millis(400)));
    world.pass(400);
    assert_eq!(world.slot("a"), None);
}

#[test]
fn a_lease_ends_exactly_when_it_says() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.pass(LEASE - 1);
    let two = ask(2, &owner(2), [mutex("a")]).trying();
    world.refused(&two);
    world.pass(1);
    world.granted(&two);
}

#[test]
fn a_withdrawn_waiter_lets_those_behind_it_in() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [read("a")]));
    let writer = ask(2, &owner(2), [write("a")]);
    world.queued(&writer);
    world.queued(&ask(3, &owner(3), [read("a")]).session(3));
    world.queued(&ask(4, &owner(4), [read("a")]).session(4));
    assert_eq!(world.release(&writer), Released::Done);
    assert_eq!(world.told(), [3, 4]);
}

#[test]
fn a_waiter_that_dies_lets_those_behind_it_in() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [read("a")]).lease(5 * LEASE));
    world.queued(&ask(2, &owner(2), [write("a")]));
    let three = ask(3, &owner(3), [read("a")]).lease(5 * LEASE);
    world.queued(&three);
    world.pass(LEASE);
    assert!(matches!(world.renew(&three), Renewed::Held(_)));
}

#[test]
fn places_count_from_the_head_also_for_those_ahead_of_the_line() {
    let mut world = World::new();
    let (one, two) = (owner(1), owner(2));
    world.granted(&ask(1, &one, [read("a")]));
    world.granted(&ask(2, &two, [read("a")]));
    let stranger = ask(3, &owner(3), [write("a")]);
    assert_eq!(world.queued(&stranger).place, 1);
    assert_eq!(world.queued(&ask(4, &one, [write("a")])).place, 1, "an upgrade stands ahead");
    assert_eq!(world.queued(&stranger).place, 2);
    assert_eq!(world.line("a"), [4, 3]);
}

/// The order is a function of the present state: who no longer holds goes back to where it came.
#[test]
fn a_ticket_goes_back_to_its_place_when_its_owner_no_longer_holds() {
    let mut world = World::new();
    let parent = ask(1, &owner(1), [read("a")]);
    world.granted(&parent);
    world.granted(&ask(2, &owner(2), [read("a")]));
    world.queued(&ask(3, &owner(3), [write("a")]));
    world.queued(&ask(4, &nested(4, &[1]), [write("a")]));
    assert_eq!(world.line("a"), [4, 3]);
    world.release(&parent);
    assert_eq!(world.line("a"), [3, 4]);
}
