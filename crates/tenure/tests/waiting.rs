//! Waiting: first come, first served; woken by event; a lost push never loses a wake-up.

mod common;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{World, millis, now, poll_once, secs};
use tenure::conformance::{Fault, Link};
use tenure::contract::{Engine, Signal, Verdict};
use tenure::{Error, ErrorKind, MutexGuard, Tenure};

type Waiting = Pin<Box<dyn Future<Output = Result<MutexGuard, Error>> + Send>>;

fn waiting(tenure: &Tenure) -> Waiting {
    let mut lock: Waiting = Box::pin(tenure.mutex("a").unwrap().lock());
    assert!(poll_once(lock.as_mut()).is_none(), "it has to wait");
    lock
}

#[test]
fn first_come_first_served_across_sessions() {
    let world = World::new();
    let sessions: Vec<Tenure> = (0..5).map(|_| world.tenure()).collect();
    let mut guard = now(sessions[0].mutex("a").unwrap().lock()).unwrap();
    let mut line: Vec<Waiting> = sessions.iter().map(waiting).collect();
    let mut last = guard.fence().unwrap();
    while !line.is_empty() {
        now(guard.release()).unwrap();
        for (at, later) in line.iter_mut().enumerate().skip(1) {
            assert!(poll_once(later.as_mut()).is_none(), "number {at} came out of turn");
        }
        guard = poll_once(line.remove(0).as_mut()).expect("handed over in one step").unwrap();
        assert!(guard.fence().unwrap() > last, "fences grow (promise 3)");
        last = guard.fence().unwrap();
    }
}

#[test]
fn a_hand_off_costs_one_call_and_no_renewal() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let mut next = waiting(&tenure);
    let calls = || {
        let engine = &world.engine;
        let counts = [&engine.claims, &engine.renews, &engine.releases];
        counts.map(|count| count.load(Ordering::SeqCst))
    };
    assert_eq!(calls(), [2, 0, 0]);
    now(guard.release()).unwrap();
    let _next = poll_once(next.as_mut()).expect("handed over").unwrap();
    assert_eq!(calls(), [2, 0, 1]);
}

#[test]
fn a_try_never_jumps_the_line() {
    let world = World::new();
    let tenure = world.tenure();
    let semaphore = tenure.semaphore("a", 3).unwrap();
    let one = now(semaphore.acquire_many(2)).unwrap();
    let mut large = Box::pin(semaphore.acquire_many(3));
    assert!(poll_once(large.as_mut()).is_none());
    assert!(now(semaphore.try_acquire()).unwrap().is_none(), "one is free, but somebody waits");
    now(one.release()).unwrap();
    assert!(poll_once(large.as_mut()).is_some());
}

#[test]
fn a_waiter_that_gives_up_leaves_no_gap() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let (first, mut second) = (waiting(&tenure), waiting(&tenure));
    drop(first);
    world.settle();
    now(guard.release()).unwrap();
    assert!(poll_once(second.as_mut()).is_some());
}

#[test]
fn a_dead_waiter_costs_the_others_nothing() {
    let world = World::new();
    let (living, dying) = (world.tenure(), world.tenure());
    let guard = now(living.mutex("a").unwrap().lock()).unwrap();
    let _dead = waiting(&dying);
    let mut next = waiting(&living);
    world.store.end_session(dying.session_id());
    now(guard.release()).unwrap();
    assert!(poll_once(next.as_mut()).is_some(), "served in the same step");
}

#[test]
fn a_lost_push_costs_at_most_one_renewal() {
    // Promise 8: the session hears nothing, and asks at a third of its lease.
    let world = World::new();
    world.engine.deaf.store(true, Ordering::SeqCst);
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let mut next = waiting(&tenure);
    now(guard.release()).unwrap();
    world.advance(secs(9));
    assert!(poll_once(next.as_mut()).is_none(), "nobody told it");
    world.advance(secs(2));
    let guard = poll_once(next.as_mut()).expect("the renewal said so").unwrap();
    assert!(guard.check().is_ok());
}

#[test]
fn the_head_of_the_line_takes_over_when_a_holder_expires() {
    // A detached claim belongs to no process: no keeper renews it and no guard releases it.
    let world = World::new();
    let claim = World::detached_claim("a", secs(4));
    assert!(matches!(now(world.store.claim(&claim)).unwrap(), Verdict::Granted(_)));
    let mut next = waiting(&world.tenure());
    world.advance(millis(3_999));
    assert!(poll_once(next.as_mut()).is_none(), "still held");
    world.advance(millis(3));
    let guard = poll_once(next.as_mut()).expect("within milliseconds of the expiry").unwrap();
    assert!(guard.check().is_ok());
}

#[test]
fn the_head_of_the_line_does_not_ask_again_and_again_before_a_holder_expires() {
    // Renewals may be sent early, to make batches; the question at a holder's expiry may not: it
    // was answered "not yet" and asked again without a pause for as long as the window is.
    let world = World::new();
    let claim = World::detached_claim("a", secs(60));
    assert!(matches!(now(world.store.claim(&claim)).unwrap(), Verdict::Granted(_)));
    let mut next = waiting(&world.tenure());
    world.advance(millis(59_999));
    let renews = world.engine.renews.load(Ordering::SeqCst);
    assert!(renews <= 8, "{renews} calls for six thirds of a lease");
    world.advance(millis(3));
    assert!(poll_once(next.as_mut()).is_some());
}

#[test]
fn a_waiter_that_stalled_past_its_lease_goes_to_the_end_of_the_line() {
    let world = World::new();
    let (one, two) = (world.tenure(), world.tenure());
    let guard = now(one.mutex("a").unwrap().lease(secs(60)).lock()).unwrap();
    let mut stalled: Waiting = Box::pin(two.mutex("a").unwrap().lease(secs(3)).lock());
    assert!(poll_once(stalled.as_mut()).is_none());
    world.store.end_session(two.session_id());
    let mut other: Waiting = Box::pin(one.mutex("a").unwrap().lock());
    assert!(poll_once(other.as_mut()).is_none());
    world.advance(millis(1_100));
    assert!(poll_once(stalled.as_mut()).is_none(), "claimed anew");
    now(guard.release()).unwrap();
    let guard = poll_once(other.as_mut()).expect("it stands before the stalled one").unwrap();
    assert!(poll_once(stalled.as_mut()).is_none());
    now(guard.release()).unwrap();
    assert!(poll_once(stalled.as_mut()).is_some());
}

#[test]
fn a_bounded_wait_says_who_holds_and_where_we_stood() {
    let world = World::new();
    let tenure = world.tenure();
    let _guard = now(tenure.mutex("a").unwrap().label("nightly export").lock()).unwrap();
    let _first = waiting(&tenure);
    let mut second = Box::pin(tenure.mutex("a").unwrap().timeout(secs(5)).lock());
    assert!(poll_once(second.as_mut()).is_none());
    world.advance(secs(6));
    let error = poll_once(second.as_mut()).expect("the limit passed").unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::TimedOut, Some(2)));
    let holder = &error.held_by()[0];
    assert_eq!(holder.about.label.as_ref().unwrap().as_str(), "nightly export");
    assert_eq!(holder.about.pid, std::process::id());
    let text = error.to_string();
    assert!(text.contains("waiting.rs") && text.contains("place 2 in line"), "{text}");
}

#[test]
fn the_place_told_is_the_place_at_the_end_of_the_wait() {
    let world = World::new();
    let tenure = world.tenure();
    let _guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let first = waiting(&tenure);
    let mut second = Box::pin(tenure.mutex("a").unwrap().timeout(secs(5)).lock());
    assert!(poll_once(second.as_mut()).is_none());
    drop(first);
    world.advance(secs(6));
    let error = poll_once(second.as_mut()).expect("the limit passed").unwrap_err();
    assert_eq!(error.place(), Some(1), "the one before has given up");
}

#[test]
fn a_set_that_timed_out_names_the_lock_it_waited_for() {
    let world = World::new();
    let tenure = world.tenure();
    let _culprit = now(tenure.mutex("b").unwrap().label("the culprit").lock()).unwrap();
    let parts = ["a", "b"].map(|name| tenure.mutex(name).unwrap().part());
    let mut set = Box::pin(tenure.lock_set(parts).unwrap().timeout(secs(1)).lock());
    assert!(poll_once(set.as_mut()).is_none());
    world.advance(secs(2));
    let error = poll_once(set.as_mut()).expect("the limit passed").unwrap_err();
    assert_eq!(error.name().unwrap().as_str(), "b");
    assert!(error.to_string().contains("the culprit"), "{error}");
    assert!(!error.help().contains("take them all at once"), "it was a set: {error}");
}

#[test]
fn closing_ends_every_wait() {
    let world = World::new();
    let (one, two) = (world.tenure(), world.tenure());
    let _guard = now(one.mutex("a").unwrap().lock()).unwrap();
    let mut wait = waiting(&two);
    tenure::block_on(two.close());
    let error = poll_once(wait.as_mut()).expect("closed").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    drop(wait);
    world.settle();
    assert_eq!(world.census(), (1, 0));
}

#[test]
fn readers_and_writers_do_not_starve_each_other() {
    let world = World::new();
    let tenure = world.tenure();
    let lock = tenure.rwlock("a").unwrap();
    let reader = now(lock.read()).unwrap();
    let mut writer = Box::pin(lock.write());
    assert!(poll_once(writer.as_mut()).is_none());
    let mut late_reader = Box::pin(lock.read());
    assert!(poll_once(late_reader.as_mut()).is_none(), "behind the writer");
    assert!(now(lock.try_read()).unwrap().is_none());
    now(reader.release()).unwrap();
    let writer = poll_once(writer.as_mut()).expect("the writer is next").unwrap();
    assert!(poll_once(late_reader.as_mut()).is_none());
    let reader = now(writer.downgrade()).unwrap();
    assert!(poll_once(late_reader.as_mut()).is_some(), "a downgrade lets readers in");
    drop(reader);
}

#[test]
fn of_two_readers_that_want_to_write_the_second_gives_way_at_once() {
    let world = World::new();
    let tenure = world.tenure();
    let lock = tenure.rwlock("a").unwrap();
    let (one, two) = (now(lock.read()).unwrap(), now(lock.read()).unwrap());
    let old_fence = one.fence().unwrap().max(two.fence().unwrap());
    let mut upgrade = Box::pin(one.upgrade());
    assert!(poll_once(upgrade.as_mut()).is_none(), "the other still reads");
    let unchanged = now(two.upgrade()).unwrap_err();
    assert_eq!(unchanged.error.kind(), ErrorKind::UpgradeConflict);
    assert!(unchanged.guard.check().is_ok(), "it still reads");
    drop(unchanged);
    world.settle();
    let writer = poll_once(upgrade.as_mut()).expect("the only reader now").unwrap();
    assert!(writer.fence().unwrap() > old_fence, "a new grant, a new fence");
    world.advance(secs(100));
    assert!(writer.check().is_ok(), "the replaced claim is not renewed and not missed");
    now(writer.release()).unwrap();
    world.assert_empty("upgraded");
}

/// A process was killed between letting go and telling the next one, and was found dead while the
/// answer to that one's claim was on its way: the signal to retry met no waiter, and the
/// lock stood idle for a third of the lease.
#[test]
fn a_claim_on_its_way_when_signals_were_missed_asks_again() {
    let world = World::new();
    let guard = now(world.tenure().mutex("a").unwrap().lock()).unwrap();
    let link = Link::new(Arc::new(world.store.clone()) as Arc<dyn Engine>);
    let clock = Arc::new(world.clock.clone());
    let tenure = Tenure::builder().clock(clock).open(Arc::clone(&link) as _).unwrap();
    link.trouble_push(0, Fault::LosePush);
    link.hold_replies(true);
    let mut waiting = pin!(tenure.mutex("a").unwrap().lock());
    assert!(poll_once(waiting.as_mut()).is_none(), "it waits for the answer");
    now(guard.release()).unwrap();
    link.forge(&Signal::Resync);
    link.hold_replies(false);
    // The answer is that it waits, which is no news; the keeper may have more by now, or soon.
    let served = poll_once(waiting.as_mut());
    world.settle();
    let served = served.or_else(|| poll_once(waiting.as_mut()));
    served.expect("no time had to pass").unwrap().check().unwrap();
}
