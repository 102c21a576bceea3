//! Waiting: a waiter is woken, whatever is lost on the way, and none waits for ever by
//! accident.

use std::time::Duration;

use super::{Actor, Fault, Waiting, World, list};
use crate::contract::{Arrival, ClaimId, Effect, Error, ErrorKind, Fence, Grant, Loss, Signal};
use crate::primitives::{MutexGuard, Owner};

list! { Waiting:
    a_waiter_is_told_without_any_time_passing cites [2] needs [Queue, Push];
    a_lost_push_costs_a_renewal_and_no_more cites [8] needs [Queue, Push];
    a_repeated_push_is_harmless cites [5] needs [Queue, Push];
    a_delayed_push_of_an_earlier_arrival_never_becomes_a_grant cites [5] needs [Queue, Push];
    a_forged_push_never_becomes_a_grant cites [5] needs [Queue];
    dropping_a_waiting_future_gives_up_its_place cites [7] needs [Queue];
    dropping_a_future_that_was_granted_gives_the_grant_back cites [7] needs [Queue];
    a_lock_can_be_had_after_a_crowd_of_callers_gave_up cites [7, 10] needs [];
    dropping_a_guard_gives_the_lock_back cites [7] needs [];
    a_lost_release_is_sent_again cites [7] needs [];
    a_claim_that_arrives_after_its_caller_gave_up_is_refused cites [6, 7] needs [];
    a_grant_that_nobody_picks_up_is_given_back_after_a_lease cites [7] needs [Queue];
    a_wait_limit_says_who_holds_and_where_we_stood cites [10] needs [Queue];
    a_try_for_a_time_says_no_and_leaves_nothing_behind cites [7, 10] needs [];
    closing_ends_every_wait cites [7, 10] needs [Queue];
    a_severed_session_hears_of_it_in_bounded_time cites [10] needs [];
    a_store_that_never_answers_is_given_up_in_bounded_time cites [10] needs [];
    a_severed_waiter_hears_of_it_in_bounded_time cites [10] needs [Queue];
    a_release_over_a_severed_link_is_left_to_the_lease cites [7, 10] needs [Queue];
    a_long_chain_of_waiters_is_never_refused cites [11] needs [Queue];
    trouble_with_any_call_of_a_holder_costs_nobody_the_lock cites [5, 6, 10] needs [Queue];
    trouble_with_any_call_of_a_short_hold_costs_nobody_the_lock cites [5, 6, 10] needs [Queue];
    trouble_with_any_call_of_a_waiter_costs_nobody_the_lock cites [5, 6, 10] needs [Queue];
    trouble_with_any_push_costs_nobody_the_lock cites [5, 8] needs [Queue, Push];
}

fn a_waiter_is_told_without_any_time_passing(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    let calls = two.link.calls();
    world.now(guard.release()).unwrap();
    let guard = waiting.done(world.stage()).unwrap();
    assert_eq!((two.link.pushes(), two.link.calls()), (1, calls), "one push and no call");
    guard.check().unwrap();
}

fn a_lost_push_costs_a_renewal_and_no_more(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    two.link.trouble_push(0, Fault::LosePush);
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let mut waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    world.now(guard.release()).unwrap();
    world.until("the push is lost", || two.link.pushes() == 1);
    world.still_waits(&mut waiting);
    world.pass(world.lease() * 2 / 3);
    waiting.done(world.stage()).unwrap().check().unwrap();
}

fn a_repeated_push_is_harmless(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    two.link.trouble_push(0, Fault::RepeatPush);
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    drop(guard);
    let guard = world.served(waiting).unwrap();
    assert_eq!(world.holders("a"), [guard.claim_id()]);
    world.now(guard.release()).unwrap();
    world.assert_free("a");
    assert_eq!(two.tenure.claim_count(), 0);
}

fn a_delayed_push_of_an_earlier_arrival_never_becomes_a_grant(world: &World) {
    let (one, two, three) = (world.actor(), world.actor(), world.actor());
    two.link.trouble_push(0, Fault::DelayPush);
    let [a, b] = ["a", "b"].map(|name| world.now(one.tenure.mutex(name).unwrap().lock()).unwrap());
    let [mut for_a, for_b] =
        ["a", "b"].map(|name| world.waits(two.tenure.mutex(name).unwrap().lock()));
    let third = world.waits(three.tenure.mutex("a").unwrap().lock());
    let old = world.line("a")[0];
    // Two is granted "a"; the push hangs, and the store takes the grant for dead meanwhile.
    drop(a);
    world.until("two holds", || world.holders("a") == [old]);
    world.stage().end_session(two.tenure.session_id());
    let third = world.served(third).unwrap();
    let mut for_b = for_b;
    world.until("two claimed anew", || {
        world.still_waits(&mut for_a);
        world.still_waits(&mut for_b);
        world.line("a").len() == 1 && world.line("b").len() == 1
    });
    // The next push brings the old one along.
    drop(b);
    world.served(for_b).unwrap().check().unwrap();
    world.still_waits(&mut for_a);
    third.check().unwrap();
    drop(third);
    world.served(for_a).unwrap().check().unwrap();
}

fn a_forged_push_never_becomes_a_grant(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let mut waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    let fence = guard.fence().unwrap();
    let grant = |fence: Fence| Grant {
        fences: std::iter::once(fence).collect(),
        arrival: Arrival(u64::MAX),
    };
    let larger = grant(Fence::new(fence.get() + 1));
    for claim in [world.line("a")[0], ClaimId::new()] {
        two.link.forge(&Signal::Granted { claim, grant: larger.clone() });
        world.still_waits(&mut waiting);
    }
    two.link.forge(&Signal::Resync);
    world.still_waits(&mut waiting);
    one.link.forge(&Signal::Granted { claim: guard.claim_id(), grant: larger });
    one.link.forge(&Signal::Ended { claim: ClaimId::new(), loss: Loss::Forgotten });
    assert_eq!(guard.fence().unwrap(), fence, "what is held is not granted again");
    drop(guard);
    world.served(waiting).unwrap().check().unwrap();
}

fn dropping_a_waiting_future_gives_up_its_place(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    assert_eq!(world.line("a").len(), 1);
    drop(waiting);
    world.until("the line is empty", || world.line("a").is_empty());
    assert_eq!(two.tenure.claim_count(), 0);
    drop(guard);
    world.assert_free("a");
}

fn dropping_a_future_that_was_granted_gives_the_grant_back(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    let claim = world.line("a")[0];
    world.now(guard.release()).unwrap();
    world.until("it is granted", || world.holders("a") == [claim]);
    drop(waiting);
    world.assert_free("a");
}

/// A crowd of one process asks and gives up, first for a name that is free, then for one that is
/// held: nothing of it may stand in the way of the next caller.
fn a_lock_can_be_had_after_a_crowd_of_callers_gave_up(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let lock = |actor: &Actor| actor.tenure.mutex("a").unwrap().timeout(world.lease() * 3).lock();
    for is_held in [false, true] {
        let held = is_held.then(|| world.served(Waiting::start(lock(&two))).unwrap());
        let crowd: Vec<_> = (0..500).map(|_| Waiting::start(lock(&one))).collect();
        world.settle();
        drop(crowd);
        let next = Waiting::start(lock(&one));
        if let Some(held) = held {
            world.now(held.release()).unwrap();
        }
        // One after the other: where there is no queue, the second could be served first and would
        // hold the lock until its turn in this loop.
        let mut next = Some(next);
        for _ in 0..2 {
            let waiting = next.take().unwrap_or_else(|| Waiting::start(lock(&two)));
            let guard = world.served(waiting).unwrap();
            assert_eq!(world.holders("a"), [guard.claim_id()]);
            world.now(guard.release()).unwrap();
        }
        world.until("the crowd has left", || {
            world.slot("a").is_none_or(|slot| slot.holders.is_empty() && slot.queue.is_empty())
        });
        assert_eq!((one.tenure.claim_count(), two.tenure.claim_count()), (0, 0));
    }
}

fn dropping_a_guard_gives_the_lock_back(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    for _ in 0..3 {
        drop(world.now(one.tenure.mutex("a").unwrap().lock()).unwrap());
        world.assert_free("a");
        let next = world.now(two.tenure.mutex("a").unwrap().try_lock()).unwrap();
        next.expect("it is free").check().unwrap();
        world.assert_free("a");
    }
}

fn a_lost_release_is_sent_again(world: &World) {
    for trouble in [Fault::LoseCall, Fault::LoseReply] {
        let (actor, name) = (world.actor(), format!("{trouble:?}"));
        let guard = world.now(actor.tenure.mutex(&name).unwrap().lock()).unwrap();
        actor.link.trouble_call(actor.link.calls(), trouble);
        drop(guard);
        // Well before the lease would have ended it.
        world.pass(world.lease() * 2 / 3);
        assert!(world.holders(&name).is_empty(), "{trouble:?}");
    }
}

fn a_claim_that_arrives_after_its_caller_gave_up_is_refused(world: &World) {
    let actor = world.actor();
    actor.link.trouble_call(0, Fault::LateCall);
    let waiting = world.waits(actor.tenure.mutex("a").unwrap().lock());
    drop(waiting);
    world.until("it is withdrawn", || actor.link.calls() == 2);
    world.settle();
    // The claim has hung somewhere, and arrives now.
    let guard = world.now(actor.tenure.mutex("b").unwrap().lock()).unwrap();
    assert!(world.holders("a").is_empty(), "nobody would ever release it");
    guard.check().unwrap();
}

fn a_grant_that_nobody_picks_up_is_given_back_after_a_lease(world: &World) {
    let (one, two, three) = (world.actor(), world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    // Alive, but not polled.
    let asleep = world.waits(two.tenure.mutex("a").unwrap().lock());
    let next = world.waits(three.tenure.mutex("a").unwrap().lock());
    drop(guard);
    world.pass(world.lease() * 2);
    let next = world.served(next).unwrap();
    next.check().unwrap();
    drop(next);
    world.served(asleep).expect("claims anew when it wakes").check().unwrap();
}

fn a_wait_limit_says_who_holds_and_where_we_stood(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let mutex = one.tenure.mutex("a").unwrap().label("nightly export");
    let _guard = world.now(mutex.lock()).unwrap();
    let _first = world.waits(one.tenure.mutex("a").unwrap().lock());
    let limited = two.tenure.mutex("a").unwrap().timeout(world.lease() / 2);
    let mut second = world.waits(limited.lock());
    world.pass(world.lease() / 6);
    world.still_waits(&mut second);
    world.pass(world.lease());
    let error = world.served(second).unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::TimedOut, Some(2)));
    assert_eq!(error.held_by()[0].about.label.as_ref().unwrap().as_str(), "nightly export");
    assert!(error.to_string().contains("waiting.rs"), "where in the code: {error}");
    world.until("it left the line", || world.line("a").len() == 1);
}

fn a_try_for_a_time_says_no_and_leaves_nothing_behind(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let mutex = two.tenure.mutex("a").unwrap();
    let refused = world.waits(mutex.try_lock_for(world.lease() / 2));
    assert!(world.served(refused).unwrap().is_none());
    world.until("it left the queue", || world.line("a").is_empty());
    assert_eq!((world.holders("a"), two.tenure.claim_count()), (vec![guard.claim_id()], 0));
    let granted = world.waits(mutex.try_lock_for(world.lease() * 20));
    drop(guard);
    let guard = world.served(granted).unwrap().expect("it is free, and there is time");
    guard.check().unwrap();
}

fn closing_ends_every_wait(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    let tenure = two.tenure.clone();
    world.served(Waiting::start(async move { tenure.close().await }));
    assert_eq!(world.served(waiting).unwrap_err().kind(), ErrorKind::Closed);
    let refused = world.now(two.tenure.mutex("b").unwrap().lock()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    world.until("the line is empty", || world.line("a").is_empty());
    guard.check().unwrap();
}

fn a_severed_session_hears_of_it_in_bounded_time(world: &World) {
    let actor = world.hasty_actor();
    actor.link.cut(true);
    let mutex = actor.tenure.mutex("a").unwrap();
    let error = world.served(Waiting::start(mutex.lock())).unwrap_err();
    assert_eq!((error.kind(), error.name().unwrap().as_str()), (ErrorKind::Unavailable, "a"));
    let error = world.served(Waiting::start(mutex.try_lock())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    actor.link.cut(false);
    world.served(Waiting::start(mutex.lock())).unwrap().check().unwrap();
}

fn a_store_that_never_answers_is_given_up_in_bounded_time(world: &World) {
    for trouble in [Fault::HangCall, Fault::HangReply] {
        let actor = world.hasty_actor();
        for nth in 0..50 {
            actor.link.trouble_call(nth, trouble);
        }
        let error = world.served(Waiting::start(actor.tenure.mutex("a").unwrap().lock()));
        let error = error.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
        // What the store did all the same is undone, by the session or by the lease.
        world.until("the name is free", || world.holders("a").is_empty());
    }
}

fn a_severed_waiter_hears_of_it_in_bounded_time(world: &World) {
    let (one, two) = (world.actor(), world.hasty_actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    two.link.cut(true);
    assert_eq!(world.served(waiting).unwrap_err().kind(), ErrorKind::Unavailable);
    world.until("its ticket is gone", || world.line("a").is_empty());
    guard.check().unwrap();
}

fn a_release_over_a_severed_link_is_left_to_the_lease(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    one.link.cut(true);
    let error = world.served(Waiting::start(guard.release())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    world.served(waiting).unwrap().check().unwrap();
}

fn a_long_chain_of_waiters_is_never_refused(world: &World) {
    // Each owner holds one name and waits for that of the next; only the last can run.
    const LENGTH: usize = 8;
    let actors: Vec<Actor> = (0..3).map(|_| world.actor()).collect();
    let owners: Vec<Owner> = (0..LENGTH).map(|_| Owner::new()).collect();
    let lock = |n: usize, name: usize| {
        let mutex = actors[n % 3].tenure.mutex(format!("link{name}")).unwrap();
        mutex.owner(&owners[n]).lock()
    };
    let mut held: Vec<_> = (0..LENGTH).map(|n| world.now(lock(n, n)).unwrap()).collect();
    let mut waiting: Vec<_> = (0..LENGTH - 1).map(|n| world.waits(lock(n, n + 1))).collect();
    world.pass_watching(world.lease() * 3, || {
        for one in &mut waiting {
            world.still_waits(one);
        }
    });
    drop(held.pop());
    while let Some(next) = waiting.pop() {
        let guard = world.served(next).expect("nobody was in a deadlock");
        drop((guard, held.pop()));
    }
    for n in 0..LENGTH {
        world.assert_free(&format!("link{n}"));
    }
}

/// Two sessions that want one name, one of them with a bad link.
struct Pair {
    about: String,
    name: String,
    holder: Actor,
    waiter: Actor,
}

/// A pair for each trouble with each of the first calls or pushes. They play at the same time.
fn pairs(world: &World, troubles: &[Fault], bad: fn(&Pair, usize, Fault)) -> Vec<Pair> {
    let cases = troubles.iter().flat_map(|trouble| (0..6).map(move |nth| (nth, *trouble)));
    let pair = |(nth, trouble): (usize, Fault)| {
        let about = format!("{trouble:?} at {nth}");
        let (holder, waiter) = (world.actor(), world.actor());
        let pair = Pair { name: format!("{trouble:?}{nth}"), about, holder, waiter };
        bad(&pair, nth, trouble);
        pair
    };
    cases.map(pair).collect()
}

/// Starts something for every pair.
fn start<T, F>(pairs: &[Pair], call: impl Fn(&Pair) -> F) -> Vec<Waiting<T>>
where
    F: Future<Output = T> + Send + 'static,
{
    pairs.iter().map(|pair| Waiting::start(call(pair))).collect()
}

/// What each call comes to, as time goes by.
fn ended<T>(world: &World, pairs: &[Pair], mut all: Vec<Waiting<T>>) -> Vec<T> {
    for _ in 0..60 {
        Waiting::look(&mut all, world.stage());
        if all.iter().all(Waiting::is_served) {
            break;
        }
        world.pass(world.lease() / 12);
    }
    let done = |(pair, one): (&Pair, Waiting<T>)| {
        assert!(one.is_served(), "{}: still waits", pair.about);
        one.done(world.stage())
    };
    pairs.iter().zip(all).map(done).collect()
}

/// The holder takes the name, the waiter waits, time passes, the holder lets go, the waiter is
/// served and lets go: whatever the trouble, and the name is free in the end.
fn both_are_served(world: &World, pairs: &[Pair], time: Duration) {
    let lock = |actor: &Actor, pair: &Pair| actor.tenure.mutex(&pair.name).unwrap().lock();
    let take = |(pair, result): (&Pair, Result<MutexGuard, Error>)| {
        result.unwrap_or_else(|error| panic!("{}: {error}", pair.about))
    };
    let first = ended(world, pairs, start(pairs, |pair| lock(&pair.holder, pair)));
    let first: Vec<MutexGuard> = pairs.iter().zip(first).map(take).collect();
    let mut line = start(pairs, |pair| lock(&pair.waiter, pair));
    world.pass_watching(time, || {
        Waiting::look(&mut line, world.stage());
        for ((pair, guard), next) in pairs.iter().zip(&first).zip(&line) {
            assert!(guard.check().is_ok(), "{}: one call must not cost the lock", pair.about);
            assert!(!next.is_served(), "{}: two hold", pair.about);
        }
    });
    // An error here only says that the caller cannot know; the keeper goes on.
    let releases = first.into_iter().map(|guard| Waiting::start(guard.release())).collect();
    drop(ended(world, pairs, releases));
    let second: Vec<MutexGuard> = pairs.iter().zip(ended(world, pairs, line)).map(take).collect();
    for (pair, guard) in pairs.iter().zip(&second) {
        assert_eq!(world.holders(&pair.name), [guard.claim_id()], "{}", pair.about);
    }
    drop(second);
    for pair in pairs {
        world.until(&format!("{}: the name is free", pair.about), || {
            world.holders(&pair.name).is_empty() && world.line(&pair.name).is_empty()
        });
        assert_eq!((pair.holder.tenure.claim_count(), pair.waiter.tenure.claim_count()), (0, 0));
    }
}

fn trouble_with_any_call_of_a_holder_costs_nobody_the_lock(world: &World) {
    let bad = |pair: &Pair, nth, trouble| pair.holder.link.trouble_call(nth, trouble);
    both_are_served(world, &pairs(world, &Fault::CALLS, bad), world.lease() * 5 / 4);
}

fn trouble_with_any_call_of_a_short_hold_costs_nobody_the_lock(world: &World) {
    let bad = |pair: &Pair, nth, trouble| pair.holder.link.trouble_call(nth, trouble);
    both_are_served(world, &pairs(world, &Fault::CALLS, bad), Duration::ZERO);
}

fn trouble_with_any_call_of_a_waiter_costs_nobody_the_lock(world: &World) {
    let bad = |pair: &Pair, nth, trouble| pair.waiter.link.trouble_call(nth, trouble);
    both_are_served(world, &pairs(world, &Fault::CALLS, bad), world.lease() * 5 / 4);
}

fn trouble_with_any_push_costs_nobody_the_lock(world: &World) {
    let bad = |pair: &Pair, nth, trouble| pair.waiter.link.trouble_push(nth, trouble);
    let pairs = pairs(world, &Fault::PUSHES, bad);
    for _ in 0..4 {
        both_are_served(world, &pairs, Duration::ZERO);
    }
}
