//! Traffic through moves and fail-overs: several clients, two locks, short leases, and for each
//! lock a sink that takes only growing fences. The slot of one lock is moved and its node is
//! killed; the other is somewhere else and is served all the time.
//!
//! Redis replicates after it has answered. A fail-over may therefore lose the last grants, releases
//! and places in line, and what it permits is just that: for the rest of a lease two may believe
//! that they hold (promise 1), and a line may be served in another order (promise 2). What it must
//! not do: hand out a fence that is not above all that were used before it, leave anybody waiting
//! for ever, or leave anything behind. A slot that moves loses nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use servers::{Cluster, eventually};
use tenure::conformance::audit::{Recorder, Rules, judge};
use tenure::contract::ClaimId;
use tenure::time::SystemClock;
use tenure::{ErrorKind, Guard, Tenure};
use tokio::task::JoinHandle;

/// Two for each lock.
const CLIENTS: usize = 4;
/// The slot of the first is tormented.
const NAMES: [&str; 2] = ["traffic", "elsewhere"];
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
            // A holder whom a fail-over deprived, and who does not know it yet.
            self.refused += 1;
        }
        self.highest = self.highest.max(fence);
    }
}

/// The longest time in which nobody was served with the lock that everything happens to.
struct Pause {
    last: Instant,
    longest: Duration,
}

struct Traffic {
    sinks: Arc<[Mutex<Sink>; 2]>,
    pause: Arc<Mutex<Pause>>,
    rounds: Arc<Vec<AtomicU64>>,
    enough: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    recorder: Arc<Recorder>,
}

impl Traffic {
    async fn start(url: &str) -> Self {
        let recorder = Recorder::new(Arc::new(SystemClock));
        let mut traffic = Self {
            sinks: Arc::default(),
            pause: Arc::new(Mutex::new(Pause { last: Instant::now(), longest: Duration::ZERO })),
            rounds: Arc::new((0..CLIENTS).map(|_| AtomicU64::new(0)).collect()),
            enough: Arc::default(),
            tasks: Vec::new(),
            recorder,
        };
        for client in 0..CLIENTS {
            let witness = Arc::clone(&traffic.recorder);
            let builder = Tenure::builder().lease(LEASE).witness(witness as _);
            let tenure = builder.connect(url).await.unwrap();
            traffic.tasks.push(traffic.client(client, tenure));
        }
        traffic
    }

    fn client(&self, client: usize, tenure: Tenure) -> JoinHandle<()> {
        let (sinks, rounds) = (Arc::clone(&self.sinks), Arc::clone(&self.rounds));
        let pause = Arc::clone(&self.pause);
        let (enough, recorder) = (Arc::clone(&self.enough), Arc::clone(&self.recorder));
        tokio::spawn(async move {
            let mutex = tenure.mutex(NAMES[client % 2]).unwrap();
            let sink = &sinks[client % 2];
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
                        if client.is_multiple_of(2) {
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

    /// Waits until everybody was served a few times more.
    fn everybody_is_served(&self, after: &str) {
        let now = || self.rounds.iter().map(|one| one.load(Ordering::SeqCst)).collect::<Vec<_>>();
        let before = now();
        let more = |(now, before): (&u64, &u64)| now >= &(before + 5);
        eventually(&format!("everybody is served after {after}"), || {
            now().iter().zip(&before).all(more)
        });
        let pause = std::mem::take(&mut self.pause.lock().unwrap().longest);
        println!("{after}: everybody is served; for {pause:?} nobody was");
    }

    async fn finish(self) {
        self.enough.store(true, Ordering::SeqCst);
        for task in self.tasks {
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
    }
}

/// Writes under the lock. Whoever was granted after a write was done has a higher fence than it:
/// `before` is what the sink had seen when the claim was not yet sent.
async fn hold(
    guard: Guard,
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_is_served_through_moves_and_fail_overs_and_fences_only_grow() {
    let cluster = Cluster::start();
    let slot = cluster.slot_of(&format!("tenure:{{default/{}}}", NAMES[0]));
    let traffic = Traffic::start(&cluster.url()).await;
    traffic.everybody_is_served("the start");
    tokio::task::block_in_place(|| {
        for _ in 0..3 {
            cluster.move_slot(slot, cluster.another(slot), || ());
            traffic.everybody_is_served("a move of the slot");
        }
        cluster.failover(slot);
        traffic.everybody_is_served("a fail-over by order");
        cluster.wait_until_settled();
        let dead = cluster.kill_keeper(slot);
        traffic.everybody_is_served("a killed master");
        dead.restart();
        cluster.wait_until_settled();
        traffic.everybody_is_served("the return of the dead as a replica");
        // Silent, with all its connections open: only the other nodes tell.
        let silent = cluster.keeper(slot);
        silent.stop();
        cluster.wait_for_another(slot, silent.port());
        traffic.everybody_is_served("a silent master");
        silent.cont();
        cluster.wait_until_settled();
        traffic.everybody_is_served("the return of the silent as a replica");
    });
    traffic.finish().await;
}
