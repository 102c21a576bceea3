//! Stories of lock delays: closed after an expiry, never after a release; and of first expiries.

use super::*;

#[test]
fn a_lock_delay_keeps_the_slot_closed_after_an_expiry() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).delay(500));
    let two = ask(2, &owner(2), [mutex("a")]).lease(5 * LEASE);
    assert_eq!(world.queued(&two).first_expiry, Some(millis(LEASE + 500)), "delay included");
    world.pass(LEASE);
    assert_eq!(world.queued(&two).first_expiry, Some(millis(500)));
    let try_now = ask(3, &owner(3), [mutex("a")]).trying();
    assert_eq!(world.refused(&try_now), Refusal::Held { by: vec![], waiting: 1 });
    world.pass(499);
    assert_eq!(world.slot("a").unwrap().closed_for, Some(millis(1)));
    world.pass(1);
    world.granted(&two);
}

#[test]
fn a_lock_delay_never_follows_a_release() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]).delay(500);
    world.granted(&one);
    world.release(&one);
    world.granted(&ask(2, &owner(2), [mutex("a")]).trying());
}

#[test]
fn a_lock_delay_never_follows_a_forced_release() {
    let mut world = World::new();
    let grant = world.granted(&ask(1, &owner(1), [mutex("a")]).delay(500));
    world.evict("a", fence(&grant), "maintenance");
    world.granted(&ask(2, &owner(2), [mutex("a")]).trying());
}

#[test]
fn a_lock_delay_counts_from_the_expiry_and_not_from_when_it_was_noticed() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).delay(500));
    world.pass(LEASE + 400);
    let two = ask(2, &owner(2), [mutex("a")]);
    assert_eq!(world.queued(&two).first_expiry, Some(millis(100)));
    world.pass(100);
    world.granted(&two);
}

#[test]
fn a_lock_delay_of_a_waiter_that_dies_closes_nothing() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]).lease(5 * LEASE);
    world.granted(&one);
    world.queued(&ask(2, &owner(2), [mutex("a")]).delay(500));
    world.pass(LEASE);
    world.release(&one);
    world.granted(&ask(3, &owner(3), [mutex("a")]).trying());
}

#[test]
fn a_closed_slot_is_open_to_an_owner_that_still_holds_and_to_nobody_else() {
    let mut world = World::new();
    let one = owner(1);
    world.granted(&ask(1, &one, [read("a")]).lease(5 * LEASE));
    world.granted(&ask(2, &owner(2), [read("a")]).delay(5 * LEASE));
    world.pass(LEASE);
    world.granted(&ask(3, &one, [read("a")]).trying());
    world.granted(&ask(4, &one, [write("a")]).trying());
    world.refused(&ask(5, &nested(5, &[1]), [read("a")]).trying());
    world.refused(&ask(6, &owner(6), [read("a")]).trying());
}

#[test]
fn a_closed_vacant_slot_takes_a_new_shape_but_stays_closed() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).delay(500));
    world.pass(LEASE);
    let two = ask(2, &owner(2), [permits("a", 1, 2)]);
    assert_eq!(world.queued(&two).first_expiry, Some(millis(500)));
    let three = ask(3, &owner(3), [permits("a", 1, 2)]);
    world.queued(&three);
    world.pass(500);
    world.granted(&two);
    world.granted(&three);
}

#[test]
fn the_longest_lock_delay_counts_when_several_holders_die() {
    let mut world = World::new();
    for (n, delay) in [(1, 100), (2, 900), (3, 300)] {
        world.granted(&ask(n, &owner(n), [read("a")]).delay(delay));
    }
    world.pass(LEASE);
    let four = ask(4, &owner(4), [read("a")]);
    assert_eq!(world.queued(&four).first_expiry, Some(millis(900)));
}

#[test]
fn a_reserved_part_that_expires_closes_nothing_and_the_next_in_line_knows_when() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("b")]).lease(5 * LEASE));
    // Holds `a` only in reserve, since `b` is taken: it never acted under it.
    world.queued(&ask(2, &owner(2), [mutex("a"), mutex("b")]).delay(3 * LEASE));
    let three = ask(3, &owner(3), [mutex("a")]).lease(5 * LEASE);
    assert_eq!(world.queued(&three).first_expiry, Some(millis(LEASE)));
    world.pass(LEASE);
    world.granted(&three);
}

#[test]
fn an_upgrade_is_told_the_expiry_without_the_delay_that_does_not_concern_it() {
    let mut world = World::new();
    let one = owner(1);
    world.granted(&ask(1, &one, [read("a")]).lease(5 * LEASE));
    world.granted(&ask(2, &owner(2), [read("a")]).delay(3 * LEASE));
    let upgrade = ask(3, &one, [write("a")]).lease(5 * LEASE);
    assert_eq!(world.queued(&upgrade).first_expiry, Some(millis(LEASE)));
    world.pass(LEASE);
    world.granted(&upgrade);
}

#[test]
fn the_first_expiry_of_a_set_is_that_of_whichever_part_may_come_first() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).lease(700));
    world.granted(&ask(2, &owner(2), [mutex("b")]).lease(300));
    let queued = world.queued(&ask(3, &owner(3), [mutex("a"), mutex("b")]));
    assert_eq!(queued.first_expiry, Some(millis(300)));
}

#[test]
fn a_lock_delay_that_has_just_ended_is_nothing_to_wait_for() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [read("a")]).delay(500));
    world.granted(&ask(2, &owner(2), [read("a")]).lease(10_000));
    let writer = ask(3, &owner(3), [write("a")]).lease(10_000);
    world.queued(&writer);
    for (passed, first) in [(LEASE, 500), (499, 1), (1, 8_500)] {
        world.pass(passed);
        let Renewed::Waiting(queued) = world.renew(&writer) else { panic!("it waits") };
        assert_eq!(queued.first_expiry, Some(millis(first)));
    }
}
