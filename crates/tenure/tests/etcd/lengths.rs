//! Locks of several lease lengths beside each other in one session: each length has a lease of its
//! own in etcd, and what happens to one of them concerns no other.

use std::time::Duration;

use servers::{Etcd, eventually};
use tenure::block_on;
use tenure::conformance::audit::What;
use tenure::{Loss, MutexGuard, Tenure};

use crate::host::{Book, LONG, PATIENCE, keys, lease_of, letter};

/// Seven lengths, so long that a busy machine can keep them.
const LENGTHS: [Duration; 7] = [
    Duration::from_secs(6),
    Duration::from_secs(7),
    Duration::from_secs(8),
    Duration::from_secs(9),
    Duration::from_secs(12),
    Duration::from_secs(20),
    LONG,
];

fn name(at: usize) -> String {
    format!("l{at}")
}

/// Acquires a lock with one of the lengths.
fn acquire(tenure: &Tenure, at: usize, length: Duration) -> MutexGuard {
    block_on(tenure.mutex(name(at)).unwrap().lease(length).timeout(PATIENCE).lock()).unwrap()
}

/// The lease that the hold of a name hangs on.
fn lease(etcd: &Etcd, namespace: &str, at: usize) -> String {
    let all = keys(etcd, namespace, &name(at));
    let hold = all.iter().find(|key| letter(key) == Some('h')).expect("a hold");
    lease_of(etcd, hold)
}

#[test]
fn seven_lease_lengths_are_renewed_and_end_each_by_itself() {
    let (etcd, namespace) = (Etcd::shared(), "lengths");
    let book = Book::new(&etcd.url());
    let tenure = book.session(namespace, LONG);
    let mut guards: Vec<Option<MutexGuard>> = Vec::new();
    for (at, length) in LENGTHS.into_iter().enumerate() {
        guards.push(Some(acquire(&tenure, at, length)));
    }
    let mut leases: Vec<String> = (0..7).map(|at| lease(etcd, namespace, at)).collect();
    leases.sort_unstable();
    leases.dedup();
    assert_eq!(leases.len(), LENGTHS.len(), "one lease for each length");
    // A renewal keeps one length alive and no other: all of them outlive the shorter lengths.
    eventually("the shorter ones were renewed four times and more", || {
        book.count(|what| matches!(what, What::Renewed(_))) >= 20
    });
    for (at, guard) in guards.iter().flatten().enumerate() {
        assert!(guard.check().is_ok(), "{:?} still holds", LENGTHS[at]);
    }
    // A waiter of another length waits for each, and holds on its own lease.
    let waiters: Vec<_> = (0..7)
        .map(|at| {
            let length = LENGTHS[(at + 3) % 7];
            let mutex = tenure.mutex(name(at)).unwrap().lease(length);
            book.waiter_for(move || block_on(mutex.lock()))
        })
        .collect();
    for guard in &mut guards {
        block_on(guard.take().unwrap().release()).unwrap();
    }
    let guards: Vec<MutexGuard> = waiters.iter().map(|waiter| waiter.served()).collect();
    // One length loses its lease: its lock is lost, and no other.
    etcd.ctl(&["lease", "revoke", &lease(etcd, namespace, 0)]).unwrap();
    eventually("the loss is told", || guards[0].check().is_err());
    assert_eq!(guards[0].check().unwrap_err().loss(), Some(&Loss::Forgotten));
    for (at, guard) in guards.into_iter().enumerate().skip(1) {
        assert!(guard.check().is_ok(), "{:?} still holds", LENGTHS[(at + 3) % 7]);
        block_on(guard.release()).unwrap();
    }
    // The length that lost its lease gets a new one.
    block_on(acquire(&tenure, 0, LENGTHS[3]).release()).unwrap();
    eventually("nothing is left", || (0..7).all(|at| keys(etcd, namespace, &name(at)).is_empty()));
}
