//! Loss: the holder knows before another owner can hold, learns why, and a loss is final.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Fault, Waiting, World, list, name};
use crate::contract::{Batch, ErrorKind, Evicted, Expect, Loss, Pattern, Put, Query, Signal};
use crate::primitives::LockStatus;
use crate::session::Closed;

list! { Loss:
    a_severed_holder_knows_before_the_next_one_holds cites [1, 4] needs [];
    a_store_that_forgot_is_noticed_at_the_next_renewal cites [4, 5] needs [];
    a_forced_release_tells_its_reason cites [9] needs [];
    a_reason_that_was_not_heard_is_told_by_the_next_renewal cites [8] needs [];
    a_forced_release_that_overtakes_the_grant_is_told_with_it cites [8, 9] needs [];
    a_forced_release_serves_the_next_in_line cites [2, 9] needs [Queue];
    work_is_dropped_when_its_lock_is_lost cites [4] needs [];
    a_loss_is_final cites [5] needs [];
    a_late_release_touches_nobody cites [9] needs [];
    renewals_stop_with_the_release cites [7] needs [];
    renewals_stop_with_the_loss cites [5, 7] needs [];
    closing_loses_every_guard_and_frees_every_name cites [7] needs [];
    a_closed_session_makes_no_call_for_anything cites [10] needs [];
    everybody_who_watches_hears_of_the_loss cites [4] needs [];
    a_set_is_lost_as_a_whole cites [4] needs [];
}

fn a_severed_holder_knows_before_the_next_one_holds(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let mut next = world.waits(two.tenure.mutex("a").unwrap().lock());
    one.link.cut(true);
    let mine = guard.claim_id();
    for _ in 0..2_000 {
        // The store is asked first: if it has given the name away, the holder must know by now.
        let given_away = world.holders("a").iter().any(|holder| *holder != mine);
        let trusted = guard.check().is_ok();
        assert!(!(given_away && trusted), "two hold");
        if next.is_done(world.stage()) {
            assert!(guard.check().is_err(), "two hold");
            break;
        }
        // Small steps near the end of the lease, where the guard must know before the store grants.
        let left = guard.remaining();
        let near = left < world.lease() / 15;
        world.pass(if near { world.lease() / 3_000 } else { world.lease() / 30 });
    }
    next.done(world.stage()).unwrap().check().unwrap();
    assert_eq!(guard.check().unwrap_err().loss(), Some(&Loss::Expired));
}

fn a_store_that_forgot_is_noticed_at_the_next_renewal(world: &World) {
    let actor = world.actor();
    let guard = world.now(actor.tenure.mutex("a").unwrap().lock()).unwrap();
    world.stage().end_session(actor.tenure.session_id());
    world.pass(world.lease() * 2 / 3);
    let error = guard.fence().unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(&Loss::Forgotten)));
    world.assert_free("a");
}

fn evicted(reason: &str) -> Loss {
    Loss::Evicted { reason: Arc::from(reason) }
}

fn a_forced_release_tells_its_reason(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let mut lost = Waiting::start(guard.lost());
    let (operator, fence) = (two.tenure.clone(), guard.fence().unwrap());
    let reason = "deploy \"17\" is stuck: {50 %} of ünits";
    let done = world.now(async move { operator.force_release("a", fence, reason).await }).unwrap();
    assert!(matches!(done, Evicted::Done(ended) if ended[0].claim == guard.claim_id()));
    world.until("the loss is told", || lost.is_done(world.stage()));
    assert_eq!(lost.done(world.stage()), evicted(reason));
    let error = guard.fence().unwrap_err();
    assert_eq!(error.loss(), Some(&evicted(reason)));
    assert!(error.to_string().contains(reason), "{error}");
    world.assert_free("a");
}

fn a_reason_that_was_not_heard_is_told_by_the_next_renewal(world: &World) {
    let actor = world.actor();
    actor.link.trouble_push(0, Fault::LosePush);
    let guard = world.now(actor.tenure.mutex("a").unwrap().lock()).unwrap();
    world.raw().evict(world, "a", guard.fence().unwrap(), "by hand");
    world.pass(world.lease() * 2 / 3);
    assert_eq!(guard.check().unwrap_err().loss(), Some(&evicted("by hand")));
}

fn a_forced_release_that_overtakes_the_grant_is_told_with_it(world: &World) {
    let actor = world.actor();
    actor.link.hold_replies(true);
    let waiting = world.waits(actor.tenure.mutex("a").unwrap().lock());
    let granted = || world.slot("a").and_then(|slot| slot.holders.into_iter().next());
    world.until("the store has granted it", || granted().is_some());
    let holder = granted().expect("just seen");
    world.raw().evict(world, "a", holder.fence, "by hand");
    // The store may have pushed it as well, or not: a claim that holds waits for no push.
    actor.link.forge(&Signal::Ended { claim: holder.claim, loss: evicted("by hand") });
    actor.link.hold_replies(false);
    let error = match waiting.done(world.stage()) {
        Err(error) => error,
        Ok(guard) => {
            // Where the machine was slow the claim was sent twice, and the end may be that of the
            // first copy: the session asks at once.
            assert!(actor.link.calls() > 1, "handed out though it had ended");
            world.until("the loss is told", || guard.check().is_err());
            guard.check().unwrap_err()
        }
    };
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(&evicted("by hand"))));
    world.assert_free("a");
}

fn a_forced_release_serves_the_next_in_line(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    let fence = guard.fence().unwrap();
    world.raw().evict(world, "a", fence, "by hand");
    let next = world.served(waiting).unwrap();
    assert!(next.fence().unwrap() > fence);
    let again = world.raw().evict(world, "a", fence, "once more");
    assert!(matches!(again, Evicted::NoSuchGrant(by) if by[0].claim == next.claim_id()));
    next.check().unwrap();
}

fn work_is_dropped_when_its_lock_is_lost(world: &World) {
    struct OnDrop(Arc<AtomicBool>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let actor = world.actor();
    let dropped = Arc::new(AtomicBool::new(false));
    let on_drop = OnDrop(Arc::clone(&dropped));
    let mut run = world.waits(actor.tenure.mutex("a").unwrap().run(|_| async move {
        let _on_drop = on_drop;
        std::future::pending::<()>().await;
    }));
    world.pass_watching(world.lease() * 2, || world.still_waits(&mut run));
    actor.link.cut(true);
    world.until("the loss ends it", || run.is_done(world.stage()));
    assert!(dropped.load(Ordering::SeqCst), "the work is gone");
    let error = run.done(world.stage()).unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(&Loss::Expired)));
}

fn a_loss_is_final(world: &World) {
    let actor = world.actor();
    let mutex = actor.tenure.mutex("a").unwrap();
    let guard = world.now(mutex.lock()).unwrap();
    let fence = guard.fence().unwrap();
    actor.link.cut(true);
    world.until("it is lost", || guard.check().is_err());
    actor.link.cut(false);
    let next = world.served(Waiting::start(mutex.lock())).unwrap();
    assert!(next.fence().unwrap() > fence);
    world.pass_watching(world.lease() * 2, || {
        assert_eq!(guard.check().unwrap_err().loss(), Some(&Loss::Expired));
        next.check().unwrap();
    });
}

fn a_late_release_touches_nobody(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let second = world.now(one.tenure.mutex("b").unwrap().lock()).unwrap();
    world.stage().end_session(one.tenure.session_id());
    let names = ["a", "b"];
    let next = names.map(|name| world.now(two.tenure.mutex(name).unwrap().lock()).unwrap());
    let error = world.served(Waiting::start(guard.release())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    drop(second);
    world.pass(world.lease());
    for (name, guard) in names.into_iter().zip(&next) {
        guard.check().unwrap();
        assert_eq!(world.holders(name), [guard.claim_id()]);
    }
}

fn renewals_stop_with_the_release(world: &World) {
    let actor = world.actor();
    let guard = world.now(actor.tenure.mutex("a").unwrap().lock()).unwrap();
    world.pass(world.lease());
    assert!(actor.link.renews() > 0);
    world.now(guard.release()).unwrap();
    world.assert_free("a");
    let renews = actor.link.renews();
    world.pass(world.lease() * 2);
    assert_eq!(actor.link.renews(), renews);
}

fn renewals_stop_with_the_loss(world: &World) {
    let actor = world.actor();
    let guard = world.now(actor.tenure.mutex("a").unwrap().lock()).unwrap();
    world.stage().end_session(actor.tenure.session_id());
    world.until("it is lost", || guard.check().is_err());
    world.settle();
    let renews = actor.link.renews();
    world.pass(world.lease() * 2);
    assert_eq!(actor.link.renews(), renews, "a guard that is still about is not renewed");
    drop(guard);
    assert_eq!(actor.tenure.claim_count(), 0);
}

fn closing_loses_every_guard_and_frees_every_name(world: &World) {
    let actor = world.actor();
    let names = ["a", "b", "c"];
    let guards = names.map(|name| world.now(actor.tenure.mutex(name).unwrap().lock()).unwrap());
    let tenure = actor.tenure.clone();
    world.served(Waiting::start(async move { tenure.close().await }));
    for (name, guard) in names.into_iter().zip(&guards) {
        assert_eq!(guard.check().unwrap_err().loss(), Some(&Loss::Closed));
        world.assert_free(name);
    }
}

fn a_closed_session_makes_no_call_for_anything(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let tenure = two.tenure.clone();
    let closed = world.served(Waiting::start(async move { tenure.close().await }));
    assert_eq!(closed, Closed::Confirmed);
    let (lock, fence, made) = (name("a"), guard.fence().unwrap(), two.link.calls());
    let query = Query::Slot(lock.clone());
    let put = Put::new(lock, "v");
    let refused = world.now(async move {
        let tenure = &two.tenure;
        let cells = tenure.cells();
        [
            tenure.mutex("b").unwrap().lock().await.err(),
            tenure.mutex("b").unwrap().try_lock().await.err(),
            tenure.inspect(&query).await.err(),
            tenure.doctor().await.err(),
            tenure.force_release("a", fence, "by hand").await.err(),
            tenure.highest_fence().await.err(),
            tenure.raise_fences(1).await.err(),
            cells.put(&put).await.err(),
            cells.get(&put.name).await.err(),
            cells.remove(&put.name, Expect::Anything).await.err(),
            cells.list(&Pattern::all(), None, 1).await.err(),
            cells.write(&Batch::new().put(put.clone())).await.err(),
            tenure.semaphore("s", 2).unwrap().available_permits().await.err(),
        ]
    });
    let kinds = refused.map(|error| error.expect("closed").kind());
    assert_eq!(kinds, [ErrorKind::Closed; 13]);
    assert_eq!(two.link.calls(), made);
    guard.check().unwrap();
}

fn everybody_who_watches_hears_of_the_loss(world: &World) {
    let actor = world.actor();
    let guard = world.now(actor.tenure.mutex("a").unwrap().lock()).unwrap();
    let held = LockStatus::clone(&guard);
    let mut watching = [guard.lost(), held.lost(), guard.lost()].map(Waiting::start);
    for one in &mut watching {
        world.still_waits(one);
    }
    actor.link.cut(true);
    world.until("it is lost", || held.check().is_err());
    for one in watching {
        assert_eq!(world.served(one), Loss::Expired);
    }
    assert!(held.remaining().is_zero() && guard.fence().is_err());
    let work = world.now(async move { held.run(async { "done" }).await });
    assert_eq!(work.unwrap_err().kind(), ErrorKind::Lost, "none begins on a lock that is gone");
}

fn a_set_is_lost_as_a_whole(world: &World) {
    let actor = world.actor();
    let parts = ["a", "b"].map(|name| actor.tenure.mutex(name).unwrap().part());
    let set = world.now(actor.tenure.lock_set(parts).unwrap().lock()).unwrap();
    world.raw().evict(world, "b", set.fence_of("b").unwrap(), "half of it");
    world.until("it is lost", || set.check().is_err());
    assert!(set.fence_of("a").is_err() && set.fence_of("b").is_err());
    world.assert_free("a");
    world.assert_free("b");
}
