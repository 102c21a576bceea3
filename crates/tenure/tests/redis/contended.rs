//! The index of contended slots, which follows every beginning and end of a queue, and what a look
//! costs the server.

use std::time::Duration;

use servers::{Redis, eventually};
use tenure::block_on;
use tenure::{Name, Page, Pattern, Query, Snapshot, Tenure};

use crate::host::{Book, LONG, done, key};

const INDEX: &str = "tenure:{default}:contended";

fn indexed(redis: &Redis) -> Vec<String> {
    let names = done(redis, &["ZRANGE", INDEX, "0", "-1"]);
    names.list().iter().map(|name| name.text().unwrap().to_owned()).collect()
}

fn page(tenure: &Tenure, page: Page) -> Snapshot {
    tenure.blocking_inspect(&Query::Page(page)).unwrap()
}

/// The names of contended slots, page by page.
fn contended(tenure: &Tenure, pattern: &str, limit: usize) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let pattern = Pattern::new(pattern);
        let seen = page(tenure, Page { pattern, after, limit, contended: true, ..Page::default() });
        assert!(seen.slots.iter().all(|slot| !slot.queue.is_empty()));
        names.extend(seen.slots.iter().map(|slot| slot.name.to_string()));
        after = seen.more_after;
        if after.is_none() {
            return names;
        }
    }
}

#[test]
fn the_index_follows_queues_that_begin_and_end() {
    let (redis, book) = (Redis::start(), Book::new());
    let (one, two) = (book.session(&redis.url(), LONG), book.session(&redis.url(), LONG));
    let odd = "a/b {é}";
    // A lock without a waiter is not in it, and costs it nothing.
    let guard = block_on(one.mutex(odd).unwrap().lock()).unwrap();
    assert_eq!((redis.commands("zadd"), indexed(&redis).len()), (0, 0));
    let waiter = book.waiter(&two, odd);
    assert_eq!(indexed(&redis), [odd]);
    assert_eq!(contended(&one, "*", 9), [odd]);
    block_on(guard.release()).unwrap();
    let next = waiter.served();
    assert!(indexed(&redis).is_empty(), "handed over, and nobody waits any more");
    // Two waiters: it stays until the last one is served.
    let (first, second) = (book.waiter(&one, odd), book.waiter(&one, odd));
    block_on(two.force_release(odd, next.fence().unwrap(), "a test")).unwrap();
    let guard = first.served();
    assert_eq!(indexed(&redis), [odd], "after an eviction one waits still");
    block_on(guard.release()).unwrap();
    block_on(second.served().release()).unwrap();
    assert!(indexed(&redis).is_empty());
    drop(next);
}

#[test]
fn a_wait_that_is_given_up_and_a_set_are_followed_too() {
    let (redis, book) = (Redis::start(), Book::new());
    let (one, two) = (book.session(&redis.url(), LONG), book.session(&redis.url(), LONG));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let patience = Duration::from_millis(20);
    assert!(block_on(two.mutex("a").unwrap().timeout(patience).lock()).is_err());
    assert!(book.queued() > 0, "it has waited");
    eventually("the withdrawal ends the queue", || indexed(&redis).is_empty());
    // A set waits for the one part that is held.
    let parts = ["a", "b"].map(|name| two.mutex(name).unwrap().part());
    let set = two.lock_set(parts).unwrap();
    let waiting = std::thread::spawn(move || set.blocking_lock());
    eventually("the set waits", || indexed(&redis) == ["a"]);
    block_on(guard.release()).unwrap();
    let held = waiting.join().unwrap().unwrap();
    assert!(indexed(&redis).is_empty());
    held.blocking_release().unwrap();
}

#[test]
fn waiters_that_die_leave_the_index_when_it_is_looked_at() {
    let (redis, book) = (Redis::start(), Book::new());
    let url = redis.url();
    let holder = book.session(&url, LONG);
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let dying = book.session(&url, LONG);
    let _waiter = book.waiter(&dying, "a");
    assert_eq!(contended(&holder, "*", 9), ["a"]);
    // As if its lease had ended: all that the store knows of it is when it expires.
    let ticket = done(&redis, &["ZRANGE", &(key("a") + ":y"), "0", "0"]);
    let ticket = ticket.list()[0].text().unwrap().to_owned();
    done(&redis, &["ZADD", &(key("a") + ":y"), "1", &ticket]);
    done(&redis, &["HSET", &(key("a") + ":s"), "calm", "0"]);
    assert!(contended(&holder, "*", 9).is_empty());
    assert!(indexed(&redis).is_empty());
    // A slot whose keys have expired altogether.
    done(&redis, &["ZADD", INDEX, "0", "long gone"]);
    assert!(contended(&holder, "*", 9).is_empty());
    assert!(indexed(&redis).is_empty());
    block_on(guard.release()).unwrap();
}

#[test]
fn names_of_queues_that_died_do_not_pile_up() {
    let (redis, book) = (Redis::start(), Book::new());
    let (one, two) = (book.session(&redis.url(), LONG), book.session(&redis.url(), LONG));
    for at in 0..200 {
        done(&redis, &["ZADD", INDEX, "0", &format!("gone {at}")]);
    }
    let mutex = |tenure: &Tenure| tenure.mutex("a").unwrap();
    for _ in 0..300 {
        let guard = block_on(mutex(&one).lock()).unwrap();
        let before = book.queued();
        let waiting = mutex(&two);
        let waiter = std::thread::spawn(move || waiting.blocking_lock());
        eventually("it waits", || book.queued() > before);
        block_on(guard.release()).unwrap();
        waiter.join().unwrap().unwrap().blocking_release().unwrap();
        if indexed(&redis).is_empty() {
            return;
        }
    }
    let left = indexed(&redis).len();
    assert!(left < 100, "{left} of 200 are left");
}

#[test]
fn an_index_that_something_else_stands_in_costs_no_lock() {
    let (redis, book) = (Redis::start(), Book::new());
    done(&redis, &["SET", INDEX, "not an index"]);
    let (one, two) = (book.session(&redis.url(), LONG), book.session(&redis.url(), LONG));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&two, "a");
    block_on(guard.release()).unwrap();
    block_on(waiter.served().release()).unwrap();
    let page = Page { contended: true, ..Page::default() };
    assert!(one.blocking_inspect(&Query::Page(page)).is_err());
}

#[test]
fn a_look_scans_once_and_a_look_at_contended_slots_never() {
    let (redis, book) = (Redis::start(), Book::new());
    let (one, two) = (book.session(&redis.url(), LONG), book.session(&redis.url(), LONG));
    let names: Vec<String> = (0..70).map(|at| format!("lock:{at:02}")).collect();
    let lock = |name: &String| block_on(one.mutex(&**name).unwrap().lock()).unwrap();
    let guards: Vec<_> = names.iter().map(lock).collect();
    let waiters: Vec<_> = names.iter().step_by(10).map(|name| book.waiter(&two, name)).collect();
    let scans = || redis.commands("scan");
    let before = scans();
    let (mut seen, mut after): (Vec<String>, Option<Name>) = (Vec::new(), None);
    loop {
        let snapshot = page(&one, Page { after, limit: 10, ..Page::default() });
        seen.extend(snapshot.slots.iter().map(|slot| slot.name.to_string()));
        after = snapshot.more_after;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, names);
    assert_eq!(scans() - before, 1, "seven pages, one scan of a small database");
    let expected: Vec<String> = names.iter().step_by(10).cloned().collect();
    assert_eq!(contended(&one, "lock:*", 2), expected);
    assert_eq!(contended(&one, "lock:?0", 9), expected);
    assert_eq!(contended(&one, "lock:3*", 9), ["lock:30"]);
    assert!(contended(&one, "other*", 9).is_empty());
    assert_eq!(scans() - before, 1);
    drop((guards, waiters));
}
