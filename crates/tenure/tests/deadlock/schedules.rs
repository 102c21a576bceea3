//! Random schedules on real stores. Some flows at a time, each an owner of its own, take a few
//! locks of all kinds in any order and hold them while they wait for the next. Some waits have a
//! timeout; some flows wait for two locks at once; some guards leave their flow, or are released
//! by another task while the flow waits; some sessions are cut off as if their process had been
//! killed.
//!
//! Two things are checked. *No deadlock is missed*: every flow ends, though most waits have no
//! limit. *No victim is false*: every verdict is compared with the history (`history.rs`).

use std::sync::Arc;
use std::time::Duration;

use tenure::contract::{Part, SessionId};
use tenure::engine::Terms;
use tenure::time::SystemClock;
use tenure::{DeadlockMode, Error, ErrorKind, LockSetGuard, Page, Query, Tenure, scope};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::history::{History, Recorder, Tally};
use super::{PATIENCE, nightly, store};

/// How many sessions the flows share, as if they were in so many processes.
const SESSIONS: usize = 3;
/// How many schedules run at once.
const TOGETHER: u64 = 8;
/// The lease of a session that is cut off.
const SHORT_LEASE: Duration = Duration::from_secs(1);

#[test]
fn memory() {
    run("memory");
}

#[test]
fn embedded() {
    run("embedded");
}

#[test]
fn redis() {
    run("redis");
}

#[test]
fn postgres() {
    run("postgres");
}

#[test]
fn etcd() {
    run("etcd");
}

/// The judge is judged: with a store that does not compare the facts, victims are false.
#[test]
fn a_store_that_does_not_compare_the_facts_is_found_out() {
    let mut play = std::process::Command::new(std::env::current_exe().unwrap());
    play.args(["--exact", "schedules::memory"]).env("TENURE_SEEDED_BUG", "VictimUnchecked");
    // What falls between a look and its verdict is chance: one play of a few is enough.
    let found_out = (0..8).any(|_| {
        let output = play.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        !output.status.success() && text.contains("false victims")
    });
    assert!(found_out, "the judge does not notice victims that are in no deadlock");
}

fn run(engine: &'static str) {
    let schedules = if nightly() { 3_000 } else { 240 };
    // A lease of etcd has whole seconds, and ends when its leader notices.
    let linger = Duration::from_millis(if engine == "etcd" { 5_000 } else { 100 });
    let history = History::new(linger);
    let directory = tempfile::tempdir().unwrap();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let stand = Arc::new(Stand::new(store(engine, directory.path()), &history).await);
        let mut running: JoinSet<()> = JoinSet::new();
        for seed in 0..schedules {
            if running.len() as u64 >= TOGETHER {
                running.join_next().await.unwrap().unwrap();
            }
            let stand = Arc::clone(&stand);
            running.spawn(async move {
                if timeout(PATIENCE, schedule(&stand, seed)).await.is_err() {
                    let picture = stand.picture(seed).await;
                    panic!("{engine}, schedule {seed}: a deadlock was missed: {picture}");
                }
            });
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
    });
    let (tally, wrong) = history.judge();
    eprintln!("{engine}: {schedules} schedules, {tally:?}");
    assert!(wrong.is_empty(), "{engine}: {} false victims: {wrong:#?}", wrong.len());
    let Tally { refused, changed } = tally;
    // Otherwise the schedules would show nothing.
    assert!(refused >= 10 && changed >= 1, "{engine}: {tally:?}");
}

/// A store, and sessions of it whose calls are noted.
struct Stand {
    url: String,
    namespace: String,
    history: Arc<History>,
    sessions: Vec<Tenure>,
}

impl Stand {
    async fn new(url: String, history: &Arc<History>) -> Self {
        let namespace = SessionId::new().to_hex();
        let history = Arc::clone(history);
        let mut stand = Self { url, namespace, history, sessions: Vec::new() };
        for _ in 0..SESSIONS {
            let session = stand.open(tenure::limits::DEFAULT_LEASE).await.0;
            stand.sessions.push(session);
        }
        stand
    }

    /// What the store shows of a schedule, for a failure.
    async fn picture(&self, seed: u64) -> String {
        let pattern = tenure::Pattern::prefix(&format!("{seed}:"));
        let page = Page { pattern, ..Page::default() };
        let seen = self.sessions[0].inspect(&Query::Page(page)).await.unwrap();
        let found = self.sessions[0].deadlocks().await.unwrap();
        format!("{:#?}, deadlocks of all schedules: {found:#?}", seen.slots)
    }

    async fn open(&self, lease: Duration) -> (Tenure, Arc<Recorder>) {
        let terms = Terms {
            namespace: self.namespace.as_str().try_into().unwrap(),
            max_lease: tenure::limits::DEFAULT_MAX_LEASE,
            clock: Arc::new(SystemClock),
        };
        let engine = tenure::engine::connect(&self.url, terms).await.unwrap();
        let recorder = Recorder::new(engine, &self.history);
        let builder = Tenure::builder().deadlocks(DeadlockMode::Break).lease(lease);
        let builder = builder.deadlock_delay(Duration::from_millis(20));
        let builder = builder.call_limit(Duration::from_secs(20));
        let tenure = builder.open(Arc::clone(&recorder) as _).unwrap();
        (tenure, recorder)
    }
}

/// Runs the flows of one schedule to their ends.
async fn schedule(stand: &Arc<Stand>, seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut flows = JoinSet::new();
    for number in 0..2 + dice.below(3) {
        let tenure = stand.sessions[usize::try_from(dice.below(SESSIONS as u64)).unwrap()].clone();
        let flow = Flow { tenure, prefix: seed, dice: Dice(dice.0 ^ (number + 1) << 40 | 1) };
        flows.spawn(flow.run());
    }
    if dice.below(12) == 0 {
        flows.spawn(killed(Arc::clone(stand), seed, Dice(dice.0 | 1)));
    }
    while let Some(ended) = flows.join_next().await {
        ended.unwrap();
    }
}

/// A flow of a session of its own, which is cut off while it holds or waits. The others go on when
/// its lease has ended.
async fn killed(stand: Arc<Stand>, seed: u64, mut dice: Dice) {
    let (tenure, recorder) = stand.open(SHORT_LEASE).await;
    let pause = Duration::from_millis(20 + dice.below(150));
    let flow = Flow { tenure: tenure.clone(), prefix: seed, dice };
    tokio::select! {
        () = flow.run() => {}
        () = sleep(pause) => recorder.cut(),
    }
    drop(tenure);
}

/// One owner with its program.
struct Flow {
    tenure: Tenure,
    prefix: u64,
    dice: Dice,
}

impl Flow {
    /// Runs the program until it was not refused.
    async fn run(mut self) {
        loop {
            match scope(self.program()).await {
                Ok(()) => return,
                Err(error) => match error.kind() {
                    ErrorKind::Deadlock | ErrorKind::UpgradeConflict => {
                        sleep(Duration::from_millis(self.dice.below(20))).await;
                    }
                    // A limit may be shorter than a call takes.
                    ErrorKind::TimedOut | ErrorKind::Unavailable => return,
                    _ => panic!("schedule {}: {error}", self.prefix),
                },
            }
        }
    }

    async fn program(&mut self) -> Result<(), Error> {
        let mut held: Vec<LockSetGuard> = Vec::new();
        // What counts as able to run is not refused: it needs a limit of its own.
        let mut limited = false;
        for _ in 0..2 + self.dice.below(2) {
            let limit = (limited || self.dice.below(4) == 0)
                .then(|| Duration::from_millis(20 + self.dice.below(120)));
            if self.dice.below(10) == 0 {
                let limit = limit.or(Some(Duration::from_millis(60)));
                let (one, two) = (self.wanted(limit)?, self.wanted(limit)?);
                let (one, two) = tokio::join!(one.lock(), two.lock());
                held.extend([one?, two?]);
            } else {
                held.push(self.wanted(limit)?.lock().await?);
            }
            sleep(Duration::from_millis(self.dice.below(8))).await;
            let leaves = self.dice.below(10);
            if leaves < 2 {
                let mut guard = held.swap_remove(0);
                let pause = Duration::from_millis(self.dice.below(60));
                if leaves == 0 {
                    guard.detach().await?;
                } else {
                    limited = true;
                }
                tokio::spawn(async move {
                    sleep(pause).await;
                    drop(guard.release().await);
                });
            }
        }
        for guard in held {
            guard.release().await?;
        }
        Ok(())
    }

    /// A lock of any kind, or two at once.
    fn wanted(&mut self, limit: Option<Duration>) -> Result<tenure::LockSet, Error> {
        let (first, second) = (self.part()?, self.part()?);
        let both = self.dice.below(5) == 0 && first.name() != second.name();
        let parts = if both { vec![first, second] } else { vec![first] };
        let set = self.tenure.lock_set(parts)?;
        Ok(match limit {
            Some(limit) => set.timeout(limit),
            None => set,
        })
    }

    fn part(&mut self) -> Result<Part, Error> {
        let name = |text: &str| format!("{}:{text}", self.prefix).parse();
        Ok(match self.dice.below(8) {
            0 | 1 => Part::write(name("a")?),
            2 | 3 => Part::write(name("b")?),
            4 => Part::read(name("a")?),
            5 => Part::read(name("c")?),
            6 => Part::write(name("c")?),
            _ => Part::permits(name("d")?, 1 + u32::try_from(self.dice.below(2)).unwrap(), 2)?,
        })
    }
}

/// A small generator of random numbers: the schedule is found again by its seed, its timing is not.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % most
    }
}
