//! Calls that fail or take their time: how soon they are made again, how often, and when they are
//! given up.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{World, millis, now, poll_once, secs};
use tenure::conformance::Link;
use tenure::{Effect, ErrorKind, Tenure};

/// Lets time pass in steps and returns the pauses between the calls that are counted, the one
/// before the first call included.
fn pauses(world: &World, calls: &AtomicUsize, step: u64, steps: u64) -> Vec<u64> {
    let (mut pauses, mut pause) = (Vec::new(), 0);
    let mut before = calls.load(Ordering::SeqCst);
    for _ in 0..steps {
        world.advance(millis(step));
        pause += step;
        let after = calls.load(Ordering::SeqCst);
        assert!(after <= before + 1, "{} calls within {step} ms", after - before);
        if after > before {
            pauses.push(pause);
            (pause, before) = (0, after);
        }
    }
    pauses
}

#[test]
fn a_try_that_failed_is_sent_again_twice_after_pauses_that_grow() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().try_lock());
    let mut answer = poll_once(lock.as_mut());
    let (mut pauses, mut pause) = (Vec::new(), 0);
    for _ in 0..200 {
        if answer.is_some() {
            break;
        }
        let before = world.engine.claims.load(Ordering::SeqCst);
        world.advance(millis(1));
        pause += 1;
        answer = poll_once(lock.as_mut());
        if world.engine.claims.load(Ordering::SeqCst) > before {
            pauses.push(pause);
            pause = 0;
        }
    }
    assert_eq!(answer.expect("given up").unwrap_err().kind(), ErrorKind::Unavailable);
    let [first, second] = pauses[..] else { panic!("three tries: {pauses:?}") };
    assert!((20..=60).contains(&first) && (40..=120).contains(&second), "{pauses:?}");
}

#[test]
fn a_claim_that_may_wait_is_sent_again_until_its_limit_after_pauses_that_grow_up_to_a_bound() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().timeout(secs(20)).lock());
    let (mut pauses, mut pause, mut all) = (Vec::new(), 0_u64, 0);
    let answer = loop {
        let before = world.engine.claims.load(Ordering::SeqCst);
        if let Some(answer) = poll_once(lock.as_mut()) {
            break answer;
        }
        if world.engine.claims.load(Ordering::SeqCst) > before {
            pauses.push(pause);
            pause = 0;
        }
        world.advance(millis(1));
        (pause, all) = (pause + 1, all + 1);
    };
    assert_eq!(all, 20_000, "neither sooner nor later");
    let error = answer.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
    let said = format!("the link is cut; tried {} times in 20s", pauses.len());
    assert!(error.to_string().contains(&said), "{error}");
    let mut apart = false;
    for (failures, pause) in (1..).zip(&pauses[1..]) {
        let step = (20_u64 << u32::min(failures, 10)).min(1_000);
        assert!((step / 2..=step * 3 / 2).contains(pause), "after {failures}: {pauses:?}");
        apart |= pause.abs_diff(step) > step / 10;
    }
    assert!(apart && pauses.len() > 15, "with jitter: {pauses:?}");
}

#[test]
fn closing_ends_a_wait_for_a_store_that_is_away() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().lock());
    for _ in 0..20 {
        assert!(poll_once(lock.as_mut()).is_none());
        world.advance(secs(1));
    }
    let _closing = poll_once(std::pin::pin!(tenure.close()));
    let error = poll_once(lock.as_mut()).expect("at once").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

#[test]
fn a_wait_without_a_limit_gives_up_when_nothing_was_answered_for_the_longest_lease() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().lock());
    for _ in 0..59 {
        assert!(poll_once(lock.as_mut()).is_none());
        world.advance(secs(1));
    }
    assert!(poll_once(lock.as_mut()).is_none());
    world.advance(secs(1));
    let error = poll_once(lock.as_mut()).expect("a minute has passed").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(" times in 1m"), "{error}");
}

#[test]
fn a_claim_is_not_sent_again_after_its_callers_limit_has_passed() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.swallow.store(true, Ordering::SeqCst);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().timeout(secs(1)).lock());
    assert!(poll_once(lock.as_mut()).is_none());
    world.advance(millis(1_001));
    let error = poll_once(lock.as_mut()).expect("the limit passed").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(world.engine.claims.load(Ordering::SeqCst), 1);
}

#[test]
fn a_try_that_is_refused_costs_one_call() {
    let world = World::new();
    let _guard = now(world.tenure().mutex("a").unwrap().lock()).unwrap();
    assert!(now(world.tenure().mutex("a").unwrap().try_lock()).unwrap().is_none());
    world.settle();
    assert_eq!(world.engine.releases.load(Ordering::SeqCst), 0, "there is nothing to undo");
}

#[test]
fn renewals_come_a_little_before_every_third_of_the_lease_and_not_in_step() {
    let one_session = || {
        let world = World::new();
        let _guard = now(world.tenure().mutex("a").unwrap().lease(secs(30)).lock()).unwrap();
        pauses(&world, &world.engine.renews, 10, 30_000)
    };
    let (one, two) = (one_session(), one_session());
    for pauses in [&one, &two] {
        assert_eq!(pauses[0], 10_000, "the first at a third");
        assert!(pauses.len() >= 29 && pauses.iter().all(|one| (9_000..=10_010).contains(one)));
        assert!(pauses[1..].iter().any(|one| *one < 9_900), "{pauses:?}");
    }
    assert_ne!(one, two, "sessions drift apart");
}

#[test]
fn a_renewal_that_failed_is_tried_again_after_pauses_that_grow_up_to_a_bound() {
    let world = World::new();
    let _guard = now(world.tenure().mutex("a").unwrap().lease(secs(6)).lock()).unwrap();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let pauses = pauses(&world, &world.engine.renews, 1, 5_900);
    assert!(pauses.len() > 5, "{pauses:?}");
    let mut apart = false;
    for (failures, pause) in (1..).zip(&pauses[1..]) {
        let most = 250 * u64::min(failures, 4);
        assert!((most / 2..=most + 1).contains(pause), "after {failures} failures: {pauses:?}");
        apart |= *pause > most * 11 / 20;
    }
    assert!(apart, "sessions drift apart: {pauses:?}");
}

/// Each claim once had a pause of its own after a failed renewal, so that the retries of 2,000
/// waiters were 2,000 calls, each of which read the whole queue from a store that was slow already.
#[test]
fn renewals_that_failed_together_are_tried_again_together() {
    let world = World::new();
    let tenure = world.tenure();
    let name = |number: u32| format!("n{number}");
    let guards: Vec<_> =
        (0..50).map(|at| now(tenure.mutex(name(at)).unwrap().lock()).unwrap()).collect();
    world.engine.refuse.store(true, Ordering::SeqCst);
    // A third of the lease to the first attempt, then pauses of up to half a second and more.
    let pauses = pauses(&world, &world.engine.renews, 1, 15_000);
    assert!((5..=40).contains(&pauses.len()), "{pauses:?}");
    world.engine.refuse.store(false, Ordering::SeqCst);
    world.advance(secs(5));
    assert!(guards.iter().all(|guard| guard.check().is_ok()), "all were renewed in time");
}

#[test]
fn a_renewal_without_an_answer_leaves_time_for_two_more() {
    let world = World::new();
    let _guard = now(world.tenure().mutex("a").unwrap().lease(secs(3)).lock()).unwrap();
    world.engine.swallow.store(true, Ordering::SeqCst);
    world.advance(millis(2_990));
    let renews = world.engine.renews.load(Ordering::SeqCst);
    assert!((3..=4).contains(&renews), "{renews} tries");
}

#[test]
fn a_release_that_failed_is_tried_again_until_its_lease_has_passed() {
    let world = World::new();
    let guard = now(world.tenure().mutex("a").unwrap().lease(secs(3)).lock()).unwrap();
    world.engine.refuse.store(true, Ordering::SeqCst);
    drop(guard);
    world.settle();
    assert_eq!(world.engine.releases.load(Ordering::SeqCst), 1, "at once");
    let pauses = pauses(&world, &world.engine.releases, 1, 6_000);
    assert!(pauses.iter().all(|one| (100..=357).contains(one)), "{pauses:?}");
    let last: u64 = pauses.iter().sum();
    assert!((2_600..=3_001).contains(&last), "the lease is the backstop: {last}");
}

#[test]
fn a_release_that_reported_an_error_is_finished_in_the_background() {
    let world = World::new();
    let guard = now(world.tenure().mutex("a").unwrap().lock()).unwrap();
    world.engine.refuse.store(true, Ordering::SeqCst);
    assert_eq!(now(guard.release()).unwrap_err().kind(), ErrorKind::Unavailable);
    world.settle();
    assert_eq!(world.census(), (1, 0), "the store has not heard of it");
    world.engine.refuse.store(false, Ordering::SeqCst);
    world.advance(millis(500));
    world.assert_empty("released in the background");
}

#[test]
fn a_release_that_takes_its_time_is_not_sent_twice() {
    let world = World::new();
    let link = Link::new(Arc::new(world.store.clone()));
    let builder = Tenure::builder().clock(Arc::new(world.clock.clone()));
    let tenure = builder.open(Arc::clone(&link) as _).unwrap();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    link.hold_replies(true);
    drop(guard);
    world.advance(millis(1_900));
    link.hold_replies(false);
    world.advance(secs(5));
    assert_eq!(link.calls(), 2, "one claim, one release");
}

#[test]
fn a_wait_that_ends_names_the_holder_also_if_the_store_takes_its_time() {
    let world = World::new();
    let tenure = world.tenure();
    let _guard = now(tenure.mutex("a").unwrap().label("export").lock()).unwrap();
    world.engine.suspend.store(true, Ordering::SeqCst);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().timeout(secs(5)).lock());
    let mut answer = None;
    for _ in 0..100 {
        answer = poll_once(lock.as_mut());
        if answer.is_some() {
            break;
        }
        world.advance(millis(100));
    }
    let text = answer.expect("the limit passed").unwrap_err().to_string();
    assert!(text.contains("not granted within 5s") && text.contains("export"), "{text}");
}

#[test]
fn an_answer_that_came_too_late_to_be_trusted_is_renewed_and_kept() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.suspend.store(true, Ordering::SeqCst);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().lease(secs(3)).lock());
    assert!(poll_once(lock.as_mut()).is_none(), "before the call");
    assert!(poll_once(lock.as_mut()).is_none(), "the answer is on its way");
    world.clock.jump(millis(2_999));
    world.engine.suspend.store(false, Ordering::SeqCst);
    // The answer comes inside the margin. The keeper renews, perhaps before this poll is over.
    let answer = poll_once(lock.as_mut());
    world.settle();
    let guard = answer.or_else(|| poll_once(lock.as_mut())).expect("renewed").unwrap();
    assert!(guard.check().is_ok());
    assert_eq!(world.engine.claims.load(Ordering::SeqCst), 1, "not claimed anew");
}

#[test]
fn a_wait_that_ends_before_a_late_answer_can_be_trusted_names_no_place() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.suspend.store(true, Ordering::SeqCst);
    let lock = tenure.mutex("a").unwrap().lease(millis(200)).timeout(millis(500));
    let mut lock = Box::pin(lock.lock());
    assert!(poll_once(lock.as_mut()).is_none(), "before the call");
    assert!(poll_once(lock.as_mut()).is_none(), "the answer is on its way");
    world.engine.refuse.store(true, Ordering::SeqCst);
    world.clock.jump(millis(400));
    assert!(poll_once(lock.as_mut()).is_none(), "an outdated answer is not handed out");
    world.advance(millis(100));
    let error = poll_once(lock.as_mut()).expect("the limit passed").unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::TimedOut, None));
}

#[test]
fn a_release_that_took_longer_than_its_lease_is_no_loss() {
    let world = World::new();
    let guard = now(world.tenure().mutex("a").unwrap().lease(secs(1)).lock()).unwrap();
    world.engine.suspend.store(true, Ordering::SeqCst);
    let mut release = Box::pin(guard.release());
    assert!(poll_once(release.as_mut()).is_none(), "before the call");
    world.clock.jump(millis(1_100));
    world.engine.suspend.store(false, Ordering::SeqCst);
    poll_once(release.as_mut()).expect("answered").expect("the right had ended in time");
}
