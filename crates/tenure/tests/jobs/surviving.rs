//! What outlives the death of a process and a reboot of the machine, on the embedded store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::engine::embedded::{EmbeddedEngine, Location};
use tenure::{JobChanged, JobFilter, JobState, KeyMode, NewJob, Query, Tenure};
use tokio::sync::Notify;

use super::{Place, history, terms};

#[test]
fn jobs_of_a_worker_that_is_killed_go_to_another_at_once() {
    let place = Place::embedded();
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("history");
    let tenure = place.connect();
    let queue = tenure.queue("work").unwrap();
    queue.blocking_push("slow").unwrap();
    let mut took = Vec::new();
    for _ in 0..5 {
        // A process that has the job is stopped, so that it cannot finish it, and killed.
        let mut victim = history::start(&place, &history, Duration::from_secs(5));
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let counts = queue.blocking_counts().unwrap();
            if counts.running == 1 {
                history::signal(&victim, rustix::process::Signal::STOP);
                // An error: it was stopped inside the store, and has to go on.
                if queue.blocking_counts().is_ok_and(|counts| counts.running == 1) {
                    break;
                }
                history::signal(&victim, rustix::process::Signal::CONT);
            }
            if counts.ready + counts.running == 0 {
                queue.blocking_push("slow").unwrap();
            }
            assert!(Instant::now() < end, "the process claims nothing: {counts:?}");
        }
        took.push(rescued_after_kill(&tenure, &mut victim));
    }
    took.sort();
    println!("rescued after a median of {:?}", took[2]);
}

/// Kills a process and returns how long it took until a worker of this one had its job.
///
/// The kill comes from a thread of its own: a process that is stopped inside LMDB can block the
/// reads of this one until it is gone.
fn rescued_after_kill(tenure: &Tenure, victim: &mut std::process::Child) -> Duration {
    let queue = tenure.queue("work").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::scope(|scope| {
        let slot = Query::Slot(queue.slot().clone());
        let killer = scope.spawn(move || {
            // The worker of this process sleeps, and watches the other one.
            let end = Instant::now() + Duration::from_secs(2);
            let both = || {
                let seen = tenure.blocking_inspect(&slot);
                seen.is_ok_and(|seen| seen.slots.iter().any(|slot| slot.holders.len() == 2))
            };
            while !both() && Instant::now() < end {}
            std::thread::sleep(Duration::from_millis(30));
            let killed = Instant::now();
            victim.kill().unwrap();
            victim.wait().unwrap();
            killed
        });
        let (stop, rescued) = (Notify::new(), std::sync::Mutex::new(None));
        let work = queue.work_until(1, stop.notified(), |job| {
            *rescued.lock().unwrap() = Some((Instant::now(), job.attempt()));
            stop.notify_one();
            async { Ok(()) }
        });
        runtime.block_on(work).unwrap();
        let (at, attempt) = rescued.lock().unwrap().unwrap();
        assert_eq!(attempt, 2);
        at.duration_since(killer.join().unwrap())
    })
}

/// A reboot is another boot id: the lock environment is a new one.
fn after_reboot(place: &Place, boot: &str) -> Tenure {
    let path = place.url.strip_prefix("embedded://").unwrap();
    let engine = EmbeddedEngine::open(&Location::at(path).boot(boot), terms()).unwrap();
    Tenure::builder().open(Arc::new(engine)).unwrap()
}

#[test]
fn jobs_their_errors_and_settings_outlive_a_reboot_and_nothing_runs_after_it() {
    let place = Place::embedded();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let before = after_reboot(&place, "one");
    let queue = before.queue("mail").unwrap();
    runtime.block_on(async {
        queue.push(NewJob::new("bad").max_attempts(1).priority(9)).await.unwrap();
        queue.push(NewJob::new("done").priority(8)).await.unwrap();
        let (stop, began) = (Notify::new(), Notify::new());
        let work = queue.work_until(1, stop.notified(), |job| {
            let (stop, began) = (&stop, &began);
            async move {
                match job.payload() {
                    b"bad" => Err("no".into()),
                    b"done" => {
                        stop.notify_one();
                        began.notify_one();
                        Ok(())
                    }
                    _ => unreachable!(),
                }
            }
        });
        work.await.unwrap();
        let keyed = NewJob::new("waits").key("k".parse().unwrap(), KeyMode::UntilDone);
        queue.push(keyed.after(Duration::from_secs(3_600))).await.unwrap();
        queue.push("ready").await.unwrap();
        queue.pause().await.unwrap();
    });
    before.blocking_close();
    drop((queue, before));

    let after = after_reboot(&place, "two");
    let queue = after.queue("mail").unwrap();
    let counts = queue.blocking_counts().unwrap();
    assert!(counts.paused);
    let all = (counts.dead, counts.scheduled, counts.ready, counts.running);
    assert_eq!(all, (1, 1, 1, 0), "what was done is gone");
    let dead = queue.blocking_dead(None, 9).unwrap().remove(0);
    assert_eq!((dead.state, dead.errors[0].error.as_str()), (JobState::Dead, "no"));
    assert_eq!(queue.blocking_job(dead.id).unwrap().unwrap().payload, b"bad");
    let keyed = NewJob::new("again").key("k".parse().unwrap(), KeyMode::UntilDone);
    let exists = queue.blocking_push(keyed).unwrap();
    assert!(matches!(exists, tenure::Pushed::Exists(_)), "the key is kept: {exists:?}");
    let fresh = queue.blocking_push("fresh").unwrap();
    assert!(fresh.id() > exists.id() && fresh.id() > dead.id, "numbers go on growing");
    assert_eq!(queue.blocking_retry(dead.id).unwrap(), JobChanged::Done);
}

/// A worker that waits for the disk begins a job in the place of one that is done when that can run
/// no more, whatever becomes of the machine: what is on the disk then is looked at as it is.
#[test]
fn what_is_done_durably_never_runs_again_after_a_loss_of_power() {
    let place = Place::embedded();
    let copies = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tenure = after_reboot(&place, "one");
    let queue = tenure.queue("mail").unwrap().durably();
    let (stop, ran) = (Notify::new(), std::sync::atomic::AtomicUsize::new(0));
    let copy_of = |number: usize| copies.path().join(number.to_string());
    runtime.block_on(async {
        queue.push_many((0..6_u8).map(|number| NewJob::new([number]))).await.unwrap();
        let work = queue.work_until(1, stop.notified(), |job| {
            let before = ran.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            // The disk as a loss of power would leave it.
            copy_durable(&place, &copy_of(before));
            if before == 5 {
                stop.notify_one();
            }
            async move {
                match job.payload() {
                    [number] if usize::from(*number) == before => Ok(()),
                    other => Err(format!("{other:?} out of order").into()),
                }
            }
        });
        work.await.unwrap();
    });
    copy_durable(&place, &copy_of(6));
    for done in 0..=6 {
        let url = format!("embedded://{}", copy_of(done).display());
        let copy = Place { url, _directory: None, _server: None };
        let after = after_reboot(&copy, "two");
        let left = after.queue("mail").unwrap();
        let left = left.blocking_list(&JobFilter { limit: 9, ..JobFilter::default() }).unwrap();
        assert_eq!(left.len(), 6 - done, "{done} were done: {left:?}");
    }
}

/// Copies what of a store outlives a loss of power.
fn copy_durable(place: &Place, to: &std::path::Path) {
    let from = std::path::Path::new(place.url.strip_prefix("embedded://").unwrap());
    copy_files(&from.join("durable"), &to.join("durable"));
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn copy_files(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
