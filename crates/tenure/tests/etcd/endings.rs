//! Waiting and work that end as they should: hand-over between sessions, readers, sets, evictions,
//! work that stops with its lock.

use std::time::Duration;

use servers::{Etcd, eventually};
use tenure::block_on;
use tenure::{ErrorKind, Evicted, Loss};

use crate::host::{Book, LONG, keys};

#[test]
fn a_released_lock_goes_to_the_next_waiter_without_a_renewal() {
    let book = Book::new(&Etcd::shared().url());
    // A renewal would come after 20 s; the queue is served by events.
    let sessions: Vec<_> = (0..4).map(|_| book.session("line", LONG)).collect();
    let mut guard = block_on(sessions[0].mutex("a").unwrap().lock()).unwrap();
    let waiters: Vec<_> = sessions[1..].iter().map(|one| book.waiter(one, "a")).collect();
    for waiter in waiters {
        let fence = guard.fence().unwrap();
        block_on(guard.release()).unwrap();
        guard = waiter.served();
        assert!(guard.fence().unwrap() > fence);
    }
    block_on(guard.release()).unwrap();
    book.assert_sound(4);
}

#[test]
fn readers_come_in_together_behind_a_writer() {
    let book = Book::new(&Etcd::shared().url());
    let sessions: Vec<_> = (0..4).map(|_| book.session("readers", LONG)).collect();
    let writer = block_on(sessions[0].rwlock("a").unwrap().write()).unwrap();
    let readers: Vec<_> = sessions[1..]
        .iter()
        .map(|session| {
            let lock = session.rwlock("a").unwrap();
            std::thread::spawn(move || block_on(lock.read()).unwrap())
        })
        .collect();
    eventually("all stand in line", || {
        keys(Etcd::shared(), "readers", "a").len() == sessions.len()
    });
    block_on(writer.release()).unwrap();
    let guards: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    assert!(guards.iter().all(|guard| guard.check().is_ok()), "all read at once");
}

#[test]
fn a_forced_release_tells_its_reason_at_once_and_ends_the_work() {
    let book = Book::new(&Etcd::shared().url());
    let (one, two) = (book.session("evicted", LONG), book.session("evicted", LONG));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    let held = guard.status();
    let work = std::thread::spawn(move || block_on(held.run(std::future::pending::<()>())));
    let ended = block_on(two.force_release("a", fence, "by hand")).unwrap();
    assert!(matches!(ended, Evicted::Done(_)));
    let error = work.join().unwrap().unwrap_err();
    assert_eq!(error.loss(), Some(&Loss::Evicted { reason: "by hand".into() }));
    assert!(block_on(two.mutex("a").unwrap().try_lock()).unwrap().is_some());
}

#[test]
fn a_set_is_taken_in_one_step_or_not_at_all() {
    let book = Book::new(&Etcd::shared().url());
    let (one, two) = (book.session("sets", LONG), book.session("sets", LONG));
    let part = |session: &tenure::Tenure, name: &str| session.mutex(name).unwrap().part();
    let guard = block_on(one.mutex("b").unwrap().lock()).unwrap();
    let both = || two.lock_set([part(&two, "a"), part(&two, "b")]).unwrap();
    assert!(block_on(both().try_lock()).unwrap().is_none());
    assert!(keys(Etcd::shared(), "sets", "a").is_empty(), "a try takes all or nothing");
    block_on(guard.release()).unwrap();
    let set = block_on(both().lock()).unwrap();
    assert_eq!(set.fence_of("a").unwrap(), set.fence_of("b").unwrap(), "one revision for both");
    block_on(set.release()).unwrap();
}

#[test]
fn a_key_that_is_not_ours_is_named_and_costs_nobody_else_a_lock() {
    let (etcd, book) = (Etcd::shared(), Book::new(&Etcd::shared().url()));
    let tenure = book.session("spoilt", LONG);
    etcd.ctl(&["put", "tenure\tspoilt\ts\ta\th0", "nonsense"]).unwrap();
    let error = block_on(tenure.mutex("a").unwrap().lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("spoilt"), "it names the key: {error}");
    assert!(block_on(tenure.mutex("b").unwrap().try_lock()).unwrap().is_some());
}

#[test]
fn a_lock_delay_outlives_its_holder_and_not_its_release() {
    let book = Book::new(&Etcd::shared().url());
    let (one, two) = (book.session("delay", LONG), book.session("delay", LONG));
    let delayed = || one.mutex("a").unwrap().lock_delay(Duration::from_secs(60));
    block_on(block_on(delayed().lock()).unwrap().release()).unwrap();
    assert!(block_on(two.mutex("a").unwrap().try_lock()).unwrap().is_some(), "it was given back");
    let etcd = Etcd::shared();
    eventually("it is free again", || keys(etcd, "delay", "a").is_empty());
    let guard = block_on(delayed().lock()).unwrap();
    let hold = keys(etcd, "delay", "a").into_iter().find(|key| key.contains("\th")).unwrap();
    etcd.ctl(&["lease", "revoke", &crate::host::lease_of(etcd, &hold)]).unwrap();
    assert!(block_on(two.mutex("a").unwrap().try_lock()).unwrap().is_none(), "it stays closed");
    drop(guard);
}
