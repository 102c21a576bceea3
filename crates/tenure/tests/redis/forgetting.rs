//! Restarts and losses of memory: what is kept stands; what is lost is noticed, and fences go on.

use std::time::Duration;

use servers::{Fsync, Redis};
use tenure::blocking::wait;
use tenure::{Builder, Loss, Tenure};

use crate::host::{Book, LONG, done, micros};

/// Renewed after two seconds, given up after more than five.
const LEASE: Duration = Duration::from_secs(6);
/// The longest lease where a grace is waited for.
const MOST: Duration = Duration::from_secs(2);

#[test]
fn locks_and_lines_stand_through_a_restart_that_keeps_them() {
    let (redis, book) = (Redis::builder().append_only(Fsync::Always).start(), Book::new());
    let (holder, other) = (book.session(&redis.url(), LONG), book.session(&redis.url(), LONG));
    let guard = wait(holder.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&other, "a");
    redis.restart();
    guard.check().unwrap();
    assert!(wait(other.mutex("a").unwrap().try_lock()).unwrap().is_none(), "it stands");
    let fence = guard.fence().unwrap();
    wait(guard.release()).unwrap();
    let next = waiter.served();
    assert!(next.fence().unwrap() > fence);
    redis.restart();
    wait(next.release()).unwrap();
    assert_eq!(book.losses(), 0);
    for tenure in [holder, other] {
        wait(tenure.close());
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
    let lock = |name: &str| wait(holder.mutex(name).unwrap().lock()).unwrap();
    let guards = names.map(lock);
    let permit = wait(holder.semaphore("d", 3).unwrap().acquire(2)).unwrap();
    let waiter = book.waiter(&other, "a");
    forget(&redis);
    // The renewal tells, not the end of the lease.
    assert_eq!(wait(permit.lost()), Loss::Forgotten, "{what}");
    for guard in &guards {
        assert_eq!(wait(guard.lost()), Loss::Forgotten, "{what}");
    }
    // Whoever stood in line stands there anew, and is served.
    let next = waiter.served();
    wait(next.release()).unwrap();
    for (name, old) in names.iter().zip(&guards) {
        assert!(old.fence().is_err());
        let new = wait(other.mutex(name).unwrap().lock()).unwrap();
        wait(new.release()).unwrap();
    }
    drop((guards, permit));
    for tenure in [holder, other] {
        wait(tenure.close());
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
    let tenure = wait(Tenure::connect(&redis.url())).unwrap();
    let mut last = 0;
    for forget in [flush, Redis::restart, flush, Redis::restart] {
        let guard = wait(tenure.mutex("a").unwrap().lock()).unwrap();
        let fence = guard.fence().unwrap().get();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        forget(&redis);
        // Told or not, it is over.
        drop(guard);
    }
    let guard = wait(tenure.mutex("a").unwrap().lock()).unwrap();
    assert!(guard.fence().unwrap().get() > last);
}

fn with_grace(book: &Book) -> Builder {
    book.builder(MOST).max_lease(MOST)
}

/// After a loss of memory nobody is let in until the last lease from before must have ended.
fn closes_the_doors(forget: Amnesia, options: &str, what: &str) {
    let (redis, book) = (Redis::start(), Book::new());
    let url = format!("{}{options}", redis.url());
    let connect = || wait(with_grace(&book).connect(&url)).unwrap();
    let (holder, other) = (connect(), connect());
    // A namespace that nobody declared new is closed at first as well.
    let guard = wait(holder.mutex("a").unwrap().lock()).unwrap();
    let before = micros(&redis);
    forget(&redis);
    let closed_until = before + u64::try_from(MOST.as_micros()).unwrap();
    // Somebody new must not come in either, nor wherever nobody was.
    let third = format!("{}?grace=yes", redis.url());
    let third = wait(with_grace(&book).connect(&third)).unwrap();
    for name in ["a", "b"] {
        let tried = wait(third.mutex(name).unwrap().try_lock()).unwrap();
        let closed = tried.as_ref().is_none_or(|guard| {
            // A slow machine may come only after the grace.
            guard.fence().is_ok_and(|fence| fence.get() >= closed_until)
        });
        assert!(closed, "{what}: {name} was let in during the grace: {tried:?}");
    }
    let waiter = book.waiter(&other, "a");
    // Fences are the store's clock: they tell when somebody was let in.
    let next = waiter.served();
    let fence = next.fence().unwrap().get();
    assert!(fence >= closed_until, "{what}: let in {} us early", closed_until - fence);
    assert!(wait(guard.lost()) != Loss::Released);
    wait(next.release()).unwrap();
    drop(guard);
    for tenure in [holder, other, third] {
        wait(tenure.close());
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
    let connect = |builder: Builder, url: &str| wait(builder.max_lease(LONG).connect(url)).unwrap();
    let unknown = connect(book.builder(LONG).namespace("one"), &url(""));
    assert!(wait(unknown.mutex("a").unwrap().try_lock()).unwrap().is_none());
    let new = connect(book.builder(LONG).namespace("two"), &url("&new=yes"));
    assert!(wait(new.mutex("a").unwrap().try_lock()).unwrap().is_some());
    // Somebody was here already, whatever the newcomer says.
    let late = connect(book.builder(LONG).namespace("one"), &url("&new=yes"));
    assert!(wait(late.mutex("a").unwrap().try_lock()).unwrap().is_none());
}

#[test]
fn with_grace_holders_keep_their_locks_through_a_restart_that_keeps_them() {
    let redis = Redis::builder().append_only(Fsync::Always).start();
    let book = Book::new();
    let url = format!("{}?grace=yes&new=yes", redis.url());
    let connect = || wait(with_grace(&book).connect(&url)).unwrap();
    let (holder, other) = (connect(), connect());
    let guard = wait(holder.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&other, "a");
    redis.restart();
    book.renewals(2);
    guard.check().unwrap();
    assert!(waiter.still_waits());
    wait(guard.release()).unwrap();
    wait(waiter.served().release()).unwrap();
    assert_eq!(book.losses(), 0);
    for tenure in [holder, other] {
        wait(tenure.close());
    }
    book.assert_sound("grace, memory kept");
}
