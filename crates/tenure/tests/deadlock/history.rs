//! The history of a store as its clients see it, and the judge of verdicts.
//!
//! A [`Recorder`] stands between a session and its engine and notes each call with the instants
//! before it was sent and after its reply. From these follows what was *surely* so, however the
//! calls were interleaved in the store: a claim whose release was answered before an instant did
//! not hold at that instant; a claim that was granted before it did not wait. A verdict that
//! refused a claim rests on facts; if one of them had surely ended before the verdict was sent, or
//! an owner surely had another flow of control from before it was sent until after its reply, the
//! victim was refused wrongly. What is not sure is not held against the store.
//!
//! So that much happens between a look and its verdict, the recorder delays some verdicts.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tenure::contract::{
    Cells, Claim, ClaimAt, ClaimId, ClaimRef, DeadlockCase, Deadlocks, Diagnostics, Engine,
    Evicted, Eviction, FenceFloor, Immediate, InlineWait, Jobs, LocalSessions, OwnershipProof,
    Partitions, Pending, Promises, Query, Rates, Release, Released, Renewed, Replication,
    SessionId, Signal, SignalListener, Snapshot, Verdict, VictimVerdict, concurrency_marker,
};

/// What is known of one claim. Each instant is the earliest by which it was surely so.
#[derive(Debug)]
struct ClaimRecord {
    claim: Arc<Claim>,
    queued: Option<Instant>,
    granted: Option<Instant>,
    ended: Option<Instant>,
    /// When its release or withdrawal was first sent: before that the client ended nothing.
    leaving: Option<Instant>,
    /// The reply to the last claim or renewal.
    answered: Instant,
}

/// A verdict that the store answered.
#[derive(Debug)]
struct VerdictRecord {
    case: DeadlockCase,
    sent: Instant,
    answered: Instant,
    refused: bool,
}

/// Everything that the recorders of one store noted.
#[derive(Debug, Default)]
pub(crate) struct History {
    claims: Mutex<HashMap<ClaimId, ClaimRecord>>,
    verdicts: Mutex<Vec<VerdictRecord>>,
    /// How long after the end of its lease a claim may still stand in the store.
    linger: Duration,
    dice: AtomicU32,
}

/// How many verdicts refused a claim, and how many found that something had changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) refused: usize,
    pub(crate) changed: usize,
}

impl History {
    pub(crate) fn new(linger: Duration) -> Arc<Self> {
        Arc::new(Self { linger, ..Self::default() })
    }

    /// Notes something about a claim that was sent before.
    fn note(&self, id: ClaimId, note: impl FnOnce(&mut ClaimRecord, Instant)) {
        let now = Instant::now();
        if let Some(record) = self.claims.lock().unwrap().get_mut(&id) {
            note(record, now);
        }
    }

    fn sent(&self, claim: &Arc<Claim>) {
        let mut claims = self.claims.lock().unwrap();
        claims.entry(claim.id).or_insert_with(|| ClaimRecord {
            claim: Arc::clone(claim),
            queued: None,
            granted: None,
            ended: None,
            leaving: None,
            answered: Instant::now(),
        });
    }

    fn granted(&self, id: ClaimId) {
        let mut replaced = None;
        self.note(id, |record, now| {
            record.granted.get_or_insert(now);
            replaced = record.claim.replaces;
        });
        if let Some(old) = replaced {
            self.ended(old);
        }
    }

    fn ended(&self, id: ClaimId) {
        self.note(id, |record, now| _ = record.ended.get_or_insert(now));
    }

    /// Counts the verdicts and describes those that refused a claim wrongly.
    pub(crate) fn judge(&self) -> (Tally, Vec<String>) {
        let (mut tally, mut wrong) = (Tally::default(), Vec::new());
        let claims = self.claims.lock().unwrap();
        for verdict in self.verdicts.lock().unwrap().iter() {
            if !verdict.refused {
                tally.changed += 1;
                continue;
            }
            tally.refused += 1;
            let why =
                fallen_fact(&claims, verdict, self.linger).or_else(|| other_flow(&claims, verdict));
            wrong.extend(why.map(|why| format!("{why}: {}", verdict.case.words)));
        }
        (tally, wrong)
    }

    /// The next of some numbers below `most` that are not the same in each run.
    fn roll(&self, most: u32) -> u32 {
        let number = self.dice.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        ((number ^ (number >> 15)).wrapping_mul(0x85eb_ca6b) >> 8) % most.max(1)
    }
}

/// A hold or a wait of the verdict that had surely ended before it was sent.
fn fallen_fact(
    claims: &HashMap<ClaimId, ClaimRecord>,
    verdict: &VerdictRecord,
    linger: Duration,
) -> Option<String> {
    let before = |at: Option<Instant>| at.is_some_and(|at| at < verdict.sent);
    let over = |fact: &ClaimAt, waits: bool| {
        let record = claims.get(&fact.claim)?;
        // Expired without a renewal.
        let expiry = record.answered + record.claim.lease + linger;
        let why = if before(record.ended) {
            "had ended"
        } else if waits && before(record.granted) {
            "had been granted"
        } else if expiry < verdict.sent {
            "had expired"
        } else {
            return None;
        };
        Some(format!("{} at {} {why}", fact.claim, fact.name))
    };
    let DeadlockCase { holds, waits, .. } = &verdict.case;
    let hold = holds.iter().find_map(|fact| over(fact, false));
    hold.or_else(|| waits.iter().find_map(|fact| over(fact, true)))
}

/// A second wait or a marker of an owner that surely stood all the time.
fn other_flow(claims: &HashMap<ClaimId, ClaimRecord>, verdict: &VerdictRecord) -> Option<String> {
    let case = &verdict.case;
    let stays = |record: &ClaimRecord, since: Option<Instant>| {
        let leaves = record.leaving.or(record.ended);
        since.is_some_and(|at| at < verdict.sent)
            && leaves.is_some_and(|at| at > verdict.answered)
            && record.answered + record.claim.lease > verdict.answered
    };
    claims.values().find_map(|record| {
        let (claim, name) = (&record.claim, record.claim.parts.first_name());
        let named = case.waits.iter().any(|fact| fact.claim == claim.id);
        let waits = case.owners.contains(&claim.lineage.owner())
            && record.granted.is_none()
            && !named
            && stays(record, record.queued);
        let marks = case.owners.iter().any(|owner| concurrency_marker(*owner) == *name)
            && stays(record, record.granted);
        (waits || marks).then(|| format!("an owner had another flow ({} at {name})", claim.id))
    })
}

/// An engine whose calls are noted, and that can be cut off as if its process had been killed.
pub(crate) struct Recorder {
    inner: Arc<dyn Engine>,
    history: Arc<History>,
    cut: Arc<AtomicBool>,
    /// Listeners are weak: these are ours.
    listeners: Mutex<Vec<Arc<RecordingListener>>>,
}

impl Recorder {
    pub(crate) fn new(inner: Arc<dyn Engine>, history: &Arc<History>) -> Arc<Self> {
        let cut = Arc::new(AtomicBool::new(false));
        let (history, listeners) = (Arc::clone(history), Mutex::default());
        Arc::new(Self { inner, history, cut, listeners })
    }

    /// From now on no call arrives and no signal comes back.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    /// Never returns once the engine is cut off.
    async fn arrive(&self) {
        if self.cut.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("engine", &self.inner).finish_non_exhaustive()
    }
}

impl Engine for Recorder {
    fn promises(&self) -> &Promises {
        self.inner.promises()
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        Box::pin(async move {
            self.arrive().await;
            self.history.sent(claim);
            let verdict = self.inner.claim(claim).await;
            self.history.note(claim.id, |record, now| record.answered = now);
            match &verdict {
                Ok(Verdict::Granted(_)) => self.history.granted(claim.id),
                Ok(Verdict::Queued(_)) => {
                    let queue =
                        |record: &mut ClaimRecord, now| _ = record.queued.get_or_insert(now);
                    self.history.note(claim.id, queue);
                }
                Ok(Verdict::Refused(_)) => self.history.ended(claim.id),
                Err(_) => {}
            }
            verdict
        })
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(async move {
            self.arrive().await;
            let renewed = self.inner.renew(batch).await;
            for (claim, renewed) in batch.iter().zip(renewed.iter().flatten()) {
                self.history.note(claim.id, |record, now| record.answered = now);
                match renewed {
                    Renewed::Held(_) => self.history.granted(claim.id),
                    Renewed::Gone(_) => self.history.ended(claim.id),
                    _ => {}
                }
            }
            renewed
        })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        Box::pin(async move {
            self.arrive().await;
            for one in batch {
                let leave = |record: &mut ClaimRecord, now| _ = record.leaving.get_or_insert(now);
                self.history.note(one.claim.id, leave);
            }
            let released = self.inner.release(batch).await;
            for (one, _) in batch.iter().zip(released.iter().flatten()) {
                self.history.ended(one.claim.id);
            }
            released
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(async move {
            self.arrive().await;
            self.inner.inspect(query).await
        })
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        self.inner.evict(eviction)
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let (history, cut) = (Arc::clone(&self.history), Arc::clone(&self.cut));
        let ours = Arc::new(RecordingListener { listener, history, cut });
        let weak: Weak<RecordingListener> = Arc::downgrade(&ours);
        self.listeners.lock().unwrap().push(ours);
        self.inner.listen(session, weak);
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        // Every call is recorded, and may be cut off.
        None
    }

    fn cells(&self) -> Option<&dyn Cells> {
        self.inner.cells()
    }

    fn jobs(&self) -> Option<&dyn Jobs> {
        self.inner.jobs()
    }

    fn rates(&self) -> Option<&dyn Rates> {
        self.inner.rates()
    }

    fn fence_floor(&self) -> Option<&dyn FenceFloor> {
        self.inner.fence_floor()
    }

    fn replication(&self) -> Option<&dyn Replication> {
        self.inner.replication()
    }

    fn partitions(&self) -> Option<&dyn Partitions> {
        self.inner.partitions()
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics> {
        self.inner.diagnostics()
    }

    fn ownership_proof(&self) -> Option<&dyn OwnershipProof> {
        self.inner.ownership_proof()
    }

    fn deadlocks(&self) -> Option<&dyn Deadlocks> {
        self.inner.deadlocks().map(|_| self as &dyn Deadlocks)
    }

    fn local(&self) -> Option<&dyn LocalSessions> {
        self.inner.local().map(|_| self as &dyn LocalSessions)
    }
}

impl LocalSessions for Recorder {
    fn liveness_file(&self, session: SessionId) -> Option<PathBuf> {
        self.inner.local()?.liveness_file(session)
    }

    fn inline_wait(&self) -> Option<&dyn InlineWait> {
        // Signals come through the recorder, never around it.
        None
    }
}

impl Deadlocks for Recorder {
    fn refuse_victim<'a>(&'a self, case: &'a DeadlockCase) -> Pending<'a, VictimVerdict> {
        Box::pin(async move {
            if self.history.roll(4) > 0 {
                let pause = u64::from(self.history.roll(80));
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            self.arrive().await;
            let sent = Instant::now();
            let verdicts = self.inner.deadlocks().expect("the engine has them");
            let verdict = verdicts.refuse_victim(case).await;
            if let Ok(verdict) = verdict {
                let refused = verdict == VictimVerdict::Refused;
                let (case, answered) = (case.clone(), Instant::now());
                let record = VerdictRecord { case, sent, answered, refused };
                self.history.verdicts.lock().unwrap().push(record);
            }
            verdict
        })
    }
}

/// Notes what the store tells a session.
struct RecordingListener {
    listener: Weak<dyn SignalListener>,
    history: Arc<History>,
    cut: Arc<AtomicBool>,
}

impl SignalListener for RecordingListener {
    fn on_signal(&self, signal: Signal) {
        if self.cut.load(Ordering::SeqCst) {
            return;
        }
        match &signal {
            Signal::Granted { claim, .. } => self.history.granted(*claim),
            Signal::Ended { claim, .. } => self.history.ended(*claim),
            _ => {}
        }
        if let Some(listener) = self.listener.upgrade() {
            listener.on_signal(signal);
        }
    }
}
