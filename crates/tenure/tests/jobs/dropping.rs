//! Calls of job queues whose futures are dropped after each number of polls, on real servers. A
//! call may be made or not; never half of it, and nothing is left that keeps later calls from a
//! job.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use tenure::{JobFilter, JobId, JobQueue, KeyMode, NewJob};
use tokio::sync::Notify;

use super::{Place, eventually};

/// More polls than any call takes.
const MOST_POLLS: u32 = 200;

/// Polls a future so many times, then drops it. Returns what it came to, if it did.
async fn dropped_after<T>(times: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            // Dropped now, and not when it would be woken: that is a poll later.
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Runs a call again and again, each time dropped after one more poll, until it ends by itself.
async fn at_every_await<T, F: Future<Output = T>>(
    what: &str,
    mut call: impl FnMut(u32) -> F,
    mut after: impl AsyncFnMut(u32, Option<T>),
) {
    for polls in 1..MOST_POLLS {
        let done = dropped_after(polls, call(polls)).await;
        let ended = done.is_some();
        after(polls, done).await;
        if ended {
            return;
        }
    }
    panic!("{what} does not end within {MOST_POLLS} polls");
}

async fn every_job(queue: &JobQueue) -> Vec<tenure::JobView> {
    queue.list(&JobFilter { limit: 1_000, ..JobFilter::default() }).await.unwrap()
}

/// A push whose future is dropped adds all of its jobs or none, and a repeat with keys adds the
/// rest.
async fn pushes(place: &Place) {
    let tenure = place.open().await;
    let queue = tenure.queue("mail").unwrap();
    let jobs = |round: u32| {
        let key = move |number: u32| format!("{round}-{number}").parse().unwrap();
        (0..3).map(move |number| {
            let job = NewJob::new("x".repeat(200)).lane("l".parse().unwrap(), 1);
            job.key(key(number), KeyMode::UntilDone)
        })
    };
    let push = |round| {
        let queue = &queue;
        async move { queue.push_many(jobs(round)).await }
    };
    at_every_await("a push", push, async |round, done| {
        let of_round = |all: Vec<tenure::JobView>| {
            let prefix = format!("{round}-");
            let keyed = |job: &tenure::JobView| {
                job.key.as_ref().is_some_and(|key| key.key.as_str().starts_with(&prefix))
            };
            all.iter().filter(|job| keyed(job)).count()
        };
        let made = of_round(every_job(&queue).await);
        assert!(made == 0 || made == 3, "{made} of 3 jobs");
        let again = queue.push_many(jobs(round)).await.unwrap();
        assert_eq!((again.len(), of_round(every_job(&queue).await)), (3, 3), "round {round}");
        if let Some(done) = done {
            assert_eq!(done.unwrap().len(), 3);
        }
    })
    .await;
}

/// A change whose future is dropped is made or not, and a repeat makes it.
async fn changes(place: &Place) {
    let tenure = place.open().await;
    let queue = tenure.queue("mail").unwrap();
    let ids: Vec<JobId> = {
        let jobs = (0..MOST_POLLS).map(|_| NewJob::new("").lane("l".parse().unwrap(), 2));
        queue.push_many(jobs).await.unwrap().iter().map(|pushed| pushed.id()).collect()
    };
    let cancel = |round: u32| queue.cancel(ids[round as usize]);
    at_every_await("a cancellation", cancel, async |round, _| {
        queue.cancel(ids[round as usize]).await.unwrap();
        assert!(queue.job(ids[round as usize]).await.unwrap().is_none());
        // Its place in the lane is free for the next one.
        let counts = queue.counts().await.unwrap();
        assert_eq!((counts.ready, counts.blocked), (2, u64::from(MOST_POLLS - round) - 2));
    })
    .await;
    at_every_await(
        "a pause",
        |_| queue.pause(),
        async |_, _| {
            queue.pause().await.unwrap();
            assert!(queue.counts().await.unwrap().paused);
            queue.resume().await.unwrap();
            assert!(!queue.counts().await.unwrap().paused);
        },
    )
    .await;
    at_every_await("a look", |_| every_job(&queue), async |_, _| {}).await;
    at_every_await("a count", |_| queue.counts(), async |_, _| {}).await;
}

/// A worker whose future is dropped at any await keeps no job: each goes to a worker that comes
/// after it, at once, and counts as one more attempt.
async fn workers(place: &Place) {
    let tenure = place.open().await;
    let queue = tenure.queue("mail").unwrap();
    let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    for polls in 1.. {
        let done_before = ended.load(Ordering::SeqCst);
        let pause = Duration::from_micros(1);
        let job = |_| NewJob::new("").max_attempts(1_000).back_off(pause, pause);
        queue.push_many((0..3).map(job)).await.unwrap();
        let work = queue.work(2, |job| {
            begun.fetch_add(1, Ordering::SeqCst);
            let ended = &ended;
            async move {
                job.progress("half").await?;
                tokio::task::yield_now().await;
                ended.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        });
        dropped_after(polls, work).await;
        // What it had is ready again when its claim is released, and another worker gets it.
        let stop = Notify::new();
        let rest = queue.work_until(4, stop.notified(), |_| async { Ok(()) });
        let watch = async {
            let what = format!("all jobs are done, after {polls} polls");
            eventually(&what, async || {
                // A job that met three workers is dead, as after crashes.
                for dead in queue.dead(None, 10).await.unwrap() {
                    queue.retry(dead.id).await.unwrap();
                }
                let counts = queue.counts().await.unwrap();
                counts.ready + counts.running + counts.scheduled + counts.dead == 0
            })
            .await;
            stop.notify_one();
        };
        tokio::join!(rest, watch).0.unwrap();
        // The worker that was dropped had nothing left to do: the next ones would only wait.
        if ended.load(Ordering::SeqCst) - done_before == 3 {
            break;
        }
        assert!(polls < MOST_POLLS, "a worker does not do three jobs within {MOST_POLLS} polls");
    }
    assert!(begun.load(Ordering::SeqCst) > 0, "no worker was dropped while it had a job");
}

macro_rules! on_servers {
    ($($story:ident: $test:ident),*) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$story(&super::Place::postgres()).await;
            })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$story(&super::Place::redis()).await;
            })*
        }
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$story(&super::Place::embedded()).await;
            })*
        }
    };
}

on_servers!(
    pushes: a_push_is_made_as_a_whole_or_not,
    changes: a_change_is_made_or_not,
    workers: a_worker_leaves_no_job_behind
);
