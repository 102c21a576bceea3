//! Times to live: a client that is gone leaves nothing that stays. And crowds that come in by more
//! than one call.

use std::time::Duration;

use servers::{Redis, eventually};
use tenure::block_on;
use tenure::{Put, Tenure, WriteId};
use tokio::runtime::Runtime;

use crate::host::{Book, LONG, PATIENCE, done};

const LEASE: Duration = Duration::from_secs(3);
/// Longer than the keys of a slot are kept to spare.
const DELAY: Duration = Duration::from_secs(300);
/// More readers than come in by one call.
const READERS: usize = 700;

/// Every key with its time to live in milliseconds.
fn times_to_live(redis: &Redis) -> Vec<(String, i64)> {
    let keys = done(redis, &["KEYS", "*"]);
    let keys = keys.list().iter().map(|key| key.text().unwrap().to_owned());
    keys.map(|key| (key.clone(), done(redis, &["PTTL", &key]).int().unwrap())).collect()
}

/// Nothing but the largest number and the terms of the namespace stays for ever. (A key that went
/// between the two looks has -2.)
#[track_caller]
fn assert_mortal(redis: &Redis, when: &str) {
    for (key, left) in times_to_live(redis) {
        let stays = key.ends_with(":top") || key.ends_with(":terms");
        assert!(left != -1 || stays, "{when}: {key} stays for ever");
    }
}

#[test]
fn whatever_a_client_leaves_behind_has_a_time_to_live() {
    let (redis, book) = (Redis::start(), Book::new());
    let (one, two) = (book.session(&redis.url(), LEASE), book.session(&redis.url(), LEASE));
    let alone = block_on(one.mutex("alone").unwrap().lock()).unwrap();
    let parts = ["b", "c"].map(|name| one.mutex(name).unwrap().part());
    let set = block_on(one.lock_set(parts).unwrap().lock()).unwrap();
    assert_mortal(&redis, "claimed");
    book.renewals(6);
    assert_mortal(&redis, "renewed");
    let contended = block_on(one.mutex("contended").unwrap().lock()).unwrap();
    let waiter = book.waiter(&two, "contended");
    let readers = [&one, &two].map(|tenure| block_on(tenure.rwlock("r").unwrap().read()).unwrap());
    let permit = block_on(two.semaphore("p", 3).unwrap().acquire_many(2)).unwrap();
    let delayed = one.mutex("delayed").unwrap().lock_delay(DELAY);
    let delayed = block_on(delayed.lock()).unwrap();
    assert_mortal(&redis, "with a line, readers, permits and a lock delay");
    book.renewals(12);
    assert_mortal(&redis, "renewed");
    // Keys of a slot outlive the lock delay that would follow its holder.
    let least = i64::try_from(DELAY.as_millis()).unwrap();
    for (key, left) in times_to_live(&redis).iter().filter(|(key, _)| key.contains("delayed}")) {
        assert!(*left > least, "{key} goes before its lock delay ends: {left}");
    }
    // A late line, new readers and a tombstone.
    block_on(contended.release()).unwrap();
    let next = waiter.served();
    let late = book.waiter(&one, "contended");
    block_on(two.force_release("alone", alone.fence().unwrap(), "a test")).unwrap();
    let put = Put::new("cell".parse().unwrap(), "value").time_to_live(LONG);
    block_on(two.cells().put(&put)).unwrap();
    block_on(two.cells().put(&put.fenced(next.fence().unwrap()))).unwrap();
    assert_mortal(&redis, "evicted, with a cell");
    drop((alone, set, next, readers, permit, delayed, late));
}

/// More readers wait than one call lets in: the rest comes in at once all the same, and not at the
/// next renewal of its session, which is later than this test waits.
#[test]
fn a_crowd_of_readers_comes_in_without_a_renewal() {
    let redis = Redis::start();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let builder = Tenure::builder().lease(LONG).call_limit(Duration::from_secs(10));
        let tenure = builder.connect(&redis.url()).await.unwrap();
        let lock = tenure.rwlock("a").unwrap();
        let writer = lock.write().await.unwrap();
        let readers: Vec<_> = (0..READERS).map(|_| tokio::spawn(lock.read())).collect();
        let waiting = || done(&redis, &["ZCARD", "tenure:{default/a}:l"]).int();
        eventually("all stand in line", || waiting() == i64::try_from(READERS).ok());
        writer.release().await.unwrap();
        let mut guards = Vec::new();
        for reader in readers {
            let guard = tokio::time::timeout(PATIENCE, reader).await.expect("told at once");
            guards.push(guard.unwrap().unwrap());
        }
        assert_eq!(guards.len(), READERS);
        drop(guards);
        tenure.close().await;
    });
}

/// A list of a rate and the log of a cell are kept for longer once in a second, not with each
/// write.
#[test]
fn what_is_written_in_another_second_is_kept_for_longer() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let rate = tenure.rate("a").unwrap().limit(9, Duration::from_secs(3_600));
    let write = || {
        assert!(rate.blocking_take(1).unwrap().is_allowed());
        let put = Put::new("a".parse().unwrap(), "1").id(WriteId::new());
        tenure.cells().blocking_put(&put).unwrap();
    };
    let ends = || {
        ["tenure:{default}:rate:a:0", "tenure:{default}:cell:a:w"]
            .map(|key| done(&redis, &["PEXPIRETIME", key]).int().unwrap())
    };
    write();
    let before = ends();
    let second = || done(&redis, &["TIME"]).list()[0].text().unwrap().to_owned();
    let began = second();
    eventually("the next second has come", || second() != began);
    write();
    let after = ends();
    assert!(before[0] < after[0] && before[1] < after[1], "{before:?}, {after:?}");
    assert!(before.iter().all(|ends| *ends > 0));
}
