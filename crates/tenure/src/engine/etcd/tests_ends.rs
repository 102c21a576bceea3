//! Ends that cross what is under way, on the suite's clock and with requests that stop at a gate.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use servers::{Etcd, eventually};
use tokio::sync::Semaphore;

use super::{EtcdEngine, GatePass, Lessor};
use crate::block_on;
use crate::contract::{
    About, Claim, ClaimId, Engine, Lineage, Name, Namespace, OwnerId, Part, Parts, Patience, Query,
    Release, SessionId, SlotView, Verdict,
};
use crate::engine::Terms;
use crate::time::ManualClock;

const LEASE: Duration = Duration::from_secs(6);

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn claim(session: SessionId, text: &str, patience: Patience) -> Arc<Claim> {
    let parts = Parts::set([Part::write(name(text))]).unwrap();
    let about = About { host: "h".into(), pid: 1, place: None, label: None };
    let (id, lineage) = (ClaimId::new(), Lineage::root(OwnerId::new()));
    let (session, lease, lock_delay, replaces) = (Some(session), LEASE, Duration::ZERO, None);
    Arc::new(Claim { id, session, lineage, parts, lease, lock_delay, patience, replaces, about })
}

fn look(engine: &EtcdEngine, text: &str) -> Option<SlotView> {
    block_on(engine.inspect(&Query::Slot(name(text)))).unwrap().slots.into_iter().next()
}

/// A gate at which the first and the fourth request or reply stop, once it counts.
#[derive(Clone)]
struct Stops {
    passed: Arc<AtomicUsize>,
    first: Arc<Semaphore>,
    fourth: Arc<Semaphore>,
}

impl Stops {
    fn new() -> Self {
        let (first, fourth) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        Self { passed: Arc::default(), first, fourth }
    }

    fn gate(&self) -> GatePass {
        let stops = self.clone();
        Arc::new(move || {
            let stops = stops.clone();
            Box::pin(async move {
                let counts = stops.passed.load(Ordering::SeqCst) > 0;
                match if counts { stops.passed.fetch_add(1, Ordering::SeqCst) } else { 0 } {
                    1 => stops.first.acquire().await.unwrap().forget(),
                    4 => stops.fourth.acquire().await.unwrap().forget(),
                    _ => {}
                }
            })
        })
    }

    /// Counts from now on.
    fn count(&self) {
        self.passed.store(1, Ordering::SeqCst);
    }

    #[track_caller]
    fn reached(&self, what: &str, number: usize) {
        eventually(what, || self.passed.load(Ordering::SeqCst) > number);
    }
}

/// A waiter's time is up while the step that makes it hold is under way. Its end looks, sees the
/// ticket alone, the hold arrives, and then the ticket is deleted: the hold would stay for as long
/// as the session's other claims keep their lease alive.
#[test]
fn a_waiter_that_ends_while_it_comes_to_hold_leaves_no_hold() {
    let (clock, url, stops) = (ManualClock::new(), Etcd::shared().url(), Stops::new());
    let lessor = Lessor::new(Arc::new(clock.clone()));
    let terms = Terms {
        namespace: Namespace::try_from("ends-while-served").unwrap(),
        max_lease: LEASE * 10,
        clock: Arc::new(clock.clone()),
    };
    let other = EtcdEngine::on_stage(&url, &terms, &lessor, None).unwrap();
    let engine = EtcdEngine::on_stage(&url, &terms, &lessor, Some(stops.gate())).unwrap();
    let (ends, revoker) = (Arc::clone(&lessor), other.clone());
    std::thread::spawn(move || {
        while let Some(leases) = ends.wait() {
            revoker.revoke(&leases);
        }
    });
    let (here, there) = (SessionId::new(), SessionId::new());
    let held = claim(there, "a", Patience::Try);
    assert!(matches!(block_on(other.claim(&held)), Ok(Verdict::Granted(_))));
    let waiter = claim(here, "a", Patience::Wait);
    assert!(matches!(block_on(engine.claim(&waiter)), Ok(Verdict::Queued(_))));
    clock.advance(LEASE / 2);
    let sister = claim(here, "b", Patience::Try);
    assert!(matches!(block_on(engine.claim(&sister)), Ok(Verdict::Granted(_))));
    let quiet = || eventually("nothing is under way", || engine.counts().0 == 0);
    // The waiter's watch stands by then.
    quiet();

    stops.count();
    block_on(other.release(&[Release { claim: held.to_ref(), uncertain: false }])).unwrap();
    stops.reached("the step is sent that makes it hold", 1);
    clock.advance(LEASE / 2);
    stops.reached("its end has looked", 4);
    stops.first.add_permits(1);
    stops.reached("it holds", 5);
    stops.fourth.add_permits(1);
    quiet();

    assert_eq!(look(&other, "b").map_or(0, |slot| slot.holders.len()), 1, "the session lives");
    let left = look(&other, "a");
    let free = left.as_ref().is_none_or(|slot| slot.holders.is_empty() && slot.queue.is_empty());
    assert!(free, "{left:?}");
    lessor.close();
}
