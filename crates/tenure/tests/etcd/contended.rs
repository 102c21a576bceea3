//! The index of slots that have a queue: it follows queues that begin and end by every verb, and is
//! answered without a look at other slots.

use std::time::Duration;

use servers::{Etcd, eventually};
use tenure::contract::{Page, Query};
use tenure::{Pattern, Tenure, block_on};

use crate::host::{Book, LONG, Waiter, lease_of};

/// The names of the contended slots that match, page by page.
fn contended(tenure: &Tenure, pattern: &str, limit: usize) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let pattern = Pattern::new(pattern);
        let page = Page { pattern, after, limit, contended: true, ..Page::default() };
        let seen = block_on(tenure.inspect(&Query::Page(page))).unwrap();
        assert!(seen.slots.len() <= limit && seen.slots.iter().all(|slot| !slot.queue.is_empty()));
        names.extend(seen.slots.iter().map(|slot| slot.name.to_string()));
        after = seen.more_after;
        if after.is_none() {
            return names;
        }
    }
}

/// Every mark in the namespace.
fn marks(etcd: &Etcd, namespace: &str) -> usize {
    let root = format!("tenure\t{namespace}\tq\t");
    let listed = etcd.ctl(&["get", "--prefix", "--keys-only", &root]).unwrap();
    listed.lines().filter(|line| !line.is_empty()).count()
}

#[test]
fn the_index_follows_queues_that_begin_and_end_by_every_verb() {
    let etcd = Etcd::shared();
    let book = Book::new(&etcd.url());
    let (one, two) = (book.session("follows", LONG), book.session("follows", LONG));
    let all = || contended(&one, "*", 10);
    let held = one.mutex("a").unwrap().blocking_lock().unwrap();
    assert!(all().is_empty() && marks(etcd, "follows") == 0, "a lock that is held has no queue");
    // Claim, and release: a waiter that was served keeps no mark.
    let waiter = book.waiter(&two, "a");
    assert_eq!(all(), ["a"]);
    held.blocking_release().unwrap();
    let held = waiter.served();
    assert!(all().is_empty(), "it holds");
    held.blocking_release().unwrap();
    assert_eq!(marks(etcd, "follows"), 0);
    // Withdrawal.
    let held = one.mutex("a").unwrap().blocking_lock().unwrap();
    let limit = Duration::from_millis(300);
    assert!(two.mutex("a").unwrap().timeout(limit).blocking_lock().is_err());
    eventually("the withdrawn ticket and its mark are gone", || marks(etcd, "follows") == 0);
    // Eviction of the holder, with two in the queue: one of them is left.
    let (first, second) = (book.waiter(&two, "a"), book.waiter(&one, "a"));
    assert_eq!(all(), ["a"]);
    let fence = held.fence().unwrap();
    one.blocking_force_release("a", fence, "test").unwrap();
    let next = first.served();
    assert_eq!(all(), ["a"]);
    next.blocking_release().unwrap();
    second.served().blocking_release().unwrap();
    assert!(all().is_empty() && marks(etcd, "follows") == 0);
}

#[test]
fn the_index_follows_sets_and_claims_that_replace_others() {
    let etcd = Etcd::shared();
    let book = Book::new(&etcd.url());
    let (one, two) = (book.session("sets", LONG), book.session("sets", LONG));
    let parts = || ["a", "b", "c"].map(|name| two.mutex(name).unwrap().part());
    let held = one.mutex("b").unwrap().blocking_lock().unwrap();
    let set = two.lock_set(parts()).unwrap();
    let waiter = book.waiter_for(move || block_on(set.lock()));
    // Some parts are reserved, and the set waits for the rest.
    assert!(contended(&one, "*", 1).contains(&"b".to_owned()));
    held.blocking_release().unwrap();
    let all = waiter.served();
    assert!(contended(&one, "*", 10).is_empty());
    all.blocking_release().unwrap();
    eventually("no mark is left", || marks(etcd, "sets") == 0);
    // An upgrade waits for the other reader.
    let lock = one.rwlock("r").unwrap();
    let reader = two.rwlock("r").unwrap().blocking_read().unwrap();
    let upgrading = lock.blocking_read().unwrap();
    let waiter =
        book.waiter_for(move || block_on(upgrading.upgrade()).map_err(|failed| failed.error));
    assert_eq!(contended(&two, "r", 10), ["r"]);
    reader.blocking_release().unwrap();
    waiter.served().blocking_release().unwrap();
    eventually("no mark is left", || marks(etcd, "sets") == 0);
}

#[test]
fn the_index_ends_with_the_lease_of_a_waiter_that_died() {
    let etcd = Etcd::start();
    let book = Book::new(&etcd.url());
    let one = book.session("died", LONG);
    let two = book.session("died", Duration::from_secs(1));
    let _held = one.mutex("a").unwrap().blocking_lock().unwrap();
    let waiter: Waiter = book.waiter(&two, "a");
    assert_eq!(contended(&one, "*", 10), ["a"]);
    let ticket = "tenure\tdied\ts\ta\tw";
    let listed = etcd.ctl(&["get", "--prefix", "--keys-only", ticket]).unwrap();
    let key = listed.lines().next().unwrap().to_owned();
    let lease = lease_of(&etcd, &key);
    etcd.ctl(&["lease", "revoke", &lease]).unwrap();
    assert!(contended(&one, "*", 10).is_empty() && marks(&etcd, "died") == 0);
    drop(waiter);
}

#[test]
fn pages_of_contended_slots_leave_out_the_others_and_come_in_order() {
    let etcd = Etcd::shared();
    let book = Book::new(&etcd.url());
    let (one, two) = (book.session("pages", LONG), book.session("pages", LONG));
    let names: Vec<String> = (0..30).map(|at| format!("k{at:02}")).collect();
    let held: Vec<_> =
        names.iter().map(|name| one.mutex(&**name).unwrap().blocking_lock().unwrap()).collect();
    let wanted: Vec<&String> = names.iter().step_by(3).collect();
    let waiters: Vec<_> = wanted.iter().map(|name| book.waiter(&two, name)).collect();
    let _more: Vec<_> = wanted[..2].iter().map(|name| book.waiter(&one, name)).collect();
    for limit in [1, 3, 4, 100] {
        assert_eq!(
            contended(&one, "*", limit),
            names.iter().step_by(3).cloned().collect::<Vec<_>>()
        );
    }
    assert_eq!(contended(&one, "k1*", 2), ["k12", "k15", "k18"]);
    assert_eq!(contended(&one, "?2?", 5), ["k21", "k24", "k27"]);
    drop((held, waiters));
}
