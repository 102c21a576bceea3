//! Hundreds of terms over competing processes, on every engine that processes can share; thousands
//! by night. A few candidates are killed and stopped at random while observers watch.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure::{Election, Observed, Tenure};

use servers::Dice;

use crate::candidate::{Campaigner, Candidate, Diary, NAME};
use crate::judge::{Seen, Story};

/// How long anything may take on a busy machine before it counts as not happening.
const LIMIT: Duration = Duration::from_secs(120);
const CANDIDATES: usize = 4;
const OBSERVERS: usize = 3;
/// The value that ends an observer's work.
const LAST: &str = "last";

/// How many terms there are at least.
fn wanted_terms() -> usize {
    match std::env::var("TENURE_TEST_SCALE").as_deref() {
        Ok("nightly") => 10_000,
        _ => 300,
    }
}

fn election(url: &str) -> Election {
    Tenure::blocking_connect(url).unwrap().election(NAME).unwrap()
}

/// The observers of a test, and how many of them were shown the last leader.
struct Observers {
    threads: Vec<JoinHandle<Vec<Seen>>>,
    done: Arc<AtomicUsize>,
}

impl Observers {
    fn start(url: &str) -> Self {
        let done = Arc::new(AtomicUsize::new(0));
        let threads = (0..OBSERVERS).map(|_| observe(url, &done)).collect();
        Self { threads, done }
    }
}

/// Notes what it is shown until it is shown the last leader, and then that there is none.
fn observe(url: &str, done: &Arc<AtomicUsize>) -> JoinHandle<Vec<Seen>> {
    let (mut observer, done) = (election(url).blocking_observe().unwrap(), Arc::clone(done));
    std::thread::spawn(move || {
        let mut seen: Vec<Seen> = Vec::new();
        let mut is_last = false;
        while !is_last || seen.last() != Some(&None) {
            seen.push(match observer.blocking_next().unwrap() {
                Observed::Vacant => None,
                Observed::Leader(leader) if leader.value == LAST.as_bytes() => {
                    is_last = true;
                    done.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                Observed::Leader(leader) => {
                    Some((leader.term.get(), String::from_utf8(leader.value).unwrap()))
                }
            });
        }
        // LAST is left out above, which leaves the two vacancies around it side by side.
        seen.dedup();
        seen
    })
}

/// Waits until something is so.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}: not within {} s", LIMIT.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lets candidates run, kills and stops some, until there were enough terms.
fn disturb(url: &str, lease: Duration, directory: &Path, pace: Duration) {
    let mut dice = Dice(7);
    let start = |seed| Candidate::start(url, lease, directory, seed);
    let mut all: Vec<Candidate> = (0..CANDIDATES as u64).map(start).collect();
    let (mut began, mut terms) = (Instant::now(), 0);
    for seed in 100.. {
        let now = Story::read(directory).len();
        if now >= wanted_terms() {
            break;
        }
        if now > terms {
            (began, terms) = (Instant::now(), now);
        }
        assert!(began.elapsed() < LIMIT, "no leader is elected any more, after {terms} terms");
        // Not to wait for anything: only to hit them at different points.
        std::thread::sleep(pace + Duration::from_micros(dice.throw(20_000)));
        let victim = usize::try_from(dice.throw(CANDIDATES as u64)).unwrap();
        if dice.throw(2) == 0 {
            all[victim].kill();
            all[victim] = start(seed);
        } else {
            // For longer or shorter than the lease.
            all[victim].signal(Signal::STOP);
            std::thread::sleep(lease * u32::try_from(dice.throw(8)).unwrap() / 4);
            all[victim].signal(Signal::CONT);
        }
    }
    all.iter_mut().for_each(Candidate::kill);
}

/// Judges everything once the last leader has come and gone.
fn finish(url: &str, lease: Duration, directory: &Path, observers: Observers) {
    let last = election(url).lease(lease).blocking_campaign(LAST).unwrap();
    let shown = election(url).blocking_leader().unwrap().expect("it leads");
    assert_eq!((shown.term, &*shown.value), (last.term().unwrap(), LAST.as_bytes()));
    eventually("all observers see the last leader", || {
        observers.done.load(Ordering::SeqCst) == OBSERVERS
    });
    last.blocking_resign().unwrap();
    eventually("all observers see that it resigned", || {
        observers.threads.iter().all(JoinHandle::is_finished)
    });
    let story = Story::read(directory);
    story.judge();
    for observer in observers.threads {
        let seen = observer.join().unwrap();
        story.judge_observer(&seen);
        println!("{} terms, an observer saw {} changes", story.len(), seen.len());
        // Changes may be merged, but not all of them.
        assert!(seen.len() > 10, "{seen:?}");
    }
}

/// The whole test on one engine. `pace` is the pause between two disturbances.
fn competing_processes(url: &str, lease: Duration, pace: Duration) {
    let directory = tempfile::tempdir().unwrap();
    let observers = Observers::start(url);
    disturb(url, lease, directory.path(), pace);
    finish(url, lease, directory.path(), observers);
}

#[test]
fn terms_of_competing_processes_never_overlap_on_embedded() {
    let place = tempfile::tempdir().unwrap();
    let url = format!("embedded://{}", place.path().join("store").display());
    competing_processes(&url, Duration::from_millis(500), Duration::from_millis(30));
}

/// Memory is shared by the threads of one process alone: sessions compete, and none is killed.
#[test]
fn terms_of_competing_sessions_never_overlap_in_memory() {
    let (url, lease) = ("memory:election-terms", Duration::from_millis(500));
    let directory = tempfile::tempdir().unwrap();
    let observers = Observers::start(url);
    let enough = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..CANDIDATES as u64)
        .map(|seed| {
            let tenure = Tenure::builder().lease(lease).blocking_connect(url).unwrap();
            let election = tenure.election(NAME).unwrap();
            let diary = Diary::new(directory.path(), &format!("thread-{seed}"));
            // Each thread counts from a number of its own, so that no two campaign with the same
            // value.
            let count = seed << 32;
            let campaigner = Campaigner { election, lease, diary, dice: Dice(seed), count };
            let enough = Arc::clone(&enough);
            let is_enough = move || enough.load(Ordering::SeqCst);
            std::thread::spawn(move || campaigner.campaign_until(is_enough))
        })
        .collect();
    let (mut began, mut terms) = (Instant::now(), 0);
    while terms < wanted_terms() {
        let now = Story::read(directory.path()).len();
        if now > terms {
            (began, terms) = (Instant::now(), now);
        }
        assert!(began.elapsed() < LIMIT, "no leader is elected any more, after {terms} terms");
        std::thread::sleep(Duration::from_millis(20));
    }
    enough.store(true, Ordering::SeqCst);
    for thread in threads {
        thread.join().unwrap();
    }
    finish(url, lease, directory.path(), observers);
}

#[cfg(feature = "redis")]
#[test]
fn terms_of_competing_processes_never_overlap_on_redis() {
    let redis = servers::Redis::start();
    competing_processes(&redis.url(), Duration::from_secs(1), Duration::from_millis(300));
}

#[cfg(feature = "postgres")]
#[test]
fn terms_of_competing_processes_never_overlap_on_postgres() {
    let postgres = servers::Postgres::start();
    competing_processes(&postgres.url(), Duration::from_secs(1), Duration::from_millis(300));
}

#[cfg(feature = "etcd")]
#[test]
fn terms_of_competing_processes_never_overlap_on_etcd() {
    let etcd = servers::Etcd::start();
    competing_processes(&etcd.url(), Duration::from_secs(2), Duration::from_secs(1));
}
