//! Clients that hand one lock from each to the next. Knows turns and a stopwatch, not whose lock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure::Error;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::taker::Taker;
use crate::run::Run;
use crate::stats::micros;

/// How long the first holder keeps the lock: everybody else is in line by then.
const START: Duration = Duration::from_millis(60);
/// No process.
const NOBODY: u32 = u32::MAX;

/// How the lock is handed on.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// How many hand-offs are measured.
    pub(crate) handoffs: usize,
    /// How long each holder keeps the lock.
    pub(crate) hold: Duration,
}

/// What came of it.
pub(crate) struct Outcome {
    /// From the call of release to the next holder running, in microseconds.
    pub(crate) samples: Vec<f64>,
    /// How often each client held the lock while hand-offs were measured.
    pub(crate) turns: Vec<u32>,
    /// How often the lock was taken altogether, also while the line emptied.
    pub(crate) taken: u64,
}

/// Runs a relay where users' tasks run.
pub(crate) fn relayed<T: Taker>(
    run: &Run,
    plan: Plan,
    mut takers: Vec<T>,
) -> Result<(Vec<T>, Outcome), Error> {
    run.in_task(async move {
        let outcome = pass_around(plan, &mut takers).await?;
        Ok((takers, outcome))
    })
}

/// Hands one lock around until there are enough samples, and then empties the line. Whoever gave
/// the lock asks for it again only when somebody else has it.
async fn pass_around<T: Taker>(plan: Plan, takers: &mut Vec<T>) -> Result<Outcome, Error> {
    let relay = Arc::new(Relay {
        plan,
        epoch: Instant::now(),
        given: AtomicU64::new(0),
        giver: AtomicU32::new(NOBODY),
        taken: AtomicU64::new(0),
        samples: Mutex::default(),
        next: Notify::new(),
        done: AtomicBool::new(false),
    });
    let mut tasks = JoinSet::new();
    for taker in takers.drain(..) {
        tasks.spawn(Arc::clone(&relay).take_turns(taker));
    }
    let mut turns = Vec::new();
    for ended in tasks.join_all().await {
        let (taker, count) = ended?;
        takers.push(taker);
        turns.push(count);
    }
    let samples = std::mem::take(&mut *relay.samples());
    Ok(Outcome { samples, turns, taken: relay.taken.load(Ordering::Relaxed) })
}

struct Relay {
    plan: Plan,
    epoch: Instant,
    /// When the last holder called release, in nanoseconds since `epoch`; 0 before the first.
    given: AtomicU64,
    /// Which process that was, if it matters.
    giver: AtomicU32,
    taken: AtomicU64,
    samples: Mutex<Vec<f64>>,
    /// Somebody has the lock.
    next: Notify,
    done: AtomicBool,
}

impl Relay {
    async fn take_turns<T: Taker>(self: Arc<Self>, mut taker: T) -> Result<(T, u32), Error> {
        let ended = self.turns(&mut taker).await;
        // The others must not wait for a task that is gone.
        self.end();
        Ok((taker, ended?))
    }

    async fn turns(&self, taker: &mut impl Taker) -> Result<u32, Error> {
        let mut turns = 0;
        let process = taker.process().unwrap_or(NOBODY);
        loop {
            let held = taker.take().await?;
            let now = self.now();
            self.taken.fetch_add(1, Ordering::Relaxed);
            if self.is_done(now, process) {
                taker.give(held).await?;
                return Ok(turns);
            }
            turns += 1;
            self.hold().await;
            let next = self.next.notified();
            self.giver.store(process, Ordering::Release);
            self.given.store(self.now(), Ordering::Release);
            taker.give(held).await?;
            if !self.done.load(Ordering::Acquire) {
                next.await;
            }
        }
    }

    /// Takes the sample of the hand-off that has just ended. Whether there are enough.
    fn is_done(&self, now: u64, process: u32) -> bool {
        if self.done.load(Ordering::Acquire) {
            return true;
        }
        let given = self.given.load(Ordering::Acquire);
        let inside = process != NOBODY && process == self.giver.load(Ordering::Acquire);
        if given > 0 && !inside {
            let mut samples = self.samples();
            samples.push(micros(Duration::from_nanos(now - given)));
            if samples.len() == self.plan.handoffs {
                self.done.store(true, Ordering::Release);
            }
        }
        // Only now: who gave the lock must not take time from the one who has it.
        self.next.notify_waiters();
        self.done.load(Ordering::Acquire)
    }

    async fn hold(&self) {
        let first = self.given.load(Ordering::Acquire) == 0;
        let length = if first { START } else { self.plan.hold };
        if !length.is_zero() {
            sleep(length).await;
        }
    }

    fn end(&self) {
        self.done.store(true, Ordering::Release);
        self.next.notify_waiters();
    }

    fn samples(&self) -> std::sync::MutexGuard<'_, Vec<f64>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        // A run takes minutes, not the 584 years at which this would saturate.
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
