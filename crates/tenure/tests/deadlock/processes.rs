//! Dining philosophers, each a process of its own, with the shipped settings of the detector. All
//! take their left fork first and wait until all have it, so that the deadlock is certain; then
//! each waits for its right fork. One is refused, releases, and all eat. With sets no deadlock
//! forms.
//!
//! The test starts its own binary once for each guest, with an order in the environment. Guest and
//! test exchange lines: "left" when the guest has its left fork, an empty line back when all have,
//! "ate REFUSED" at the end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use servers::{Etcd, Postgres, Redis};
use tenure::contract::SessionId;
use tenure::{Error, Tenure};

use super::{nightly, store};

const ORDER: &str = "TENURE_TEST_PHILOSOPHER";

/// How long a dinner may take on a busy machine before it counts as stuck.
const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn three_and_five_eat_on_embedded() {
    let directory = tempfile::tempdir().unwrap();
    small_tables("embedded", &store("embedded", directory.path()));
}

#[test]
fn three_and_five_eat_on_redis() {
    small_tables("redis", &Redis::shared().url());
}

#[test]
fn three_and_five_eat_on_postgres() {
    small_tables("postgres", &Postgres::shared().url());
}

#[test]
fn three_and_five_eat_on_etcd() {
    small_tables("etcd", &Etcd::shared().url());
}

#[test]
fn fifty_eat_on_embedded() {
    let directory = tempfile::tempdir().unwrap();
    large_table("embedded", &store("embedded", directory.path()));
}

#[test]
fn fifty_eat_on_redis() {
    large_table("redis", &Redis::shared().url());
}

/// Servers on which fifty processes at once are slow: by night.
#[test]
fn fifty_eat_on_postgres_and_etcd_by_night() {
    if nightly() {
        let server = Postgres::builder().set("max_connections", "300").start();
        large_table("postgres", &server.url());
        large_table("etcd", &Etcd::shared().url());
    }
}

/// The process of one guest. Does nothing as a test of its own.
#[test]
fn guest() {
    if let Ok(order) = std::env::var(ORDER) {
        tenure::block_on(dine(&order)).unwrap();
    }
}

fn small_tables(engine: &str, url: &str) {
    for guests in [3, 5] {
        let refused = dinner(url, guests, "forks");
        assert!(refused >= 1, "{engine}: the deadlock of {guests} was not broken by a refusal");
        assert_eq!(dinner(url, guests, "sets"), 0, "{engine}: sets waited in a circle");
    }
}

fn large_table(engine: &str, url: &str) {
    let refused = dinner(url, 50, "forks");
    assert!(refused >= 1, "{engine}: the deadlock of 50 was not broken by a refusal");
}

/// Starts so many guests, waits until all have eaten, and returns how many refusals there were.
fn dinner(url: &str, guests: usize, how: &str) -> usize {
    let namespace = SessionId::new().to_hex();
    servers::reset_signals_of_children();
    let mut table: Vec<Guest> = Vec::new();
    for seat in 0..guests {
        table.push(Guest::start(&format!("{url} {namespace} {seat} {guests} {how}")));
    }
    let (lines, heard) = channel();
    for (seat, guest) in table.iter_mut().enumerate() {
        let (lines, output) = (lines.clone(), guest.output.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // What the test harness of the guest prints is not for us.
                if line.starts_with("left") || line.starts_with("ate ") {
                    let _ = lines.send((seat, line));
                }
            }
        });
    }
    let (mut left, mut ate, mut refused) = (0, 0, 0);
    let begun = Instant::now();
    while ate < guests {
        let rest = LIMIT.saturating_sub(begun.elapsed());
        let (seat, line) = heard.recv_timeout(rest).unwrap_or_else(|_| {
            panic!("{url}: {ate} of {guests} ate with {how}, {left} had their left fork")
        });
        if let Some(count) = line.strip_prefix("ate ") {
            refused += count.parse::<usize>().unwrap();
            ate += 1;
            continue;
        }
        assert_eq!(line, "left", "guest {seat}");
        left += 1;
        if left == guests {
            for guest in &mut table {
                guest.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            }
        }
    }
    eprintln!("{guests} ate with {how} after {refused} refusals in {:?}", begun.elapsed());
    refused
}

/// A process, killed when the test ends.
struct Guest {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Guest {
    fn start(order: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::guest", "--nocapture", "--test-threads=1"]);
        command.env(ORDER, order).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = child.stdout.take().map(BufReader::new);
        Self { child, output }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn dine(order: &str) -> Result<(), Error> {
    let words: Vec<&str> = order.split(' ').collect();
    let [url, namespace, seat, guests, how] = words[..] else { panic!("what is {order:?}?") };
    let (seat, guests): (usize, usize) = (seat.parse().unwrap(), guests.parse().unwrap());
    let builder = Tenure::builder().namespace(namespace).call_limit(Duration::from_secs(30));
    let tenure = builder.connect(url).await?;
    let forks = [seat, (seat + 1) % guests].map(|fork| format!("fork:{fork}"));
    let mut tries = 0;
    let eat = || {
        let (tenure, forks, first) = (&tenure, &forks, tries == 0);
        tries += 1;
        async move {
            if how == "sets" {
                let parts = [tenure.mutex(&forks[0])?.part(), tenure.mutex(&forks[1])?.part()];
                return tenure.lock_set(parts)?.lock().await?.release().await;
            }
            let left = tenure.mutex(&forks[0])?.lock().await?;
            if first {
                // On a line of its own: the harness of this test has begun one.
                println!("\nleft");
                std::io::stdin().read_line(&mut String::new()).unwrap();
            }
            let right = tenure.mutex(&forks[1])?.lock().await?;
            right.release().await?;
            left.release().await
        }
    };
    tenure.retry_on_deadlock(eat).await?;
    println!("\nate {}", tries - 1);
    Ok(())
}
