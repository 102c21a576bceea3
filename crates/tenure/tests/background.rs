//! What happens in the background: guards dropped anywhere, one thread for everything, the blocking
//! face, and a task that waits for itself.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;

use common::{World, millis, now, poll_once, secs};
use tenure::contract::Claim;
use tenure::engine::memory::MemoryEngine;
use tenure::time::Tick;
use tenure::{ErrorKind, Event, Query, Tenure, Witness};

#[test]
fn a_guard_may_be_dropped_outside_a_runtime_and_after_its_end() {
    let world = World::new();
    let tenure = world.tenure();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let guard = runtime.block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    let mutex = tenure.mutex("b").unwrap();
    runtime.spawn(async move {
        let _guard = mutex.lock().await.unwrap();
        std::future::pending::<()>().await;
    });
    while world.census().0 < 2 {
        thread::yield_now();
    }
    drop(runtime);
    world.settle();
    assert_eq!(world.census(), (1, 0), "the task's lock went with its runtime");
    drop(guard);
    world.assert_empty("dropped after the runtime");
}

#[test]
fn a_panic_gives_the_lock_back() {
    let world = World::new();
    let tenure = world.tenure();
    let panicking = thread::spawn(move || {
        let _guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
        panic!("with the lock in hand");
    });
    assert!(panicking.join().is_err());
    world.assert_empty("panicked");
}

#[test]
fn guards_outlive_their_tenure_and_still_give_back() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lease(secs(3)).lock()).unwrap();
    drop(tenure);
    world.advance(secs(60));
    assert!(guard.check().is_ok(), "still renewed");
    drop(guard);
    world.assert_empty("the last guard is gone");
}

#[test]
fn closing_gives_everything_back() {
    let world = World::new();
    let tenure = world.tenure();
    let names: Vec<String> = (0..1_000).map(|n| format!("lock {n}")).collect();
    let guards: Vec<_> =
        names.iter().map(|name| now(tenure.mutex(name).unwrap().lock()).unwrap()).collect();
    assert_eq!(tenure.claim_count(), 1_000);
    tenure::block_on(tenure.close());
    assert_eq!((world.census(), tenure.claim_count()), ((0, 0), 0));
    assert!(guards.iter().all(|guard| guard.check().is_err()));
    assert!(world.engine.releases.load(Ordering::SeqCst) <= 8, "in batches");
}

#[test]
fn the_withdrawals_of_a_crowd_go_out_a_few_calls_at_a_time() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let lock = |_| Box::pin(tenure.mutex("a").unwrap().lock());
    let mut crowd: Vec<_> = (0..3_000).map(lock).collect();
    for one in &mut crowd {
        assert!(poll_once(one.as_mut()).is_none());
    }
    world.engine.swallow.store(true, Ordering::SeqCst);
    drop(crowd);
    world.settle();
    let sent = world.engine.releases.load(Ordering::SeqCst);
    assert!((1..=4).contains(&sent), "{sent} calls under way: others would wait behind them");
    world.engine.swallow.store(false, Ordering::SeqCst);
    // The calls without an answer are given up; what they were about is sent again.
    world.advance(secs(10));
    assert_eq!(world.census(), (1, 0), "all are withdrawn");
    drop(guard);
    world.assert_empty("the crowd has left");
}

#[test]
fn ten_thousand_held_locks_cost_one_thread_and_few_calls() {
    let world = World::new();
    let before = threads();
    let tenure = world.tenure();
    let names: Vec<String> = (0..10_000).map(|n| format!("lock {n}")).collect();
    let guards: Vec<_> =
        names.iter().map(|name| now(tenure.mutex(name).unwrap().lock()).unwrap()).collect();
    assert!(threads() < before + MANY, "one keeper, not one each");
    let renews = || world.engine.renews.load(Ordering::SeqCst);
    let start = renews();
    world.advance(secs(100));
    let thirds = 10 + 2;
    assert!(renews() - start < 100 * thirds, "{} calls in 100 s", renews() - start);
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
}

/// The number of threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// More threads than the tests beside this one can start meanwhile, far fewer than locks.
const MANY: usize = 1_000;

#[test]
fn the_keepers_thread_ends_with_its_session() {
    let keepers = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "tenure-keeper").count()
    };
    let tenures: Vec<Tenure> =
        (0..200).map(|_| tenure::block_on(Tenure::connect("memory:")).unwrap()).collect();
    // A thread names itself when it begins to run, which may be a little later.
    let begun = (0..20_000).any(|_| {
        thread::yield_now();
        keepers() >= 200
    });
    assert!(begun, "only {} keepers have begun", keepers());
    drop(tenures);
    // Other tests have keepers too, but not that many. Each look reads the whole directory, so this
    // waits for seconds at the most.
    let ended = (0..20_000).any(|_| {
        thread::yield_now();
        keepers() < 150
    });
    assert!(ended, "{} keepers are left", keepers());
}

#[test]
fn the_blocking_methods_hand_over_between_threads() {
    let tenure = Tenure::blocking_connect("memory:").unwrap();
    let (inside, total) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let last_fence = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (tenure, inside) = (tenure.clone(), Arc::clone(&inside));
            let (total, last_fence) = (Arc::clone(&total), Arc::clone(&last_fence));
            thread::spawn(move || {
                for _ in 0..200 {
                    let guard = tenure.mutex("a").unwrap().blocking_lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone inside");
                    let fence = guard.fence().unwrap().get();
                    assert!(last_fence.swap(fence, Ordering::SeqCst) < fence, "fences grow");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    total.fetch_add(1, Ordering::SeqCst);
                    guard.blocking_release().unwrap();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(total.load(Ordering::SeqCst), 1_600);
    assert_eq!(tenure.claim_count(), 0);
}

#[test]
fn the_blocking_methods_have_all_kinds_of_locks() {
    let tenure = Tenure::blocking_connect("memory:").unwrap();
    tenure::blocking_scope(|| {
        let outer = tenure.mutex("m").unwrap().blocking_lock().unwrap();
        let inner = tenure.mutex("m").unwrap().blocking_try_lock().unwrap().expect("re-entered");
        assert_eq!(outer.fence().unwrap(), inner.fence().unwrap());
    });
    let lock = tenure.rwlock("rw").unwrap().timeout(millis(20));
    let writer = lock.blocking_read().unwrap().blocking_upgrade().unwrap();
    assert!(lock.blocking_try_read().unwrap().is_none());
    assert_eq!(lock.blocking_write().unwrap_err().kind(), ErrorKind::TimedOut);
    let reader = writer.blocking_downgrade().unwrap();
    assert!(lock.blocking_try_write().unwrap().is_none());
    reader.blocking_release().unwrap();
    let permit = tenure.semaphore("s", 2).unwrap().blocking_acquire_many(2).unwrap();
    assert!(tenure.semaphore("s", 2).unwrap().blocking_try_acquire().unwrap().is_none());
    permit.blocking_release().unwrap();
    let parts = [tenure.mutex("a").unwrap().part(), tenure.rwlock("rw").unwrap().write_part()];
    let set = tenure.lock_set(parts).unwrap();
    set.blocking_lock().unwrap().blocking_release().unwrap();
    assert!(set.blocking_try_lock().unwrap().is_some());
    let family = tenure.family("x:*").unwrap();
    assert!(family.blocking_try_lock("x:1").unwrap().is_some());
    family.blocking_lock("x:2").unwrap().blocking_release().unwrap();
    tenure.blocking_close();
}

/// Remembers the places of claims that waited for themselves.
#[derive(Debug, Default)]
struct SelfWaits(Mutex<Vec<(String, String)>>);

impl Witness for SelfWaits {
    fn on_event(&self, claim: &Arc<Claim>, _at: Tick, event: &Event) {
        if let Event::WaitsForItself { held_by } = event {
            let places = (claim.about.to_string(), held_by.about.to_string());
            self.0.lock().unwrap().push(places);
        }
    }
}

#[tokio::test]
async fn a_task_that_waits_for_its_own_lock_is_reported_with_both_places() {
    let witness = Arc::new(SelfWaits::default());
    let builder = Tenure::builder().witness(Arc::clone(&witness) as _);
    let tenure = builder.open(Arc::new(MemoryEngine::new())).unwrap();
    let error = tokio::spawn({
        let tenure = tenure.clone();
        async move {
            let _guard = tenure.mutex("a").unwrap().lock().await.unwrap();
            tenure.mutex("a").unwrap().timeout(millis(10)).lock().await.unwrap_err()
        }
    })
    .await
    .unwrap();
    assert!(error.to_string().contains("if one flow wants it twice, run it in a scope"), "{error}");
    let seen = witness.0.lock().unwrap().clone();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].0.contains("background.rs") && seen[0].1.contains("background.rs"), "{seen:?}");
    assert_ne!(seen[0].0, seen[0].1);
}

#[tokio::test]
async fn another_task_that_holds_is_no_self_wait() {
    let witness = Arc::new(SelfWaits::default());
    let builder = Tenure::builder().witness(Arc::clone(&witness) as _);
    let tenure = builder.open(Arc::new(MemoryEngine::new())).unwrap();
    let mutex = tenure.mutex("a").unwrap();
    let guard = tokio::spawn(async move { mutex.lock().await.unwrap() }).await.unwrap();
    let mutex = tenure.mutex("a").unwrap().timeout(millis(10));
    let error = tokio::spawn(async move { mutex.lock().await.unwrap_err() }).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(witness.0.lock().unwrap().is_empty());
    drop(guard);
}

#[test]
fn a_thread_that_blocks_sleeps_until_it_is_woken() {
    let (done, mut polls) = (Arc::new(AtomicBool::new(false)), 0);
    tenure::block_on(std::future::poll_fn(|cx| {
        polls += 1;
        if polls == 1 {
            let (done, waker) = (Arc::clone(&done), cx.waker().clone());
            thread::spawn(move || {
                // Long enough for a thread that does not sleep to look again.
                thread::sleep(millis(20));
                done.store(true, Ordering::SeqCst);
                waker.wake();
            });
        }
        if done.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }));
    assert_eq!(polls, 2);
}

#[test]
fn a_thread_that_blocks_for_its_own_lock_is_reported() {
    let tenure = Tenure::blocking_connect("memory:").unwrap();
    let _guard = tenure.mutex("a").unwrap().blocking_lock().unwrap();
    let error = tenure.mutex("a").unwrap().timeout(millis(10)).blocking_lock().unwrap_err();
    assert!(error.to_string().contains("taken by this same task or thread"), "{error}");
}

/// Without a timeout the wait has no other end, and a program that does not subscribe to `tracing`
/// would not learn why it waited.
#[test]
fn a_wait_without_a_timeout_for_its_own_lock_is_reported_at_its_end() {
    let tenure = Tenure::blocking_connect("memory:").unwrap();
    let _guard = tenure.mutex("a").unwrap().blocking_lock().unwrap();
    let closer = tenure.clone();
    let query = Query::Slot("a".parse().unwrap());
    thread::spawn(move || {
        while closer.blocking_inspect(&query).unwrap().slots[0].queue.is_empty() {
            thread::sleep(millis(1));
        }
        closer.blocking_close();
    });
    let error = tenure.mutex("a").unwrap().blocking_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(error.to_string().contains("taken by this same task or thread"), "{error}");
}

#[tokio::test]
async fn tasks_on_a_thread_that_has_blocked_before_are_still_told_apart() {
    let tenure = tenure::block_on(Tenure::connect("memory:")).unwrap();
    let mutex = tenure.mutex("a").unwrap();
    let _guard = tokio::spawn(async move { mutex.lock().await.unwrap() }).await.unwrap();
    let mutex = tenure.mutex("a").unwrap().timeout(millis(10));
    let error = tokio::spawn(async move { mutex.lock().await.unwrap_err() }).await.unwrap();
    assert!(!error.to_string().contains("taken by this same task or thread"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_many_names_never_overlap() {
    let engine = MemoryEngine::new();
    let sessions: Vec<Tenure> =
        (0..3).map(|_| Tenure::builder().open(Arc::new(engine.clone())).unwrap()).collect();
    let inside: Arc<Vec<AtomicBool>> = Arc::new((0..4).map(|_| AtomicBool::new(false)).collect());
    let mut tasks = Vec::new();
    for task in 0..48_usize {
        let (tenure, inside) = (sessions[task % 3].clone(), Arc::clone(&inside));
        tasks.push(tokio::spawn(async move {
            for round in 0..50_usize {
                let names: HashSet<usize> = [(task + round) % 4, (task * round) % 4].into();
                let parts = names.iter().map(|n| tenure.mutex(n.to_string()).unwrap().part());
                let guard = tenure.lock_set(parts).unwrap().lock().await.unwrap();
                for name in &names {
                    assert!(!inside[*name].swap(true, Ordering::SeqCst), "overlap on {name}");
                }
                tokio::task::yield_now().await;
                for name in &names {
                    inside[*name].store(false, Ordering::SeqCst);
                }
                if round % 2 == 0 {
                    guard.release().await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for tenure in &sessions {
        tenure.close().await;
    }
    let census = engine.census();
    assert_eq!((census.holds, census.tickets), (0, 0));
}

#[test]
fn guards_and_waits_may_move_between_threads() {
    fn moves<T: Send + 'static>(_: &T) {}
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    let tenure = World::new().tenure();
    shared(&tenure);
    let (mutex, lock) = (tenure.mutex("a").unwrap(), tenure.rwlock("b").unwrap());
    let semaphore = tenure.semaphore("c", 2).unwrap();
    moves(&mutex.lock());
    moves(&mutex.run(|held| async move { held.check() }));
    let guard = now(mutex.lock()).unwrap();
    shared(&tenure::LockStatus::clone(&guard));
    moves(&guard.lost());
    moves(&guard);
    moves(&now(lock.read()).unwrap());
    moves(&now(semaphore.acquire()).unwrap());
    moves(&now(tenure.lock_set([semaphore.part(1).unwrap()]).unwrap().lock()).unwrap());
    moves(&now(guard.release()));
    let reader = now(lock.read()).unwrap();
    moves(&reader.upgrade());
}
