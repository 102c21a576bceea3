//! Ends that cross what is under way, on the suite's clock and with requests that stop at a gate.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use servers::{Etcd, eventually};
use tokio::sync::Semaphore;

use super::crowd::AT_ONCE;
use super::{EtcdEngine, GatePass, Lessor};
use crate::block_on;
use crate::contract::{
    About, Claim, ClaimId, Effect, Engine, Lineage, Name, Namespace, OwnerId, Part, Parts,
    Patience, Query, Release, Released, SessionId, SlotView, Verdict,
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

/// A gate that stops requests and replies by their number, once it counts. A transaction passes it
/// twice: before it is sent, and when its reply has come.
#[derive(Clone)]
struct Stops {
    passed: Arc<AtomicUsize>,
    at: Arc<[(usize, Semaphore)]>,
}

impl Stops {
    /// Stops the requests and replies with these numbers; the first has number 1.
    fn at(numbers: impl IntoIterator<Item = usize>) -> Self {
        let at = numbers.into_iter().map(|number| (number, Semaphore::new(0))).collect();
        Self { passed: Arc::default(), at }
    }

    fn gate(&self) -> GatePass {
        let stops = self.clone();
        Arc::new(move || {
            let stops = stops.clone();
            Box::pin(async move {
                let counts = stops.passed.load(Ordering::SeqCst) > 0;
                let number = if counts { stops.passed.fetch_add(1, Ordering::SeqCst) } else { 0 };
                if let Some((_, stop)) = stops.at.iter().find(|(at, _)| *at == number) {
                    stop.acquire().await.unwrap().forget();
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

    /// Lets go what has stopped, or will stop, at a number.
    fn go_on(&self, number: usize) {
        let stop = self.at.iter().find(|(at, _)| *at == number);
        stop.expect("a stop").1.add_permits(1);
    }
}

/// What engines of a test share.
fn terms(namespace: &str, clock: &ManualClock) -> Terms {
    Terms {
        namespace: Namespace::try_from(namespace).unwrap(),
        max_lease: LEASE * 10,
        clock: Arc::new(clock.clone()),
    }
}

/// Revokes leases when their time is up on the suite's clock. The clock waits for this at each
/// step.
fn revoke_ended(lessor: &Arc<Lessor>, revoker: &EtcdEngine) {
    let (ends, revoker) = (Arc::clone(lessor), revoker.clone());
    std::thread::spawn(move || {
        while let Some(leases) = ends.wait() {
            revoker.revoke(&leases);
        }
    });
}

/// A waiter's time is up while the step that makes it hold is under way. Its end looks, sees the
/// ticket alone, the hold arrives, and then the ticket is deleted: the hold would stay for as long
/// as the session's other claims keep their lease alive.
#[test]
fn a_waiter_that_ends_while_it_comes_to_hold_leaves_no_hold() {
    let (clock, url, stops) = (ManualClock::new(), Etcd::shared().url(), Stops::at([1, 4]));
    let lessor = Lessor::new(Arc::new(clock.clone()));
    let terms = terms("ends-while-served", &clock);
    let other = EtcdEngine::on_stage(&url, &terms, &lessor, None).unwrap();
    let engine = EtcdEngine::on_stage(&url, &terms, &lessor, Some(stops.gate())).unwrap();
    revoke_ended(&lessor, &other);
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
    stops.go_on(1);
    stops.reached("it holds", 5);
    stops.go_on(4);
    quiet();

    assert_eq!(look(&other, "b").map_or(0, |slot| slot.holders.len()), 1, "the session lives");
    let left = look(&other, "a");
    let free = left.as_ref().is_none_or(|slot| slot.holders.is_empty() && slot.line.is_empty());
    assert!(free, "{left:?}");
    lessor.close();
}

/// Claims wait for a turn while 64 others are being made. The session of one of them forgets its
/// withdrawal after a lease, and the claim was sent 30 s after its caller had left: it took the
/// lock, as hundreds of others did before and after it.
#[test]
fn a_claim_whose_turn_comes_after_its_lease_is_not_sent() {
    let (clock, url) = (ManualClock::new(), Etcd::shared().url());
    let stops = Stops::at(1..=AT_ONCE);
    let lessor = Lessor::new(Arc::new(clock.clone()));
    let terms = terms("late-turn", &clock);
    let engine = EtcdEngine::on_stage(&url, &terms, &lessor, Some(stops.gate())).unwrap();
    revoke_ended(&lessor, &EtcdEngine::on_stage(&url, &terms, &lessor, None).unwrap());
    let session = SessionId::new();
    // The lease of the session is there.
    let first = claim(session, "first", Patience::Try);
    assert!(matches!(block_on(engine.claim(&first)), Ok(Verdict::Granted(_))));
    let [late, gone] = ["late", "gone"].map(|name| claim(session, name, Patience::Wait));
    stops.count();
    std::thread::scope(|scope| {
        for number in 0..AT_ONCE {
            let (engine, one) = (&engine, claim(session, &format!("n{number}"), Patience::Try));
            scope.spawn(move || block_on(engine.claim(&one)));
        }
        stops.reached("all turns are taken", AT_ONCE);
        let [waits, leaves] = [&late, &gone].map(|claim| {
            let engine = &engine;
            scope.spawn(move || block_on(engine.claim(claim)))
        });
        eventually("two more wait for a turn", || engine.counts().0 == AT_ONCE + 2);
        let release = Release { claim: gone.to_ref(), uncertain: true };
        block_on(engine.release(&[release])).unwrap();
        // It does not wait for its turn any more.
        assert_eq!(leaves.join().unwrap().unwrap_err().effect(), Effect::None);
        clock.advance(LEASE);
        (1..=AT_ONCE).for_each(|number| stops.go_on(number));
        let refused = waits.join().unwrap().unwrap_err();
        assert!(refused.effect() == Effect::None && refused.is_transient(), "{refused}");
    });
    assert!(look(&engine, "late").is_none() && look(&engine, "gone").is_none());
    lessor.close();
}

/// The answer to a claim comes while its withdrawal is under way, and begins a wait that no other
/// call would end: what the wait watched would be watched for as long as it stands.
#[test]
fn a_withdrawal_ends_the_wait_that_begins_while_it_is_under_way() {
    let (clock, url, stops) = (ManualClock::new(), Etcd::shared().url(), Stops::at([4, 8]));
    let lessor = Lessor::new(Arc::new(clock.clone()));
    let terms = terms("wait-begins", &clock);
    let other = EtcdEngine::on_stage(&url, &terms, &lessor, None).unwrap();
    let engine = EtcdEngine::on_stage(&url, &terms, &lessor, Some(stops.gate())).unwrap();
    let held = claim(SessionId::new(), "a", Patience::Try);
    assert!(matches!(block_on(other.claim(&held)), Ok(Verdict::Granted(_))));
    let waiter = claim(SessionId::new(), "a", Patience::Wait);
    stops.count();
    std::thread::scope(|scope| {
        let claimed = scope.spawn(|| block_on(engine.claim(&waiter)));
        stops.reached("its ticket is written", 4);
        let release = Release { claim: waiter.to_ref(), uncertain: true };
        let released = scope.spawn(|| block_on(engine.release(&[release])));
        stops.reached("its ticket is deleted", 8);
        stops.go_on(4);
        assert!(matches!(claimed.join().unwrap(), Ok(Verdict::Queued(_))));
        assert!(engine.inner.waits.contains(waiter.id), "its wait has begun");
        stops.go_on(8);
        assert_eq!(released.join().unwrap().unwrap(), [Released::Done]);
    });
    assert!(!engine.inner.waits.contains(waiter.id), "its wait has ended");
    lessor.close();
}
