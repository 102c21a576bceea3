//! Traffic while servers fail: several clients, short leases, and for each lock a sink that takes
//! only growing fences.
//!
//! Redis replicates after it has answered. A fail-over may therefore lose the last grants, releases
//! and places in line, and what it permits is just that: for the rest of a lease two may believe
//! that they hold (promise 1), and a line may be served in another order (promise 2). What it must
//! not do: hand out a fence that is not above all that were used before it, leave a claim waiting
//! for ever, or leave anything behind. And what is permitted ends a lease after the fail-over:
//! claims that live and end in calm are judged by all promises, without exception.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use servers::eventually;
use tenure::conformance::audit::{History, HistoryEntry, Recorder, Rules, judge};
use tenure::contract::ClaimId;
use tenure::time::{Clock, SystemClock, Tick};
use tenure::{ErrorKind, MutexGuard, Tenure};
use tokio::task::JoinHandle;

const CLIENTS: usize = 4;
const LEASE: Duration = Duration::from_secs(1);

/// What the lock protects: takes only fences that are not below the highest it has seen.
#[derive(Default)]
struct Sink {
    highest: u64,
    owners: HashMap<u64, ClaimId>,
    refused: u64,
    wrong: Vec<String>,
}

impl Sink {
    fn write(&mut self, fence: u64, claim: ClaimId) {
        let owner = *self.owners.entry(fence).or_insert(claim);
        if owner != claim {
            self.wrong.push(format!("fence {fence} was given to {owner} and to {claim}"));
        }
        if fence < self.highest {
            // A holder that lost its lock by a fail-over and does not know it yet.
            self.refused += 1;
        }
        self.highest = self.highest.max(fence);
    }
}

/// The longest time in which the first lock was granted to no claim: the one that things happen to.
struct Pause {
    last: Instant,
    longest: Duration,
}

pub(crate) struct Traffic {
    sinks: Arc<Vec<Mutex<Sink>>>,
    pause: Arc<Mutex<Pause>>,
    rounds: Arc<Vec<AtomicU64>>,
    enough: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    recorder: Arc<Recorder>,
    /// From when to when nothing disturbed the servers, and no lease from before was left.
    calm: Vec<(Tick, Tick)>,
}

impl Traffic {
    /// Clients that take these locks in turn: each has one of them, and each lock has some.
    pub(crate) async fn start(url: &str, names: &[&'static str]) -> Self {
        let recorder = Recorder::new(Arc::new(SystemClock));
        let mut traffic = Self {
            sinks: Arc::new(names.iter().map(|_| Mutex::default()).collect()),
            pause: Arc::new(Mutex::new(Pause { last: Instant::now(), longest: Duration::ZERO })),
            rounds: Arc::new((0..CLIENTS).map(|_| AtomicU64::new(0)).collect()),
            enough: Arc::default(),
            tasks: Vec::new(),
            recorder,
            calm: Vec::new(),
        };
        for client in 0..CLIENTS {
            let witness = Arc::clone(&traffic.recorder);
            let builder = Tenure::builder().lease(LEASE).witness(witness as _);
            let tenure = builder.connect(url).await.unwrap();
            traffic.tasks.push(traffic.client(client, tenure, names[client % names.len()]));
        }
        traffic
    }

    fn client(&self, client: usize, tenure: Tenure, name: &'static str) -> JoinHandle<()> {
        let (sinks, rounds) = (Arc::clone(&self.sinks), Arc::clone(&self.rounds));
        let pause = Arc::clone(&self.pause);
        let (enough, recorder) = (Arc::clone(&self.enough), Arc::clone(&self.recorder));
        tokio::spawn(async move {
            let mutex = tenure.mutex(name).unwrap();
            let lock = client % sinks.len();
            let sink = &sinks[lock];
            while !enough.load(Ordering::SeqCst) {
                let before = sink.lock().unwrap().highest;
                let done = match mutex.lock().await {
                    Ok(guard) => hold(guard, before, sink, &recorder).await,
                    Err(error) => Err(error),
                };
                match done {
                    Ok(()) => {
                        rounds[client].fetch_add(1, Ordering::SeqCst);
                        let (mut pause, now) = (pause.lock().unwrap(), Instant::now());
                        if lock == 0 {
                            pause.longest = pause.longest.max(now - pause.last);
                            pause.last = now;
                        }
                    }
                    Err(error) => {
                        let known =
                            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost);
                        assert!(known, "{error}");
                    }
                }
            }
            tenure.close().await;
        })
    }

    /// Waits until every client was served a few times more.
    pub(crate) fn everybody_is_served(&self, after: &str) {
        let now = || self.rounds.iter().map(|one| one.load(Ordering::SeqCst)).collect::<Vec<_>>();
        let before = now();
        let more = |(now, before): (&u64, &u64)| now >= &(before + 5);
        eventually(&format!("everybody is served after {after}"), || {
            now().iter().zip(&before).all(more)
        });
        let pause = std::mem::take(&mut self.pause.lock().unwrap().longest);
        println!("{after}: everybody is served; for {pause:?} nobody was");
    }

    /// Goes on for a while in which nothing happens to the servers.
    pub(crate) fn in_calm(&mut self, after: &str) {
        self.everybody_is_served(after);
        // Whatever a fail-over gave twice has ended then.
        std::thread::sleep(2 * LEASE);
        let begin = SystemClock.now();
        self.everybody_is_served(&format!("{after}, in calm"));
        self.calm.push((begin, SystemClock.now()));
    }

    /// What happened to claims whose whole life was in calm, one history for each time of it.
    fn calm_histories(&self) -> Vec<History> {
        let all = self.recorder.history();
        let lives = all.entries().iter().fold(HashMap::new(), |mut lives, entry| {
            let life = lives.entry(entry.claim).or_insert((entry.at, entry.at));
            life.1 = entry.at;
            lives
        });
        let during = |(begin, end): &(Tick, Tick)| {
            let calm = |entry: &&HistoryEntry| {
                let (born, died) = lives[&entry.claim];
                born >= *begin && died <= *end
            };
            History::new(all.entries().iter().filter(calm).cloned().collect())
        };
        self.calm.iter().map(during).collect()
    }

    /// Ends the traffic and judges it.
    pub(crate) async fn finish(mut self) {
        self.enough.store(true, Ordering::SeqCst);
        for task in std::mem::take(&mut self.tasks) {
            task.await.unwrap();
        }
        for sink in &*self.sinks {
            let sink = sink.lock().unwrap();
            println!("{} writes refused by the sink, {} fences", sink.refused, sink.owners.len());
            assert!(sink.wrong.is_empty(), "{:#?}", sink.wrong);
        }
        let rules = Rules { queue: true, wake_within: 30 * LEASE, lossy: true, at_rest: true };
        let mut verdicts = judge(&self.recorder.history(), &rules);
        // See above: what asynchronous replication permits.
        verdicts.violations.retain(|found| !matches!(found.promise, 1 | 2));
        assert!(verdicts.violations.is_empty(), "{verdicts}");
        println!("{verdicts}");
        for history in self.calm_histories() {
            let verdicts = judge(&history, &rules);
            assert!(verdicts.violations.is_empty(), "in calm: {verdicts}");
            assert!(verdicts.grants > 0, "there was no calm");
        }
    }
}

/// Writes under the lock. A holder that was granted it after a write was done has a higher fence
/// than it: `before` is what the sink had seen when the claim was not yet sent.
async fn hold(
    guard: MutexGuard,
    before: u64,
    sink: &Mutex<Sink>,
    recorder: &Recorder,
) -> Result<(), tenure::Error> {
    let fence = guard.fence()?.get();
    if recorder.used(&guard) {
        let mut sink = sink.lock().unwrap();
        if fence <= before {
            sink.wrong.push(format!("fence {fence} was given after {before} had been used"));
        }
        sink.write(fence, guard.claim_id());
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
    guard.release().await
}
