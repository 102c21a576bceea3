//! Expiry: what is not renewed ends by itself, once, and nothing but a renewal puts that off.
//!
//! Renewed and unrenewed claims belong to different clients, because a store may keep one expiry
//! for all claims of a session.

use super::{Ask, World, list};
use crate::contract::{Loss, Refusal};

list! { Expiry:
    a_crashed_holder_frees_the_name_by_itself cites [4] needs [];
    a_renewed_holder_outlives_its_lease cites [4] needs [];
    a_session_renews_for_as_long_as_its_guard_lives cites [4] needs [];
    a_short_cut_of_the_link_costs_nothing cites [4] needs [];
    the_head_of_the_line_takes_over_from_a_dead_holder cites [2, 4] needs [Queue];
    the_head_of_the_line_asks_when_the_holders_time_is_up cites [2, 10] needs [Queue];
    a_waiter_that_expired_is_skipped cites [2, 4] needs [Queue];
    being_granted_does_not_put_off_the_expiry cites [4] needs [Queue];
    a_lock_delay_keeps_the_name_closed_after_an_expiry cites [1, 4] needs [];
    a_release_knows_no_lock_delay cites [1] needs [];
    the_end_of_a_session_ends_its_holds_and_its_waits cites [2] needs [Queue];
    the_end_of_a_session_counts_as_an_expiry cites [1] needs [];
    the_head_of_the_line_is_told_when_to_ask_again cites [10] needs [Queue];
    max_hold_ends_a_hold_that_could_be_renewed cites [10] needs [];
}

fn a_crashed_holder_frees_the_name_by_itself(world: &World) {
    let raw = world.raw();
    let (crashed, _) = raw.granted(world, Ask::mutex(world, "a"));
    world.pass(world.lease() / 2);
    assert_eq!(world.holders("a"), [crashed.id], "its lease has not run out");
    world.pass(world.lease() * 3 / 2);
    world.assert_free("a");
    raw.gone(world, &crashed);
    raw.granted(world, Ask::mutex(world, "a").at_once());
}

fn a_renewed_holder_outlives_its_lease(world: &World) {
    let (raw, other) = (world.raw(), world.raw());
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    for _ in 0..6 {
        world.pass(world.lease() / 2);
        assert_eq!(raw.held(world, &held), grant);
        other.refused(world, Ask::mutex(world, "a").at_once());
    }
}

fn a_session_renews_for_as_long_as_its_guard_lives(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    world.pass_watching(world.lease() * 4, || {
        assert_eq!(guard.fence().unwrap(), fence);
        let other = world.now(two.tenure.mutex("a").unwrap().try_lock()).unwrap();
        assert!(other.is_none(), "the store knows it");
    });
    drop(guard);
    world.assert_free("a");
}

fn a_short_cut_of_the_link_costs_nothing(world: &World) {
    let actor = world.actor();
    let guard = world.now(actor.tenure.mutex("a").unwrap().lock()).unwrap();
    world.pass(world.lease() / 4);
    actor.link.cut(true);
    world.pass(world.lease() / 3);
    actor.link.cut(false);
    world.pass_watching(world.lease() * 2, || guard.check().unwrap());
    assert_eq!(world.holders("a"), [guard.claim_id()], "fast retries saved it");
}

fn the_head_of_the_line_takes_over_from_a_dead_holder(world: &World) {
    let (dead, next) = (world.raw(), world.actor());
    let (held, grant) = dead.granted(world, Ask::mutex(world, "a"));
    let waiting = world.waits(next.tenure.mutex("a").unwrap().lock());
    assert_eq!(world.holders("a"), [held.id]);
    let guard = world.served(waiting).unwrap();
    assert!(guard.fence().unwrap() > super::fence(&grant));
    dead.gone(world, &held);
    guard.check().unwrap();
}

fn the_head_of_the_line_asks_when_the_holders_time_is_up(world: &World) {
    let (dead, next) = (world.raw(), world.actor());
    dead.granted(world, Ask::mutex(world, "a"));
    // With a long lease, the waiter's own renewal comes long after the holder's expiry.
    let patient = next.tenure.mutex("a").unwrap().lease(world.long_lease());
    let waiting = world.waits(patient.lock());
    world.pass(world.lease() * 2);
    waiting.done(world.stage()).unwrap().check().unwrap();
}

fn a_waiter_that_expired_is_skipped(world: &World) {
    let (living, stalled) = (world.raw(), world.raw());
    let (held, _) = living.granted(world, Ask::mutex(world, "a"));
    let (dead, _) = stalled.queued(world, Ask::mutex(world, "a"));
    let (next, queued) = living.queued(world, Ask::mutex(world, "a"));
    assert_eq!(queued.place, 2);
    for _ in 0..4 {
        world.pass(world.lease() / 2);
        living.held(world, &held);
        living.waits(world, &next);
    }
    assert_eq!(living.waits(world, &next).place, 1, "the dead are not counted");
    living.release(world, &held);
    living.held(world, &next);
    stalled.gone(world, &dead);
}

fn being_granted_does_not_put_off_the_expiry(world: &World) {
    let (first, second) = (world.raw(), world.raw());
    let (held, _) = first.granted(world, Ask::mutex(world, "a"));
    let (next, _) = second.queued(world, Ask::mutex(world, "a"));
    world.pass(world.lease() * 2 / 3);
    first.release(world, &held);
    world.until("the next one holds", || world.holders("a") == [next.id]);
    let left = world.slot("a").unwrap().holders[0].expires_in;
    assert!(left < world.lease() * 5 / 6, "granted, not renewed: {left:?}");
    world.pass(world.lease() * 2 / 3);
    world.assert_free("a");
}

fn a_lock_delay_keeps_the_name_closed_after_an_expiry(world: &World) {
    let (dead, other) = (world.raw(), world.raw());
    dead.granted(world, Ask::mutex(world, "a").delay(world.lease() * 2));
    world.pass(world.lease() * 3 / 2);
    match other.refused(world, Ask::mutex(world, "a").at_once()) {
        Refusal::Held { by, .. } => assert!(by.is_empty(), "nobody holds: {by:?}"),
        refusal => panic!("should be closed: {refusal:?}"),
    }
    world.pass(world.lease() * 2);
    other.granted(world, Ask::mutex(world, "a").at_once());
}

fn a_release_knows_no_lock_delay(world: &World) {
    let raw = world.raw();
    let (held, _) = raw.granted(world, Ask::mutex(world, "a").delay(world.lease() * 2));
    raw.release(world, &held);
    raw.granted(world, Ask::mutex(world, "a").at_once());
}

fn the_end_of_a_session_ends_its_holds_and_its_waits(world: &World) {
    let (dying, living) = (world.raw(), world.raw());
    let (held, _) = dying.granted(world, Ask::mutex(world, "a"));
    let (waits, _) = dying.queued(world, Ask::mutex(world, "a"));
    let (next, _) = living.queued(world, Ask::mutex(world, "a"));
    let (other, _) = living.granted(world, Ask::mutex(world, "b"));
    world.stage().end_session(dying.session());
    living.held(world, &next);
    living.held(world, &other);
    for claim in [&held, &waits] {
        dying.gone(world, claim);
    }
    assert_eq!((world.holders("a"), world.line("a")), (vec![next.id], vec![]));
}

fn the_end_of_a_session_counts_as_an_expiry(world: &World) {
    let (dying, other) = (world.raw(), world.raw());
    dying.granted(world, Ask::mutex(world, "a").delay(world.lease()));
    dying.granted(world, Ask::mutex(world, "b"));
    world.stage().end_session(dying.session());
    other.refused(world, Ask::mutex(world, "a").at_once());
    other.granted(world, Ask::mutex(world, "b").at_once());
    world.pass(world.lease() * 2);
    other.granted(world, Ask::mutex(world, "a").at_once());
}

fn the_head_of_the_line_is_told_when_to_ask_again(world: &World) {
    let raw = world.raw();
    let lease = world.lease();
    raw.granted(world, Ask::mutex(world, "a"));
    let (_, queued) = raw.queued(world, Ask::mutex(world, "a"));
    let first = queued.first_expiry.expect("somebody is in the way");
    assert!(first > lease / 2 && first < lease * 5 / 4, "the holder's lease: {first:?}");
    raw.granted(world, Ask::mutex(world, "b").delay(lease));
    let (_, queued) = raw.queued(world, Ask::mutex(world, "b"));
    let first = queued.first_expiry.expect("somebody is in the way");
    assert!(first > lease * 3 / 2 && first < lease * 9 / 4, "and its delay: {first:?}");
}

fn max_hold_ends_a_hold_that_could_be_renewed(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let mutex = one.tenure.mutex("a").unwrap().max_hold(world.lease() * 2);
    let guard = world.now(mutex.lock()).unwrap();
    let waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    world.pass(world.lease() * 3 / 2);
    guard.check().unwrap();
    world.pass(world.lease());
    assert_eq!(guard.fence().unwrap_err().loss(), Some(&Loss::MaxHold));
    world.served(waiting).unwrap().check().unwrap();
}
