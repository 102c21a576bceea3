//! The plays: what callers do, and what must hold however the threads are scheduled.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::contract::{About, Lineage, OwnerId, Part, Parts};
use crate::session::{AcquireRequest, Core, Outcome, Session, Settings, Share, Wait, block_on};
use crate::store::Store;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread;
use crate::time::{Clock, ManualClock};

const LEASE: Duration = Duration::from_secs(3);

fn world() -> (ManualClock, Arc<Store>) {
    let clock = ManualClock::new();
    let store = Store::new(&clock);
    (clock, store)
}

fn session(clock: &ManualClock, store: &Arc<Store>) -> Session {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    Session::open(Arc::clone(store) as _, clock, Settings::default()).expect("a session opens")
}

fn ask(core: &Core) -> AcquireRequest {
    AcquireRequest {
        parts: Parts::one(Part::write("a".parse().expect("a name"))),
        lineage: Lineage::root(OwnerId::new()),
        scoped: false,
        lease: LEASE,
        wait: Wait::Unlimited,
        max_hold: None,
        lock_delay: Duration::ZERO,
        replaces: None,
        about: About {
            host: Arc::clone(core.host()),
            pid: 1,
            place: None,
            label: None,
            conduct: crate::contract::Conduct::default(),
        },
    }
}

fn lock(session: &Session) -> Option<Share> {
    let core = Arc::clone(session.core());
    let ask = ask(&core);
    match block_on(core.acquire(ask)) {
        Ok(Outcome::Held(lease)) => Some(lease),
        _ => None,
    }
}

/// Everything was given back, and nobody holds or waits.
fn assert_empty(clock: &ManualClock, store: &Store) {
    clock.settle();
    assert_eq!(store.census(), (0, 0));
}

/// Three callers of two sessions take turns; some release, some drop.
pub fn callers_that_take_turns() {
    let (clock, store) = world();
    let inside = Arc::new(AtomicBool::new(false));
    let sessions = [session(&clock, &store), session(&clock, &store)];
    let callers: Vec<_> = (0..3)
        .map(|caller| {
            let (session, inside) = (sessions[caller % 2].clone(), Arc::clone(&inside));
            thread::spawn(move || {
                let lease = lock(&session).expect("served");
                assert!(!inside.swap(true, Ordering::SeqCst), "two inside at once");
                assert!(lease.hold().check().is_ok());
                inside.store(false, Ordering::SeqCst);
                if caller == 0 {
                    block_on(lease.release()).expect("released");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.join().expect("a caller is served");
    }
    assert_empty(&clock, &store);
}

/// One caller gives up at any moment while another holds and a third waits.
pub fn callers_that_give_up() {
    let (clock, store) = world();
    let session = session(&clock, &store);
    let first = lock(&session).expect("free");
    let quitter = {
        let session = session.clone();
        thread::spawn(move || {
            let core = Arc::clone(session.core());
            let ask = ask(&core);
            let mut waiting = pin!(core.acquire(ask));
            for _ in 0..2 {
                let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                if polled.is_ready() {
                    break;
                }
                thread::yield_now();
            }
        })
    };
    let waiter = {
        let session = session.clone();
        thread::spawn(move || drop(lock(&session).expect("served in the end")))
    };
    drop(first);
    quitter.join().expect("gives up");
    waiter.join().expect("is served");
    assert_empty(&clock, &store);
}

/// The session is closed while callers hold, wait and come.
pub fn a_close_among_callers() {
    let (clock, store) = world();
    let session = session(&clock, &store);
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let session = session.clone();
            thread::spawn(move || {
                if let Some(lease) = lock(&session) {
                    let _ = block_on(lease.release());
                }
            })
        })
        .collect();
    block_on(session.close());
    for caller in callers {
        caller.join().expect("ends with the session");
    }
    assert_empty(&clock, &store);
}

/// The last handle and the last guard go at the same time: the keeper gives back before it ends.
pub fn a_guard_that_outlives_its_session() {
    let (clock, store) = world();
    let session = session(&clock, &store);
    let lease = lock(&session).expect("free");
    let other = thread::spawn(move || drop(session));
    drop(lease);
    other.join().expect("dropped");
    assert_empty(&clock, &store);
}

/// Time passes and leases are renewed while callers come and go: nobody loses what it holds.
pub fn renewals_among_releases() {
    let (clock, store) = world();
    let session = session(&clock, &store);
    let lease = lock(&session).expect("free");
    let time = {
        let clock = clock.clone();
        thread::spawn(move || clock.advance(LEASE * 2))
    };
    let waiter = {
        let session = session.clone();
        thread::spawn(move || drop(lock(&session).expect("served")))
    };
    assert!(lease.hold().check().is_ok(), "renewed in time");
    block_on(lease.release()).expect("still held when it was released");
    waiter.join().expect("served");
    time.join().expect("passed");
    assert_empty(&clock, &store);
}
