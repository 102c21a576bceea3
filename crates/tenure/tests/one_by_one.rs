//! Sets on an engine that takes one name at a time: what only shows there. What callers see of any
//! set is in the scenarios of the suite.

mod common;

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use common::{World, millis, now, poll_once, secs};
use tenure::{Error, ErrorKind, LockSet, LockSetGuard, Loss, Name, Tenure};

fn set(tenure: &Tenure, names: &[&str]) -> LockSet {
    let parts = names.iter().map(|name| tenure.mutex(name).unwrap().part());
    tenure.lock_set(parts).unwrap().lease(secs(6))
}

type Waiting = Pin<Box<dyn Future<Output = Result<LockSetGuard, Error>>>>;

/// Starts a set that has to wait.
fn waits(all: &LockSet) -> Waiting {
    let mut waiting: Waiting = Box::pin(all.lock());
    assert!(poll_once(waiting.as_mut()).is_none(), "should wait");
    waiting
}

fn is_free(world: &World, name: &str) -> bool {
    now(world.tenure().mutex(name).unwrap().try_lock()).unwrap().is_some()
}

#[test]
fn every_name_is_a_claim_of_its_own_in_sorted_order() {
    let world = World::one_by_one();
    let (tenure, other) = (world.tenure(), world.tenure());
    let busy = now(other.mutex("b").unwrap().lock()).unwrap();
    let before = world.engine.claims.load(Ordering::SeqCst);
    let mut waiting = waits(&set(&tenure, &["c", "b", "a"]));
    assert_eq!(world.engine.claims.load(Ordering::SeqCst) - before, 2, "c has its turn after b");
    assert_eq!(world.census(), (2, 1));
    now(busy.release()).unwrap();
    world.settle();
    let guard = poll_once(waiting.as_mut()).expect("its turn has come").unwrap();
    assert_eq!((world.engine.claims.load(Ordering::SeqCst) - before, tenure.claim_count()), (3, 3));
    drop(guard);
    world.assert_empty("dropped");
}

#[test]
fn an_engine_that_can_is_asked_once() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(set(&tenure, &["a", "b", "c"]).lock()).unwrap();
    assert_eq!((world.engine.claims.load(Ordering::SeqCst), tenure.claim_count()), (1, 1));
    drop(guard);
}

/// Notes whose turn has come, in order.
struct Turn(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push(self.0);
    }
}

#[test]
fn names_are_given_back_in_reverse_order() {
    // Of two that wait for a name each, the one that waits for the later name is served first: by
    // a release that is awaited, by a guard that is dropped, and by a wait that is given up.
    for way in ["release", "drop", "give up"] {
        let world = World::one_by_one();
        let (tenure, other) = (world.tenure(), world.tenure());
        let names: &[&str] = if way == "give up" { &["a", "b", "c"] } else { &["a", "b"] };
        let _busy = now(other.mutex("c").unwrap().lock()).unwrap();
        let mut taking: Waiting = Box::pin(set(&tenure, names).lock());
        let guard = poll_once(taking.as_mut());
        let turns = Arc::<Mutex<Vec<_>>>::default();
        let waiting = ["a", "b"].map(|name| {
            let mut waiting = Box::pin(other.mutex(name).unwrap().lock());
            let waker = Waker::from(Arc::new(Turn(name, Arc::clone(&turns))));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            waiting
        });
        match (way, guard) {
            ("release", Some(guard)) => now(guard.unwrap().release()).unwrap(),
            ("drop", Some(guard)) => drop(guard.unwrap()),
            ("give up", None) => drop(taking),
            (way, guard) => panic!("{way}: {guard:?}"),
        }
        world.settle();
        assert_eq!(*turns.lock().unwrap(), ["b", "a"], "{way}");
        for mut waiting in waiting {
            assert!(poll_once(waiting.as_mut()).is_some_and(|served| served.is_ok()));
        }
    }
}

#[test]
fn losing_one_name_loses_the_set_and_frees_the_rest() {
    for lost in ["a", "b", "c"] {
        let world = World::one_by_one();
        let (tenure, operator) = (world.tenure(), world.tenure());
        let guard = now(set(&tenure, &["a", "b", "c"]).lock()).unwrap();
        let mut told = Box::pin(guard.lost());
        assert!(poll_once(told.as_mut()).is_none());
        let fence = guard.fence_of(lost).unwrap();
        now(operator.force_release(lost, fence, "one is enough")).unwrap();
        world.settle();
        let loss = Loss::Evicted { reason: "one is enough".into() };
        assert_eq!(poll_once(told.as_mut()), Some(loss.clone()));
        assert_eq!(guard.fence().unwrap_err().loss(), Some(&loss));
        assert!(guard.remaining().is_zero());
        world.assert_empty("the rest was given back though the guard lives");
        assert_eq!(tenure.claim_count(), 0);
        assert_eq!(now(guard.release()).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(world.engine.claims.load(Ordering::SeqCst), 3, "loss is final");
    }
}

#[test]
fn a_stopped_process_learns_that_its_set_is_lost_before_it_does_anything() {
    let world = World::one_by_one();
    let tenure = world.tenure();
    let guard = now(set(&tenure, &["a", "b"]).lock()).unwrap();
    world.clock.jump(secs(20));
    assert_eq!(guard.fence_of("b").unwrap_err().loss(), Some(&Loss::Expired));
    world.settle();
    world.assert_empty("it went back");
    drop(guard);
}

#[test]
fn the_whole_may_be_trusted_as_long_as_every_name() {
    // The second name is taken later than the first, and so may be trusted longer.
    let world = World::one_by_one();
    let (tenure, other) = (world.tenure(), world.tenure());
    let busy = now(other.mutex("b").unwrap().lock()).unwrap();
    let mut waiting = waits(&set(&tenure, &["a", "b"]));
    world.advance(millis(1_500));
    drop(busy);
    world.settle();
    let guard = poll_once(waiting.as_mut()).expect("its turn has come").unwrap();
    assert!(guard.remaining() <= millis(4_500), "{:?}: as the first", guard.remaining());
    for _ in 0..100 {
        world.advance(millis(500));
        assert!(guard.remaining() > secs(2), "{:?}: renewed", guard.remaining());
    }
}

#[test]
fn a_name_lost_while_the_next_is_waited_for_is_taken_anew() {
    let world = World::one_by_one();
    let (tenure, other) = (world.tenure(), world.tenure());
    let busy = now(other.mutex("b").unwrap().lease(secs(50)).lock()).unwrap();
    let mut waiting = waits(&set(&tenure, &["a", "b"]));
    // The process stands still for longer than its lease, and another session has "a" meanwhile.
    world.clock.jump(secs(20));
    let between = now(other.mutex("a").unwrap().lock()).unwrap();
    let fence = between.fence().unwrap();
    world.settle();
    assert!(poll_once(waiting.as_mut()).is_none());
    world.settle();
    assert!(poll_once(waiting.as_mut()).is_none());
    drop((between, busy));
    let mut guard = None;
    for _ in 0..20 {
        world.settle();
        guard = guard.or_else(|| poll_once(waiting.as_mut()));
        if guard.is_some() {
            break;
        }
    }
    let guard = guard.expect("served").unwrap();
    assert!(guard.fence_of("a").unwrap() > fence);
    drop(guard);
    world.assert_empty("dropped");
}

#[test]
fn a_grant_that_nobody_picks_up_gives_the_rest_of_the_set_back_too() {
    // Promise 7: a future that is not polled keeps a grant for one lease at most.
    let world = World::one_by_one();
    let (tenure, other) = (world.tenure(), world.tenure());
    let busy = now(other.mutex("b").unwrap().lock()).unwrap();
    let mut waiting = waits(&set(&tenure, &["a", "b"]));
    drop(busy);
    world.settle();
    assert_eq!(world.census(), (2, 0), "granted, and not picked up");
    world.advance(secs(7));
    assert_eq!(world.census(), (0, 0), "a whole lease later");
    // A caller that comes back takes the set anew.
    let mut guard = None;
    for _ in 0..20 {
        world.settle();
        guard = guard.or_else(|| poll_once(waiting.as_mut()));
        if guard.is_some() {
            break;
        }
    }
    assert!(guard.expect("served").unwrap().check().is_ok());
    drop(waiting);
    world.assert_empty("dropped");
}

#[test]
fn one_deadline_counts_for_all_names() {
    let world = World::one_by_one();
    let (tenure, other) = (world.tenure(), world.tenure());
    let first = now(other.mutex("a").unwrap().lock()).unwrap();
    let second = now(other.mutex("b").unwrap().lock()).unwrap();
    let mut waiting = waits(&set(&tenure, &["a", "b"]).timeout(secs(3)));
    world.advance(secs(2));
    drop(first);
    world.settle();
    assert!(poll_once(waiting.as_mut()).is_none(), "now it waits for the second");
    world.advance(secs(2));
    let error = poll_once(waiting.as_mut()).expect("the limit has passed").unwrap_err();
    assert_eq!((error.kind(), error.name().map(Name::as_str)), (ErrorKind::TimedOut, Some("b")));
    assert!(error.to_string().contains("not granted within 3s"), "{error}");
    assert_eq!(error.held_by()[0].claim, second.claim_id());
    world.settle();
    assert!(is_free(&world, "a"));
}

#[test]
fn a_deadline_that_passes_between_two_names_says_what_is_missing() {
    let world = World::one_by_one();
    let (tenure, other) = (world.tenure(), world.tenure());
    let first = now(other.mutex("a").unwrap().lock()).unwrap();
    let second = now(other.mutex("b").unwrap().lease(secs(50)).lock()).unwrap();
    let mut waiting = waits(&set(&tenure, &["a", "b"]).timeout(secs(3)));
    drop(first);
    world.settle();
    // The grant is there, but its caller comes for it only after the deadline.
    world.clock.jump(secs(4));
    let error = poll_once(waiting.as_mut()).expect("too late").unwrap_err();
    assert_eq!((error.kind(), error.name().map(Name::as_str)), (ErrorKind::TimedOut, Some("b")));
    assert_eq!((error.held_by()[0].claim, error.place()), (second.claim_id(), None));
    drop(second);
    world.assert_empty("given back");
}

#[test]
fn max_hold_counts_from_when_the_whole_is_held_and_leaves_what_others_entered() {
    let world = World::one_by_one();
    let (tenure, other) = (world.tenure(), world.tenure());
    let busy = now(other.mutex("b").unwrap().lock()).unwrap();
    let mutex = tenure.mutex("a").unwrap();
    let all = set(&tenure, &["a", "b"]).max_hold(secs(10));
    let mut work = Box::pin(tenure::scope(async move {
        let set = all.lock().await.unwrap();
        (set, mutex.lock().await.unwrap())
    }));
    assert!(poll_once(work.as_mut()).is_none());
    world.advance(secs(30));
    drop(busy);
    world.settle();
    let (guard, entered) = poll_once(work.as_mut()).expect("served");
    world.advance(secs(9));
    assert!(guard.check().is_ok());
    world.advance(millis(1_001));
    assert_eq!(world.census(), (1, 0), "the keeper was there in time, though nobody asked");
    assert_eq!(guard.check().unwrap_err().loss(), Some(&Loss::MaxHold));
    assert!(is_free(&world, "b"));
    assert!(entered.check().is_ok() && !is_free(&world, "a"));
    drop(guard);
    assert!(entered.check().is_ok());
    now(entered.release()).unwrap();
    world.assert_empty("released");
}

#[test]
fn two_sets_of_one_scope_share_a_name() {
    let world = World::one_by_one();
    let tenure = world.tenure();
    let (left, right) = (set(&tenure, &["a", "b"]), set(&tenure, &["b", "c"]));
    let both = async { (left.lock().await.unwrap(), right.lock().await.unwrap()) };
    let (left, right) = now(tenure::scope(both));
    assert_eq!((tenure.claim_count(), world.census()), (3, (3, 0)));
    assert_eq!(left.fence_of("b").unwrap(), right.fence_of("b").unwrap());
    now(left.release()).unwrap();
    assert!(is_free(&world, "a") && !is_free(&world, "b") && right.check().is_ok());
    now(right.release()).unwrap();
    world.assert_empty("released");
}

#[test]
fn a_release_without_an_answer_is_repeated_for_every_name() {
    let world = World::one_by_one();
    let tenure = world.tenure();
    let guard = now(set(&tenure, &["a", "b"]).lock()).unwrap();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let error = now(guard.release()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(world.census(), (2, 0));
    world.engine.refuse.store(false, Ordering::SeqCst);
    world.advance(secs(1));
    world.assert_empty("the keeper went on");
}

#[test]
fn closing_ends_a_set_that_is_held_and_one_that_waits() {
    let world = World::one_by_one();
    let (tenure, other) = (world.tenure(), world.tenure());
    let busy = now(other.mutex("d").unwrap().lock()).unwrap();
    let held = now(set(&tenure, &["a", "b"]).lock()).unwrap();
    let mut waiting = waits(&set(&tenure, &["c", "d"]));
    let mut closing = Box::pin(tenure.close());
    for _ in 0..20 {
        if poll_once(closing.as_mut()).is_some() {
            break;
        }
        world.settle();
    }
    assert_eq!(held.check().unwrap_err().loss(), Some(&Loss::Closed));
    let error = poll_once(waiting.as_mut()).expect("over").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    drop(busy);
    world.assert_empty("closed");
}

#[test]
fn a_thread_that_blocks_takes_sets_too() {
    let world = World::one_by_one();
    let (tenure, other) = (world.tenure(), world.tenure());
    let busy = now(other.mutex("b").unwrap().lock()).unwrap();
    let all = set(&tenure, &["b", "a"]).preset("financial").lock_delay(secs(1)).label("pay");
    let blocked = std::thread::spawn(move || {
        let guard = tenure::block_on(all.lock())?;
        guard.fence_of("a").and(guard.fence_of("b"))?;
        tenure::block_on(guard.release())
    });
    while world.census() != (2, 1) {
        std::thread::yield_now();
    }
    let waits = now(other.inspect(&tenure::Query::Slot("b".parse().unwrap()))).unwrap();
    assert_eq!(waits.slots[0].queue[0].about.label.as_ref().unwrap().as_str(), "pay");
    drop(busy);
    blocked.join().unwrap().unwrap();
    world.assert_empty("released");
}
