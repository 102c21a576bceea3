//! Processes that take permits of one rate and are killed at random. What they were granted is
//! written down with the instant of the store, and no window has more than its limit.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use servers::{Postgres, Redis};
use tenure::Namespace;
use tenure::contract::{RateLimit, RateShape, Take, TakeVerdict};
use tenure::engine::{self, Terms};
use tenure::time::SystemClock;

use crate::{embedded, nightly};

/// Set in the processes that a test starts: URL, namespace, file.
const ORDER: &str = "TENURE_TEST_TAKER";
const PROCESSES: usize = 8;
/// How long anything may take on a busy machine before it counts as not happening.
const LIMIT: Duration = Duration::from_secs(600);
const LIMITS: [(u64, u64); 2] = [(40, 20_000), (150, 100_000)];
/// The longest line that a process writes.
const LINE: u64 = "1234567890123456 3 1\n".len() as u64;

/// The limits of a rate: it has so many of them.
fn limits(count: usize) -> Vec<RateLimit> {
    LIMITS[..count]
        .iter()
        .map(|(permits, micros)| RateLimit {
            permits: *permits,
            window: Duration::from_micros(*micros),
        })
        .collect()
}

/// The work of a process: takes, of a rate with one limit and of one with two in turn, and writes
/// down what it was granted.
#[test]
fn taker() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let [url, namespace, path]: [&str; 3] =
        order.split(' ').collect::<Vec<_>>().try_into().expect("three words");
    let mut file = File::create(path).unwrap();
    tenure::block_on(async {
        let terms = Terms {
            namespace: namespace.parse::<Namespace>().unwrap(),
            max_lease: tenure::limits::DEFAULT_MAX_LEASE,
            clock: Arc::new(SystemClock),
        };
        let engine = engine::connect(url, terms).await.unwrap();
        let rates = engine.rates().unwrap();
        for round in 1_u64.. {
            let count = 1 + (round / 8 % 2) as usize;
            let take = Take {
                name: format!("r{count}").parse().unwrap(),
                shape: RateShape::Windows(limits(count).into()),
                cost: 1 + round % 3,
                wait: Duration::from_micros(round % 4 * 500),
                probe: false,
            };
            let TakeVerdict::Told(reply) = rates.take(&take).await.unwrap() else { panic!() };
            let (stamp, cost) = (reply.stamp, if reply.taken { take.cost } else { 0 });
            // One write: a process that is killed leaves whole lines.
            file.write_all(format!("{stamp} {cost} {count}\n").as_bytes()).unwrap();
            if !reply.taken {
                // Not for as long as it takes: many are to be refused, and others served meanwhile.
                std::thread::sleep(reply.wait.min(Duration::from_micros(200)));
            }
        }
    });
}

struct Taker(Child);

impl Taker {
    fn start(url: &str, namespace: &str, file: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "rates::taker", "--nocapture", "--test-threads=1"]);
        let order = format!("{url} {namespace} {}", file.display());
        command.env(ORDER, order).stdin(Stdio::null()).stdout(Stdio::null());
        servers::reset_signals_of_children();
        Self(command.spawn().unwrap())
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many requests were made, and what was granted of each rate, by instant.
fn read(directory: &Path) -> (u64, [Vec<(u64, u64)>; 2]) {
    let (mut requests, mut granted) = (0, [Vec::new(), Vec::new()]);
    for entry in fs::read_dir(directory).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let [stamp, cost, count] = numbers[..] else { panic!("{line:?}") };
            requests += 1;
            if cost > 0 {
                granted[usize::try_from(count).unwrap() - 1].push((stamp, cost));
            }
        }
    }
    for granted in &mut granted {
        granted.sort_unstable();
    }
    (requests, granted)
}

/// How many requests were made at least, by the lengths of the files.
fn requests_so_far(directory: &Path) -> u64 {
    let length = |entry: fs::DirEntry| entry.metadata().unwrap().len();
    fs::read_dir(directory).unwrap().map(|entry| length(entry.unwrap()) / LINE).sum()
}

fn no_window_is_over(url: &str, namespace: &str, requests: u64) {
    let requests = if nightly() { 1_000_000 } else { requests };
    let directory = tempfile::tempdir().unwrap();
    let mut started = 0;
    let mut start = || {
        started += 1;
        Taker::start(url, namespace, &directory.path().join(format!("t{started}")))
    };
    let mut takers: Vec<Taker> = (0..PROCESSES).map(|_| start()).collect();
    let began = Instant::now();
    for victim in (0..PROCESSES).cycle() {
        std::thread::sleep(Duration::from_millis(150));
        let made = requests_so_far(directory.path());
        if made >= requests {
            break;
        }
        assert!(began.elapsed() < LIMIT * if nightly() { 20 } else { 1 }, "{made} requests only");
        // Killed wherever it is, and replaced.
        takers[victim] = start();
    }
    drop(takers);
    let (made, granted) = read(directory.path());
    println!("{url}: {made} requests, {} kills, {:?}", started - PROCESSES, began.elapsed());
    for (count, granted) in (1..).zip(granted) {
        assert!(granted.len() > 100, "{} of {made} were granted", granted.len());
        for (permits, window) in &LIMITS[..count] {
            let (mut from, mut sum) = (0, 0);
            for (stamp, cost) in &granted {
                sum += cost;
                while granted[from].0 + window <= *stamp {
                    sum -= granted[from].1;
                    from += 1;
                }
                assert!(sum <= *permits, "{sum} in {window} us up to {stamp}, of {made} requests");
            }
        }
    }
}

#[test]
fn no_window_is_over_in_an_embedded_store_whose_processes_are_killed() {
    let (_directory, url) = embedded();
    no_window_is_over(&url, "rates", 10_000);
}

#[test]
fn no_window_is_over_in_redis_when_processes_are_killed() {
    no_window_is_over(&Redis::shared().url(), "rates-processes", 10_000);
}

#[test]
fn no_window_is_over_in_postgres_when_processes_are_killed() {
    no_window_is_over(&Postgres::shared().url(), "rates-processes", 3_000);
}
