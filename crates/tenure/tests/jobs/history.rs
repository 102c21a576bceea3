//! A history of real processes on one store, and its auditor.
//!
//! Worker processes run jobs and write a line for the begin and the end of each attempt, and for
//! each loss of their worker. Meanwhile they are killed and stopped, which the test writes down as
//! well, new ones start, and the store of the test may be disturbed. At the end the auditor reads
//! all lines:
//!
//! - no job is lost: each has begun, and its last attempt has ended;
//! - no two attempts of a job have one fence;
//! - every repeat is explained: the worker of the attempt before was lost after that had begun, by
//!   its own account, or its process was killed.
//!
//! Nothing else explains a repeat: not a process that is stopped, because it goes on and then finds
//! out that it was lost; not a store that was disturbed, because a worker keeps its claim through
//! that or declares it lost; and not a reply that never came, because the handler of such an
//! attempt never begins.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure::{JobFilter, NewJob, Tenure};

use super::Place;

/// The URL of the store, for another process of a test.
pub(crate) const WORKER: &str = "TENURE_JOBS_WORKER";
/// The file that it writes its history to.
const HISTORY: &str = "TENURE_JOBS_HISTORY";
/// The lease of its worker, in milliseconds.
const LEASE: &str = "TENURE_JOBS_LEASE";

/// A lease that ends while a process is stopped, so that its attempts become stale.
pub(super) const SHORT_LEASE: Duration = Duration::from_millis(500);

/// One process that works until it is killed.
pub(crate) fn serve(url: &str) {
    let path = PathBuf::from(std::env::var_os(HISTORY).unwrap());
    let lease = std::env::var(LEASE).unwrap().parse().map(Duration::from_millis).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tenure = connect(url).await;
        let queue = tenure.queue("work").unwrap().lease(lease);
        let (pid, watched) = (std::process::id(), Arc::new(AtomicBool::new(false)));
        let worked = queue.work(4, |job| {
            let (path, watched) = (path.clone(), Arc::clone(&watched));
            async move {
                let fence = job.fence()?;
                note(&path, &format!("begin {pid} {} {fence}", job.id()));
                if !watched.swap(true, Ordering::SeqCst) {
                    // One watch for all attempts that the worker makes until it is lost.
                    let (lost, path) = (job.lost(), path.clone());
                    tokio::spawn(async move {
                        lost.await;
                        watched.store(false, Ordering::SeqCst);
                        note(&path, &format!("lost {pid} 0 0"));
                    });
                }
                if job.payload() == b"slow" {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                job.check()?;
                note(&path, &format!("end {pid} {} {fence}", job.id()));
                Ok(())
            }
        });
        worked.await.unwrap();
    });
}

/// Connects. A process that is stopped inside the store keeps others out until it goes on.
async fn connect(url: &str) -> Tenure {
    loop {
        match Tenure::connect(url).await {
            Ok(tenure) => return tenure,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
}

/// Appends a line in one write, so that lines of several processes do not mix.
fn note(path: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

pub(super) fn start(place: &Place, history: &Path, lease: Duration) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
        .env(WORKER, &place.url)
        .env(HISTORY, history)
        .env(LEASE, lease.as_millis().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

pub(super) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn no_job_is_lost_or_finished_by_a_stale_attempt_among_processes_that_are_killed_and_stopped() {
    play(&Place::embedded(), SHORT_LEASE, |_| {});
}

/// Runs jobs over eight processes with workers of this lease under faults, and judges the history.
/// `disturb` is called before each fault with its number, and may disturb the store.
pub(super) fn play(place: &Place, lease: Duration, disturb: impl Fn(u32)) {
    let nightly = std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly");
    let (jobs, processes) = if nightly { (100_000, 8) } else { (10_000, 8) };
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("history");
    let tenure = place.connect();
    let queue = tenure.queue("work").unwrap();
    for chunk in 0..jobs / 1_000 {
        let job = |number: u32| NewJob::new(if number.is_multiple_of(10) { "slow" } else { "" });
        queue.blocking_push_many((0..1_000).map(|number| job(chunk + number))).unwrap();
    }
    let mut workers: Vec<Child> = (0..processes).map(|_| start(place, &history, lease)).collect();
    let (mut stopped, mut faults) = (None::<(Child, Instant)>, 0_u32);
    let end = Instant::now() + Duration::from_secs(if nightly { 1_800 } else { 300 });
    loop {
        let counts = match queue.blocking_counts() {
            Ok(counts) => counts,
            // The process that is stopped was inside the store just then: it has to go on.
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                let child = stopped.take().map(|(child, _)| child);
                if let Some(child) = &child {
                    signal(child, Signal::CONT);
                }
                workers.extend(child);
                continue;
            }
        };
        // A job may meet three faults. Then it is dead, and an operator tries it again.
        let dead = if counts.dead > 0 { queue.blocking_dead(None, 100).unwrap() } else { vec![] };
        for job in &dead {
            assert_eq!(job.crashes, 3, "{job:?}");
            queue.blocking_retry(job.id).unwrap();
        }
        if dead.is_empty() && counts.ready + counts.running + counts.scheduled == 0 {
            break;
        }
        assert!(Instant::now() < end, "not done in time: {counts:?}");
        // A few faults, one after the other.
        if faults < 12 {
            disturb(faults);
            let victim = workers.remove(0);
            if faults % 3 == 2 && stopped.is_none() {
                signal(&victim, Signal::STOP);
                stopped = Some((victim, Instant::now()));
            } else {
                kill(victim, &history);
            }
            workers.push(start(place, &history, lease));
            faults += 1;
        }
        go_on_after_a_while(&mut stopped, &mut workers, lease);
        std::thread::sleep(Duration::from_millis(150));
    }
    let left = queue.blocking_list(&JobFilter { limit: 9, ..JobFilter::default() }).unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert!(faults >= 3, "only {faults} faults: the history shows nothing");
    if let Some((child, _)) = &stopped {
        signal(child, Signal::CONT);
    }
    judge(&history, jobs.into());
    for mut worker in workers.into_iter().chain(stopped.map(|(child, _)| child)) {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
}

/// Kills a process, and writes that down.
fn kill(mut victim: Child, history: &Path) {
    victim.kill().unwrap();
    victim.wait().unwrap();
    note(history, &format!("lost {} 0 0", victim.id()));
}

/// Lets the process that is stopped go on when its lease is over.
fn go_on_after_a_while(
    stopped: &mut Option<(Child, Instant)>,
    workers: &mut Vec<Child>,
    lease: Duration,
) {
    if let Some((child, since)) = stopped
        && since.elapsed() > lease + Duration::from_millis(300)
    {
        signal(child, Signal::CONT);
        workers.extend(stopped.take().map(|(child, _)| child));
    }
}

/// Judges a history. All jobs are done: what is still missing is written by processes that have
/// just found out that they were lost.
fn judge(history: &Path, jobs: u64) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let audit = Audit::of(&std::fs::read_to_string(history).unwrap(), jobs);
        let unexplained = audit.unexplained();
        if unexplained.is_empty() {
            println!("{} repeats, {} losses", audit.repeats(), audit.losses.len());
            return;
        }
        assert!(Instant::now() < end, "repeats without a loss: {unexplained:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A history, by jobs.
struct Audit {
    /// The attempts of each job, by their fences.
    attempts: BTreeMap<u64, BTreeMap<u64, Attempt>>,
    /// Each loss of a worker: the process, and the number of the line.
    losses: Vec<(u64, usize)>,
}

#[derive(Debug)]
struct Attempt {
    process: u64,
    /// The number of the line.
    begun: usize,
    ended: bool,
}

impl Audit {
    fn of(history: &str, jobs: u64) -> Self {
        let mut audit = Self { attempts: BTreeMap::new(), losses: Vec::new() };
        for (number, line) in history.lines().enumerate() {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, process, job, fence] = words[..] else { panic!("{line:?}") };
            let [process, job, fence] =
                [process, job, fence].map(|word| word.parse::<u64>().unwrap());
            let (attempts, losses) = (&mut audit.attempts, &mut audit.losses);
            match what {
                "begin" => {
                    let attempt = Attempt { process, begun: number, ended: false };
                    let other = attempts.entry(job).or_default().insert(fence, attempt);
                    assert!(other.is_none(), "job {job}: the fence {fence} was used twice");
                }
                "end" => {
                    let begun = attempts.get_mut(&job).and_then(|of_job| of_job.get_mut(&fence));
                    begun.expect("what ends has begun").ended = true;
                }
                _ => losses.push((process, number)),
            }
        }
        for job in 1..=jobs {
            let last = audit.attempts.get(&job).and_then(|attempts| attempts.values().next_back());
            let last = last.unwrap_or_else(|| panic!("job {job} was lost"));
            assert!(last.ended, "job {job}: the last attempt did not end: {last:?}");
        }
        assert_eq!(audit.attempts.len() as u64, jobs, "a job that was never pushed");
        audit
    }

    fn repeats(&self) -> usize {
        self.attempts.values().map(|attempts| attempts.len() - 1).sum()
    }

    /// The attempts that were not the last of their job, and whose worker was not lost.
    fn unexplained(&self) -> Vec<(u64, &Attempt)> {
        let mut found = Vec::new();
        for (job, attempts) in &self.attempts {
            for attempt in attempts.values().rev().skip(1) {
                let lost = |(process, number): &(u64, usize)| {
                    *process == attempt.process && *number > attempt.begun
                };
                if !self.losses.iter().any(lost) {
                    found.push((*job, attempt));
                }
            }
        }
        found
    }
}
