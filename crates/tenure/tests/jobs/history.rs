//! A history of real processes on one store, and its auditor.
//!
//! Worker processes run jobs and write a line for the begin and the end of each attempt. Meanwhile
//! they are killed and stopped, new ones start, and the store of the test may be disturbed. At the
//! end the auditor reads all lines: no job is lost, every attempt of a job has a larger fence than
//! the one before, no two attempts of a job were both the last one, and a job has more than one
//! attempt only if a process was killed or stopped, or the store was disturbed.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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
const SHORT_LEASE: Duration = Duration::from_millis(500);

/// One process that works until it is killed.
pub(crate) fn serve(url: &str) {
    let path = PathBuf::from(std::env::var_os(HISTORY).unwrap());
    let lease = std::env::var(LEASE).unwrap().parse().map(Duration::from_millis).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tenure = connect(url).await;
        let queue = tenure.queue("work").unwrap().lease(lease);
        let worked = queue.work(4, |job| {
            let path = path.clone();
            async move {
                let fence = job.fence()?;
                note(&path, &format!("begin {} {fence}", job.id()));
                if job.payload() == b"slow" {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                job.check()?;
                note(&path, &format!("end {} {fence}", job.id()));
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
    play(&Place::embedded(), SHORT_LEASE, |_| false);
}

/// Runs jobs over eight processes with workers of this lease under faults, and judges the history.
/// `disturb` is called before each fault with its number, and returns whether it has disturbed the
/// store.
pub(super) fn play(place: &Place, lease: Duration, disturb: impl Fn(u32) -> bool) {
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
    let (mut stopped, mut faults, mut stops) = (None::<(Child, Instant)>, 0_u32, 0_u32);
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
            if disturb(faults) {
                // Every worker may have lost its lease.
                stops += 1;
            }
            let mut victim = workers.remove(0);
            if faults % 3 == 2 && stopped.is_none() {
                signal(&victim, Signal::STOP);
                stopped = Some((victim, Instant::now()));
                stops += 1;
            } else {
                victim.kill().unwrap();
                victim.wait().unwrap();
            }
            workers.push(start(place, &history, lease));
            faults += 1;
        }
        go_on_after_a_while(&mut stopped, &mut workers, lease);
        std::thread::sleep(Duration::from_millis(150));
    }
    for mut worker in workers.into_iter().chain(stopped.map(|(child, _)| child)) {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    let left = queue.blocking_list(&JobFilter { limit: 9, ..JobFilter::default() }).unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert!(faults >= 3, "only {faults} faults: the history shows nothing");
    // A process that is stopped inside the store keeps all others from renewing their leases.
    let losses = faults + stops * processes;
    audit(&std::fs::read_to_string(&history).unwrap(), jobs.into(), losses);
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

/// Judges a history.
fn audit(history: &str, jobs: u64, losses: u32) {
    let mut begun: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut ended: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for line in history.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, job, fence] = words[..] else { panic!("{line:?}") };
        let (job, fence) = (job.parse().unwrap(), fence.parse().unwrap());
        let of = if what == "begin" { &mut begun } else { &mut ended };
        of.entry(job).or_default().push(fence);
    }
    for job in 1..=jobs {
        let attempts = begun.get(&job).unwrap_or_else(|| panic!("job {job} was lost"));
        let fences: std::collections::BTreeSet<u64> = attempts.iter().copied().collect();
        assert_eq!(fences.len(), attempts.len(), "job {job}: a fence was used twice");
        let done = ended.get(&job).unwrap_or_else(|| panic!("job {job} was never finished"));
        assert!(done.contains(fences.last().unwrap()), "job {job}: the last attempt did not end");
    }
    assert_eq!(begun.len() as u64, jobs, "a job that was never pushed");
    // Each loss of a worker ends its four attempts at most.
    let repeats: usize = begun.values().map(|attempts| attempts.len() - 1).sum();
    assert!(repeats <= 4 * losses as usize, "{repeats} repeats, {losses} losses");
}
