//! Loss is visible and early: before the store could grant the lock to another claim.

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{World, millis, now, poll_once, secs};
use tenure::{Effect, ErrorKind, Evicted, Fence, Loss};

#[test]
fn the_keeper_renews_for_as_long_as_the_guard_lives() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lease(secs(3)).lock()).unwrap();
    let fence = guard.fence().unwrap();
    world.advance(secs(600));
    assert_eq!(guard.fence().unwrap(), fence);
    assert!(guard.remaining() > secs(1));
    assert_eq!(world.census(), (1, 0));
    drop(guard);
    world.settle();
    let renews = world.engine.renews.load(Ordering::SeqCst);
    world.advance(secs(60));
    assert_eq!(world.engine.renews.load(Ordering::SeqCst), renews, "renewals stop at release");
}

#[test]
fn a_holder_cut_off_from_the_store_knows_before_the_next_one_holds() {
    // Promise 4. The link is cut; the holder's safe-until must pass before the store's expiry.
    let world = World::new();
    let (holder, other) = (world.tenure(), world.tenure());
    let guard = now(holder.mutex("a").unwrap().lease(secs(3)).lock()).unwrap();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let mut lost = pin!(guard.lost());
    let mut lost_after = None;
    for step in 0..4_000_u64 {
        world.advance(millis(1));
        if lost_after.is_none() && poll_once(lost.as_mut()).is_some() {
            lost_after = Some(step);
            assert_eq!(world.store.census().holds, 1, "the store still holds it for us");
            let error = guard.fence().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost);
            assert_eq!(error.loss(), Some(&Loss::Expired));
            assert!(guard.remaining().is_zero());
            break;
        }
    }
    assert!(lost_after.is_some(), "the loss was never told");
    world.engine.refuse.store(false, Ordering::SeqCst);
    world.advance(secs(1));
    let next = now(other.mutex("a").unwrap().try_lock()).unwrap();
    assert!(next.is_some_and(|next| next.check().is_ok()), "the next one holds");
}

#[test]
fn a_short_cut_costs_nothing() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lease(secs(6)).lock()).unwrap();
    world.advance(secs(1));
    world.engine.refuse.store(true, Ordering::SeqCst);
    world.advance(secs(3));
    world.engine.refuse.store(false, Ordering::SeqCst);
    world.advance(secs(60));
    assert!(guard.check().is_ok(), "fast retries saved it");
}

#[test]
fn a_store_that_is_away_is_not_hammered() {
    // Retries were swept up with renewals that are soon due, and so came without any pause.
    let world = World::new();
    let tenure = world.tenure();
    let _guard = now(tenure.mutex("a").unwrap().lease(secs(3)).lock()).unwrap();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let tries = || world.engine.renews.load(Ordering::SeqCst);
    while tries() == 0 {
        world.advance(millis(1));
    }
    world.advance(millis(30));
    assert_eq!(tries(), 1, "a pause comes before the second try");
    world.advance(secs(1));
    assert!((3..=20).contains(&tries()), "{} tries in a second", tries());
}

#[test]
fn a_stopped_process_learns_of_the_loss_before_it_does_anything() {
    // As after SIGSTOP or a suspend: the clock jumps and no thread has run in between.
    let world = World::new();
    let (holder, other) = (world.tenure(), world.tenure());
    let guard = now(holder.mutex("a").unwrap().lease(secs(3)).lock()).unwrap();
    let held = tenure::LockStatus::clone(&guard);
    world.clock.jump(secs(10));
    assert_eq!(held.fence().unwrap_err().loss(), Some(&Loss::Expired));
    world.settle();
    let next = now(other.mutex("a").unwrap().lock()).unwrap();
    assert!(next.fence().is_ok());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost, "loss is final");
    assert_eq!(now(guard.release()).unwrap_err().kind(), ErrorKind::Lost);
    assert!(next.check().is_ok(), "the late release touched nobody");
}

#[test]
fn a_store_that_lost_its_memory_is_noticed_at_the_next_renewal() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lease(secs(3)).lock()).unwrap();
    world.store.lose_memory();
    world.advance(millis(1_100));
    assert_eq!(guard.fence().unwrap_err().loss(), Some(&Loss::Forgotten));
}

#[test]
fn a_forced_release_is_exact_and_its_holder_learns_the_reason() {
    let world = World::new();
    let (holder, operator) = (world.tenure(), world.tenure());
    let guard = now(holder.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    let wrong = now(operator.force_release("a", Fence::new(fence.get() + 1), "wrong one")).unwrap();
    assert!(matches!(wrong, Evicted::NoSuchGrant(holders) if holders.len() == 1));
    assert!(guard.check().is_ok());
    let done = now(operator.force_release("a", fence, "deploy is stuck")).unwrap();
    assert!(matches!(done, Evicted::Done(holders) if holders.len() == 1));
    let reason: Arc<str> = Arc::from("deploy is stuck");
    assert_eq!(now(guard.lost()), Loss::Evicted { reason });
    assert!(guard.fence().unwrap_err().to_string().contains("deploy is stuck"));
    world.assert_empty("evicted");
}

#[test]
fn a_holder_that_missed_the_signal_learns_the_reason_at_its_next_renewal() {
    let world = World::new();
    world.engine.deaf.store(true, Ordering::SeqCst);
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    now(tenure.force_release("a", guard.fence().unwrap(), "by hand")).unwrap();
    assert!(guard.check().is_ok(), "it cannot know yet");
    world.advance(secs(11));
    assert!(guard.check().unwrap_err().to_string().contains("by hand"));
}

#[test]
fn max_hold_ends_a_wedged_holder_whose_watchdog_lives() {
    let world = World::new();
    let (holder, other) = (world.tenure(), world.tenure());
    let mutex = holder.mutex("a").unwrap().lease(secs(10)).max_hold(secs(25));
    let guard = now(mutex.lock()).unwrap();
    world.advance(millis(24_900));
    assert!(guard.check().is_ok());
    world.advance(millis(200));
    assert_eq!(guard.fence().unwrap_err().loss(), Some(&Loss::MaxHold));
    assert!(now(other.mutex("a").unwrap().try_lock()).unwrap().is_some(), "given back at once");
}

#[test]
fn a_lock_delay_keeps_the_name_closed_after_a_crash_but_not_after_a_release() {
    let world = World::new();
    let (holder, other) = (world.tenure(), world.tenure());
    let delayed = holder.mutex("a").unwrap().lease(secs(3)).lock_delay(secs(5));
    now(now(delayed.lock()).unwrap().release()).unwrap();
    assert!(now(other.mutex("a").unwrap().try_lock()).unwrap().is_some(), "after a release");
    world.settle();
    let guard = now(delayed.lock()).unwrap();
    world.engine.refuse.store(true, Ordering::SeqCst);
    world.clock.jump(secs(7));
    world.settle();
    world.engine.refuse.store(false, Ordering::SeqCst);
    assert!(guard.check().is_err());
    assert!(now(other.mutex("a").unwrap().try_lock()).unwrap().is_none(), "4 s after expiry");
    world.clock.jump(millis(1_500));
    assert!(now(other.mutex("a").unwrap().try_lock()).unwrap().is_some(), "5.5 s after expiry");
}

#[test]
fn run_drops_the_work_when_the_lock_is_lost_and_says_why() {
    struct OnDrop(Arc<AtomicBool>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let world = World::new();
    let tenure = world.tenure();
    let dropped = Arc::new(AtomicBool::new(false));
    let on_drop = OnDrop(Arc::clone(&dropped));
    let mut run = Box::pin(tenure.mutex("a").unwrap().lease(secs(3)).run(|_| async move {
        let _on_drop = on_drop;
        std::future::pending::<()>().await;
    }));
    assert!(poll_once(run.as_mut()).is_none());
    world.store.lose_memory();
    world.advance(millis(1_100));
    let error = poll_once(run.as_mut()).expect("the loss ends it").unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(&Loss::Forgotten)));
    drop(run);
    assert!(dropped.load(Ordering::SeqCst));
    world.assert_empty("run");
}

#[test]
fn work_that_outlasts_its_lock_in_one_step_is_not_called_done() {
    let world = World::new();
    let tenure = world.tenure();
    let clock = world.clock.clone();
    let run = tenure.mutex("a").unwrap().lease(secs(3)).run(|_| async move {
        clock.jump(secs(10));
        "done"
    });
    let error = now(run).unwrap_err();
    assert_eq!(error.loss(), Some(&Loss::Expired));
}

#[test]
fn an_answer_that_took_longer_than_the_lease_is_renewed_before_it_is_trusted() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.suspend.store(true, Ordering::SeqCst);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().lease(millis(200)).lock());
    assert!(poll_once(lock.as_mut()).is_none(), "before the call");
    assert!(poll_once(lock.as_mut()).is_none(), "granted in the store, the answer is on its way");
    world.clock.jump(millis(400));
    // The ticket is long gone by now; the answer alone must not become a guard.
    let first = poll_once(lock.as_mut());
    assert!(first.is_none(), "an outdated answer is not handed out");
    world.engine.suspend.store(false, Ordering::SeqCst);
    world.settle();
    let guard = poll_once(lock.as_mut()).expect("claimed anew").unwrap();
    assert!(guard.check().is_ok() && guard.remaining() > millis(100));
    assert_eq!(world.census().0, 1, "one grant, not two");
}

#[test]
fn a_grant_that_nobody_picks_up_is_given_back_after_one_lease() {
    // Promise 7: the future is alive but never polled.
    let world = World::new();
    let (one, two) = (world.tenure(), world.tenure());
    let guard = now(one.mutex("a").unwrap().lock()).unwrap();
    let mut waiting = Box::pin(two.mutex("a").unwrap().lease(secs(3)).lock());
    assert!(poll_once(waiting.as_mut()).is_none());
    drop(guard);
    world.settle();
    assert_eq!(world.census(), (1, 0), "granted to the sleeper");
    world.advance(millis(3_100));
    assert_eq!(world.census(), (0, 0), "given back");
    let guard = poll_once(waiting.as_mut()).expect("claims anew when it wakes").unwrap();
    assert!(guard.check().is_ok());
}

#[test]
fn the_store_being_away_is_an_error_with_its_effect() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.swallow.store(true, Ordering::SeqCst);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().lock());
    let mut result = None;
    for _ in 0..200 {
        result = poll_once(lock.as_mut());
        if result.is_some() {
            break;
        }
        world.advance(millis(500));
    }
    let error = result.expect("bounded").unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert_eq!(error.name().unwrap().as_str(), "a");
    assert!(world.engine.claims.load(Ordering::SeqCst) > 1, "repeated by id");
    drop(lock);
    world.engine.swallow.store(false, Ordering::SeqCst);
    world.advance(secs(3));
    world.assert_empty("withdrawn in the background");
}

#[test]
fn a_waiter_cut_off_for_a_whole_lease_claims_anew_until_the_longest_lease_has_passed() {
    let world = World::new();
    let (one, two) = (world.tenure(), world.tenure());
    let guard = now(one.mutex("a").unwrap().lock()).unwrap();
    let mut waiting = Box::pin(two.mutex("a").unwrap().lease(secs(3)).lock());
    assert!(poll_once(waiting.as_mut()).is_none());
    world.engine.refuse.store(true, Ordering::SeqCst);
    for _ in 0..50 {
        world.advance(secs(1));
        assert!(poll_once(waiting.as_mut()).is_none(), "its ticket is gone, its wait is not over");
    }
    assert!(guard.check().is_err(), "the holder was cut off as well");
    world.engine.refuse.store(false, Ordering::SeqCst);
    world.advance(secs(2));
    let guard = poll_once(waiting.as_mut()).expect("the store is back").unwrap();
    // Once more, without an end in time.
    let mut waiting = Box::pin(two.mutex("a").unwrap().lease(secs(3)).lock());
    assert!(poll_once(waiting.as_mut()).is_none());
    world.engine.refuse.store(true, Ordering::SeqCst);
    let mut error = None;
    for _ in 0..65 {
        world.advance(secs(1));
        error = error.or_else(|| poll_once(waiting.as_mut()));
    }
    let error = error.expect("a minute without an answer").unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    drop(guard);
}
