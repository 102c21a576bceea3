//! Races between expiries, withdrawals and requests in flight, with a manual clock and requests
//! that stop at a gate; leases whose responses are late; watch streams that break.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use servers::{Etcd, Proxy, eventually};
use tokio::sync::Semaphore;

use crate::block_on;
use crate::contract::{
    About, Claim, ClaimId, Effect, Engine, Lineage, Name, Namespace, OwnerId, Part, Parts,
    Patience, Query, Release, Released, SessionId, Signal, SignalListener, SlotView, Verdict,
};
use crate::engine::Terms;
use crate::engine::etcd::in_flight::MAX_IN_FLIGHT;
use crate::engine::etcd::keys::{KeyKind, Tag};
use crate::engine::etcd::leases::{LeaseOwner, LeaseSpec};
use crate::engine::etcd::transaction::Transaction;
use crate::engine::etcd::{EtcdEngine, GatePass, Inner, Lessor};
use crate::time::{Alarm, Clock, ManualClock, Tick};

const LEASE: Duration = Duration::from_secs(6);

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn claim(session: SessionId, text: &str, patience: Patience) -> Arc<Claim> {
    claim_of(Lineage::root(OwnerId::new()), session, text, patience)
}

fn claim_of(lineage: Lineage, session: SessionId, text: &str, patience: Patience) -> Arc<Claim> {
    let parts = Parts::set([Part::write(name(text))]).unwrap();
    let about = About {
        host: "h".into(),
        pid: 1,
        place: None,
        label: None,
        conduct: crate::contract::Conduct::default(),
    };
    let id = ClaimId::new();
    let (session, lease, lock_delay, replaces) = (Some(session), LEASE, Duration::ZERO, None);
    Arc::new(Claim { id, session, lineage, parts, lease, lock_delay, patience, replaces, about })
}

fn look(engine: &EtcdEngine, text: &str) -> Option<SlotView> {
    block_on(engine.inspect(&Query::Slot(name(text)))).unwrap().slots.into_iter().next()
}

/// A gate that stops requests and replies by their number, once it counts; the first has number 1.
/// A transaction passes it twice: before it is sent, and when its reply has come.
#[derive(Clone)]
struct Stops {
    passed: Arc<AtomicUsize>,
    at: Arc<[(usize, Semaphore)]>,
}

impl Stops {
    fn new(at: &[usize]) -> Self {
        let at = at.iter().map(|number| (*number, Semaphore::new(0))).collect();
        Self { passed: Arc::default(), at }
    }

    /// Lets the request or reply with this number pass.
    fn admit(&self, number: usize) {
        let stop = self.at.iter().find(|(at, _)| *at == number);
        stop.expect("it stops there").1.add_permits(1);
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
}

/// Engines in a namespace of their own, with leases that a manual clock ends.
struct TestNamespace {
    clock: ManualClock,
    terms: Terms,
    lessor: Arc<Lessor>,
    other: EtcdEngine,
}

impl TestNamespace {
    fn new(namespace: &str) -> Self {
        let clock = ManualClock::new();
        let lessor = Lessor::new(Arc::new(clock.clone()));
        let terms = Terms {
            namespace: Namespace::try_from(namespace).unwrap(),
            max_lease: LEASE * 10,
            clock: Arc::new(clock.clone()),
        };
        let other = EtcdEngine::on_stage(&Etcd::shared().url(), &terms, &lessor, None).unwrap();
        let (ends, revoker) = (Arc::clone(&lessor), other.clone());
        std::thread::spawn(move || {
            while let Some(leases) = ends.wait() {
                revoker.revoke(&leases);
            }
        });
        Self { clock, terms, lessor, other }
    }

    /// One more engine, whose transactions pass a gate.
    fn engine(&self, gate: Option<GatePass>) -> EtcdEngine {
        EtcdEngine::on_stage(&Etcd::shared().url(), &self.terms, &self.lessor, gate).unwrap()
    }

    /// One more engine, behind a proxy.
    fn behind(&self, proxy: &Proxy) -> EtcdEngine {
        let url = format!("etcd://127.0.0.1:{}", proxy.port());
        EtcdEngine::on_stage(&url, &self.terms, &self.lessor, None).unwrap()
    }

    #[track_caller]
    fn take(&self, name: &str) -> Arc<Claim> {
        let held = claim(SessionId::new(), name, Patience::Try);
        assert!(matches!(block_on(self.other.claim(&held)), Ok(Verdict::Granted(_))));
        held
    }

    fn give_back(&self, held: &Claim) {
        let release = Release { claim: held.to_ref(), uncertain: false };
        block_on(self.other.release(&[release])).unwrap();
    }

    /// Returns when all events of earlier writes have arrived at an engine.
    fn told(&self, engine: &EtcdEngine) {
        let number = self.other.light().unwrap();
        eventually("the beacon is seen", || engine.has_seen(number));
        quiet(engine);
    }

    /// How many claims hold and wait.
    fn seen(&self, name: &str) -> (usize, usize) {
        look(&self.other, name).map_or((0, 0), |slot| (slot.holders.len(), slot.queue.len()))
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        self.lessor.close();
    }
}

#[track_caller]
fn quiet(engine: &EtcdEngine) {
    eventually("nothing is under way", || engine.counts().0 == 0);
}

/// A waiter expires while the transaction that grants it is in flight. Its expiry reads the slot,
/// finds the ticket alone, the hold arrives, and then the ticket is deleted: the hold would stay
/// for as long as the session's other claims keep their lease alive.
#[test]
fn a_waiter_that_ends_while_it_comes_to_hold_leaves_no_hold() {
    let (scene, stops) = (TestNamespace::new("ends-while-served"), Stops::new(&[1, 4]));
    let engine = scene.engine(Some(stops.gate()));
    let (here, held) = (SessionId::new(), scene.take("a"));
    let waiter = claim(here, "a", Patience::Wait);
    assert!(matches!(block_on(engine.claim(&waiter)), Ok(Verdict::Queued(_))));
    scene.clock.advance(LEASE / 2);
    let sister = claim(here, "b", Patience::Try);
    assert!(matches!(block_on(engine.claim(&sister)), Ok(Verdict::Granted(_))));
    // The waiter's watch is created by then.
    quiet(&engine);

    stops.count();
    scene.give_back(&held);
    stops.reached("the grant of the waiter is about to be sent, and was stopped", 1);
    scene.clock.advance(LEASE / 2);
    stops.reached("its expiry has read the slot", 4);
    stops.admit(1);
    stops.reached("it holds", 5);
    stops.admit(4);
    quiet(&engine);

    assert_eq!(scene.seen("b"), (1, 0), "the session lives");
    assert_eq!(scene.seen("a"), (0, 0));
}

/// The transaction that grants a waiter arrives after its ticket was removed, as that of a process
/// that was stopped for a while may. The lease of the session lives, and the next waiter, in
/// another process, is slow to check its turn: so nothing but the comparison of the ticket keeps
/// the transaction from writing a hold that its process does not know.
#[track_caller]
fn a_late_step_makes_no_hold(namespace: &str, lineage: Lineage, sent: usize) {
    let (scene, late, slow) =
        (TestNamespace::new(namespace), Stops::new(&[sent]), Stops::new(&[1]));
    let (engine, third) = (scene.engine(Some(late.gate())), scene.engine(Some(slow.gate())));
    let (here, held) = (SessionId::new(), scene.take("a"));
    let waiter = claim_of(lineage, here, "a", Patience::Wait);
    assert!(matches!(block_on(engine.claim(&waiter)), Ok(Verdict::Queued(_))));
    scene.clock.advance(LEASE / 2);
    let sister = claim(here, "b", Patience::Try);
    assert!(matches!(block_on(engine.claim(&sister)), Ok(Verdict::Granted(_))));
    let next = claim(SessionId::new(), "a", Patience::Wait);
    assert!(matches!(block_on(third.claim(&next)), Ok(Verdict::Queued(_))));
    quiet(&engine);
    quiet(&third);

    late.count();
    slow.count();
    scene.give_back(&held);
    late.reached("the grant of the waiter is about to be sent", sent);
    assert_eq!(scene.seen("a"), (0, 2));
    scene.clock.advance(LEASE / 2);
    slow.reached("its ticket is removed, and the next waiter has the event", 1);
    assert_eq!(scene.seen("a"), (0, 1));
    late.admit(sent);
    quiet(&engine);
    assert_eq!(scene.seen("a"), (0, 1));
    slow.admit(1);
    quiet(&third);

    assert_eq!(scene.seen("b"), (1, 0), "the session lives");
    let seen = look(&scene.other, "a").expect("it is held");
    assert_eq!(seen.holders[0].claim, next.id);
}

#[test]
fn the_quick_step_of_a_waiter_whose_ticket_was_ended_makes_no_hold() {
    a_late_step_makes_no_hold("late-quick-step", Lineage::root(OwnerId::new()), 1);
}

#[test]
fn the_step_of_a_nested_waiter_whose_ticket_was_ended_makes_no_hold() {
    // It reads the slot first, a request and a reply, because its parent might hold.
    let nested = Lineage::nested(OwnerId::new(), &[OwnerId::new()]).unwrap();
    a_late_step_makes_no_hold("late-step", nested, 3);
}

/// A clock that counts how often it is read. It can be ahead of its alarms: then something is due
/// that no alarm has reported yet.
#[derive(Debug)]
struct Ahead {
    clock: ManualClock,
    by: AtomicU64,
    reads: AtomicUsize,
}

impl Ahead {
    /// Replaces the scene's clock for all engines that are opened later.
    fn of(scene: &mut TestNamespace) -> Arc<Self> {
        let (clock, by, reads) = (scene.clock.clone(), AtomicU64::new(0), AtomicUsize::new(0));
        let ahead = Arc::new(Self { clock, by, reads });
        scene.terms.clock = Arc::clone(&ahead) as _;
        ahead
    }
}

impl Clock for Ahead {
    fn now(&self) -> Tick {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.clock.now() + Duration::from_nanos(self.by.load(Ordering::SeqCst))
    }

    fn wall_micros(&self) -> u64 {
        self.clock.wall_micros()
    }

    fn alarm(&self) -> Arc<dyn Alarm> {
        self.clock.alarm()
    }
}

#[test]
fn a_waiter_whose_time_is_up_is_not_served_though_its_end_was_not_noticed_yet() {
    let mut scene = TestNamespace::new("over-and-served");
    let ahead = Ahead::of(&mut scene);
    let (engine, held) = (scene.engine(None), scene.take("a"));
    let waiter = claim(SessionId::new(), "a", Patience::Wait);
    assert!(matches!(block_on(engine.claim(&waiter)), Ok(Verdict::Queued(_))));
    quiet(&engine);
    ahead.by.store(u64::try_from(LEASE.as_nanos()).unwrap(), Ordering::SeqCst);
    scene.give_back(&held);
    scene.told(&engine);
    assert_eq!(scene.seen("a"), (0, 1), "the ticket is left to its expiry");
}

/// Safe-until counts from when a claim is sent, so a lease must count from when its grant or
/// keep-alive was sent: a claim may use it without another keep-alive.
#[test]
fn a_lease_counts_from_the_send_of_what_was_answered() {
    let mut scene = TestNamespace::new("late-answers");
    let ahead = Ahead::of(&mut scene);
    let proxy = Proxy::to(("127.0.0.1", Etcd::shared().port(0)));
    let engine = scene.behind(&proxy);
    let term = LeaseSpec {
        owner: LeaseOwner::Session(SessionId::new()),
        length: LEASE,
        extra: Duration::ZERO,
    };
    let late = Duration::from_secs(2);
    let answered_late = |what: &str| {
        quiet(&engine);
        proxy.hold_replies(true);
        let (inner, since) = (Arc::clone(&engine.inner), scene.clock.now());
        let before = ahead.reads.load(Ordering::SeqCst);
        let handle = engine.inner.tasks.handle();
        let answer = handle.spawn(async move { inner.leases.ensure(term, since).await });
        eventually(what, || ahead.reads.load(Ordering::SeqCst) > before);
        scene.clock.jump(late);
        proxy.heal_delivering();
        block_on(answer).unwrap().unwrap()
    };
    let granted = answered_late("the time is read before the lease is requested");
    assert_eq!(granted.remaining(scene.clock.now()) + late, LEASE);
    let kept = answered_late("the time is read before the keep-alive is sent");
    assert_eq!(kept.id, granted.id);
    assert_eq!(kept.remaining(scene.clock.now()) + late, LEASE);
}

#[derive(Default)]
struct SignalLog(Mutex<Vec<Signal>>);

impl SignalListener for SignalLog {
    fn on_signal(&self, signal: Signal) {
        self.0.lock().unwrap().push(signal);
    }
}

/// Events may be lost while the stream is broken: sessions get `Resync`, and all watches are
/// created again.
#[test]
fn after_a_broken_watch_sessions_ask_again_and_waiters_are_served() {
    let scene = TestNamespace::new("broken-watch");
    let proxy = Proxy::to(("127.0.0.1", Etcd::shared().port(0)));
    let (engine, held) = (scene.behind(&proxy), scene.take("a"));
    let (session, signals) = (SessionId::new(), Arc::new(SignalLog::default()));
    engine.listen(session, Arc::downgrade(&signals) as Weak<dyn SignalListener>);
    let waiter = claim(session, "a", Patience::Wait);
    assert!(matches!(block_on(engine.claim(&waiter)), Ok(Verdict::Queued(_))));
    quiet(&engine);
    proxy.cut();
    let resynced = || signals.0.lock().unwrap().iter().any(|one| matches!(one, Signal::Resync));
    eventually("the session gets a resync", resynced);
    quiet(&engine);
    scene.give_back(&held);
    let granted =
        |one: &Signal| matches!(one, Signal::Granted { claim, .. } if *claim == waiter.id);
    eventually("the waiter is served", || signals.0.lock().unwrap().iter().any(granted));
}

/// With a server of its own: in a shared one other tests make revisions as well.
#[test]
fn a_change_one_revision_after_the_look_is_noticed() {
    let etcd = Etcd::start();
    let clock = Arc::new(ManualClock::new());
    let terms = Terms { namespace: Namespace::default(), max_lease: LEASE, clock: clock.clone() };
    let lessor = Lessor::new(clock);
    let engine = EtcdEngine::on_stage(&etcd.url(), &terms, &lessor, None).unwrap();
    let Inner { keys, connection, tasks, .. } = &*engine.inner;
    let run = |txn: Transaction| {
        let answer = connection.txn(txn.compares, txn.writes, Vec::new());
        tasks.handle().block_on(answer).unwrap()
    };
    let written = |key: Vec<u8>| {
        let mut txn = Transaction::default();
        txn.put(key, Vec::new(), 0);
        run(txn).revision
    };
    let ticket = keys.claim(&name("a"), KeyKind::Wait, Tag::FIRST);
    let looked = written(ticket.clone());
    let is_quiet = |since: u64| {
        let mut txn = Transaction::default();
        txn.if_quiet(keys.slot(&name("a")), since);
        txn.put(keys.beacon(), Vec::new(), 0);
        run(txn).succeeded
    };
    assert!(is_quiet(looked), "what was read is not a later write");
    assert!(!is_quiet(looked - 1), "it was written one revision later");
    written(ticket);
    assert!(!is_quiet(looked));
}

/// Claims wait for a permit while 64 others are in flight. The session of one of them forgot its
/// withdrawal after a lease, and the claim was sent 30 s after its caller had left: it took the
/// lock, as hundreds of others did before and after it.
#[test]
fn a_claim_whose_turn_comes_after_its_lease_is_not_sent() {
    let numbers: Vec<usize> = (1..=MAX_IN_FLIGHT).collect();
    let (scene, stops) = (TestNamespace::new("late-turn"), Stops::new(&numbers));
    let (engine, session) = (scene.engine(Some(stops.gate())), SessionId::new());
    // The lease of the session exists from here on.
    let first = claim(session, "first", Patience::Try);
    assert!(matches!(block_on(engine.claim(&first)), Ok(Verdict::Granted(_))));
    let [late, gone] = ["late", "gone"].map(|name| claim(session, name, Patience::Wait));
    stops.count();
    std::thread::scope(|scope| {
        for number in &numbers {
            let (engine, one) = (&engine, claim(session, &format!("n{number}"), Patience::Try));
            scope.spawn(move || block_on(engine.claim(&one)));
        }
        stops.reached("all permits are taken", MAX_IN_FLIGHT);
        let [waits, leaves] = [&late, &gone].map(|claim| {
            let engine = &engine;
            scope.spawn(move || block_on(engine.claim(claim)))
        });
        eventually("two more wait for a permit", || engine.counts().0 == MAX_IN_FLIGHT + 2);
        let release = Release { claim: gone.to_ref(), uncertain: true };
        block_on(engine.release(&[release])).unwrap();
        // It does not wait for a permit any more.
        assert_eq!(leaves.join().unwrap().unwrap_err().effect(), Effect::None);
        scene.clock.advance(LEASE);
        for number in &numbers {
            stops.admit(*number);
        }
        let refused = waits.join().unwrap().unwrap_err();
        assert!(refused.effect() == Effect::None && refused.is_transient(), "{refused}");
    });
    assert_eq!((scene.seen("late"), scene.seen("gone")), ((0, 0), (0, 0)));
}

/// The reply to a claim comes while its withdrawal is in flight, and begins a wait that no other
/// call would end: its watches would never be removed.
#[test]
fn a_withdrawal_ends_the_wait_that_begins_while_it_is_under_way() {
    let (scene, stops) = (TestNamespace::new("wait-begins"), Stops::new(&[4, 8]));
    let engine = scene.engine(Some(stops.gate()));
    let _held = scene.take("a");
    let waiter = claim(SessionId::new(), "a", Patience::Wait);
    stops.count();
    std::thread::scope(|scope| {
        let claimed = scope.spawn(|| block_on(engine.claim(&waiter)));
        stops.reached("its ticket is written", 4);
        let release = Release { claim: waiter.to_ref(), uncertain: true };
        let released = scope.spawn(|| block_on(engine.release(&[release])));
        stops.reached("its ticket is deleted", 8);
        stops.admit(4);
        assert!(matches!(claimed.join().unwrap(), Ok(Verdict::Queued(_))));
        assert!(engine.inner.waiters.contains(waiter.id), "its wait has begun");
        stops.admit(8);
        assert_eq!(released.join().unwrap().unwrap(), [Released::Done]);
    });
    assert!(!engine.inner.waiters.contains(waiter.id), "its wait has ended");
}
