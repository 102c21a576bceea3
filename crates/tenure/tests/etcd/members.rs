//! Three members, killed and stopped one after the other while sessions take turns: the auditor
//! finds no two holders, no fence that goes back, and no waiter that is forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use servers::{Direction, Etcd, eventually};
use tenure::block_on;
use tenure::{Error, Tenure, limits};

use crate::host::{Book, PATIENCE, keys, lease_of};

/// The kinds of locks that take turns, several of them on one name.
const KINDS: usize = 6;

/// Takes locks of one kind again and again until it is told to stop. What fails is tried again.
fn worker(
    book: &Book,
    tenure: Tenure,
    kind: usize,
    stop: &Arc<AtomicBool>,
    turns: &Arc<AtomicUsize>,
) -> JoinHandle<()> {
    let (book, stop, turns) = (book.clone(), Arc::clone(stop), Arc::clone(turns));
    std::thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            if block_on(turn(&book, &tenure, kind)).is_ok() {
                turns.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
}

/// Takes a lock of a kind, uses it and gives it back.
async fn turn(book: &Book, tenure: &Tenure, kind: usize) -> Result<(), Error> {
    let limit = Duration::from_secs(20);
    match kind {
        0 | 1 => {
            let guard = tenure.mutex("a")?.timeout(limit).lock().await?;
            book.used(&guard);
            guard.release().await
        }
        2 => {
            let guard = tenure.rwlock("b")?.timeout(limit).read().await?;
            book.used(&guard);
            guard.release().await
        }
        3 => {
            let guard = tenure.rwlock("b")?.timeout(limit).write().await?;
            book.used(&guard);
            guard.release().await
        }
        4 => {
            let permit = tenure.semaphore("c", 3)?.timeout(limit).acquire_many(2).await?;
            book.used(&permit);
            permit.release().await
        }
        _ => {
            let parts = [tenure.mutex("a")?.part(), tenure.mutex("d")?.part()];
            let guard = tenure.lock_set(parts)?.timeout(limit).lock().await?;
            book.used(&guard);
            guard.release().await
        }
    }
}

/// Waits until so many more turns were taken.
#[track_caller]
fn goes_on(turns: &AtomicUsize, more: usize) {
    let before = turns.load(Ordering::SeqCst);
    eventually("turns are taken", || turns.load(Ordering::SeqCst) >= before + more);
}

#[test]
fn members_that_are_killed_and_stopped_cost_time_and_nothing_else() {
    let etcd = Etcd::start_three();
    let book = Book::new(&etcd.url());
    let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = (0..KINDS)
        .map(|kind| {
            let session = book.session("members", Duration::from_secs(6));
            worker(&book, session, kind, &stop, &turns)
        })
        .collect();
    goes_on(&turns, 5);
    let leader = etcd.leader();
    etcd.kill(leader);
    goes_on(&turns, 5);
    etcd.restart(leader);
    etcd.wait_until_healthy();
    let leader = etcd.leader();
    etcd.stop(leader);
    goes_on(&turns, 5);
    etcd.cont(leader);
    goes_on(&turns, 5);
    for member in 0..3 {
        etcd.kill(member);
        goes_on(&turns, 3);
        etcd.restart(member);
        etcd.wait_until_healthy();
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.join().unwrap();
    }
    book.assert_sound(20);
}

#[test]
fn a_held_lock_survives_the_loss_of_any_member() {
    let etcd = Etcd::start_three();
    let book = Book::new(&etcd.url());
    let (one, two) =
        (book.session("held", Duration::from_secs(20)), book.session("held", PATIENCE));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    for member in 0..3 {
        etcd.kill(member);
        eventually("a call is answered", || {
            block_on(two.mutex("a").unwrap().try_lock()).is_ok_and(|none| none.is_none())
        });
        guard.check().unwrap();
        etcd.restart(member);
        etcd.wait_until_healthy();
    }
    block_on(guard.release()).unwrap();
}

#[test]
fn whoever_comes_while_a_member_is_away_is_let_in_by_the_others() {
    let etcd = Etcd::start_three();
    etcd.kill((etcd.leader() + 1) % 3);
    // Each begins with a member of its own choice.
    for _ in 0..8 {
        Book::new(&etcd.url()).session("come", PATIENCE);
    }
}

#[test]
fn without_a_majority_a_holder_knows_in_time() {
    let etcd = Etcd::start_three();
    let book = Book::new(&etcd.url());
    let tenure = book.session("minority", Duration::from_secs(6));
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    etcd.stop(0);
    etcd.stop(1);
    eventually("the loss is told", || guard.check().is_err());
    etcd.cont(0);
    etcd.cont(1);
    eventually("locks can be taken again", || {
        block_on(tenure.mutex("b").unwrap().try_lock()).is_ok_and(|guard| guard.is_some())
    });
}

/// etcd counts leases and elections on a clock that does not step; and what a holder believes rests
/// on its own clock alone.
#[test]
fn a_clock_that_jumps_on_a_member_costs_nobody_a_lock() {
    let etcd = Etcd::start_three();
    let book = Book::new(&etcd.url());
    let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let lease = Duration::from_secs(6);
    let guard = block_on(book.session("clock", lease).mutex("held").unwrap().lock()).unwrap();
    let session = || book.session("clock", lease);
    let workers: Vec<_> =
        (0..2).map(|kind| worker(&book, session(), kind, &stop, &turns)).collect();
    let day = Duration::from_secs(86_400);
    for (by, direction) in [(day, Direction::Forward), (2 * day, Direction::Back)] {
        for member in 0..3 {
            etcd.step_clock(member, by, direction);
            goes_on(&turns, 3);
        }
        guard.check().unwrap();
    }
    // Members whose clocks are a day apart elect a leader among them.
    let leader = etcd.leader();
    etcd.step_clock((leader + 1) % 3, day, Direction::Forward);
    etcd.kill(leader);
    goes_on(&turns, 3);
    guard.check().unwrap();
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.join().unwrap();
    }
    block_on(guard.release()).unwrap();
    book.assert_sound(10);
}

/// Revokes a lease as a leader does that was stuck and believes that the lease has ended.
fn revoke_late(etcd: &Etcd, lease: &str) {
    // It may have ended by itself: nothing has hung on it since the leader changed.
    let _ = etcd.ctl(&["lease", "revoke", lease]);
}

/// The leases on which the keys of a lock hang.
fn leases(etcd: &Etcd, namespace: &str, name: &str) -> Vec<String> {
    keys(etcd, namespace, name).iter().map(|key| lease_of(etcd, key)).collect()
}

#[test]
fn leases_from_before_a_change_of_leader_hold_nothing_that_counts() {
    let etcd = Etcd::start_three();
    let book = Book::new(&etcd.url());
    let lease = Duration::from_secs(20);
    let (one, two) = (book.session("moved", lease), book.session("moved", lease));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&two, "a");
    // As many keys as a claim can have: etcd takes 128 operations in a call.
    let part = |number: usize| one.mutex(format!("s{number}")).unwrap().part();
    let parts: Vec<_> = (0..limits::SET_NAMES).map(part).collect();
    let set = one.lock_set(parts).unwrap().lock_delay(Duration::from_secs(1));
    let set = block_on(set.lock()).unwrap();
    let last = format!("s{}", limits::SET_NAMES - 1);
    let old = leases(&etcd, "moved", "a");
    assert_eq!(old.len(), 2, "a hold and a ticket: {old:?}");
    let leader = etcd.leader();
    etcd.restart(leader);
    etcd.wait_until_healthy();
    eventually("hold and ticket hang on leases of the new leader", || {
        let new = [leases(&etcd, "moved", "a"), leases(&etcd, "moved", &last)].concat();
        new.len() == 4 && new.iter().all(|lease| !old.contains(lease))
    });
    for lease in &old {
        revoke_late(&etcd, lease);
    }
    assert_eq!(keys(&etcd, "moved", "a").len(), 2);
    book.used(&guard);
    guard.check().unwrap();
    set.check().unwrap();
    block_on(set.release()).unwrap();
    assert!(keys(&etcd, "moved", &last).is_empty());
    let fence = guard.fence().unwrap();
    block_on(guard.release()).unwrap();
    let next = waiter.served();
    assert!(next.fence().unwrap() > fence);
    book.used(&next);
    block_on(next.release()).unwrap();
    assert!(keys(&etcd, "moved", "a").is_empty());
    book.assert_sound(2);
}

/// etcd #15247: a leader that was stuck for longer than a lease believes, when it goes on, that all
/// leases have ended, and may revoke them although they were kept alive elsewhere. A session that
/// lost one is told, and no two sessions hold at once.
#[test]
fn a_leader_that_was_stuck_for_longer_than_a_lease_makes_no_second_holder() {
    let etcd = Etcd::start_three();
    let book = Book::new(&etcd.url());
    let lease = Duration::from_secs(4);
    let (one, two) = (book.session("stuck", lease), book.session("stuck", lease));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&two, "a");
    let leader = etcd.leader();
    etcd.stop(leader);
    std::thread::sleep(lease * 2);
    etcd.cont(leader);
    etcd.wait_until_healthy();
    book.used(&guard);
    // Kept or lost: then it is said, and the next one may have it by now.
    let held = guard.check().is_ok();
    drop(guard);
    let next = waiter.served();
    book.used(&next);
    println!("the lock was {}", if held { "kept" } else { "lost" });
    block_on(next.release()).unwrap();
    book.assert_sound(2);
}
