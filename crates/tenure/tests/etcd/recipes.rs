//! The bugs of etcd's own lock recipes, one test each: what went wrong there does not here.

use std::sync::Arc;
use std::time::Duration;

use servers::{Etcd, eventually};
use tenure::block_on;
use tenure::contract::{
    Claim, Engine, Part, Parts, Release, Released, Renewed, SessionId, Verdict, samples,
};
use tenure::engine::{self, Terms};
use tenure::time::SystemClock;
use tenure::{ErrorKind, Loss, Name, Namespace, Ownership};

use crate::host::{Book, LONG, PATIENCE, keys, lease_of, letter};

/// An engine without a session.
pub(crate) fn engine(namespace: &str) -> Arc<dyn Engine> {
    engine_at(&Etcd::shared().url(), namespace)
}

pub(crate) fn engine_at(url: &str, namespace: &str) -> Arc<dyn Engine> {
    let terms = Terms {
        namespace: Namespace::try_from(namespace).unwrap(),
        max_lease: Duration::from_secs(60),
        clock: Arc::new(SystemClock),
    };
    block_on(engine::connect(url, terms)).unwrap()
}

/// A claim of the mutex `a`.
pub(crate) fn claim(session: SessionId, lease: Duration) -> Arc<Claim> {
    let part = Part::write(Name::try_from("a").unwrap());
    Arc::new(Claim { session: Some(session), lease, ..samples::claim(part) })
}

fn release(engine: &dyn Engine, claim: &Claim) -> Released {
    let batch = [Release { claim: claim.to_ref(), uncertain: false }];
    block_on(engine.release(&batch)).unwrap()[0]
}

/// etcd #22082: `Unlock` deletes by a key that is the session's, so that a repeated one deletes
/// what the same session has taken since.
#[test]
fn a_repeated_release_does_not_delete_what_the_same_session_took_since() {
    let (engine, session) = (engine("repeated"), SessionId::new());
    let (first, second) = (claim(session, LONG), claim(session, LONG));
    assert!(matches!(block_on(engine.claim(&first)), Ok(Verdict::Granted(_))));
    assert_eq!(release(&*engine, &first), Released::Done);
    assert!(matches!(block_on(engine.claim(&second)), Ok(Verdict::Granted(_))));
    assert_eq!(release(&*engine, &first), Released::Gone, "a copy that was on its way");
    let renewed = block_on(engine.renew(&[second.to_ref()])).unwrap();
    assert!(matches!(renewed[0], Renewed::Held(_)), "{renewed:?}");
}

/// The key of etcd's mutex is the lease of its session: two mutexes of one session do not exclude
/// each other.
#[test]
fn two_locks_of_one_session_exclude_each_other() {
    let tenure = Book::new(&Etcd::shared().url()).session("one-session", LONG);
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    assert!(block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().is_none());
    drop(guard);
}

/// etcd #16221, #19597: a waiter whose key is gone waits on, and believes to hold when its turn
/// would have come.
#[test]
fn a_waiter_whose_ticket_is_gone_does_not_hold_by_it() {
    let (etcd, book) = (Etcd::shared(), Book::new(&Etcd::shared().url()));
    let (holder, one, two) = (
        book.session("ticket", LONG),
        book.session("ticket", Duration::from_secs(6)),
        book.session("ticket", LONG),
    );
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let robbed = book.waiter(&one, "a");
    let ticket = keys(etcd, "ticket", "a").into_iter().find(|key| letter(key) == Some('w'));
    let next = book.waiter(&two, "a");
    etcd.ctl(&["del", &ticket.unwrap()]).unwrap();
    block_on(guard.release()).unwrap();
    let guard = next.served();
    assert!(robbed.still_waits(), "its place was gone");
    block_on(guard.release()).unwrap();
    block_on(robbed.served().release()).unwrap();
    book.assert_sound(3);
}

/// etcd #16221: a writer that waits does not look whether its own key still stands, and writes
/// beside another.
#[test]
fn a_writer_whose_ticket_is_gone_does_not_write_beside_another() {
    let (etcd, book) = (Etcd::shared(), Book::new(&Etcd::shared().url()));
    let (reader, one, two) = (
        book.session("writer", LONG),
        book.session("writer", Duration::from_secs(6)),
        book.session("writer", LONG),
    );
    let read = block_on(reader.rwlock("a").unwrap().read()).unwrap();
    let lock = one.rwlock("a").unwrap();
    let robbed = std::thread::spawn(move || block_on(lock.write()).unwrap());
    eventually("it stands in line", || keys(etcd, "writer", "a").len() == 2);
    let ticket = keys(etcd, "writer", "a").into_iter().find(|key| letter(key) == Some('w'));
    // It stands there before the ticket is gone: the robbed one comes anew at its next renewal.
    let lock = two.rwlock("a").unwrap();
    let next = std::thread::spawn(move || block_on(lock.write()).unwrap());
    eventually("the next one stands in line", || keys(etcd, "writer", "a").len() == 3);
    etcd.ctl(&["del", &ticket.unwrap()]).unwrap();
    block_on(read.release()).unwrap();
    let write = next.join().unwrap();
    assert!(!robbed.is_finished(), "somebody writes already");
    book.used(&write);
    block_on(write.release()).unwrap();
    let write = robbed.join().unwrap();
    book.used(&write);
    block_on(write.release()).unwrap();
    book.assert_sound(3);
}

/// etcd #19597, #22387: a session that expires while it waits is told that it leads. The lease of
/// the waiter ends, and with it its ticket; it waits anew on another lease, behind the waiters that
/// came since.
#[test]
fn a_waiter_whose_lease_has_ended_is_not_told_that_it_holds() {
    let (etcd, book) = (Etcd::shared(), Book::new(&Etcd::shared().url()));
    let (holder, one, two) = (
        book.session("expired", LONG),
        book.session("expired", Duration::from_secs(6)),
        book.session("expired", LONG),
    );
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let expired = book.waiter(&one, "a");
    let ticket = keys(etcd, "expired", "a").into_iter().find(|key| letter(key) == Some('w'));
    let lease = lease_of(etcd, &ticket.unwrap());
    let next = book.waiter(&two, "a");
    etcd.ctl(&["lease", "revoke", &lease]).unwrap();
    block_on(guard.release()).unwrap();
    let guard = next.served();
    assert!(expired.still_waits(), "its session had ended");
    let fence = guard.fence().unwrap();
    block_on(guard.release()).unwrap();
    let guard = expired.served();
    assert!(guard.fence().unwrap() > fence);
    block_on(guard.release()).unwrap();
    book.assert_sound(3);
}

/// etcd #11457, #11788: a lock alone protects nothing from a holder that is late, and the example
/// of a check was wrong. Here the check is a comparison in the very transaction that writes.
#[test]
fn a_transaction_that_compares_the_ownership_writes_under_the_lock_or_not_at_all() {
    let (etcd, book) = (Etcd::shared(), Book::new(&Etcd::shared().url()));
    let (one, two) = (book.session("owned", LONG), book.session("owned", LONG));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let late = block_on(guard.ownership()).unwrap();
    // The fence is that revision above a base.
    assert!(u64::try_from(late.revision).unwrap() < guard.fence().unwrap().get());
    let write = |owner: &Ownership, value: &str| {
        let key = String::from_utf8(owner.key.clone()).unwrap().replace('\t', "\\t");
        let script =
            format!("create(\"{key}\") = \"{}\"\n\nput owned {value}\n\n\n", owner.revision);
        etcd.ctl_with(&["txn"], &script).unwrap().starts_with("SUCCESS")
    };
    let value = || etcd.ctl(&["get", "owned", "--print-value-only"]).unwrap();
    assert!(write(&late, "first"));
    let fence = guard.fence().unwrap();
    block_on(two.force_release("a", fence, "too slow")).unwrap();
    let next = block_on(two.mutex("a").unwrap().lock()).unwrap();
    assert!(!write(&late, "stale"), "it holds no more, whatever it believes");
    assert!(write(&block_on(next.ownership()).unwrap(), "second"));
    assert_eq!(value(), "second\n");
    let error = block_on(guard.ownership()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// etcd #9395, #13294, #17132: a new leader counts leases from the start. The lock of a session
/// that is gone is free later, but it is free.
#[test]
fn the_lock_of_a_dead_client_is_free_although_the_leader_changed_meanwhile() {
    let etcd = Etcd::start_three();
    let engine = engine_at(&etcd.url(), "dead");
    let held = claim(SessionId::new(), Duration::from_secs(3));
    assert!(matches!(block_on(engine.claim(&held)), Ok(Verdict::Granted(_))));
    drop(engine);
    let next = Book::new(&etcd.url()).session("dead", LONG);
    etcd.kill(etcd.leader());
    eventually("it is free", || {
        // The member that was killed may be the one that is asked first.
        block_on(next.mutex("a").unwrap().try_lock()).is_ok_and(|guard| guard.is_some())
    });
}

/// etcd #11456, #6127: a holder is not told that its lease has ended, and a winner does not
/// look whether its own still stands.
#[test]
fn a_holder_whose_lease_was_revoked_is_told_and_the_next_one_has_a_larger_fence() {
    let (etcd, book) = (Etcd::shared(), Book::new(&Etcd::shared().url()));
    let lease = Duration::from_secs(6);
    let (one, two) = (book.session("revoked", lease), book.session("revoked", LONG));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    let waiter = book.waiter(&two, "a");
    let hold = keys(etcd, "revoked", "a").into_iter().find(|key| letter(key) == Some('h')).unwrap();
    etcd.ctl(&["lease", "revoke", &lease_of(etcd, &hold)]).unwrap();
    let next = waiter.served();
    assert!(next.fence().unwrap() > fence);
    eventually("the loss is told", || guard.check().is_err());
    assert_eq!(guard.check().unwrap_err().loss(), Some(&Loss::Forgotten));
    // The same session gets a new lease and goes on.
    block_on(next.release()).unwrap();
    block_on(block_on(one.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
}

/// etcd #21128: an attempt that is given up leaves its key in line.
#[test]
fn an_attempt_that_is_given_up_leaves_nothing_in_line() {
    let (etcd, book) = (Etcd::shared(), Book::new(&Etcd::shared().url()));
    let (one, two) = (book.session("given-up", LONG), book.session("given-up", LONG));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let late = two.mutex("a").unwrap().timeout(Duration::from_millis(200));
    assert!(block_on(late.lock()).is_err());
    eventually("its ticket is gone", || keys(etcd, "given-up", "a").len() == 1);
    block_on(guard.release()).unwrap();
    eventually("nothing is left", || keys(etcd, "given-up", "a").is_empty());
}

/// etcd #17470: a lease is kept alive for others, and with it what no session looks after any more.
#[test]
fn a_claim_that_nobody_renews_ends_although_its_sister_is_renewed() {
    let (engine, session, lease) = (engine("sisters"), SessionId::new(), Duration::from_secs(3));
    let mut sister = (*claim(session, lease)).clone();
    sister.parts = Parts::one(Part::write(Name::try_from("b").unwrap()));
    let (forgotten, sister) = (claim(session, lease), Arc::new(sister));
    assert!(matches!(block_on(engine.claim(&forgotten)), Ok(Verdict::Granted(_))));
    assert!(matches!(block_on(engine.claim(&sister)), Ok(Verdict::Granted(_))));
    let etcd = Etcd::shared();
    eventually("the forgotten one is gone", || {
        let renewed = block_on(engine.renew(&[sister.to_ref()])).unwrap();
        assert!(matches!(renewed[0], Renewed::Held(_)), "{renewed:?}");
        keys(etcd, "sisters", "a").is_empty()
    });
    assert_eq!(keys(etcd, "sisters", "b").len(), 1);
}

/// A process that dies takes its engine with it: then etcd itself ends its lease.
#[test]
fn etcd_ends_the_lease_of_a_client_that_is_gone() {
    let (engine, session) = (engine("crash"), SessionId::new());
    let held = claim(session, Duration::from_secs(2));
    assert!(matches!(block_on(engine.claim(&held)), Ok(Verdict::Granted(_))));
    drop(engine);
    let book = Book::new(&Etcd::shared().url());
    let next = book.session("crash", LONG);
    let mutex = next.mutex("a").unwrap().timeout(PATIENCE);
    block_on(block_on(mutex.lock()).unwrap().release()).unwrap();
}
