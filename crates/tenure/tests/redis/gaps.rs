//! Connections that end, pushes that get lost and scripts that are forgotten: no lock is lost,
//! and every waiter is served.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use servers::{Proxy, Redis, eventually};
use tenure::block_on;
use tenure::{Error, ErrorKind, MutexGuard, Tenure};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::host::{Book, LONG, PATIENCE, assert_empty, done};

/// Ends all connections but the one that asks.
fn kill_connections(redis: &Redis) {
    for kind in ["normal", "pubsub"] {
        done(redis, &["CLIENT", "KILL", "TYPE", kind]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_killed_cost_nobody_a_lock_or_a_place() {
    let (redis, book) = (Redis::start(), Book::new());
    // One session on this runtime, with two connections; and two with only their own.
    let holder = book.builder(LONG).connect(&redis.url()).await.unwrap();
    let (second, third) = tokio::task::spawn_blocking({
        let (book, url) = (book.clone(), redis.url());
        move || (book.session(&url, LONG), book.session(&url, LONG))
    })
    .await
    .unwrap();
    let guard = holder.mutex("a").unwrap().lock().await.unwrap();
    let mut served = JoinSet::new();
    // A release that meets the end of a connection is made again in the background.
    let released = |outcome: Result<(), Error>| {
        let kind = outcome.as_ref().err().map_or(ErrorKind::Unavailable, Error::kind);
        assert_eq!(kind, ErrorKind::Unavailable, "{outcome:?}");
    };
    for (nth, tenure) in [&holder, &second, &third, &holder, &second, &third].iter().enumerate() {
        let mutex = tenure.mutex("a").unwrap();
        served.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            released(guard.release().await);
            nth
        });
        let queued = book.clone();
        eventually("it stands in line", || queued.queued() > nth);
    }
    for _ in 0..5 {
        kill_connections(&redis);
        guard.check().unwrap();
    }
    // The hand-offs themselves meet ends of connections, too.
    released(guard.release().await);
    let mut order = Vec::new();
    while let Some(next) = timeout(PATIENCE, served.join_next()).await.expect("all are served") {
        order.push(next.unwrap());
        kill_connections(&redis);
    }
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    assert_eq!(book.losses(), 0);
    for tenure in [holder, second, third] {
        tenure.close().await;
    }
    book.assert_sound("killed connections");
}

#[test]
fn a_push_that_is_lost_in_the_gap_costs_no_more_than_a_look() {
    let (redis, book) = (Redis::start(), Book::new());
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    let holder = book.session(&redis.url(), LONG);
    let waiter = book.session(&proxy.redis_url(), LONG);
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let waits = book.waiter(&waiter, "a");
    proxy.refuse(true);
    proxy.cut();
    // This push is lost: the channel has no subscriber.
    block_on(guard.release()).unwrap();
    assert!(waits.still_waits());
    proxy.refuse(false);
    // The next renewal would come later than this test waits.
    block_on(waits.served().release()).unwrap();
    for tenure in [holder, waiter] {
        block_on(tenure.close());
    }
    book.assert_sound("a push in the gap");
}

#[test]
fn pushes_that_get_lost_cost_a_renewal() {
    let (redis, book) = (Redis::start(), Book::new());
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    let lease = Duration::from_secs(2);
    let (holder, waiter) =
        (book.session(&redis.url(), lease), book.session(&proxy.redis_url(), lease));
    proxy.drop_pushes(u64::MAX);
    for _ in 0..3 {
        let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
        let waits = book.waiter(&waiter, "a");
        block_on(guard.release()).unwrap();
        block_on(waits.served().release()).unwrap();
    }
    assert_eq!(proxy.counts().pushes_dropped, 3);
    assert_eq!(book.losses(), 0);
    for tenure in [holder, waiter] {
        block_on(tenure.close());
    }
    book.assert_sound("lost pushes");
}

/// A thread that takes and gives back locks of every kind until it is told to end.
fn busy(
    tenure: Tenure,
    rounds: &'static AtomicUsize,
    over: &'static AtomicBool,
) -> JoinHandle<Result<(), Error>> {
    let round = move || -> Result<(), Error> {
        let parts = [tenure.mutex("a")?.part(), tenure.mutex("b")?.part()];
        block_on(block_on(tenure.mutex("a")?.lock())?.release())?;
        block_on(block_on(tenure.lock_set(parts)?.lock())?.release())?;
        block_on(block_on(tenure.rwlock("c")?.read())?.release())?;
        block_on(block_on(tenure.semaphore("d", 2)?.acquire())?.release())?;
        rounds.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    std::thread::spawn(move || {
        while !over.load(Ordering::SeqCst) {
            round()?;
        }
        Ok(())
    })
}

#[test]
fn scripts_that_are_flushed_in_the_middle_of_traffic_are_taught_again() {
    static ROUNDS: AtomicUsize = AtomicUsize::new(0);
    static OVER: AtomicBool = AtomicBool::new(false);
    let (redis, book) = (Redis::start(), Book::new());
    let sessions: Vec<_> = (0..3).map(|_| book.session(&redis.url(), LONG)).collect();
    let threads: Vec<_> = sessions
        .iter()
        .flat_map(|tenure| [tenure.clone(), tenure.clone()])
        .map(|tenure| busy(tenure, &ROUNDS, &OVER))
        .collect();
    for _ in 0..20 {
        let before = ROUNDS.load(Ordering::SeqCst);
        eventually("traffic goes on", || ROUNDS.load(Ordering::SeqCst) > before + 2);
        done(&redis, &["SCRIPT", "FLUSH"]);
    }
    OVER.store(true, Ordering::SeqCst);
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
    // A call that is the first of its kind after a flush, one by one.
    let tenure = &sessions[0];
    for _ in 0..2 {
        done(&redis, &["SCRIPT", "FLUSH"]);
        let guard: MutexGuard = block_on(tenure.mutex("e").unwrap().lock()).unwrap();
        done(&redis, &["SCRIPT", "FLUSH"]);
        let fence = guard.fence().unwrap();
        block_on(tenure.force_release("e", fence, "to see it go")).unwrap();
        done(&redis, &["SCRIPT", "FLUSH"]);
        assert!(block_on(guard.release()).is_err(), "it was taken away");
    }
    for tenure in sessions {
        block_on(tenure.close());
    }
    book.assert_sound("flushed scripts");
    assert_empty(&redis.url(), Tenure::builder());
}
