//! What happens between processes: hand-offs among sixteen of them, and the end of one by a signal.
//!
//! The workers are this program again, with a hidden command. The reference for hand-offs is a loop
//! of the same transactions and datagrams without leases, fences, order checks or a session.
//!
//! All workers of a block begin at one instant, which each of them is told in advance, and go on
//! for a fixed time. A fixed number of laps would measure the end, at which few still want the
//! lock; and workers that start one after the other find it free. Each says how many of its
//! acquisitions had to wait: the share shows that both lanes measure hand-offs.

use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clap::Subcommand;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use tenure::contract::Claim;
use tenure::time::Tick;
use tenure::{Error, ErrorKind, Event, Tenure, Witness};

use super::bare::Bare;
use super::{cells, election, jobs};
use crate::engines::embedded::failed;
use crate::figure::Figure;
use crate::run::Run;
use crate::stats::median;

const WORKERS: u32 = 16;

/// What the hand-offs are called.
pub(crate) const HANDOFF: [&str; 2] = ["handoff_16_procs", "handoff_16_procs_2ms"];

/// What a worker does.
#[derive(Debug, Subcommand)]
pub(crate) enum Worker {
    /// Takes a lock, keeps it for so many microseconds and gives it back, for so many milliseconds
    Locks { url: String, millis: u64, hold: u64 },
    /// The same with bare transactions and datagrams
    Bare { directory: String, number: u32, millis: u64, hold: u64 },
    /// Takes a lock and keeps it
    Holds { url: String },
    /// Leads an election, with a lease of so many milliseconds
    Leads { url: String, lease: u64 },
    /// Writes cells of its own from so many tasks, each so many times
    Puts { url: String, number: u32, tasks: u32, times: u32 },
    /// Works on the queue of the benchmarks until it is killed
    Jobs { url: String },
    /// The same with statements written by hand
    JobsByHand { url: String },
    /// Claims one job of a queue with a lease of so many milliseconds, and keeps it
    KeepsJob { url: String, queue: String, lease: u64 },
}

impl Worker {
    pub(crate) fn work(&self) -> Result<(), Error> {
        match self {
            Self::Locks { url, millis, hold } => {
                let waits = Arc::new(Waits::default());
                let witness = Arc::clone(&waits);
                let tenure = Tenure::builder().witness(witness).blocking_connect(url)?;
                let mutex = tenure.mutex("handoff")?;
                laps(*millis, || {
                    let before = waits.0.load(Ordering::Relaxed);
                    let guard = mutex.blocking_lock()?;
                    keep(*hold);
                    guard.blocking_release()?;
                    Ok(waits.0.load(Ordering::Relaxed) > before)
                })
            }
            Self::Bare { directory, number, millis, hold } => {
                let bare = Bare::open(Path::new(directory), *number)?;
                laps(*millis, || bare.pair(|| keep(*hold)))
            }
            Self::Leads { url, lease } => {
                let election = Tenure::blocking_connect(url)?.election(election::NAME)?;
                let election = election.lease(Duration::from_millis(*lease));
                let _leader = election.blocking_campaign("first")?;
                ready();
                Ok(())
            }
            Self::Puts { url, number, tasks, times } => {
                let prefix = format!("process:{number}");
                runtime()?.block_on(async {
                    let tenure = Tenure::connect(url).await?;
                    ready();
                    cells::put_from_tasks(&tenure, &prefix, *tasks, *times).await
                })
            }
            Self::Jobs { url } => runtime()?.block_on(jobs::workers::work(url)),
            Self::JobsByHand { url } => runtime()?.block_on(jobs::by_hand::work(url)),
            Self::KeepsJob { url, queue, lease } => {
                let lease = Duration::from_millis(*lease);
                runtime()?.block_on(jobs::workers::keep(url, queue, lease))
            }
            Self::Holds { url } => {
                let tenure = Tenure::blocking_connect(url)?;
                let _guard = tenure.mutex("takeover")?.blocking_lock()?;
                ready();
                Ok(())
            }
        }
    }
}

/// Counts the claims that had to wait.
#[derive(Debug, Default)]
struct Waits(AtomicU64);

impl Witness for Waits {
    fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, event: &Event) {
        if matches!(event, Event::Queued { .. }) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs laps for so many milliseconds from the instant that all workers were told, and prints how
/// many there were and how many of them had to wait. A lap that has begun is ended, but not
/// counted.
fn laps(millis: u64, mut lap: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    println!("ready");
    let mut line = String::new();
    stdin().read_line(&mut line).map_err(|error| failed("cannot read the start", error))?;
    let start: u64 = line.trim().parse().map_err(|_| broken("no instant to start at"))?;
    std::thread::sleep(Duration::from_nanos(start.saturating_sub(monotonic())));
    let end = start + millis * 1_000_000;
    let (mut done, mut waited) = (0_u64, 0_u64);
    loop {
        let has_waited = lap()?;
        if monotonic() >= end {
            break;
        }
        done += 1;
        waited += u64::from(has_waited);
    }
    println!("{done} {waited}");
    Ok(())
}

/// Nanoseconds of a clock that all processes of this host share.
fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}

/// The runtime of a worker that is async.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| failed("cannot make a runtime", error))
}

/// Does nothing for so many microseconds.
fn keep(hold: u64) {
    if hold > 0 {
        std::thread::sleep(Duration::from_micros(hold));
    }
}

/// Says that it is ready, and waits until it may go on.
pub(super) fn ready() {
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Hand-offs per second among sixteen processes that all want one lock, beside the bare loop: with
/// nothing to do under the lock, and with two milliseconds of it.
pub(crate) fn handoff(run: &Run, directory: &TempDir) -> Result<Vec<Figure>, Error> {
    let note = "x bare transactions and datagrams; aim >= 0.6";
    let free = beside_bare(run, directory, HANDOFF[0], note, 0)?;
    let held = beside_bare(run, directory, HANDOFF[1], "the same, each holds 2 ms", 2_000)?;
    Ok(vec![free, held])
}

/// Our rate and the bare one, interleaved.
fn beside_bare(
    run: &Run,
    directory: &TempDir,
    name: &'static str,
    note: &'static str,
    hold: u64,
) -> Result<Figure, Error> {
    let (blocks, millis) = (run.count(1, 7), u64::from(run.count(100, 1_000)));
    let url = format!("embedded://{}/store", directory.path().display());
    let (millis_text, hold_text) = (millis.to_string(), hold.to_string());
    let (mut ours, mut bares) = (Contest::default(), Contest::default());
    for block in 0..blocks {
        ours.add(millis, |_| {
            vec!["locks".into(), url.clone(), millis_text.clone(), hold_text.clone()]
        })?;
        let bare = directory.path().join(format!("bare-{hold}-{block}"));
        std::fs::create_dir(&bare).map_err(|error| failed("cannot make a directory", error))?;
        let bare = bare.display().to_string();
        bares.add(millis, |number| {
            let number = number.to_string();
            vec!["bare".into(), bare.clone(), number, millis_text.clone(), hold_text.clone()]
        })?;
        run.progress.step(block + 1, blocks);
    }
    let figure = Figure::new(name, median(&ours.rates), "1/s", note);
    let figure = figure.relative_to(median(&bares.rates));
    Ok(figure.with_waited(ours.waited_share(), bares.waited_share()))
}

/// Blocks in which sixteen workers wanted one lock.
#[derive(Default)]
struct Contest {
    /// How often a second the lock changed hands, for each block.
    rates: Vec<f64>,
    laps: u64,
    waited: u64,
}

impl Contest {
    /// Runs one block of so many milliseconds.
    fn add(&mut self, millis: u64, arguments: impl Fn(u32) -> Vec<String>) -> Result<(), Error> {
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            workers.push(Process::start(&arguments(number))?);
        }
        // Time enough for all of them to read it and to sleep until then.
        let start = monotonic() + 50_000_000;
        for worker in &mut workers {
            worker.say(&format!("{start}\n"))?;
        }
        let mut laps = 0;
        for worker in &mut workers {
            let (done, waited) = worker.hear_laps()?;
            worker.ends_well()?;
            laps += done;
            self.waited += waited;
        }
        self.laps += laps;
        #[allow(clippy::cast_precision_loss, reason = "small counts")]
        self.rates.push(laps as f64 * 1e3 / millis as f64);
        Ok(())
    }

    /// The share of the acquisitions that had to wait.
    fn waited_share(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "small counts")]
        let share = self.waited as f64 / self.laps.max(1) as f64;
        share
    }
}

/// Starts so many workers, each of which does something so many times; how often a second it is
/// done by all of them.
pub(crate) fn throughput(
    workers: u32,
    times: u32,
    arguments: impl Fn(u32) -> Vec<String>,
) -> Result<f64, Error> {
    let count = workers;
    let mut workers = Vec::new();
    for number in 0..count {
        workers.push(Process::start(&arguments(number))?);
    }
    let start = Instant::now();
    for worker in &mut workers {
        worker.go()?;
    }
    for worker in &mut workers {
        worker.ends_well()?;
    }
    Ok(f64::from(count * times) / start.elapsed().as_secs_f64())
}

/// Milliseconds from `kill -9` of the holder to the next holder running.
pub(crate) fn takeover(run: &Run, directory: &TempDir) -> Result<Vec<Figure>, Error> {
    let rounds = run.count(3, 50);
    let url = format!("embedded://{}/store", directory.path().display());
    let tenure = Tenure::blocking_connect(&url)?;
    let mut times = Vec::new();
    for round in 0..rounds {
        let mut holder = Process::start(&["holds".into(), url.clone()])?;
        let mutex = Arc::new(tenure.mutex("takeover")?);
        let (tell, told) = channel();
        let waiter = std::thread::spawn(move || {
            let guard = mutex.blocking_lock()?;
            let _ = tell.send(Instant::now());
            guard.blocking_release()
        });
        // Time to take its place in line and to fall asleep.
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        holder.kill()?;
        let at = told.recv().map_err(|_| broken("nobody took over"))?;
        times.push(at.duration_since(start).as_secs_f64() * 1e3);
        waiter.join().map_err(|_| broken("the waiter panicked"))??;
        run.progress.step(round + 1, rounds);
    }
    Ok(vec![Figure::new("takeover_kill9", median(&times), "ms", "kill -9 to next; aim < 10")])
}

/// A worker in a process of its own.
pub(super) struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a worker and waits until it is ready.
    pub(super) fn start(arguments: &[String]) -> Result<Self, Error> {
        let program =
            std::env::current_exe().map_err(|error| failed("cannot find myself", error))?;
        let mut command = Command::new(program);
        command.arg("worker").args(arguments);
        Self::spawn(command)
    }

    /// The same with any program that says that it is ready.
    pub(super) fn spawn(mut command: Command) -> Result<Self, Error> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed("cannot start a worker", error))?;
        let output = child.stdout.take().map(BufReader::new);
        let mut process = Self { child, output: output.ok_or_else(|| broken("no output"))? };
        let line = process.hear()?;
        if line.trim() == "ready" { Ok(process) } else { Err(broken("a worker failed to start")) }
    }

    pub(super) fn go(&mut self) -> Result<(), Error> {
        self.say("\n")
    }

    pub(super) fn say(&mut self, line: &str) -> Result<(), Error> {
        let input = self.child.stdin.as_mut().ok_or_else(|| broken("no input"))?;
        let written = input.write_all(line.as_bytes());
        written.map_err(|error| failed("cannot write to a worker", error))
    }

    pub(super) fn hear(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.map_err(|error| failed("cannot read from a worker", error))?;
        Ok(line)
    }

    /// How many laps a worker made, and how many of them had to wait.
    fn hear_laps(&mut self) -> Result<(u64, u64), Error> {
        let line = self.hear()?;
        let mut numbers = line.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(laps)), Some(Ok(waited))) => Ok((laps, waited)),
            _ => Err(broken("a worker did not say how many laps it made")),
        }
    }

    fn ends_well(&mut self) -> Result<(), Error> {
        let ended = self.child.wait().map_err(|error| failed("cannot wait for a worker", error))?;
        if ended.success() { Ok(()) } else { Err(broken("a worker failed")) }
    }

    pub(super) fn kill(&mut self) -> Result<(), Error> {
        self.child.kill().map_err(|error| failed("cannot kill a worker", error))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn broken(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}
