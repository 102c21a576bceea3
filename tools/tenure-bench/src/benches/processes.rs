//! What happens between processes: hand-offs among sixteen of them, and the end of one by a signal.
//!
//! The workers are this program again, with a hidden command. The reference for hand-offs is a loop
//! of the same transactions and datagrams without leases, fences, order checks or a session.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clap::Subcommand;
use tempfile::TempDir;
use tenure::{Error, ErrorKind, Tenure};

use super::bare::Bare;
use super::{cells, election};
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
    /// Takes a lock, keeps it for so many microseconds and gives it back, so many times
    Locks { url: String, times: u32, hold: u64 },
    /// The same with bare transactions and datagrams
    Bare { directory: String, number: u32, times: u32, hold: u64 },
    /// Takes a lock and keeps it
    Holds { url: String },
    /// Leads an election, with a lease of so many milliseconds
    Leads { url: String, lease: u64 },
    /// Writes cells of its own from so many tasks, each so many times
    Puts { url: String, number: u32, tasks: u32, times: u32 },
}

impl Worker {
    pub(crate) fn work(&self) -> Result<(), Error> {
        match self {
            Self::Locks { url, times, hold } => {
                let tenure = Tenure::blocking_connect(url)?;
                let mutex = tenure.mutex("handoff")?;
                ready();
                for _ in 0..*times {
                    let guard = mutex.blocking_lock()?;
                    keep(*hold);
                    guard.blocking_release()?;
                }
                Ok(())
            }
            Self::Bare { directory, number, times, hold } => {
                let bare = Bare::open(Path::new(directory), *number)?;
                ready();
                (0..*times).try_for_each(|_| bare.pair(|| keep(*hold)))
            }
            Self::Leads { url, lease } => {
                let election = Tenure::blocking_connect(url)?.election(election::NAME)?;
                let election = election.lease(Duration::from_millis(*lease));
                let _leader = election.blocking_campaign("first")?;
                ready();
                Ok(())
            }
            Self::Puts { url, number, tasks, times } => {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|error| failed("cannot make a runtime", error))?;
                let prefix = format!("process:{number}");
                runtime.block_on(async {
                    let tenure = Tenure::connect(url).await?;
                    ready();
                    cells::put_from_tasks(&tenure, &prefix, *tasks, *times).await
                })
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

/// Does nothing for so many microseconds.
fn keep(hold: u64) {
    if hold > 0 {
        std::thread::sleep(Duration::from_micros(hold));
    }
}

/// Says that it is ready, and waits until it may go on.
fn ready() {
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Hand-offs per second among sixteen processes that all want one lock, beside the bare loop: with
/// nothing to do under the lock, and with two milliseconds of it.
pub(crate) fn handoff(run: &Run, directory: &TempDir) -> Result<Vec<Figure>, Error> {
    let free = beside_bare(run, directory, run.count(20, 1_000), 0)?;
    let held = beside_bare(run, directory, run.count(2, 25), 2_000)?;
    let note = "x bare transactions and datagrams; aim >= 0.6";
    let free = Figure::new(HANDOFF[0], free.0, "1/s", note).relative_to(free.1);
    let note = "the same, each holds 2 ms";
    Ok(vec![free, Figure::new(HANDOFF[1], held.0, "1/s", note).relative_to(held.1)])
}

/// Our rate and the bare one, interleaved.
fn beside_bare(run: &Run, directory: &TempDir, times: u32, hold: u64) -> Result<(f64, f64), Error> {
    let blocks = run.count(1, 7);
    let url = format!("embedded://{}/store", directory.path().display());
    let (times_text, hold_text) = (times.to_string(), hold.to_string());
    let (mut ours, mut bares) = (Vec::new(), Vec::new());
    for block in 0..blocks {
        ours.push(rate(times, |_| {
            vec!["locks".into(), url.clone(), times_text.clone(), hold_text.clone()]
        })?);
        let bare = directory.path().join(format!("bare-{hold}-{block}"));
        std::fs::create_dir(&bare).map_err(|error| failed("cannot make a directory", error))?;
        let bare = bare.display().to_string();
        bares.push(rate(times, |number| {
            let number = number.to_string();
            vec!["bare".into(), bare.clone(), number, times_text.clone(), hold_text.clone()]
        })?);
        run.progress.step(block + 1, blocks);
    }
    Ok((median(&ours), median(&bares)))
}

/// How often a second the lock changes hands.
fn rate(times: u32, arguments: impl Fn(u32) -> Vec<String>) -> Result<f64, Error> {
    throughput(WORKERS, times, arguments)
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
}

impl Process {
    /// Starts a worker and waits until it is ready.
    pub(super) fn start(arguments: &[String]) -> Result<Self, Error> {
        let program =
            std::env::current_exe().map_err(|error| failed("cannot find myself", error))?;
        let child = Command::new(program)
            .arg("worker")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed("cannot start a worker", error))?;
        let mut process = Self { child };
        let out = process.child.stdout.as_mut().ok_or_else(|| broken("no output"))?;
        let mut line = String::new();
        let read = BufReader::new(out).read_line(&mut line);
        read.map_err(|error| failed("cannot read from a worker", error))?;
        if line.trim() == "ready" { Ok(process) } else { Err(broken("a worker failed to start")) }
    }

    fn go(&mut self) -> Result<(), Error> {
        let input = self.child.stdin.as_mut().ok_or_else(|| broken("no input"))?;
        input.write_all(b"\n").map_err(|error| failed("cannot write to a worker", error))
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
