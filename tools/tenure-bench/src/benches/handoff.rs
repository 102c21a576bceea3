//! From a holder's release to the next holder's first step, with many in line.
//!
//! One task holds, N wait; each task that has released queues again, so that N keep waiting. A
//! round measures every N once, so that a slow moment of the machine meets all of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use tenure::contract::Engine;
use tenure::{Error, Mutex, Tenure};
use tokio::task::{JoinSet, yield_now};

use crate::figure::Figure;
use crate::run::Run;
use crate::stats::{median, micros};

pub(crate) const NAMES: [&str; 3] = ["handoff_2", "handoff_64", "handoff_1024"];
const WAITERS: [usize; 3] = [2, 64, 1_024];

/// How long each holder keeps the lock, so that the one before is surely in line again.
const HOLD: Duration = Duration::from_micros(50);
/// Hand-offs at the start of a round that are not counted: caches and queues settle.
const WARM_UP: usize = 20;

pub(crate) fn measure(run: &Run, open: impl Fn() -> Arc<dyn Engine>) -> Result<Vec<Figure>, Error> {
    let (rounds, handoffs) = (run.count(2, 10), run.count(100, 400));
    let mut samples = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..rounds {
        for (waiters, samples) in WAITERS.into_iter().zip(&mut samples) {
            let relay = Relay::new(open(), waiters, handoffs as usize)?;
            samples.extend(run.in_task(relay.run())?);
        }
        run.progress.step(round + 1, rounds);
    }
    let medians = samples.map(|samples| median(&samples));
    let figures = NAMES.into_iter().zip(medians).map(|(name, median)| {
        let figure = Figure::new(name, median, "us", "x handoff_2; aim: flat");
        if name == NAMES[0] { figure } else { figure.relative_to(medians[0]) }
    });
    Ok(figures.collect())
}

/// Tasks that hand one lock from each to the next.
struct Relay {
    tenure: Tenure,
    mutex: Mutex,
    waiters: usize,
    /// How many hand-offs to measure.
    handoffs: usize,
    epoch: Instant,
    /// When the last holder called release, in nanoseconds since `epoch`.
    released: AtomicU64,
    samples: StdMutex<Vec<f64>>,
    done: AtomicBool,
}

impl Relay {
    fn new(engine: Arc<dyn Engine>, waiters: usize, handoffs: usize) -> Result<Self, Error> {
        let tenure = Tenure::builder().open(engine)?;
        Ok(Self {
            mutex: tenure.mutex("handoff")?,
            tenure,
            waiters,
            handoffs,
            epoch: Instant::now(),
            released: AtomicU64::new(0),
            samples: StdMutex::default(),
            done: AtomicBool::new(false),
        })
    }

    async fn run(self) -> Result<Vec<f64>, Error> {
        let relay = Arc::new(self);
        let mut tasks = JoinSet::new();
        for _ in 0..=relay.waiters {
            tasks.spawn(Arc::clone(&relay).take_turns());
        }
        for ended in tasks.join_all().await {
            ended?;
        }
        let mut samples = relay.samples.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(samples.split_off(WARM_UP))
    }

    async fn take_turns(self: Arc<Self>) -> Result<(), Error> {
        let ended = self.turns().await;
        // The others must not wait for a task that is gone.
        self.done.store(true, Ordering::Release);
        ended
    }

    async fn turns(&self) -> Result<(), Error> {
        loop {
            let guard = self.mutex.lock().await?;
            let now = self.now();
            if self.is_done(now) {
                return guard.release().await;
            }
            self.hold().await;
            self.released.store(self.now(), Ordering::Release);
            guard.release().await?;
            // Let the next holder run before queueing again: its turn is what is measured.
            yield_now().await;
        }
    }

    /// Takes the sample of the hand-off that has just ended. Says whether there are enough.
    fn is_done(&self, now: u64) -> bool {
        let released = self.released.load(Ordering::Acquire);
        if released == 0 {
            return false;
        }
        if self.done.load(Ordering::Acquire) {
            return true;
        }
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push(micros(Duration::from_nanos(now - released)));
        samples.len() == WARM_UP + self.handoffs
    }

    /// Keeps the lock until everybody else is in line.
    async fn hold(&self) {
        let until = Instant::now() + HOLD;
        let all_wait =
            || self.tenure.claim_count() > self.waiters || self.done.load(Ordering::Acquire);
        while Instant::now() < until || !all_wait() {
            yield_now().await;
        }
    }

    fn now(&self) -> u64 {
        // A run takes minutes, not the 584 years at which this would saturate.
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
