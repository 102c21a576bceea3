//! How waits and holds end: by force, by closing, by a limit. The holder or waiter is told at once
//! and is told why, and nothing stays behind.

mod common;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};

use common::{Meddler, World, millis, now, poll_once, secs};
use tenure::conformance::{Fault, Link};
use tenure::contract::Claim;
use tenure::time::Tick;
use tenure::{Closed, Effect, Error, ErrorKind, Event, Loss, MutexGuard, Query, Tenure, Witness};

type Waiting = Pin<Box<dyn Future<Output = Result<MutexGuard, Error>> + Send>>;

fn waiting(tenure: &Tenure) -> Waiting {
    let mut lock: Waiting = Box::pin(tenure.mutex("a").unwrap().lock());
    assert!(poll_once(lock.as_mut()).is_none(), "it has to wait");
    lock
}

/// A session behind a link of its own.
fn linked(world: &World) -> (Arc<Link>, Tenure) {
    let link = Link::new(Arc::new(world.store.clone()));
    let builder = Tenure::builder().clock(Arc::new(world.clock.clone()));
    let tenure = builder.open(Arc::clone(&link) as _).unwrap();
    (link, tenure)
}

/// A set has "a" and waits for "b"; an operator takes "a" from it by force. Returns what it is
/// told.
#[track_caller]
fn evicted_from_a_reserved_part(world: &World, waiter: &Tenure, after: u64) -> Error {
    let operator = world.tenure();
    let _holder = now(operator.mutex("b").unwrap().lock()).unwrap();
    let parts = ["a", "b"].map(|name| waiter.mutex(name).unwrap().part());
    let mut set = Box::pin(waiter.lock_set(parts).unwrap().lock());
    assert!(poll_once(set.as_mut()).is_none());
    let seen = now(operator.inspect(&Query::Slot("a".parse().unwrap()))).unwrap();
    now(operator.force_release("a", seen.slots[0].holders[0].fence, "by hand")).unwrap();
    world.advance(millis(after));
    poll_once(set.as_mut()).expect("its wait was ended").unwrap_err()
}

#[test]
fn a_set_is_told_at_once_when_a_part_reserved_for_it_is_taken_by_force() {
    let world = World::new();
    let error = evicted_from_a_reserved_part(&world, &world.tenure(), 0);
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("by hand"), "{error}");
}

#[test]
fn a_set_that_missed_the_signal_learns_the_reason_at_its_next_renewal() {
    let world = World::new();
    world.engine.deaf.store(true, Ordering::SeqCst);
    let waiter = world.tenure();
    let error = evicted_from_a_reserved_part(&world, &waiter, 11_000);
    assert_eq!(error.kind(), ErrorKind::Lost, "not claimed anew");
    assert!(error.to_string().contains("by hand"), "{error}");
}

#[test]
fn a_grant_taken_by_force_before_its_pick_up_is_not_claimed_anew() {
    let world = World::new();
    let (holder, waiter) = (world.tenure(), world.tenure());
    let guard = now(holder.mutex("a").unwrap().lock()).unwrap();
    let mut next = waiting(&waiter);
    now(guard.release()).unwrap();
    let seen = now(holder.inspect(&Query::Slot("a".parse().unwrap()))).unwrap();
    now(holder.force_release("a", seen.slots[0].holders[0].fence, "by hand")).unwrap();
    let error = poll_once(next.as_mut()).expect("told").unwrap_err();
    let reason = Arc::from("by hand");
    assert_eq!(error.loss(), Some(&Loss::Evicted { reason }));
}

#[test]
fn closing_gives_back_a_grant_that_nobody_has_picked_up() {
    let world = World::new();
    let (holder, waiter) = (world.tenure(), world.tenure());
    let guard = now(holder.mutex("a").unwrap().lock()).unwrap();
    let mut next = waiting(&waiter);
    now(guard.release()).unwrap();
    assert_eq!(world.census(), (1, 0), "granted");
    tenure::block_on(waiter.close());
    assert_eq!(world.census(), (0, 0));
    let error = poll_once(next.as_mut()).expect("closed").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[test]
fn closing_waits_for_a_release_that_is_under_way() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    link.hold_replies(true);
    let mut release = Box::pin(guard.release());
    assert!(poll_once(release.as_mut()).is_none());
    let mut close = Box::pin(tenure.close());
    assert!(poll_once(close.as_mut()).is_none(), "not confirmed yet");
    link.hold_replies(false);
    poll_once(release.as_mut()).expect("answered").unwrap();
    assert!(poll_once(close.as_mut()).is_some());
}

#[test]
fn closing_tells_holders_before_it_waits_for_the_store() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let mut lost = Box::pin(guard.lost());
    assert!(poll_once(lost.as_mut()).is_none());
    link.hold_replies(true);
    let mut close = Box::pin(tenure.close());
    assert!(poll_once(close.as_mut()).is_none(), "the store has confirmed nothing");
    assert_eq!(poll_once(lost.as_mut()), Some(Loss::Closed));
    assert_eq!(guard.check().unwrap_err().loss(), Some(&Loss::Closed));
}

#[test]
fn closing_ends_at_its_limit_and_says_when_the_leases_end() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    let _guards = ["a", "b"].map(|name| now(tenure.mutex(name).unwrap().lock()).unwrap());
    link.hold_replies(true);
    let mut close = Box::pin(tenure.close());
    assert!(poll_once(close.as_mut()).is_none());
    world.advance(millis(2_900));
    assert!(poll_once(close.as_mut()).is_none());
    world.advance(millis(100));
    let unconfirmed = Closed::Unconfirmed { claims: 2, free_within: secs(27) };
    assert_eq!(poll_once(close.as_mut()), Some(unconfirmed));
    // The releases go on in the background.
    link.hold_replies(false);
    world.advance(secs(3));
    assert_eq!(now(tenure.close()), Closed::Confirmed);
    world.assert_empty("closed");
}

#[test]
fn a_claim_that_the_store_never_got_is_not_waited_for_at_the_end() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let mut failed = Box::pin(tenure.mutex("a").unwrap().try_lock());
    let mut answer = None;
    for _ in 0..20 {
        answer = answer.or_else(|| poll_once(failed.as_mut()));
        world.advance(millis(100));
    }
    let error = answer.expect("given up").unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
    world.settle();
    assert_eq!(world.engine.releases.load(Ordering::SeqCst), 1, "for the engine, and only once");
    let mut trying = waiting(&tenure);
    assert_eq!(now(tenure.close()), Closed::Confirmed, "the store still refuses every call");
    world.advance(secs(1));
    let error = poll_once(trying.as_mut()).expect("closed").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[test]
fn a_claim_that_may_have_arrived_once_is_waited_for_at_the_end() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    link.trouble_call(0, Fault::LoseReply);
    let mut failed = Box::pin(tenure.mutex("a").unwrap().try_lock());
    assert!(poll_once(failed.as_mut()).is_none());
    assert_eq!(world.census(), (1, 0), "it has arrived");
    link.cut(true);
    world.advance(secs(1));
    drop(failed);
    assert!(poll_once(std::pin::pin!(tenure.close())).is_none());
    link.cut(false);
    world.advance(secs(1));
    assert_eq!(now(tenure.close()), Closed::Confirmed);
    world.assert_empty("withdrawn");
}

#[test]
fn closing_waits_for_each_of_several_releases() {
    let world = World::new();
    let _holder = now(world.tenure().mutex("a").unwrap().lock()).unwrap();
    let (link, tenure) = linked(&world);
    let guard = now(tenure.mutex("b").unwrap().lock()).unwrap();
    let _next = waiting(&tenure);
    link.trouble_call(2, Fault::HangReply);
    let mut release = Box::pin(guard.release());
    assert!(poll_once(release.as_mut()).is_none());
    let mut close = Box::pin(tenure.close());
    for _ in 0..2 {
        assert!(poll_once(close.as_mut()).is_none());
        world.settle();
    }
    assert_eq!(link.calls(), 4, "the wait was withdrawn, which was answered");
}

#[test]
fn closing_waits_for_a_release_beside_a_claim_that_was_refused_in_the_end() {
    let world = World::new();
    let _holder = now(world.tenure().mutex("a").unwrap().lock()).unwrap();
    let (link, tenure) = linked(&world);
    let guard = now(tenure.mutex("b").unwrap().lock()).unwrap();
    link.trouble_call(1, Fault::HangCall);
    let mut attempt = Box::pin(tenure.mutex("a").unwrap().try_lock());
    assert!(poll_once(attempt.as_mut()).is_none());
    world.advance(millis(1_500));
    link.trouble_call(2, Fault::HangReply);
    let mut release = Box::pin(guard.release());
    assert!(poll_once(release.as_mut()).is_none());
    let mut answer = None;
    for _ in 0..10 {
        world.advance(millis(100));
        answer = answer.or_else(|| poll_once(attempt.as_mut()));
    }
    assert!(answer.expect("sent again").unwrap().is_none());
    assert_eq!(link.calls(), 5, "an earlier copy has to be refused too");
    assert!(poll_once(std::pin::pin!(tenure.close())).is_none());
}

type Chosen = fn(&Event) -> bool;
type Ending = fn(&World, &Tenure);

/// Closes the session in the middle of an event, and remembers whether that was done at once.
#[derive(Debug)]
struct Closer {
    on: Chosen,
    tenure: OnceLock<Tenure>,
    done: Mutex<Option<bool>>,
}

impl Witness for Closer {
    fn on_event(&self, _: &Arc<Claim>, _at: Tick, event: &Event) {
        let Some(tenure) = self.tenure.get().filter(|_| (self.on)(event)) else { return };
        if self.done.lock().unwrap().is_none() {
            *self.done.lock().unwrap() = Some(false);
            let done = poll_once(std::pin::pin!(tenure.close())).is_some();
            *self.done.lock().unwrap() = Some(done);
        }
    }
}

#[test]
fn what_ends_counts_as_on_its_way_back_from_the_first_moment() {
    let ends: [(Chosen, Ending); 3] = [
        (
            |event| matches!(event, Event::Released),
            |_, tenure| drop(now(tenure.mutex("a").unwrap().lock()).unwrap()),
        ),
        (
            |event| matches!(event, Event::Withdrawn { .. }),
            |world, tenure| {
                let _holder = now(world.tenure().mutex("a").unwrap().lock()).unwrap();
                drop(waiting(tenure));
            },
        ),
        (
            |event| matches!(event, Event::Lost { .. }),
            |world, tenure| {
                let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
                now(world.tenure().force_release("a", guard.fence().unwrap(), "by hand")).unwrap();
            },
        ),
    ];
    for (on, end) in ends {
        let world = World::new();
        let done = Mutex::new(None);
        let closer = Arc::new(Closer { on, tenure: OnceLock::new(), done });
        let builder = Tenure::builder().clock(Arc::new(world.clock.clone()));
        let builder = builder.witness(Arc::clone(&closer) as _);
        let tenure = builder.open(Arc::new(world.store.clone())).unwrap();
        closer.tenure.set(tenure.clone()).unwrap();
        end(&world, &tenure);
        assert_eq!(*closer.done.lock().unwrap(), Some(false), "closed before it was given back");
        world.assert_empty("closed in the middle");
    }
}

#[test]
fn the_advice_after_a_loss_fits_its_reason() {
    let world = World::new();
    let tenure = world.tenure();
    let lock = |name| tenure.mutex(name).unwrap();
    let short = now(lock("a").max_hold(secs(1)).lock()).unwrap();
    let (closed, released) = (now(lock("b").lock()).unwrap(), now(lock("c").lock()).unwrap());
    let evicted = now(lock("d").lock()).unwrap();
    let seen = released.status();
    now(released.release()).unwrap();
    now(tenure.force_release("d", evicted.fence().unwrap(), "by hand")).unwrap();
    world.advance(secs(2));
    tenure::block_on(tenure.close());
    let texts = [&*short, &*closed, &seen, &*evicted].map(|one| one.check().unwrap_err());
    let advice = [
        "finish sooner, or allow a longer max_hold",
        "connect again for new locks",
        "take the lock again before you go on",
        "stop what you do under this lock",
    ];
    for (text, advice) in texts.map(|error| error.to_string()).iter().zip(advice) {
        assert!(text.contains(advice), "{text}");
    }
}

#[test]
fn an_upgraded_lock_has_what_is_left_of_its_longest_hold() {
    let world = World::new();
    let lock = world.tenure().rwlock("a").unwrap().max_hold(secs(10));
    let reader = now(lock.read()).unwrap();
    world.advance(secs(6));
    let writer = now(reader.upgrade()).unwrap();
    world.advance(millis(3_900));
    assert!(writer.check().is_ok());
    world.advance(millis(200));
    assert_eq!(writer.check().unwrap_err().loss(), Some(&Loss::MaxHold));
}

#[test]
fn an_answer_for_too_few_claims_counts_as_none() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lease(secs(6)).lock()).unwrap();
    world.engine.short.store(true, Ordering::SeqCst);
    world.advance(secs(3));
    world.engine.short.store(false, Ordering::SeqCst);
    world.advance(secs(60));
    assert!(guard.check().is_ok(), "asked again");
}

/// What a waiter is told whose store is disturbed for longer than the longest lease.
#[track_caller]
fn told_after(disturb: fn(&Meddler) -> &AtomicBool) -> Error {
    let world = World::new();
    let holder = world.tenure();
    let _guard = now(holder.mutex("a").unwrap().lock()).unwrap();
    let tenure = world.tenure();
    let mut next = Box::pin(tenure.mutex("a").unwrap().lease(secs(3)).lock());
    assert!(poll_once(next.as_mut()).is_none());
    disturb(&world.engine).store(true, Ordering::SeqCst);
    let mut told = None;
    for _ in 0..70 {
        world.advance(secs(1));
        told = told.or_else(|| poll_once(next.as_mut()));
    }
    told.expect("no use waiting").unwrap_err()
}

#[test]
fn a_waiter_that_is_cut_off_is_told_what_went_wrong() {
    let refused = told_after(|engine| &engine.refuse);
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("the link is cut"), "{refused}");
    let silent = told_after(|engine| &engine.swallow);
    assert_eq!(silent.kind(), ErrorKind::Unavailable);
    assert!(silent.to_string().contains("no answer within"), "{silent}");
    let wrong = told_after(|engine| &engine.short);
    assert_eq!(wrong.kind(), ErrorKind::Corrupt);
    assert!(wrong.to_string().contains("another number of claims"), "{wrong}");
}

#[test]
fn a_release_leaves_a_tombstone_only_where_a_copy_may_be_under_way() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    now(guard.release()).unwrap();
    drop(now(tenure.mutex("a").unwrap().lock()).unwrap());
    world.settle();
    assert_eq!(world.store.census().tombs, 0, "answered once, sent once");
    world.engine.swallow.store(true, Ordering::SeqCst);
    let mut unanswered = Box::pin(tenure.mutex("a").unwrap().lock());
    assert!(poll_once(unanswered.as_mut()).is_none());
    drop(unanswered);
    world.settle();
    assert_eq!(world.store.census().tombs, 1);
}

/// Counts how often it is woken.
#[derive(Debug, Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn every_caller_is_woken_at_its_limit_and_none_is_kept_in_mind_after_its_call() {
    let world = World::new();
    let tenure = world.tenure();
    world.engine.swallow.store(true, Ordering::SeqCst);
    let bells: Vec<Arc<Bell>> = (0..3).map(|_| Arc::default()).collect();
    let mut locks: Vec<Waiting> = Vec::new();
    for (number, bell) in bells.iter().enumerate() {
        let mut lock: Waiting = Box::pin(tenure.mutex(format!("lock {number}")).unwrap().lock());
        let waker = Waker::from(Arc::clone(bell));
        assert!(lock.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        locks.push(lock);
    }
    drop(locks.remove(0));
    assert_eq!(Arc::strong_count(&bells[0]), 1, "it gave up and is forgotten");
    world.advance(secs(2));
    let woken: Vec<usize> = bells.iter().map(|bell| bell.0.load(Ordering::SeqCst)).collect();
    assert_eq!(woken, [0, 1, 1], "the limit of a call is the same for all");
}
