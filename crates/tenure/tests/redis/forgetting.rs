//! Restarts and losses of memory: what is kept stands; what is lost is noticed, and fences go on.

use std::time::Duration;

use servers::{Fsync, Redis, Reply, eventually};
use tenure::block_on;
use tenure::{Builder, Loss, Tenure};

use crate::host::{Book, LONG, done, key, micros};

/// Renewed after two seconds, given up after more than five.
const LEASE: Duration = Duration::from_secs(6);
/// The longest lease where a grace is waited for.
const MOST: Duration = Duration::from_secs(2);

#[test]
fn locks_and_lines_stand_through_a_restart_that_keeps_them() {
    let (redis, book) = (Redis::builder().append_only(Fsync::Always).start(), Book::new());
    let (holder, other) = (book.session(&redis.url(), LONG), book.session(&redis.url(), LONG));
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&other, "a");
    redis.restart();
    guard.check().unwrap();
    assert!(block_on(other.mutex("a").unwrap().try_lock()).unwrap().is_none(), "it stands");
    let fence = guard.fence().unwrap();
    block_on(guard.release()).unwrap();
    let next = waiter.served();
    assert!(next.fence().unwrap() > fence);
    redis.restart();
    block_on(next.release()).unwrap();
    assert_eq!(book.losses(), 0);
    for tenure in [holder, other] {
        block_on(tenure.close());
    }
    book.assert_sound("a restart with memory");
}

/// Whatever makes a server forget everything.
type Amnesia = fn(&Redis);

fn flush(redis: &Redis) {
    done(redis, &["FLUSHALL"]);
}

fn is_noticed(forget: Amnesia, what: &str) {
    let redis = Redis::start();
    let book = Book::new();
    let (holder, other) = (book.session(&redis.url(), LEASE), book.session(&redis.url(), LEASE));
    let names = ["a", "b", "c"];
    let lock = |name: &str| block_on(holder.mutex(name).unwrap().lock()).unwrap();
    let guards = names.map(lock);
    let permit = block_on(holder.semaphore("d", 3).unwrap().acquire_many(2)).unwrap();
    let waiter = book.waiter(&other, "a");
    forget(&redis);
    // The renewal tells, not the end of the lease.
    assert_eq!(block_on(permit.lost()), Loss::Forgotten, "{what}");
    for guard in &guards {
        assert_eq!(block_on(guard.lost()), Loss::Forgotten, "{what}");
    }
    // A waiter queues anew, and is served.
    let next = waiter.served();
    block_on(next.release()).unwrap();
    for (name, old) in names.iter().zip(&guards) {
        assert!(old.fence().is_err());
        let new = block_on(other.mutex(name).unwrap().lock()).unwrap();
        block_on(new.release()).unwrap();
    }
    drop((guards, permit));
    for tenure in [holder, other] {
        block_on(tenure.close());
    }
}

#[test]
fn a_restart_without_memory_is_noticed_at_the_next_renewal() {
    is_noticed(Redis::restart, "a restart");
}

#[test]
fn flushed_memory_is_noticed_at_the_next_renewal() {
    is_noticed(flush, "a flush");
}

#[test]
fn fences_grow_through_every_loss_of_memory() {
    let redis = Redis::start();
    let tenure = block_on(Tenure::connect(&redis.url())).unwrap();
    let mut last = 0;
    for forget in [flush, Redis::restart, flush, Redis::restart] {
        let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
        let fence = guard.fence().unwrap().get();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        forget(&redis);
        // Told or not, it is over.
        drop(guard);
    }
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    assert!(guard.fence().unwrap().get() > last);
}

fn with_grace(book: &Book) -> Builder {
    book.builder(MOST).max_lease(MOST)
}

/// After a loss of memory nothing is granted until the last lease from before must have ended.
fn closes_the_doors(forget: Amnesia, options: &str, what: &str) {
    let (redis, book) = (Redis::start(), Book::new());
    let url = format!("{}{options}", redis.url());
    let connect = || block_on(with_grace(&book).connect(&url)).unwrap();
    let (holder, other) = (connect(), connect());
    // A namespace that was not declared new is closed at first as well.
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let before = micros(&redis);
    forget(&redis);
    let closed_until = before + u64::try_from(MOST.as_micros()).unwrap();
    // A new client gets no grant either, nor on a name that was free.
    let third = format!("{}?grace=yes", redis.url());
    let third = block_on(with_grace(&book).connect(&third)).unwrap();
    for name in ["a", "b"] {
        let tried = block_on(third.mutex(name).unwrap().try_lock()).unwrap();
        let closed = tried.as_ref().is_none_or(|guard| {
            // A slow machine may come only after the grace.
            guard.fence().is_ok_and(|fence| fence.get() >= closed_until)
        });
        assert!(closed, "{what}: {name} was let in during the grace: {tried:?}");
    }
    let waiter = book.waiter(&other, "a");
    // Fences are the store's clock: they tell when a claim was granted.
    let next = waiter.served();
    let fence = next.fence().unwrap().get();
    assert!(fence >= closed_until, "{what}: let in {} us early", closed_until - fence);
    assert!(block_on(guard.lost()) != Loss::Released);
    block_on(next.release()).unwrap();
    drop(guard);
    for tenure in [holder, other, third] {
        block_on(tenure.close());
    }
    book.assert_sound(what);
}

#[test]
fn with_grace_nobody_comes_in_after_a_flush_until_old_leases_have_ended() {
    closes_the_doors(flush, "?grace=yes", "a flush");
}

#[test]
fn with_grace_nobody_comes_in_after_a_restart_until_old_leases_have_ended() {
    closes_the_doors(Redis::restart, "?grace=yes", "a restart");
}

/// A client that once declared its namespace new said so of the first connection: when it connected
/// again after a restart that lost everything, it let itself in beside holders from before.
#[test]
fn a_namespace_is_new_only_once() {
    for forget in [flush, Redis::restart] {
        closes_the_doors(forget, "?grace=yes&new=yes", "declared new");
    }
}

#[test]
fn a_namespace_that_is_declared_new_is_open_at_once_and_others_are_not() {
    let (redis, book) = (Redis::start(), Book::new());
    let url = |options: &str| format!("{}?grace=yes{options}", redis.url());
    let connect =
        |builder: Builder, url: &str| block_on(builder.max_lease(LONG).connect(url)).unwrap();
    let unknown = connect(book.builder(LONG).namespace("one"), &url(""));
    assert!(block_on(unknown.mutex("a").unwrap().try_lock()).unwrap().is_none());
    let new = connect(book.builder(LONG).namespace("two"), &url("&new=yes"));
    assert!(block_on(new.mutex("a").unwrap().try_lock()).unwrap().is_some());
    // The store was used before, whatever the new client declares.
    let late = connect(book.builder(LONG).namespace("one"), &url("&new=yes"));
    assert!(block_on(late.mutex("a").unwrap().try_lock()).unwrap().is_none());
}

/// Makes `to` the primary, and has `from` follow it.
fn fail_over(from: &Redis, to: &Redis) {
    done(to, &["REPLICAOF", "NO", "ONE"]);
    done(from, &["REPLICAOF", "127.0.0.1", &to.port().to_string()]);
}

/// Two fail-overs, there and back, while no client connects: the server is the run that wrote down
/// its id before, and has forgotten all the same. Once only that id was compared, and a new client
/// was let in beside the holder.
#[test]
fn with_grace_nobody_comes_in_after_two_fail_overs_that_lead_back_to_the_same_server() {
    let (first, book) = (Redis::start(), Book::new());
    let second = Redis::builder().replica_of(&first).start();
    first.wait_until_followed(1);
    let connect = |options: &str| {
        let url = format!("{}?grace=yes{options}", first.url());
        block_on(with_grace(&book).connect(&url)).unwrap()
    };
    let holder = connect("&new=yes");
    block_on(holder.mutex("before").unwrap().lock())
        .and_then(|guard| block_on(guard.release()))
        .unwrap();
    eventually("the replica knows the namespace", || {
        second.cmd(&["EXISTS", "tenure:{default}:terms"]) == Ok(Reply::Int(1))
    });
    // It hears no more, and cannot come back: its password is wrong.
    done(&second, &["CONFIG", "SET", "masterauth", "wrong"]);
    done(&first, &["CLIENT", "KILL", "TYPE", "REPLICA"]);
    eventually("the replica is out of touch", || {
        second.info("replication", "master_link_status").as_deref() == Some("down")
    });
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    fail_over(&first, &second);
    first.wait_until_synced();
    assert_eq!(done(&first, &["EXISTS", &key("a")]), Reply::Int(0), "the lock is forgotten");
    let before = micros(&first);
    fail_over(&second, &first);
    let other = connect("");
    let next = block_on(other.mutex("a").unwrap().timeout(LONG).lock()).unwrap();
    let closed_until = before + u64::try_from(MOST.as_micros()).unwrap();
    let fence = next.fence().unwrap().get();
    assert!(fence >= closed_until, "let in {} us early", closed_until - fence);
    assert!(guard.fence().is_err(), "the holder knew before the next one was let in");
    block_on(next.release()).unwrap();
    drop(guard);
    for tenure in [holder, other] {
        block_on(tenure.close());
    }
    book.assert_sound("there and back");
}

/// The first replica gives its primary a new replication id, with nothing lost: the server was
/// never a replica itself.
#[test]
fn with_grace_a_first_replica_closes_no_doors() {
    let (redis, book) = (Redis::start(), Book::new());
    let connect = |options: &str| {
        let url = format!("{}?grace=yes{options}", redis.url());
        block_on(book.builder(LONG).max_lease(LONG).connect(&url)).unwrap()
    };
    let first = connect("&new=yes");
    let id = || redis.info("replication", "master_replid").unwrap();
    let before = id();
    let _replica = Redis::builder().replica_of(&redis).start();
    redis.wait_until_followed(1);
    assert_ne!(id(), before, "what this test is about");
    let second = connect("");
    assert!(block_on(second.mutex("a").unwrap().try_lock()).unwrap().is_some());
    drop(first);
}

#[test]
fn with_grace_holders_keep_their_locks_through_a_restart_that_keeps_them() {
    let redis = Redis::builder().append_only(Fsync::Always).start();
    let book = Book::new();
    let url = format!("{}?grace=yes&new=yes", redis.url());
    let connect = || block_on(with_grace(&book).connect(&url)).unwrap();
    let (holder, other) = (connect(), connect());
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&other, "a");
    redis.restart();
    book.renewals(2);
    guard.check().unwrap();
    assert!(waiter.still_waits());
    block_on(guard.release()).unwrap();
    block_on(waiter.served().release()).unwrap();
    assert_eq!(book.losses(), 0);
    for tenure in [holder, other] {
        block_on(tenure.close());
    }
    book.assert_sound("grace, memory kept");
}

/// A snapshot that is loaded again has forgotten what came after it, and remembers that the
/// namespace was used: nothing but the run of the server tells.
#[test]
fn with_grace_nobody_comes_in_after_a_restart_that_lost_the_latest_writes() {
    let (redis, book) = (Redis::start(), Book::new());
    let connect = |options: &str| {
        let url = format!("{}?grace=yes{options}", redis.url());
        block_on(with_grace(&book).connect(&url)).unwrap()
    };
    let holder = connect("&new=yes");
    block_on(holder.mutex("before").unwrap().lock())
        .and_then(|guard| block_on(guard.release()))
        .unwrap();
    done(&redis, &["SAVE"]);
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let before = micros(&redis);
    redis.restart();
    assert_eq!(done(&redis, &["EXISTS", &key("a")]), Reply::Int(0), "the lock is forgotten");
    assert_eq!(done(&redis, &["EXISTS", "tenure:{default}:top"]), Reply::Int(1), "not the rest");
    let other = connect("");
    let next = block_on(other.mutex("a").unwrap().timeout(LONG).lock()).unwrap();
    let closed_until = before + u64::try_from(MOST.as_micros()).unwrap();
    let fence = next.fence().unwrap().get();
    assert!(fence >= closed_until, "let in {} us early", closed_until - fence);
    block_on(next.release()).unwrap();
    drop(guard);
    for tenure in [holder, other] {
        block_on(tenure.close());
    }
    book.assert_sound("an old snapshot");
}

/// Permits that are given back during a grace go to the waiter when the grace ends, though nothing
/// else happens in the slot then.
#[test]
fn with_grace_a_waiter_for_permits_is_served_at_its_end() {
    let redis = Redis::builder().append_only(Fsync::Always).start();
    let book = Book::new();
    let url = format!("{}?grace=yes&new=yes", redis.url());
    let connect = || block_on(with_grace(&book).connect(&url)).unwrap();
    let (holder, other) = (connect(), connect());
    let permits = |tenure: &Tenure| tenure.semaphore("a", 2).unwrap();
    let [stays, goes] = [(); 2].map(|()| block_on(permits(&holder).acquire()).unwrap());
    let queued = book.queued();
    let waiting = permits(&other).timeout(LONG);
    let waiter = std::thread::spawn(move || block_on(waiting.acquire()));
    eventually("it stands in line", || book.queued() > queued);
    redis.restart();
    block_on(goes.release()).unwrap();
    let served = waiter.join().unwrap().unwrap();
    stays.check().unwrap();
    for permit in [stays, served] {
        block_on(permit.release()).unwrap();
    }
}
