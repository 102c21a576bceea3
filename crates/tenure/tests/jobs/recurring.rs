//! Recurring jobs on a clock that the test owns: one run for each tick, however many processes work
//! on the queue, and one for all ticks that were missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tenure::contract::{Batch, ClaimId, Put, SessionId, Turn};
use tenure::engine::Terms;
use tenure::time::ManualClock;
use tenure::{CronSchedule, ErrorKind, JobFilter, JobQueue, NewJob, Tenure, limits};
use tokio::sync::Notify;

use super::Place;

const MINUTE: Duration = Duration::from_secs(60);
/// More than any answer takes; only a failure waits for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store on a clock of its own, with workers that note what they run.
struct Stage {
    place: Place,
    clock: ManualClock,
    runtime: tokio::runtime::Runtime,
    ran: (Sender<String>, Receiver<String>),
    stop: Arc<Notify>,
    working: Arc<AtomicUsize>,
}

impl Stage {
    fn new(place: Place) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let (clock, stop) = (ManualClock::new(), Arc::default());
        // On a minute, so that ticks are where the test expects them.
        clock.set_wall_micros(1_700_000_040_000_000);
        Self { place, clock, runtime, ran: channel(), stop, working: Arc::default() }
    }

    fn terms(&self) -> Terms {
        Terms { clock: Arc::new(self.clock.clone()), ..super::terms() }
    }

    fn tenure(&self) -> Tenure {
        let connecting = tenure::engine::connect(&self.place.url, self.terms());
        let engine = self.runtime.block_on(connecting).unwrap();
        Tenure::builder().clock(Arc::new(self.clock.clone())).open(engine).unwrap()
    }

    /// Starts a worker with a session of its own, as another process would have.
    fn start_worker(&self) {
        let queue = self.tenure().queue("q").unwrap();
        let (ran, stop) = (self.ran.0.clone(), Arc::clone(&self.stop));
        let working = Arc::clone(&self.working);
        self.working.fetch_add(1, Ordering::SeqCst);
        self.runtime.spawn(async move {
            let work = queue.work_until(2, stop.notified(), |job| {
                let ran = ran.clone();
                async move {
                    job.fence()?;
                    ran.send(String::from_utf8_lossy(job.payload()).into_owned())?;
                    Ok(())
                }
            });
            work.await.unwrap();
            working.fetch_sub(1, Ordering::SeqCst);
        });
    }

    fn stop_workers(&self) {
        self.until("all workers have stopped", || {
            self.stop.notify_waiters();
            self.working.load(Ordering::SeqCst) == 0
        });
    }

    /// Waits until it is so, and lets a little time pass meanwhile: a call that was under way when
    /// the clock was moved has timed out, and is repeated after a pause. Less than half a minute in
    /// all, so that no tick comes by itself.
    #[track_caller]
    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = std::time::Instant::now() + PATIENCE;
        while !is_so() {
            assert!(std::time::Instant::now() < end, "not within a minute: {what}");
            std::thread::sleep(Duration::from_millis(50));
            self.clock.advance(Duration::from_millis(20));
        }
    }

    /// Waits until a run has begun, and returns its payload.
    #[track_caller]
    fn next_run(&self) -> String {
        let mut run = None;
        self.until("a run", || {
            run = self.ran.1.try_recv().ok();
            run.is_some()
        });
        run.expect("it has come")
    }

    /// Waits until nothing runs or is ready. Then one run waits, and none has begun meanwhile.
    #[track_caller]
    fn assert_quiet(&self, queue: &JobQueue) {
        self.until("the queue is quiet", || {
            let counts = queue.blocking_counts().unwrap();
            (counts.ready, counts.running, counts.scheduled) == (0, 0, 1)
        });
        assert_eq!(self.ran.1.try_recv().ok(), None, "a run too many");
    }
}

fn each_minute() -> CronSchedule {
    "* * * * *".parse().unwrap()
}

fn waiting_runs(queue: &JobQueue) -> Vec<u64> {
    let filter = JobFilter { limit: 9, ..JobFilter::default() };
    queue.blocking_list(&filter).unwrap().iter().map(|job| job.id.0).collect()
}

macro_rules! on_engines {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[test]
            fn $test() {
                super::$test(&super::Stage::new(super::Place::memory()));
            })*
        }
        mod embedded {
            $(#[test]
            fn $test() {
                super::$test(&super::Stage::new(super::Place::embedded()));
            })*
        }
    };
}

on_engines!(
    each_tick_is_one_run_however_many_workers_there_are,
    ticks_that_were_missed_are_one_run,
    a_worker_that_dies_before_it_has_pushed_the_next_run_leaves_that_to_another,
    a_schedule_is_added_again_changed_and_removed,
    a_run_that_was_cancelled_is_skipped,
    what_cannot_recur_is_refused,
);

fn each_tick_is_one_run_however_many_workers_there_are(stage: &Stage) {
    let queue = stage.tenure().queue("q").unwrap();
    for _ in 0..4 {
        stage
            .tenure()
            .queue("q")
            .unwrap()
            .blocking_add_recurring("m", &each_minute(), "x")
            .unwrap();
        stage.start_worker();
    }
    for tick in 0..8 {
        stage.assert_quiet(&queue);
        stage.clock.advance(MINUTE);
        assert_eq!(stage.next_run(), "x", "tick {tick}");
    }
    stage.assert_quiet(&queue);
    stage.clock.advance(MINUTE / 2);
    stage.assert_quiet(&queue);
    stage.stop_workers();
}

fn ticks_that_were_missed_are_one_run(stage: &Stage) {
    let queue = stage.tenure().queue("q").unwrap();
    queue.blocking_add_recurring("m", &each_minute(), "x").unwrap();
    stage.clock.advance(MINUTE * 90);
    // To add it once more does not take the place of the run that is late.
    queue.blocking_add_recurring("m", &each_minute(), "x").unwrap();
    stage.start_worker();
    assert_eq!(stage.next_run(), "x");
    stage.assert_quiet(&queue);
    stage.clock.advance(MINUTE);
    assert_eq!(stage.next_run(), "x", "and the next one in time");
    stage.stop_workers();
}

fn a_worker_that_dies_before_it_has_pushed_the_next_run_leaves_that_to_another(stage: &Stage) {
    let queue = stage.tenure().queue("q").unwrap();
    queue.blocking_add_recurring("m", &each_minute(), "x").unwrap();
    stage.clock.advance(MINUTE);
    // Claimed by a worker without a claim of its own, which counts as dead.
    let engine = stage.runtime.block_on(tenure::engine::connect(&stage.place.url, stage.terms()));
    let (engine, name) = (engine.unwrap(), "q".parse().unwrap());
    let turn = Turn {
        worker: ClaimId::new(),
        session: SessionId::new(),
        reports: Vec::new(),
        held: None,
        want: 1,
        look: false,
        durable: false,
    };
    let claimed = stage.runtime.block_on(engine.jobs().unwrap().turn(&name, &turn)).unwrap();
    assert_eq!(claimed.jobs[0].key.as_ref().map(tenure::Name::user_part), Some("m"));
    stage.start_worker();
    assert_eq!(stage.next_run(), "x");
    stage.assert_quiet(&queue);
    stage.clock.advance(MINUTE);
    assert_eq!(stage.next_run(), "x");
    stage.assert_quiet(&queue);
    stage.stop_workers();
}

fn a_schedule_is_added_again_changed_and_removed(stage: &Stage) {
    let queue = stage.tenure().queue("q").unwrap();
    queue.blocking_add_recurring("m", &each_minute(), "x").unwrap();
    let first = waiting_runs(&queue);
    queue.blocking_add_recurring("m", &each_minute(), "x").unwrap();
    assert_eq!(waiting_runs(&queue), first, "nothing has changed");
    let hourly = "@hourly".parse::<CronSchedule>().unwrap().in_zone("Europe/Berlin").unwrap();
    let job = NewJob::new([0xff, 0]).priority(9).lane("l".parse().unwrap(), 1).max_attempts(2);
    queue.blocking_add_recurring("m", &hourly, job.clone()).unwrap();
    let changed = waiting_runs(&queue);
    assert!(changed.len() == 1 && changed != first, "the run that waits is replaced: {changed:?}");
    let seen = queue.blocking_recurring().unwrap();
    assert_eq!((seen.len(), &seen[0].schedule, &seen[0].job), (1, &hourly, &job));
    assert_eq!(seen[0].next_micros, hourly.next_after(1_700_000_040_000_000));
    assert!(queue.blocking_remove_recurring("m").unwrap());
    assert!(!queue.blocking_remove_recurring("m").unwrap());
    assert!(waiting_runs(&queue).is_empty() && queue.blocking_recurring().unwrap().is_empty());
}

fn a_run_that_was_cancelled_is_skipped(stage: &Stage) {
    let queue = stage.tenure().queue("q").unwrap();
    queue.blocking_add_recurring("m", &each_minute(), "x").unwrap();
    let run = waiting_runs(&queue)[0];
    queue.blocking_cancel(tenure::JobId(run)).unwrap();
    assert!(waiting_runs(&queue).is_empty());
    stage.clock.advance(MINUTE + MINUTE / 2);
    stage.start_worker();
    stage.assert_quiet(&queue);
    stage.clock.advance(MINUTE);
    assert_eq!(stage.next_run(), "x", "the worker has pushed the one after it");
    stage.stop_workers();
}

fn what_cannot_recur_is_refused(stage: &Stage) {
    let tenure = stage.tenure();
    let queue = tenure.queue("q").unwrap();
    let refused = |name: &str, job: NewJob| {
        queue.blocking_add_recurring(name, &each_minute(), job).unwrap_err().kind()
    };
    let key = "k".parse().unwrap();
    let wrong = [
        NewJob::new("").key(key, tenure::KeyMode::UntilDone),
        NewJob::new("").after(MINUTE),
        NewJob::new(vec![0; limits::RECURRING_BYTES + 1]),
        NewJob::new("").priority(10),
    ];
    for job in wrong {
        assert_eq!(refused("m", job), ErrorKind::InvalidOption);
    }
    assert_eq!(refused("", NewJob::new("")), ErrorKind::InvalidName);
    assert_eq!(refused(&"n".repeat(200), NewJob::new("")), ErrorKind::InvalidOption);
    assert!(waiting_runs(&queue).is_empty() && queue.blocking_recurring().unwrap().is_empty());
    for number in 0..limits::RECURRING_JOBS {
        queue.blocking_add_recurring(number.to_string(), &each_minute(), "x").unwrap();
    }
    assert_eq!(refused("one more", NewJob::new("")), ErrorKind::InvalidOption);
    queue.blocking_add_recurring("0", &each_minute(), "changed").unwrap();
    // Written by another version.
    let other = tenure.queue("other").unwrap();
    let cell = tenure::Name::from_store("\u{1}cron:other").unwrap();
    let engine = tenure::engine::connect(&stage.place.url, stage.terms());
    let engine = stage.runtime.block_on(engine).unwrap();
    let batch = Batch::from(&Put::new(cell, "{\"format\":2}"));
    stage.runtime.block_on(engine.cells().unwrap().write(&batch)).unwrap();
    let error = other.blocking_recurring().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("another version"), "{error}");
}
