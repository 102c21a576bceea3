//! Runtimes that are blocked, dropped or not polled: locks live on, and waiters are served.

use std::time::Duration;

use servers::{Redis, eventually};
use tenure::Tenure;
use tenure::block_on;
use tenure::conformance::audit::What;
use tokio::runtime::{Builder, Runtime};

use crate::host::{Book, LONG};

const LEASE: Duration = Duration::from_secs(1);

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn many_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_blocked_runtime_costs_no_lock() {
    for runtime in [one_thread(), many_threads()] {
        let (redis, book) = (Redis::start(), Book::new());
        let url = redis.url();
        let blocked = book.clone();
        runtime.block_on(async {
            // In a task, so that it is the runtime's only worker that is blocked.
            let work = async move {
                let tenure = blocked.builder(LEASE).connect(&url).await.unwrap();
                let guard = tenure.mutex("a").unwrap().lock().await.unwrap();
                let renewed = || blocked.count(|what| matches!(what, What::Renewed(_)));
                // As many renewals as make two leases, and not one poll.
                eventually("others renew it", || renewed() >= 6);
                guard.check().unwrap();
                guard.release().await.unwrap();
                tenure.close().await;
            };
            tokio::spawn(work).await.unwrap();
        });
        assert_eq!(book.losses(), 0);
        book.assert_sound("a blocked runtime");
    }
}

#[test]
fn a_session_outlives_the_runtime_it_was_connected_in() {
    for runtime in [one_thread(), many_threads()] {
        let (redis, book) = (Redis::start(), Book::new());
        let other = book.session(&redis.url(), LONG);
        let (tenure, held) = runtime.block_on(async {
            let tenure = book.builder(LONG).connect(&redis.url()).await.unwrap();
            let held = tenure.mutex("held").unwrap().lock().await.unwrap();
            (tenure, held)
        });
        drop(runtime);
        held.check().unwrap();
        assert!(block_on(other.mutex("held").unwrap().try_lock()).unwrap().is_none());
        // From threads, both as the one who waits and as the one who is waited for.
        let guard = block_on(other.mutex("a").unwrap().lock()).unwrap();
        let waiter = book.waiter(&tenure, "a");
        block_on(guard.release()).unwrap();
        let guard = waiter.served();
        // And from other runtimes.
        for another in [one_thread(), many_threads()] {
            another.block_on(async {
                let mine = tenure.mutex("b").unwrap().lock().await.unwrap();
                assert!(other.mutex("b").unwrap().try_lock().await.unwrap().is_none());
                mine.release().await.unwrap();
            });
        }
        block_on(guard.release()).unwrap();
        block_on(held.release()).unwrap();
        for tenure in [tenure, other] {
            block_on(tenure.close());
        }
        book.assert_sound("a dropped runtime");
    }
}

#[test]
fn a_thread_that_waits_is_told_at_once_though_nobody_polls_the_runtime() {
    let (redis, book) = (Redis::start(), Book::new());
    let runtime = one_thread();
    let other = book.session(&redis.url(), LONG);
    let tenure = runtime.block_on(book.builder(LONG).connect(&redis.url())).unwrap();
    for _ in 0..3 {
        let guard = block_on(other.mutex("a").unwrap().lock()).unwrap();
        let waiter = book.waiter(&tenure, "a");
        block_on(guard.release()).unwrap();
        // A renewal of so long a lease would come later than this test waits.
        block_on(waiter.served().release()).unwrap();
    }
    // The runtime is there all the time, and can be used again.
    runtime.block_on(async { tenure.mutex("a").unwrap().lock().await?.release().await }).unwrap();
    for tenure in [tenure, other] {
        block_on(tenure.close());
    }
    book.assert_sound("a runtime that is not polled");
}

#[test]
fn a_guard_can_be_dropped_where_no_runtime_is_left() {
    let redis = Redis::start();
    let runtime = many_threads();
    let tenure = runtime.block_on(Tenure::connect(&redis.url())).unwrap();
    let guard = runtime.block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    runtime.shutdown_background();
    drop(guard);
    // Given back, not left to its lease of half a minute.
    let other = block_on(Tenure::connect(&redis.url())).unwrap();
    let mutex = other.mutex("a").unwrap().timeout(crate::host::PATIENCE);
    block_on(block_on(mutex.lock()).unwrap().release()).unwrap();
}
