//! The auditor judges, and is judged: forged histories with one breach each, and real runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::conformance::audit::{History, HistoryEntry, Recorder, Rules, Verdicts, What, judge};
use tenure::conformance::{Fault, Link};
use tenure::contract::{ClaimId, Engine, OwnerId, Shape};
use tenure::engine::memory::MemoryEngine;
use tenure::time::{Alarm, Clock, ManualClock, SystemClock, Tick};
use tenure::{ErrorKind, Fence, Tenure, limits};

/// The weight of a mutex.
const FULL: u32 = limits::FULL_WEIGHT;

const STRICT: Rules =
    Rules { queue: true, wake_within: Duration::from_millis(100), lossy: false, at_rest: true };

/// A forged history.
#[derive(Default)]
struct Forge(Vec<HistoryEntry>);

impl Forge {
    fn sent(&mut self, at: u64, shape: Shape, weight: u32) -> ClaimId {
        self.sent_by(at, shape, weight, vec![OwnerId::new()])
    }

    fn sent_by(&mut self, at: u64, shape: Shape, weight: u32, lineage: Vec<OwnerId>) -> ClaimId {
        let id = ClaimId::new();
        let parts = vec![("a".parse().unwrap(), shape, weight)];
        let lease = Duration::from_secs(10);
        self.note(at, id, What::Sent { lineage, parts, lease, waits: true, replaces: false });
        id
    }

    fn note(&mut self, at: u64, claim: ClaimId, what: What) {
        self.0.push(HistoryEntry { at: millis(at), claim, what });
    }

    fn granted(&mut self, at: u64, claim: ClaimId, fence: u64, until: u64) {
        self.note(at, claim, What::Granted(vec![Fence::new(fence)], millis(until)));
    }

    fn judge(self) -> Vec<u8> {
        let history = History::new(self.0);
        // What is written can be read.
        assert_eq!(history.to_string().parse::<History>().unwrap(), history);
        judge(&history, &STRICT).violations.into_iter().map(|found| found.promise).collect()
    }
}

fn millis(at: u64) -> Tick {
    Tick::from_nanos(at * 1_000_000)
}

#[test]
fn a_clean_hand_over_is_no_breach() {
    let mut forge = Forge::default();
    let one = forge.sent(1_000, Shape::Lock, FULL);
    forge.granted(1_001, one, 7, 11_000);
    let two = forge.sent(1_002, Shape::Lock, FULL);
    forge.note(1_003, two, What::Queued);
    forge.note(1_010, one, What::Used(Fence::new(7)));
    forge.note(1_020, one, What::Released);
    forge.granted(1_021, two, 8, 11_000);
    forge.note(1_030, two, What::Released);
    assert_eq!(forge.judge(), [0_u8; 0]);
}

#[test]
fn two_believers_at_once_are_found() {
    let mut forge = Forge::default();
    let (one, two) = (forge.sent(1_000, Shape::Lock, FULL), forge.sent(1_001, Shape::Lock, FULL));
    forge.granted(1_002, one, 7, 11_000);
    forge.granted(1_003, two, 8, 11_000);
    forge.note(1_010, one, What::Released);
    forge.note(1_011, two, What::Released);
    assert_eq!(forge.judge(), [1]);
}

#[test]
fn a_belief_ends_with_safe_until_unless_it_was_renewed_in_time() {
    let mut forge = Forge::default();
    let one = forge.sent(1_000, Shape::Lock, FULL);
    forge.granted(1_001, one, 7, 2_000);
    let two = forge.sent(2_100, Shape::Lock, FULL);
    forge.granted(2_101, two, 8, 12_000);
    // Too late: the belief had ended.
    forge.note(2_102, one, What::Renewed(millis(12_000)));
    forge.note(2_103, one, What::Lost);
    forge.note(2_104, two, What::Released);
    assert_eq!(forge.judge(), [0_u8; 0]);
}

#[test]
fn readers_share_and_a_writer_among_them_is_found() {
    let mut forge = Forge::default();
    let readers: Vec<_> = (0..3).map(|n| forge.sent(1_000 + n, Shape::Lock, 1)).collect();
    for (reader, fence) in readers.iter().zip(1..) {
        forge.granted(1_010 + fence, *reader, fence, 11_000);
    }
    let writer = forge.sent(1_020, Shape::Lock, FULL);
    forge.granted(1_021, writer, 9, 11_000);
    for claim in readers.into_iter().chain([writer]) {
        forge.note(1_030, claim, What::Released);
    }
    assert_eq!(forge.judge(), [1]);
}

#[test]
fn a_grant_heard_of_too_late_counts_from_its_renewal() {
    for (used, breaches) in [(3_003, vec![]), (3_001, vec![4])] {
        let mut forge = Forge::default();
        let one = forge.sent(1_000, Shape::Lock, FULL);
        forge.granted(3_000, one, 7, 2_000);
        forge.note(3_002, one, What::Renewed(millis(4_000)));
        forge.note(used, one, What::Used(Fence::new(7)));
        forge.note(3_500, one, What::Released);
        assert_eq!(forge.judge(), breaches, "used at {used}");
    }
}

#[test]
fn permits_beyond_the_capacity_are_found_and_nested_owners_count_once() {
    let mut forge = Forge::default();
    for (at, fence) in [(1_000, 1), (1_001, 2), (1_002, 3)] {
        let claim = forge.sent(at, Shape::Semaphore(5), 2);
        forge.granted(at, claim, fence, 11_000);
        forge.note(1_100, claim, What::Released);
    }
    assert_eq!(forge.judge(), [1]);
    let mut forge = Forge::default();
    let (parent, child) = (OwnerId::new(), OwnerId::new());
    let outer = forge.sent_by(1_000, Shape::Lock, FULL, vec![parent]);
    forge.granted(1_001, outer, 7, 11_000);
    let inner = forge.sent_by(1_002, Shape::Lock, FULL, vec![child, parent]);
    forge.granted(1_003, inner, 7, 11_000);
    forge.note(1_010, inner, What::Released);
    forge.note(1_011, outer, What::Released);
    assert_eq!(forge.judge(), [0_u8; 0]);
}

#[test]
fn siblings_at_once_are_found() {
    let parent = OwnerId::new();
    let mut forge = Forge::default();
    for at in [1_000, 1_001] {
        let claim = forge.sent_by(at, Shape::Lock, FULL, vec![OwnerId::new(), parent]);
        forge.granted(at, claim, 7, 11_000);
        forge.note(1_100, claim, What::Released);
    }
    assert_eq!(forge.judge(), [1]);
}

#[test]
fn equal_and_falling_fences_are_found() {
    for (second, breaches) in [(7, vec![3]), (6, vec![3]), (8, vec![])] {
        let mut forge = Forge::default();
        let one = forge.sent(1_000, Shape::Lock, FULL);
        forge.granted(1_001, one, 7, 11_000);
        forge.note(1_002, one, What::Released);
        let two = forge.sent(1_010, Shape::Lock, FULL);
        forge.granted(1_011, two, second, 11_000);
        forge.note(1_012, two, What::Released);
        assert_eq!(forge.judge(), breaches, "second fence {second}");
    }
}

#[test]
fn whoever_overtakes_a_waiter_is_found() {
    let mut forge = Forge::default();
    let holder = forge.sent(1_000, Shape::Lock, FULL);
    forge.granted(1_001, holder, 1, 11_000);
    let first = forge.sent(1_002, Shape::Lock, FULL);
    forge.note(1_003, first, What::Queued);
    let second = forge.sent(1_004, Shape::Lock, FULL);
    forge.note(1_005, second, What::Queued);
    forge.note(1_010, holder, What::Released);
    forge.granted(1_011, second, 2, 11_000);
    forge.note(1_012, second, What::Released);
    forge.granted(1_013, first, 3, 11_000);
    forge.note(1_014, first, What::Released);
    assert_eq!(forge.judge(), [2]);
}

#[test]
fn a_lost_wake_up_is_found_also_among_several_waiters() {
    let mut forge = Forge::default();
    let holder = forge.sent(1_000, Shape::Lock, FULL);
    forge.granted(1_001, holder, 1, 11_000);
    let waiters = [forge.sent(1_002, Shape::Lock, FULL), forge.sent(1_003, Shape::Lock, FULL)];
    for waiter in waiters {
        forge.note(1_004, waiter, What::Queued);
    }
    forge.note(1_010, holder, What::Released);
    for (waiter, fence) in waiters.into_iter().zip(2..) {
        forge.granted(5_000 + fence * 10, waiter, fence, 12_000);
        forge.note(5_005 + fence * 10, waiter, What::Released);
    }
    assert_eq!(forge.judge(), [8, 8]);
}

#[test]
fn an_unanswered_claim_may_be_what_the_others_wait_for() {
    let mut forge = Forge::default();
    let _unknown = {
        let unknown = forge.sent(1_000, Shape::Lock, FULL);
        forge.note(1_001, unknown, What::Withdrawn);
        unknown
    };
    let waiter = forge.sent(1_002, Shape::Lock, FULL);
    forge.note(1_003, waiter, What::Queued);
    forge.granted(6_000, waiter, 1, 16_000);
    forge.note(6_001, waiter, What::Released);
    assert_eq!(forge.judge(), [0_u8; 0], "it may have held for its lease");
}

#[test]
fn use_without_right_and_leaks_are_found() {
    let mut forge = Forge::default();
    let one = forge.sent(1_000, Shape::Lock, FULL);
    forge.granted(1_001, one, 7, 2_000);
    forge.note(2_500, one, What::Used(Fence::new(7)));
    forge.note(2_600, one, What::Lost);
    assert_eq!(forge.judge(), [4]);
    let mut forge = Forge::default();
    let one = forge.sent(1_000, Shape::Lock, FULL);
    forge.granted(1_001, one, 7, 2_000);
    assert_eq!(forge.judge(), [7]);
}

#[test]
fn a_history_cut_off_by_a_kill_can_still_be_read() {
    let mut forge = Forge::default();
    let one = forge.sent(1_000, Shape::Lock, FULL);
    forge.note(1_001, one, What::Refused);
    let text = History::new(forge.0).to_string();
    let cut = &text[..text.len() - 3];
    assert_eq!(cut.parse::<History>().unwrap().entries().len(), 1);
    assert!("nonsense\n".parse::<History>().is_err());
}

/// The thread that reads this clock is stopped just before, for longer than any lease.
#[derive(Debug)]
struct StopsThread(ManualClock);

impl Clock for StopsThread {
    fn now(&self) -> Tick {
        self.0.jump(Duration::from_secs(60));
        self.0.now()
    }

    fn wall_micros(&self) -> u64 {
        self.0.wall_micros()
    }

    fn alarm(&self) -> Arc<dyn Alarm> {
        self.0.alarm()
    }
}

/// The recorder once checked the lock and read the clock afterwards. A thread that was stopped in
/// between, while its lock was lost, was then accused of a use without right.
#[test]
fn a_use_is_noted_at_an_instant_before_its_check() {
    let clock = ManualClock::new();
    let engine = MemoryEngine::with_clock(Arc::new(clock.clone()));
    let tenure = Tenure::builder()
        .clock(Arc::new(clock.clone()))
        .lease(Duration::from_secs(10))
        .open(Arc::new(engine))
        .unwrap();
    let guard = tenure.mutex("a").unwrap().blocking_lock().unwrap();
    assert!(Recorder::new(Arc::new(clock.clone())).used(&guard), "it is held");
    let recorder = Recorder::new(Arc::new(StopsThread(clock)));
    assert!(!recorder.used(&guard), "the check is made after the pause");
    assert!(recorder.history().entries().is_empty());
}

/// A grant waited for its caller until its safe-until had passed, and was renewed before its lease
/// ended. The auditor saw a renewal that came too late, and called each use of it a breach.
#[test]
fn a_grant_that_is_renewed_before_it_is_picked_up_may_be_used() {
    let (clock, lease) = (ManualClock::new(), Duration::from_secs(10));
    let recorder = Recorder::new(Arc::new(clock.clone()));
    let engine = MemoryEngine::with_clock(Arc::new(clock.clone()));
    let builder = Tenure::builder().clock(Arc::new(clock.clone())).lease(lease);
    let tenure =
        builder.witness(Arc::clone(&recorder) as _).open(Arc::new(engine.clone())).unwrap();
    let first = tenure.mutex("a").unwrap().blocking_lock().unwrap();
    let mut waiting = Box::pin(tenure.mutex("a").unwrap().lock());
    let mut poll = || {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        waiting.as_mut().poll(&mut cx)
    };
    assert!(poll().is_pending());
    first.blocking_release().unwrap();
    clock.settle();
    // Safe-until is two milliseconds before the end of the lease here.
    clock.jump(Duration::from_millis(9_999));
    clock.settle();
    let std::task::Poll::Ready(Ok(guard)) = poll() else { panic!("it was granted") };
    assert!(recorder.used(&guard));
    clock.jump(Duration::from_millis(1));
    guard.blocking_release().unwrap();
    let verdicts = judge(&recorder.history(), &STRICT);
    assert!(verdicts.violations.is_empty() && verdicts.uses == 1, "{verdicts}");
}

/// A real run on the memory engine: tasks of several sessions on a few names, some of them dropped
/// while they wait, with a link that may misbehave.
async fn real_run(seed: u64, lossy: bool) -> Verdicts {
    let engine = MemoryEngine::new();
    let recorder = Recorder::new(Arc::new(SystemClock));
    let mut tasks = Vec::new();
    let served = Arc::new(AtomicUsize::new(0));
    let mut sessions = Vec::new();
    for session in 0..3_u64 {
        let link = Link::new(Arc::new(engine.clone()) as Arc<dyn Engine>);
        if lossy {
            let troubles = Fault::CALLS.iter().cycle().skip(usize::try_from(seed).unwrap());
            for (nth, trouble) in (3..400).step_by(7).zip(troubles) {
                link.trouble_call(nth, *trouble);
            }
            for nth in (0..200).step_by(5) {
                link.trouble_push(nth, Fault::PUSHES[(nth / 5) % 3]);
            }
        }
        let builder = Tenure::builder()
            .witness(Arc::clone(&recorder) as _)
            .lease(Duration::from_millis(400))
            .call_limit(Duration::from_millis(50));
        let tenure = builder.open(link).unwrap();
        sessions.push(tenure.clone());
        for task in 0..6_u64 {
            let (tenure, recorder) = (tenure.clone(), Arc::clone(&recorder));
            let served = Arc::clone(&served);
            tasks.push(tokio::spawn(async move {
                for round in 0..30_u64 {
                    let dice = seed + session * 7 + task * 13 + round * 31;
                    let name = ["a", "b", "c"][usize::try_from(dice % 3).unwrap()];
                    work(&tenure, &recorder, name, dice, &served).await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    for tenure in &sessions {
        tenure.close().await;
    }
    assert!(served.load(Ordering::SeqCst) > 100, "the run did some work");
    let wake_within = if lossy { Duration::from_secs(3) } else { Duration::from_secs(1) };
    let rules = Rules { queue: true, wake_within, lossy, at_rest: true };
    judge(&recorder.history(), &rules)
}

async fn work(tenure: &Tenure, recorder: &Recorder, name: &str, dice: u64, served: &AtomicUsize) {
    let lock = tenure.rwlock(name).unwrap();
    let taking = async {
        if dice.is_multiple_of(4) {
            let guard = lock.read().await?;
            recorder.used(&guard);
            tokio::task::yield_now().await;
            guard.release().await
        } else {
            let guard = lock.write().await?;
            recorder.used(&guard);
            if dice.is_multiple_of(5) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(guard);
            Ok(())
        }
    };
    // Some callers lose patience in the middle.
    let patience = if dice.is_multiple_of(7) { 1 } else { 20_000 };
    match tokio::time::timeout(Duration::from_millis(patience), taking).await {
        Ok(Ok(())) => drop(served.fetch_add(1, Ordering::SeqCst)),
        Ok(Err(error)) => {
            let expected = [ErrorKind::Lost, ErrorKind::Unavailable];
            assert!(expected.contains(&error.kind()), "{error}");
        }
        Err(_) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_run_keeps_all_promises() {
    let verdicts = real_run(1, false).await;
    println!("{verdicts}");
    assert!(verdicts.violations.is_empty(), "{verdicts}");
    assert!(verdicts.waited > 50, "it was contended: {verdicts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_run_over_a_bad_link_keeps_all_promises() {
    let seeds = match std::env::var("TENURE_TEST_SCALE").as_deref() {
        Ok("nightly") => 40,
        _ => 2,
    };
    for seed in 0..seeds {
        let verdicts = real_run(seed, true).await;
        println!("seed {seed}: {verdicts}");
        assert!(verdicts.violations.is_empty(), "seed {seed}: {verdicts}");
    }
}
