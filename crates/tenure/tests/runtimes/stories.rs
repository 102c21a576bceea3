//! Locks that are left behind on every engine: waits that are given up, runtimes that end before
//! their guards, waiters and holders, guards that are forgotten. Each story ends with a session
//! that had no part in it and gets the name although the lease of what was left is longer than it
//! waits, while the session that left it lives on and renews other locks of the same lease.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use servers::eventually;
use tenure::block_on;
use tenure::conformance::audit::{Recorder, What};
use tenure::time::SystemClock;
use tenure::{Builder, Tenure, Witness};
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};

use crate::places::drive;
use crate::stores::{FREE_WITHIN, LONG, Store};

/// How often locks are left at another instant.
const ROUNDS: u32 = 40;
/// How many callers give up in each round.
const CROWD: u32 = 6;
/// How many waiters a runtime takes along.
const WAITERS: usize = 20;

fn workers() -> Runtime {
    RuntimeBuilder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn one_thread() -> Runtime {
    RuntimeBuilder::new_current_thread().enable_all().build().unwrap()
}

/// A session that has no part in the story.
fn bystander(store: &Store) -> Tenure {
    block_on(store.builder().connect(&store.url)).unwrap()
}

/// Sessions whose events are counted.
fn watched(store: &Store, recorder: &Arc<Recorder>) -> Builder {
    store.builder().lease(LONG).witness(Arc::clone(recorder) as Arc<dyn Witness>)
}

fn count(recorder: &Recorder, what: impl Fn(&What) -> bool) -> usize {
    recorder.history().entries().iter().filter(|entry| what(&entry.what)).count()
}

/// Waits for more renewals than fit into a lease: there is one in each third of it.
fn renewed_for_a_lease(recorder: &Recorder) {
    let renewals = || count(recorder, |what| matches!(what, What::Renewed(_)));
    let before = renewals();
    eventually("it is renewed", || renewals() >= before + 4);
}

fn recorder() -> Arc<Recorder> {
    Recorder::new(Arc::new(SystemClock))
}

/// Polls a future without a pause and drops it after so long: at any instant, which a timer of
/// milliseconds would not reach on a fast store.
async fn abandon_after(limit: Duration, future: impl Future) {
    let (mut future, began) = (Box::pin(future), Instant::now());
    let ended = std::future::poll_fn(|context| {
        if future.as_mut().poll(context).is_ready() || began.elapsed() >= limit {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    ended.await;
}

/// Callers give up while a lock is held, while it is free, and while it is given back. A claim that
/// they left behind would live for as long as their session renews it.
pub(crate) fn abandoned(store: &Store) {
    let other = bystander(store);
    let runtime = workers();
    runtime.block_on(async {
        let tenure = store.builder().lease(LONG).connect(&store.url).await.unwrap();
        let _kept = tenure.mutex("kept").unwrap().lock().await.unwrap();
        for round in 0..ROUNDS {
            let name = format!("abandoned-{round}");
            let began = Instant::now();
            let guard = tenure.mutex(&name).unwrap().lock().await.unwrap();
            // Spread over the time that a few requests take here and now.
            let span = began.elapsed() * 3;
            let mut held = Some(guard);
            match round % 3 {
                0 => {}
                1 => held.take().unwrap().release().await.unwrap(),
                _ => drop(held.take()),
            }
            let crowd = (0..CROWD).map(|place| {
                let mutex = tenure.mutex(&name).unwrap();
                let step = (round * CROWD + place) * 7 % (ROUNDS * CROWD);
                let limit = span * step / (ROUNDS * CROWD);
                tokio::spawn(async move { abandon_after(limit, mutex.lock()).await })
            });
            for one in crowd.collect::<Vec<_>>() {
                one.await.unwrap();
            }
            if let Some(guard) = held {
                guard.release().await.unwrap();
            }
            let mutex = other.mutex(&name).unwrap().timeout(FREE_WITHIN);
            let guard = mutex.lock().await;
            guard.unwrap_or_else(|error| panic!("round {round}: {error}")).release().await.unwrap();
            store.steps.count();
        }
    });
}

/// Guards outlive the runtime they were taken in: they are renewed, and given back when they are
/// dropped. The session works in other runtimes, and without one.
pub(crate) fn guards_of_an_ended_runtime(store: &Store) {
    let other = bystander(store);
    for runtime in [workers(), one_thread()] {
        let recorder = recorder();
        let (tenure, renewed, left) = runtime.block_on(async {
            let tenure = watched(store, &recorder).connect(&store.url).await.unwrap();
            let short = tenure.mutex("renewed").unwrap().lease(Duration::from_secs(3));
            let (renewed, left) = (short.lock().await, tenure.mutex("left").unwrap().lock().await);
            (tenure, renewed.unwrap(), left.unwrap())
        });
        drop(runtime);
        store.steps.count();
        renewed_for_a_lease(&recorder);
        renewed.check().unwrap();
        left.check().unwrap();
        assert!(block_on(other.mutex("renewed").unwrap().try_lock()).unwrap().is_none());
        store.steps.count();
        drop((renewed, left));
        store.assert_free("left");
        // A thread that waits is told by the session, though its runtime is gone.
        let held = block_on(other.mutex("handed-over").unwrap().lease(LONG).lock()).unwrap();
        let queued = || count(&recorder, |what| *what == What::Queued);
        let (before, mutex) = (queued(), tenure.mutex("handed-over").unwrap().timeout(FREE_WITHIN));
        let waiter = std::thread::spawn(move || block_on(mutex.lock()));
        eventually("it waits", || queued() > before);
        block_on(held.release()).unwrap();
        block_on(waiter.join().unwrap().unwrap().release()).unwrap();
        store.steps.count();
        for another in [workers(), one_thread()] {
            another.block_on(take(&tenure, &other));
        }
        drive(take(&tenure, &other));
        store.steps.count();
    }
}

/// A runtime whose only thread is blocked for longer than the lease costs no lock.
pub(crate) fn blocked_runtimes(store: &Store) {
    let one_worker = RuntimeBuilder::new_multi_thread().worker_threads(1).enable_all().build();
    for runtime in [one_worker.unwrap(), one_thread()] {
        let (recorder, store) = (recorder(), store.clone());
        let work = async move {
            let tenure = watched(&store, &recorder).connect(&store.url).await.unwrap();
            let short = tenure.mutex("blocked").unwrap().lease(Duration::from_secs(3));
            let guard = short.lock().await.unwrap();
            renewed_for_a_lease(&recorder);
            guard.check().unwrap();
            guard.release().await.unwrap();
            store.steps.count();
        };
        // In a task, so that it is the only worker that is blocked.
        runtime.block_on(runtime.spawn(work)).unwrap();
    }
}

/// Takes a lock that another session cannot have meanwhile, and gives it back.
async fn take(tenure: &Tenure, other: &Tenure) {
    let guard = tenure.mutex("another").unwrap().timeout(FREE_WITHIN).lock().await.unwrap();
    assert!(other.mutex("another").unwrap().try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// Waiters that end with their runtime leave the queue: a lock granted to one of them would not be
/// given back.
pub(crate) fn waiters_of_an_ended_runtime(store: &Store) {
    let other = bystander(store);
    let recorder = recorder();
    let held = block_on(other.mutex("waited-for").unwrap().lease(LONG).lock()).unwrap();
    let runtime = workers();
    let (tenure, _kept) = runtime.block_on(async {
        let tenure = watched(store, &recorder).connect(&store.url).await.unwrap();
        let kept = tenure.mutex("kept-by-waiters").unwrap().lock().await.unwrap();
        (tenure, kept)
    });
    for _ in 0..WAITERS {
        let mutex = tenure.mutex("waited-for").unwrap();
        runtime.spawn(async move {
            let _guard = mutex.lock().await;
            std::future::pending::<()>().await;
        });
    }
    eventually("they wait", || count(&recorder, |what| *what == What::Queued) >= WAITERS);
    runtime.shutdown_timeout(Duration::from_millis(100));
    store.steps.count();
    block_on(held.release()).unwrap();
    store.assert_free("waited-for");
    assert_eq!(tenure.claim_count(), 1, "claims of waiters are left");
}

/// A task that holds is dropped with its runtime, and its guard with it; once the session lives
/// on, and once it goes too.
pub(crate) fn holders_of_an_ended_runtime(store: &Store) {
    for lives_on in [true, false] {
        let runtime = workers();
        let connect = store.builder().lease(LONG).connect(&store.url);
        let tenure = runtime.block_on(connect).unwrap();
        let kept = lives_on.then(|| tenure.clone());
        let (tell, told) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let _guard = tenure.mutex("held").unwrap().lock().await.unwrap();
            tell.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        told.recv().unwrap();
        drop(runtime);
        store.steps.count();
        store.assert_free("held");
        drop(kept);
    }
}

/// A guard that is never dropped: its `max_hold` ends it, long before its lease would.
pub(crate) fn forgotten(store: &Store) {
    let tenure = block_on(store.builder().lease(LONG).connect(&store.url)).unwrap();
    let _kept = block_on(tenure.mutex("kept-beside").unwrap().lock()).unwrap();
    let short = tenure.mutex("forgotten").unwrap().max_hold(Duration::from_secs(1));
    let guard = block_on(short.lock()).unwrap();
    let fence = guard.fence();
    std::mem::forget(guard);
    let other = bystander(store);
    let next = block_on(other.mutex("forgotten").unwrap().timeout(FREE_WITHIN).lock()).unwrap();
    // The first one may have ended before it was asked.
    assert!(fence.is_err() || next.fence().unwrap() > fence.unwrap());
    block_on(next.release()).unwrap();
}
