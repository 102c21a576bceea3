//! Push, work, fail, cancel, pause: one story each, on every engine that has jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{
    ErrorKind, JobChanged, JobFailure, JobFilter, JobId, JobState, KeyMode, NewJob, Pushed,
    QueueSettings, Tenure, limits,
};
use tokio::sync::{Notify, mpsc};

use super::{Place, eventually, terms};
use tenure::contract::Eviction;

macro_rules! on_engines {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::Place::memory()).await;
            })*
        }
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::Place::embedded()).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::Place::postgres()).await;
            })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::Place::redis()).await;
            })*
        }
    };
}

on_engines!(
    every_job_is_done_once_and_in_order_of_priority,
    a_failed_job_is_tried_again_and_then_dead_with_its_errors,
    a_panic_is_a_failure_and_the_worker_goes_on,
    later_does_not_count_and_progress_is_kept,
    a_cancelled_job_is_told,
    a_stopped_worker_gives_back_what_it_has_not_done,
    a_lost_worker_drops_its_handlers_before_another_has_the_job,
    a_paused_queue_is_seen_and_its_settings_are_kept,
    keys_and_bad_input_are_answered,
    typed_payloads_arrive_and_wrong_ones_are_dead,
    many_pushes_at_once_are_all_taken_in,
    a_look_of_no_worker_promotes_what_is_due_and_claims_nothing,
);

/// Calls may take long where many tests share a server on a busy machine.
async fn connect(place: &Place) -> Tenure {
    let builder = Tenure::builder().call_limit(Duration::from_secs(30)).lease(LEASE);
    builder.connect(&place.url).await.unwrap()
}

/// Longer than any call takes.
const LEASE: Duration = Duration::from_secs(60);

async fn every_job_is_done_once_and_in_order_of_priority(place: &Place) {
    let queue = connect(place).await.queue("mail").unwrap();
    let jobs = (0..30_u8).map(|number| NewJob::new([number]).priority(number % 10));
    queue.push_many(jobs).await.unwrap();
    let (send, mut receive) = mpsc::unbounded_channel();
    let stop = Notify::new();
    let work = queue.work_until(1, stop.notified(), |job| {
        let send = send.clone();
        async move {
            send.send((job.payload()[0], job.fence()?, job.attempt()))?;
            Ok(())
        }
    });
    let collect = async {
        let mut seen = Vec::new();
        while seen.len() < 30 {
            seen.push(receive.recv().await.unwrap());
        }
        eventually("empty", async || queue.counts().await.unwrap().running == 0).await;
        stop.notify_one();
        seen
    };
    let (worked, seen) = tokio::join!(work, collect);
    worked.unwrap();
    let priorities: Vec<u8> = seen.iter().map(|(number, ..)| number % 10).collect();
    assert!(priorities.is_sorted_by(|a, b| a >= b), "{priorities:?}");
    assert!(seen.is_sorted_by(|a, b| a.1 < b.1), "fences grow");
    assert!(seen.iter().all(|(.., attempt)| *attempt == 1));
    assert!(queue.list(&JobFilter { limit: 9, ..JobFilter::default() }).await.unwrap().is_empty());
}

async fn a_failed_job_is_tried_again_and_then_dead_with_its_errors(place: &Place) {
    let queue = connect(place).await.queue("mail").unwrap();
    let no_pause = Duration::from_micros(1);
    let job = NewJob::new("x").max_attempts(3).back_off(no_pause, no_pause);
    let id = queue.push(job).await.unwrap().id();
    let stop = Notify::new();
    let work = queue.work_until(2, stop.notified(), |job| async move {
        Err(JobFailure::new(format!("no luck at {}", job.attempt())))
    });
    let watch = async {
        eventually("dead", async || queue.counts().await.unwrap().dead == 1).await;
        stop.notify_one();
    };
    tokio::join!(work, watch).0.unwrap();
    let dead = &queue.dead(None, 10).await.unwrap()[0];
    let errors: Vec<&str> = dead.errors.iter().map(|error| error.error.as_str()).collect();
    assert_eq!(errors, ["no luck at 1", "no luck at 2", "no luck at 3"]);
    assert_eq!(queue.job(id).await.unwrap().unwrap().payload, b"x");
    assert_eq!(queue.cancel(id).await.unwrap(), JobChanged::Is(JobState::Dead));
    assert_eq!(queue.retry(id).await.unwrap(), JobChanged::Done);
    assert_eq!(queue.counts().await.unwrap().ready, 1);
    assert_eq!(queue.delete(id).await.unwrap(), JobChanged::Is(JobState::Ready));
    assert_eq!(queue.cancel(id).await.unwrap(), JobChanged::Done);
    assert_eq!(queue.cancel(id).await.unwrap(), JobChanged::Unknown);
}

async fn a_panic_is_a_failure_and_the_worker_goes_on(place: &Place) {
    let queue = connect(place).await.queue("mail").unwrap();
    queue.push(NewJob::new("bad").max_attempts(1).priority(9)).await.unwrap();
    queue.push("good").await.unwrap();
    let stop = Notify::new();
    let work = queue.work_until(1, stop.notified(), |job| {
        let stop = &stop;
        async move {
            assert_ne!(job.payload(), b"bad", "on purpose");
            stop.notify_one();
            Ok(())
        }
    });
    work.await.unwrap();
    let dead = queue.dead(None, 10).await.unwrap();
    assert!(dead[0].errors[0].error.contains("on purpose"), "{:?}", dead[0].errors);
    assert_eq!(queue.counts().await.unwrap().ready, 0);
}

async fn later_does_not_count_and_progress_is_kept(place: &Place) {
    let queue = connect(place).await.queue("mail").unwrap();
    queue.push(NewJob::new("").max_attempts(1)).await.unwrap();
    let stop = Notify::new();
    let work = queue.work_until(1, stop.notified(), |job| {
        let stop = &stop;
        async move {
            if job.last_progress().is_empty() {
                job.progress("half").await?;
                return Err(job.later(Duration::ZERO));
            }
            assert_eq!((job.last_progress(), job.attempt()), (&b"half"[..], 1));
            let long = vec![0; limits::PROGRESS_BYTES + 1];
            assert_eq!(job.progress(long).await.unwrap_err().kind(), ErrorKind::InvalidOption);
            stop.notify_one();
            Ok(())
        }
    });
    work.await.unwrap();
    let counts = queue.counts().await.unwrap();
    assert_eq!((counts.dead, counts.ready, counts.scheduled), (0, 0, 0));
}

async fn a_cancelled_job_is_told(place: &Place) {
    let queue = connect(place).await.queue("mail").unwrap();
    let id = queue.push("").await.unwrap().id();
    let (stop, started) = (Notify::new(), Notify::new());
    let work = queue.work_until(1, stop.notified(), |job| {
        let (stop, started) = (&stop, &started);
        async move {
            started.notify_one();
            job.cancelled().await;
            assert!(job.is_cancelled());
            stop.notify_one();
            Err("stopped because it was cancelled".into())
        }
    });
    let cancel = async {
        started.notified().await;
        assert_eq!(queue.cancel(id).await.unwrap(), JobChanged::Told);
    };
    tokio::join!(work, cancel).0.unwrap();
    assert_eq!(queue.job(id).await.unwrap(), None, "its failure was the end");
}

async fn a_stopped_worker_gives_back_what_it_has_not_done(place: &Place) {
    let queue = connect(place).await.queue("mail").unwrap().grace(Duration::ZERO);
    let id = queue.push("").await.unwrap().id();
    let (stop, started) = (Notify::new(), Notify::new());
    let work = queue.work_until(1, stop.notified(), |_| {
        let (stop, started) = (&stop, &started);
        async move {
            started.notify_one();
            stop.notify_one();
            std::future::pending().await
        }
    });
    work.await.unwrap();
    let job = queue.job(id).await.unwrap().unwrap();
    assert_eq!((job.state, job.attempts, job.crashes), (JobState::Ready, 0, 0));
}

async fn a_lost_worker_drops_its_handlers_before_another_has_the_job(place: &Place) {
    struct OnDrop(Arc<AtomicU32>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let engine = tenure::engine::connect(&place.url, terms()).await.unwrap();
    let tenure = Tenure::builder().open(Arc::clone(&engine)).unwrap();
    let queue = tenure.queue("mail").unwrap();
    queue.push("").await.unwrap();
    let (dropped, attempts) = (Arc::new(AtomicU32::new(0)), AtomicU32::new(0));
    let (stop, started) = (Notify::new(), Notify::new());
    let work = queue.work_until(1, stop.notified(), |job| {
        let (stop, started, attempts) = (&stop, &started, &attempts);
        let dropped = Arc::clone(&dropped);
        async move {
            if attempts.fetch_add(1, Ordering::SeqCst) == 0 {
                let _guard = OnDrop(dropped);
                started.notify_one();
                return std::future::pending().await;
            }
            assert_eq!(dropped.load(Ordering::SeqCst), 1, "the first attempt is over");
            assert_eq!(job.attempt(), 2);
            stop.notify_one();
            Ok(())
        }
    });
    let evict = async {
        started.notified().await;
        let slot = queue.slot().clone();
        let query = tenure::Query::Slot(slot.clone());
        let holders = tenure.inspect(&query).await.unwrap().slots.remove(0).holders;
        let eviction = Eviction::new(slot, holders[0].fence, "a test").unwrap();
        engine.evict(&eviction).await.unwrap();
    };
    tokio::join!(work, evict).0.unwrap();
    assert_eq!(queue.counts().await.unwrap().running, 0);
}

async fn a_paused_queue_is_seen_and_its_settings_are_kept(place: &Place) {
    let tenure = connect(place).await;
    let queue = tenure.queue("mail").unwrap();
    queue.push("").await.unwrap();
    queue.pause().await.unwrap();
    let settings = QueueSettings { keep_done: Duration::from_secs(60), ..QueueSettings::default() };
    queue.configure(settings).await.unwrap();
    let counts = connect(place).await.queue("mail").unwrap().counts().await.unwrap();
    assert!(counts.paused && counts.settings == settings);
    let stop = Notify::new();
    let work = queue.work_until(1, stop.notified(), |_| async {
        stop.notify_one();
        Ok(())
    });
    let resume = async { queue.resume().await.unwrap() };
    tokio::join!(work, resume).0.unwrap();
    eventually("done", async || queue.counts().await.unwrap().done == 1).await;
    assert_eq!(tenure.queues().await.unwrap(), ["mail".parse().unwrap()]);
    let long = QueueSettings { keep_dead: Duration::MAX, ..settings };
    assert_eq!(queue.configure(long).await.unwrap_err().kind(), ErrorKind::InvalidOption);
}

async fn keys_and_bad_input_are_answered(place: &Place) {
    let tenure = connect(place).await;
    let queue = tenure.queue("mail").unwrap();
    let keyed = |mode| NewJob::new("").key("k".parse().unwrap(), mode);
    let first = queue.push(keyed(KeyMode::UntilDone)).await.unwrap();
    assert_eq!(queue.push(keyed(KeyMode::UntilDone)).await.unwrap(), Pushed::Exists(first.id()));
    let replaced = queue.push(keyed(KeyMode::Replace)).await.unwrap();
    assert!(matches!(replaced, Pushed::Replaced { instead_of, .. } if instead_of == first.id()));
    let many: Vec<NewJob> = (0..=limits::PUSHED_JOBS).map(|_| NewJob::new("")).collect();
    let wrong = [
        vec![NewJob::new(vec![0; limits::JOB_BYTES + 1])],
        vec![NewJob::new("").priority(10)],
        vec![NewJob::new("").max_attempts(0)],
        vec![NewJob::new("").lane("l".parse().unwrap(), 0)],
        vec![NewJob::new("").lane("l".repeat(201).parse().unwrap(), 1)],
        vec![NewJob::new("").back_off(Duration::from_secs(2), Duration::from_secs(1))],
        many,
        Vec::new(),
    ];
    for jobs in wrong {
        let error = queue.push_many(jobs.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        assert!(error.to_string().starts_with("job \"mail\": "), "{error}");
    }
    for slots in [0, limits::WORKER_SLOTS + 1] {
        let error = queue.work(slots, |_| async { Ok(()) }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
    }
    assert_eq!(queue.retry(JobId(99)).await.unwrap(), JobChanged::Unknown);
    assert_eq!(tenure.queue("").unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(tenure.queue("q".repeat(255)).unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(queue.counts().await.unwrap().ready, 1, "nothing wrong was added");
}

async fn typed_payloads_arrive_and_wrong_ones_are_dead(place: &Place) {
    let queue = connect(place).await.queue("mail").unwrap();
    queue.push("no json").await.unwrap();
    queue.push(NewJob::json(&("ann", 7)).unwrap().priority(0)).await.unwrap();
    let stop = Notify::new();
    let work = queue.work_until(1, stop.notified(), |job| {
        let stop = &stop;
        async move {
            let (name, number): (String, u32) = job.json()?;
            assert_eq!((name.as_str(), number), ("ann", 7));
            stop.notify_one();
            Ok(())
        }
    });
    work.await.unwrap();
    assert_eq!(queue.counts().await.unwrap().dead, 1);
}

async fn many_pushes_at_once_are_all_taken_in(place: &Place) {
    let queue = connect(place).await.queue("mail").unwrap();
    let mut pushes = tokio::task::JoinSet::new();
    for number in 0..200_u32 {
        let queue = queue.clone();
        let key = format!("k{}", number % 100).parse().unwrap();
        let job = NewJob::new("").key(key, KeyMode::UntilDone);
        pushes.spawn(async move { queue.push(job).await.unwrap() });
    }
    let pushed = pushes.join_all().await;
    let new = pushed.iter().filter(|one| matches!(one, Pushed::New(_))).count();
    assert_eq!((new, queue.counts().await.unwrap().ready), (100, 100));
}

async fn a_look_of_no_worker_promotes_what_is_due_and_claims_nothing(place: &Place) {
    let queue = connect(place).await.queue("mail").unwrap();
    let soon = NewJob::new("").after(Duration::from_millis(20));
    let later = NewJob::new("").after(Duration::from_secs(3_600));
    queue.push_many([soon, later]).await.unwrap();
    eventually("one is due", async || queue.counts_when_promoted().await.unwrap().ready == 1).await;
    let counts = queue.counts_when_promoted().await.unwrap();
    assert_eq!((counts.ready, counts.scheduled, counts.running), (1, 1, 0));
}
