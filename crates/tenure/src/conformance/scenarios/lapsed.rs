//! What time has ended before any call has touched the slot. Other scenarios look at a slot after
//! its holder's time is up, and a store that drops what is dead when it is looked at has dropped it
//! by then. Here the verb under test is the first that meets the dead, on each of the short paths a
//! store may have: a lone holder, a batch of them, a set, a mutex with a waiter.

use std::sync::Arc;

use super::{Ask, World, list};
use crate::contract::{Claim, Loss, Refusal, Release, Released, Renewed, Verdict};

list! { Expiry:
    a_renewal_does_not_bring_back_a_hold_whose_time_is_over cites [1, 4] needs [];
    a_renewal_of_many_brings_back_none_whose_time_is_over cites [1, 4] needs [];
    a_renewal_does_not_bring_back_a_set_whose_time_is_over cites [1, 4] needs [AtomicSets];
    a_renewal_does_not_bring_back_a_wait_whose_time_is_over cites [2, 4] needs [Queue];
    a_copy_does_not_bring_back_a_hold_whose_time_is_over cites [1, 4] needs [];
    the_release_of_a_hold_whose_time_is_over_leaves_its_lock_delay cites [1, 4] needs [Queue];
    the_release_of_a_hold_whose_time_is_over_serves_nobody_early cites [1, 4] needs [Queue];
    the_release_of_many_whose_time_is_over_leaves_their_lock_delay cites [1, 4] needs [Queue];
    a_renewal_with_a_shorter_lease_ends_sooner cites [4] needs [];
    a_renewal_with_a_shorter_lease_ends_sooner_for_a_waiter cites [2, 4] needs [Queue];
    a_wait_that_is_renewed_with_a_shorter_lease_ends_sooner cites [2, 4] needs [Queue];
    a_hand_off_passes_over_a_waiter_whose_time_is_over cites [2, 4] needs [Queue];
}

fn a_renewal_does_not_bring_back_a_hold_whose_time_is_over(world: &World) {
    let (raw, other) = (world.raw(), world.raw());
    let (held, _) = raw.granted(world, Ask::mutex(world, "a"));
    world.pass(world.lease() * 3 / 2);
    assert_eq!(raw.gone(world, &held), Loss::Forgotten);
    other.granted(world, Ask::mutex(world, "a").at_once());
}

fn a_renewal_of_many_brings_back_none_whose_time_is_over(world: &World) {
    let (raw, other) = (world.raw(), world.raw());
    let (old, _) = raw.granted(world, Ask::mutex(world, "a"));
    world.pass(world.lease() * 3 / 4);
    let (young, _) = raw.granted(world, Ask::mutex(world, "b"));
    world.pass(world.lease() * 3 / 4);
    let answers = raw.renew_all(world, vec![old.to_ref(), young.to_ref()]);
    assert_eq!(answers[0], Renewed::Gone(Loss::Forgotten));
    assert!(matches!(answers[1], Renewed::Held(_)), "{answers:?}");
    other.granted(world, Ask::mutex(world, "a").at_once());
}

fn a_renewal_does_not_bring_back_a_set_whose_time_is_over(world: &World) {
    let (raw, other) = (world.raw(), world.raw());
    let (held, _) = raw.granted(world, Ask::mutexes(world, &["a", "b"]));
    world.pass(world.lease() * 3 / 2);
    assert_eq!(raw.gone(world, &held), Loss::Forgotten);
    other.granted(world, Ask::mutexes(world, &["a", "b"]).at_once());
}

fn a_renewal_does_not_bring_back_a_wait_whose_time_is_over(world: &World) {
    let (living, stalled) = (world.raw(), world.raw());
    let (held, _) = living.granted(world, Ask::mutex(world, "a").lease(world.lease() * 3));
    let (waits, _) = stalled.queued(world, Ask::mutex(world, "a"));
    world.pass(world.lease() * 3 / 2);
    assert_eq!(stalled.gone(world, &waits), Loss::Forgotten);
    living.release(world, &held);
    world.assert_free("a");
}

fn a_copy_does_not_bring_back_a_hold_whose_time_is_over(world: &World) {
    let (raw, other) = (world.raw(), world.raw());
    let (held, before) = raw.granted(world, Ask::mutex(world, "a"));
    world.pass(world.lease() * 3 / 2);
    // It arrives anew, and so has another fence.
    match raw.send(world, &held) {
        Verdict::Granted(grant) => {
            assert!(super::fence(&grant) > super::fence(&before));
        }
        other => panic!("should be granted anew: {other:?}"),
    }
    other.refused(world, Ask::mutex(world, "a").at_once());
}

fn the_release_of_a_hold_whose_time_is_over_leaves_its_lock_delay(world: &World) {
    let (dead, other) = (world.raw(), world.raw());
    let (held, _) = dead.granted(world, Ask::mutex(world, "a").delay(world.lease() * 2));
    world.pass(world.lease() * 3 / 2);
    assert_eq!(dead.release(world, &held), Released::Gone, "it had ended by itself");
    match other.refused(world, Ask::mutex(world, "a").at_once()) {
        Refusal::Held { by, .. } => assert!(by.is_empty(), "nobody holds: {by:?}"),
        refusal => panic!("should be closed: {refusal:?}"),
    }
    world.pass(world.lease() * 2);
    other.granted(world, Ask::mutex(world, "a").at_once());
}

fn the_release_of_a_hold_whose_time_is_over_serves_nobody_early(world: &World) {
    let (dead, living) = (world.raw(), world.raw());
    let (held, _) = dead.granted(world, Ask::mutex(world, "a").delay(world.lease() * 2));
    let (next, _) = living.queued(world, Ask::mutex(world, "a").lease(world.lease() * 5));
    world.pass(world.lease() * 3 / 2);
    assert_eq!(dead.release(world, &held), Released::Gone, "it had ended by itself");
    living.waits(world, &next);
    assert_eq!(world.holders("a"), []);
    world.pass(world.lease() * 2);
    living.held(world, &next);
}

fn the_release_of_many_whose_time_is_over_leaves_their_lock_delay(world: &World) {
    let (dead, other) = (world.raw(), world.raw());
    let names = ["a", "b"];
    let claims =
        names.map(|name| dead.granted(world, Ask::mutex(world, name).delay(world.lease() * 2)).0);
    world.pass(world.lease() * 3 / 2);
    let release = |claim: &Arc<Claim>| Release { claim: claim.to_ref(), uncertain: false };
    let released = dead.release_all(world, claims.iter().map(release).collect());
    assert_eq!(released, [Released::Gone; 2]);
    for name in names {
        other.refused(world, Ask::mutex(world, name).at_once());
    }
}

fn a_renewal_with_a_shorter_lease_ends_sooner(world: &World) {
    let (raw, other) = (world.raw(), world.raw());
    let (held, _) = raw.granted(world, Ask::mutex(world, "a"));
    let mut shorter = held.to_ref();
    shorter.lease = world.lease() / 4;
    let answer = raw.renew_all(world, vec![shorter]);
    assert!(matches!(answer[..], [Renewed::Held(_)]), "{answer:?}");
    world.pass(world.lease() / 2);
    other.granted(world, Ask::mutex(world, "a").at_once());
}

fn a_renewal_with_a_shorter_lease_ends_sooner_for_a_waiter(world: &World) {
    let (raw, other) = (world.raw(), world.raw());
    let (held, _) = raw.granted(world, Ask::mutex(world, "a"));
    let (next, _) = other.queued(world, Ask::mutex(world, "a"));
    let mut shorter = held.to_ref();
    shorter.lease = world.lease() / 4;
    let answer = raw.renew_all(world, vec![shorter]);
    assert!(matches!(answer[..], [Renewed::Held(_)]), "{answer:?}");
    world.pass(world.lease() / 2);
    other.held(world, &next);
    assert_eq!(world.holders("a"), [next.id]);
}

fn a_wait_that_is_renewed_with_a_shorter_lease_ends_sooner(world: &World) {
    let (living, stalled) = (world.raw(), world.raw());
    let (held, _) = living.granted(world, Ask::mutex(world, "a"));
    let (first, _) = stalled.queued(world, Ask::mutex(world, "a"));
    let (second, _) = living.queued(world, Ask::mutex(world, "a"));
    let mut shorter = first.to_ref();
    shorter.lease = world.lease() / 4;
    let answer = stalled.renew_all(world, vec![shorter]);
    assert!(matches!(answer[..], [Renewed::Waiting(_)]), "{answer:?}");
    world.pass(world.lease() / 2);
    living.release(world, &held);
    living.held(world, &second);
    stalled.gone(world, &first);
}

fn a_hand_off_passes_over_a_waiter_whose_time_is_over(world: &World) {
    let (living, stalled) = (world.raw(), world.raw());
    let (held, _) = living.granted(world, Ask::mutex(world, "a").lease(world.lease() * 3));
    let (dead, _) = stalled.queued(world, Ask::mutex(world, "a"));
    let (next, _) = living.queued(world, Ask::mutex(world, "a").lease(world.lease() * 3));
    world.pass(world.lease() * 3 / 2);
    assert_eq!(living.release(world, &held), Released::Done);
    living.held(world, &next);
    assert_eq!(world.holders("a"), [next.id]);
    stalled.gone(world, &dead);
}
