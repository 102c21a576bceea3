//! Futures dropped at every await of every path: nothing leaks, nothing is granted twice. Driven
//! poll by poll, with a store that suspends before and after each call.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use common::{World, now, poll_once, secs};
use tenure::time::Clock as _;
use tenure::{
    Batch, CellChange, CellRange, Error, Expect, MutexGuard, Name, Pattern, Put, PutVerdict,
    Tenure, WriteId,
};

type Work = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// Runs `start` again and again, each time dropping its future after one more poll, until it ends
/// by itself. After each drop the store must be empty and the names free.
fn drop_at_every_await(path: &str, between: fn(&World, usize), start: fn(&Tenure) -> Work) {
    drop_at_every_await_in(World::new, path, between, start);
}

fn drop_at_every_await_in(
    world: fn() -> World,
    path: &str,
    between: fn(&World, usize),
    start: fn(&Tenure) -> Work,
) {
    let mut polls = 0;
    loop {
        let world = world();
        let tenure = world.tenure();
        // A bystander takes part, so that there is a waiter to hand over to and from.
        let bystander = world.tenure();
        world.engine.suspend.store(true, Ordering::SeqCst);
        let mut future = start(&tenure);
        let mut done = None;
        for poll in 0..polls {
            done = poll_once(future.as_mut());
            if done.is_some() {
                break;
            }
            between(&world, poll);
        }
        let context = format!("{path}, dropped after {polls} polls");
        drop(future);
        world.engine.suspend.store(false, Ordering::SeqCst);
        world.assert_empty(&context);
        assert_eq!(tenure.claim_count(), 0, "{context}");
        assert!(now(bystander.mutex("a").unwrap().try_lock()).unwrap().is_some(), "{context}");
        if let Some(result) = done {
            result.unwrap_or_else(|error| panic!("{context}: {error}"));
            return;
        }
        polls += 1;
        assert!(polls < 500, "{path} never ends");
    }
}

fn settle(world: &World, _: usize) {
    world.settle();
}

/// Another session's grip on "a", kept until a given poll.
fn holder(world: &World) -> MutexGuard {
    world.engine.suspend.store(false, Ordering::SeqCst);
    let guard = now(world.tenure().mutex("a").unwrap().lock()).unwrap();
    world.engine.suspend.store(true, Ordering::SeqCst);
    guard
}

#[test]
fn an_uncontended_lock_and_release() {
    drop_at_every_await("lock", settle, |tenure| {
        let mutex = tenure.mutex("a").unwrap();
        Box::pin(async move { mutex.lock().await?.release().await })
    });
}

#[test]
fn a_try_lock() {
    drop_at_every_await("try_lock", settle, |tenure| {
        let mutex = tenure.mutex("a").unwrap();
        Box::pin(async move {
            let guard = mutex.try_lock().await?.expect("it is free");
            guard.release().await
        })
    });
}

#[test]
fn run_with_work_that_waits() {
    drop_at_every_await("run", settle, |tenure| {
        let mutex = tenure.mutex("a").unwrap();
        Box::pin(async move {
            mutex
                .run(|held| async move {
                    common::yield_once().await;
                    held.fence().map(|_| ())
                })
                .await?
        })
    });
}

#[test]
fn a_read_write_lock_up_and_down_again() {
    drop_at_every_await("upgrade and downgrade", settle, |tenure| {
        let lock = tenure.rwlock("a").unwrap();
        Box::pin(async move {
            let reader = lock.read().await?;
            let writer = reader.upgrade().await?;
            let reader = writer.downgrade().await?;
            reader.release().await
        })
    });
}

#[test]
fn permits_and_sets() {
    drop_at_every_await("set", settle, |tenure| {
        let (a, b) = (tenure.mutex("a").unwrap(), tenure.rwlock("b").unwrap());
        let c = tenure.semaphore("c", 3).unwrap();
        let all = tenure.lock_set([b.read_part(), a.part(), c.part(2).unwrap()]).unwrap();
        Box::pin(async move {
            let permit = c.acquire().await?;
            let set = all.lock().await?;
            set.release().await?;
            permit.release().await
        })
    });
}

#[test]
fn a_set_taken_one_by_one() {
    drop_at_every_await_in(World::one_by_one, "set", settle, |tenure| {
        let (a, b) = (tenure.mutex("a").unwrap(), tenure.rwlock("b").unwrap());
        let c = tenure.semaphore("c", 3).unwrap();
        let all = tenure.lock_set([b.read_part(), a.part(), c.part(2).unwrap()]).unwrap();
        Box::pin(async move {
            let permit = c.acquire().await?;
            let set = all.lock().await?;
            set.release().await?;
            let set = all.try_lock().await?.expect("it is free");
            drop(set);
            permit.release().await
        })
    });
}

#[test]
fn a_try_for_a_set_that_finds_the_last_name_taken() {
    drop_at_every_await_in(World::one_by_one, "try", settle, |tenure| {
        let parts = ["a", "b", "c"].map(|name| tenure.mutex(name).unwrap().part());
        let all = tenure.lock_set(parts).unwrap();
        let last = tenure.mutex("c").unwrap();
        Box::pin(async move {
            let last = last.lock().await?;
            assert!(all.try_lock().await?.is_none());
            last.release().await
        })
    });
}

#[test]
fn a_set_taken_one_by_one_in_a_scope_that_holds_one_of_them() {
    drop_at_every_await_in(World::one_by_one, "scope", settle, |tenure| {
        let parts = ["a", "b", "c"].map(|name| tenure.mutex(name).unwrap().part());
        let all = tenure.lock_set(parts).unwrap();
        let (outer, inner) = (tenure.mutex("b").unwrap(), tenure.mutex("c").unwrap());
        Box::pin(tenure::scope(async move {
            let outer = outer.lock().await?;
            let set = all.lock().await?;
            let inner = inner.lock().await?;
            set.release().await?;
            outer.release().await?;
            inner.release().await
        }))
    });
}

#[test]
fn a_scope_that_re_enters() {
    drop_at_every_await("re-entry", settle, |tenure| {
        let mutex = tenure.mutex("a").unwrap();
        Box::pin(tenure::scope(async move {
            let outer = mutex.lock().await?;
            let inner = mutex.lock().await?;
            common::yield_once().await;
            outer.release().await?;
            inner.release().await
        }))
    });
}

/// The contended paths: another session holds "a" when the future starts and lets go (or not) while
/// it waits. Dropped after each number of polls, before and after the hand-over.
fn drop_while_waiting(path: &str, start: fn(&Tenure) -> Work) {
    drop_while_waiting_in(World::new, path, start);
}

fn drop_while_waiting_in(world: fn() -> World, path: &str, start: fn(&Tenure) -> Work) {
    for release_at in [0, 1, 2, 3, 4, 5, 6] {
        for polls in 0..24 {
            let world = world();
            let tenure = world.tenure();
            let mut guard = Some(holder(&world));
            let mut future = start(&tenure);
            let mut done = false;
            for poll in 0..polls {
                if poll == release_at {
                    drop(guard.take());
                }
                world.settle();
                done = poll_once(future.as_mut()).is_some();
                if done {
                    break;
                }
            }
            let context = format!("{path}: released at {release_at}, dropped after {polls} polls");
            drop(future);
            drop(guard);
            world.engine.suspend.store(false, Ordering::SeqCst);
            world.assert_empty(&context);
            assert_eq!(tenure.claim_count(), 0, "{context}");
            assert!(done || polls < 23, "{context}: never served");
        }
    }
}

#[test]
fn a_lock_that_has_to_wait() {
    drop_while_waiting("lock", |tenure| {
        let mutex = tenure.mutex("a").unwrap();
        Box::pin(async move { mutex.lock().await?.release().await })
    });
}

#[test]
fn a_set_that_has_to_wait_for_one_part() {
    drop_while_waiting("set", |tenure| {
        let parts = ["a", "b"].map(|name| tenure.mutex(name).unwrap().part());
        let all = tenure.lock_set(parts).unwrap();
        Box::pin(async move { all.lock().await?.release().await })
    });
}

#[test]
fn a_set_taken_one_by_one_that_has_to_wait() {
    // For the first of its names, for one in between, and for the last.
    let drop_while_waiting = |path, start| drop_while_waiting_in(World::one_by_one, path, start);
    drop_while_waiting("first", |tenure| all_of(tenure, ["a", "b"]));
    drop_while_waiting("between", |tenure| all_of(tenure, ["0", "a", "b"]));
    drop_while_waiting("last", |tenure| all_of(tenure, ["0", "a"]));
}

fn all_of<const N: usize>(tenure: &Tenure, names: [&str; N]) -> Work {
    let all = tenure.lock_set(names.map(|name| tenure.mutex(name).unwrap().part())).unwrap();
    Box::pin(async move { all.lock().await?.release().await })
}

#[test]
fn a_set_taken_one_by_one_whose_wait_ends_by_its_limit() {
    for polls in 0..24 {
        let world = World::one_by_one();
        let tenure = world.tenure();
        let guard = holder(&world);
        let parts = ["0", "a", "b"].map(|name| tenure.mutex(name).unwrap().part());
        let all = tenure.lock_set(parts).unwrap().timeout(secs(1));
        let mut future = Box::pin(async move { all.lock().await.map(drop) });
        let mut ended = false;
        for poll in 0..polls {
            if poll == 10 {
                world.advance(secs(2));
            }
            world.settle();
            if let Some(result) = poll_once(future.as_mut()) {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), tenure::ErrorKind::TimedOut);
                assert_eq!(error.name().map(tenure::Name::as_str), Some("a"), "{error}");
                assert_eq!((error.held_by().len(), error.place()), (1, Some(1)), "{error}");
                ended = true;
                break;
            }
        }
        drop(future);
        world.engine.suspend.store(false, Ordering::SeqCst);
        world.settle();
        assert_eq!(world.census(), (1, 0), "dropped after {polls} polls");
        assert_eq!(tenure.claim_count(), 0);
        assert!(ended || polls < 23, "it never ended");
        drop(guard);
        world.assert_empty("the holder let go");
    }
}

#[test]
fn a_wait_that_ends_by_its_limit() {
    for polls in 0..16 {
        let world = World::new();
        let tenure = world.tenure();
        let guard = holder(&world);
        let mutex = tenure.mutex("a").unwrap().timeout(secs(1));
        let mut future = Box::pin(async move { mutex.lock().await.map(drop) });
        for poll in 0..polls {
            if poll == 6 {
                world.advance(secs(2));
            }
            world.settle();
            if let Some(result) = poll_once(future.as_mut()) {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), tenure::ErrorKind::TimedOut);
                assert_eq!((error.held_by().len(), error.place()), (1, Some(1)), "{error}");
                break;
            }
        }
        drop(future);
        world.engine.suspend.store(false, Ordering::SeqCst);
        world.settle();
        assert_eq!(world.census(), (1, 0), "dropped after {polls} polls");
        drop(guard);
        world.assert_empty("the holder let go");
    }
}

#[test]
fn an_unanswered_claim_that_is_dropped_cannot_come_back() {
    // The call goes out, the answer never comes, the caller gives up: the store must end empty and
    // refuse a late copy.
    let world = World::new();
    let tenure = world.tenure();
    world.engine.swallow.store(true, Ordering::SeqCst);
    let mut future = Box::pin(tenure.mutex("a").unwrap().lock());
    assert!(poll_once(future.as_mut()).is_none());
    assert_eq!(world.census(), (1, 0), "the store has granted it");
    drop(future);
    world.engine.swallow.store(false, Ordering::SeqCst);
    world.assert_empty("dropped unanswered");
    assert_eq!(world.store.census().tombs, 1, "a late copy would be refused");
}

/// Drops a call about cells after each number of polls until it ends by itself. Each time `check`
/// is given a fresh session, and whether the call has ended.
fn drop_cell_call(path: &str, start: fn(&Tenure) -> Work, check: fn(&Tenure, bool)) {
    for polls in 0..500 {
        let world = World::new();
        let tenure = world.tenure();
        world.engine.suspend.store(true, Ordering::SeqCst);
        let mut future = start(&tenure);
        let done = (0..polls).find_map(|_| poll_once(future.as_mut()));
        drop(future);
        world.engine.suspend.store(false, Ordering::SeqCst);
        check(&world.tenure(), done.is_some());
        world.assert_empty(&format!("{path}, dropped after {polls} polls"));
        if let Some(result) = done {
            result.unwrap_or_else(|error| panic!("{path}, after {polls} polls: {error}"));
            assert!(polls > 2, "{path} was never dropped inside the call");
            return;
        }
    }
    panic!("{path} never ends");
}

/// The same id each time, so that a repeat is recognized.
fn write_id() -> WriteId {
    static ID: OnceLock<WriteId> = OnceLock::new();
    *ID.get_or_init(|| WriteId::made_at(World::new().clock.now()))
}

fn value(tenure: &Tenure, cell: &str) -> Option<Vec<u8>> {
    now(tenure.cells().get(&name(cell))).unwrap().map(|cell| cell.value)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn one_write() -> Put {
    Put::new(name("a"), "1").expect(Expect::Absent).id(write_id())
}

#[test]
fn a_write_with_an_id() {
    let start = |tenure: &Tenure| -> Work {
        let tenure = tenure.clone();
        Box::pin(async move { tenure.cells().put(&one_write()).await.map(drop) })
    };
    drop_cell_call("put", start, |tenure, ended| {
        assert!(!ended || value(tenure, "a").is_some());
        // The repeat finds the first write, or writes.
        let verdict = now(tenure.cells().put(&one_write())).unwrap();
        assert!(matches!(verdict, PutVerdict::Done(_)), "{verdict:?}");
        assert_eq!(value(tenure, "a").as_deref(), Some(&b"1"[..]));
    });
}

#[test]
fn a_batch_of_writes() {
    let start = |tenure: &Tenure| -> Work {
        let tenure = tenure.clone();
        let batch = Batch::new().put(Put::new(name("a"), "1")).put(Put::new(name("b"), "1"));
        Box::pin(async move { tenure.cells().write(&batch).await.map(drop) })
    };
    drop_cell_call("write", start, |tenure, ended| {
        let (a, b) = (value(tenure, "a"), value(tenure, "b"));
        assert_eq!(a, b, "all of it, or nothing");
        assert!(!ended || a.is_some());
    });
}

#[test]
fn a_list_of_cells() {
    let start = |tenure: &Tenure| -> Work {
        let tenure = tenure.clone();
        Box::pin(async move { tenure.cells().list(&Pattern::all(), None, 10).await.map(drop) })
    };
    drop_cell_call("list", start, |tenure, _| {
        now(tenure.cells().put(&Put::new(name("a"), "1"))).unwrap();
        assert_eq!(now(tenure.cells().list(&Pattern::all(), None, 10)).unwrap().len(), 1);
    });
}

#[test]
fn the_begin_of_a_watch_and_its_first_change() {
    let start = |tenure: &Tenure| -> Work {
        let tenure = tenure.clone();
        Box::pin(async move {
            let mut watch = tenure.cells().watch(CellRange::One(name("a"))).await?;
            watch.next().await.map(drop)
        })
    };
    drop_cell_call("watch", start, |tenure, _| {
        let mut watch = now(tenure.cells().watch(CellRange::One(name("a")))).unwrap();
        assert_eq!(now(watch.next()).unwrap(), CellChange::Removed(name("a")));
        now(tenure.cells().put(&Put::new(name("a"), "1"))).unwrap();
        assert!(matches!(now(watch.next()).unwrap(), CellChange::Put(..)));
    });
}
