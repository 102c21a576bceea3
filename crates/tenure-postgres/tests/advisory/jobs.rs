//! Jobs pushed and completed in a transaction of the caller's own: rolled back, committed, by a
//! stale attempt, in the wrong database.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use servers::Postgres;
use tenure::{ErrorKind, Job, JobFilter, JobId, JobQueue, JobState, KeyMode, NewJob, Tenure};
use tenure_postgres::{complete_in, push_in};
use tokio::sync::Notify;
use tokio_postgres::Client;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::host::{client, dropped_after, soon};

async fn queue(server: &Postgres) -> JobQueue {
    Tenure::connect(&server.patient_url()).await.unwrap().queue("mail").unwrap()
}

/// How many workers sleep until there is a job.
fn sleepers(server: &Postgres) -> String {
    server.done("SELECT count(*) FROM tenure.sleepers").trim().to_owned()
}

/// A job that sets every option.
fn job() -> NewJob {
    NewJob::new(vec![7; 500])
        .priority(9)
        .key("k".parse().unwrap(), KeyMode::UntilDone)
        .lane("l".parse().unwrap(), 3)
        .max_attempts(2)
        .back_off(Duration::from_millis(5), Duration::from_millis(7))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_there_with_the_commit_and_not_after_a_rollback() {
    let server = Postgres::start();
    let (queue, mut client) = (queue(&server).await, client(&server.url()).await);
    let everything = JobFilter { limit: 9, ..JobFilter::default() };
    let tx = client.transaction().await.unwrap();
    push_in(&tx, &queue, job()).await.unwrap();
    tx.rollback().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let id = push_in(&tx, &queue, job()).await.unwrap();
    let later = push_in(&tx, &queue, NewJob::new("").after(Duration::from_secs(60))).await.unwrap();
    let at = 1_900_000_000_000_001;
    let exact = push_in(&tx, &queue, NewJob::new("").at_micros(at)).await.unwrap();
    assert_eq!(push_in(&tx, &queue, job()).await.unwrap(), id, "the job has its key");
    assert!(queue.list(&everything).await.unwrap().is_empty(), "nothing before the commit");
    tx.commit().await.unwrap();
    let pushed = queue.job(id).await.unwrap().unwrap();
    assert_eq!((pushed.priority, pushed.max_attempts, pushed.payload.len()), (9, 2, 500));
    let key = pushed.key.unwrap();
    assert_eq!((key.key.as_str(), key.mode), ("k", KeyMode::UntilDone));
    assert_eq!(pushed.lane.unwrap().as_str(), "l");
    assert_eq!(
        server
            .done("SELECT lane_limit, first_pause, most_pause FROM tenure.jobs WHERE key = 'k'")
            .trim(),
        "3|5000|7000"
    );
    let later = queue.job(later).await.unwrap().unwrap();
    let pause = later.due_micros - later.pushed_micros;
    assert!((50_000_000..=70_000_000).contains(&pause), "{pause}");
    assert_eq!(later.state, JobState::Scheduled);
    assert_eq!(queue.job(exact).await.unwrap().unwrap().due_micros, at);
    assert_eq!(queue.list(&everything).await.unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeping_worker_is_woken_at_the_commit() {
    let server = Postgres::start();
    let (queue, mut client) = (queue(&server).await, client(&server.url()).await);
    let (stop, began) = (Notify::new(), Notify::new());
    let work = queue.work_until(1, stop.notified(), |_| {
        let began = &began;
        async move {
            began.notify_one();
            Ok(())
        }
    });
    let push = async {
        for _ in 0..5 {
            while sleepers(&server) != "1" {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let tx = client.transaction().await.unwrap();
            push_in(&tx, &queue, "x").await.unwrap();
            assert_eq!(sleepers(&server), "1", "not before the commit");
            tx.commit().await.unwrap();
            // By the commit itself: the worker would look by itself once in a second.
            let woken = "SELECT count(*) FROM tenure.sleepers, tenure.jobs WHERE state = 'r'";
            assert_eq!(server.done(woken).trim(), "0");
            began.notified().await;
        }
        stop.notify_one();
    };
    soon(Box::pin(async { tokio::join!(work, push).0 })).await.unwrap();
}

/// Attempts that do not commit leave no effect and do not complete the job, even if the handler
/// returns `Ok`. The one that commits does both, once, and no warning is logged for it.
#[tokio::test]
async fn an_attempt_ends_with_the_transaction_that_has_its_effect() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let server = Postgres::start();
    let queue = queue(&server).await;
    server.done("CREATE TABLE sent (job int8)");
    let pause = Duration::from_micros(1);
    let job = NewJob::new("x").lane("l".parse().unwrap(), 1).back_off(pause, pause);
    queue.push(job).await.unwrap();
    let (tries, stop, url) = (AtomicU32::new(0), Notify::new(), server.url());
    let work = queue.work_until(1, stop.notified(), |job| {
        let (tries, stop, url, queue) = (&tries, &stop, &url, &queue);
        async move {
            let mut client = client(url).await;
            let tx = client.transaction().await?;
            tx.execute("INSERT INTO sent VALUES (1)", &[]).await?;
            complete_in(&tx, &job).await?;
            match tries.fetch_add(1, Ordering::SeqCst) {
                0 => return Err("rolled back".into()),
                1 => return Ok(()),
                _ => {}
            }
            let seen = queue.job(job.id()).await?.unwrap();
            let errors: Vec<&str> = seen.errors.iter().map(|one| one.error.as_str()).collect();
            let forgotten = "the transaction that completes the attempt was not committed";
            assert_eq!(errors, ["rolled back", forgotten]);
            tx.commit().await?;
            assert!(queue.job(job.id()).await?.is_none(), "the job is done with the commit");
            // From here on the attempt is not the current one: it is refused.
            let tx = client.transaction().await?;
            tx.execute("INSERT INTO sent VALUES (2)", &[]).await?;
            let stale = complete_in(&tx, &job).await.unwrap_err();
            assert_eq!(stale.kind(), ErrorKind::Lost, "{stale}");
            assert!(stale.to_string().contains("is not the current one"), "{stale}");
            // The server commits nothing of a transaction in which a statement was refused.
            tx.commit().await?;
            stop.notify_one();
            Ok(())
        }
    });
    soon(work).await.unwrap();
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    assert_eq!(server.done("SELECT count(*), max(job) FROM sent").trim(), "1|1", "exactly once");
    let warned = warnings.0.lock().unwrap().clone();
    assert!(warned.contains("was not committed"), "{warned}");
    assert!(!warned.contains("stale"), "{warned}");
}

/// The worker is lost while its transaction is open, and another worker looks for its jobs: it
/// gets none that a transaction may still complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_other_worker_gets_a_job_while_a_transaction_that_completes_it_is_open() {
    let server = Postgres::start();
    let (one, two) = (queue(&server).await, queue(&server).await);
    server.done("CREATE TABLE sent (job int8)");
    let id = one.push("x").await.unwrap().id();
    let mut client = client(&server.url()).await;
    let (began, open, attempts) = (Notify::new(), Notify::new(), AtomicU32::new(0));
    let (job_of, stop) = (Mutex::new(None), Notify::new());
    let lost = async {
        let work = one.work(1, |job| {
            *job_of.lock().unwrap() = Some(job);
            began.notify_one();
            std::future::pending()
        });
        tokio::select! {
            _ = work => unreachable!("it works until it is dropped"),
            () = open.notified() => {}
        }
    };
    let transaction = async {
        began.notified().await;
        let job = job_of.lock().unwrap().take().unwrap();
        let tx = client.transaction().await.unwrap();
        tx.execute("INSERT INTO sent VALUES (1)", &[]).await.unwrap();
        complete_in(&tx, &job).await.unwrap();
        // The worker is dropped, which releases its claim.
        open.notify_one();
        let released = "SELECT count(*) FROM tenure.claims WHERE held";
        while server.done(released).trim() != "1" {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // A turn of the other worker has looked for jobs of lost workers.
        let looked = || server.done("SELECT looked FROM tenure.queue_looks");
        let before = looked();
        while looked() == before {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(attempts.load(Ordering::SeqCst), 0);
        tx.commit().await.unwrap();
        assert!(two.job(id).await.unwrap().is_none(), "it is done");
        stop.notify_one();
    };
    let other = two.work_until(1, stop.notified(), |_| {
        attempts.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    // The other worker starts when the first one has the job.
    let other = async {
        while job_of.lock().unwrap().is_none() && two.counts().await.unwrap().running == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        other.await
    };
    soon(Box::pin(async { tokio::join!(lost, transaction, other).2 })).await.unwrap();
    assert_eq!(attempts.load(Ordering::SeqCst), 0);
    assert_eq!(server.done("SELECT count(*) FROM sent").trim(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_jobs_and_wrong_places_are_refused_with_the_reason() {
    let server = Postgres::start();
    let queue = queue(&server).await;
    let mut here = client(&server.url()).await;
    let tx = here.transaction().await.unwrap();
    let error = push_in(&tx, &queue, NewJob::new("").priority(10)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().starts_with("job \"mail\": the priority is 10"), "{error}");
    // That was refused here: the transaction goes on.
    push_in(&tx, &queue, "x").await.unwrap();
    let memory = Tenure::connect("memory:").await.unwrap().queue("mail").unwrap();
    let error = push_in(&tx, &memory, "x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    tx.commit().await.unwrap();

    server.done("CREATE DATABASE elsewhere");
    let url = format!("{}/elsewhere", server.url().strip_suffix("/postgres").unwrap());
    let mut there = client(&url).await;
    let tx = there.transaction().await.unwrap();
    let error = push_in(&tx, &queue, "x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("no queues in schema"), "{error}");
    tx.rollback().await.unwrap();
    // The other database has queues, too: of the same names, and not the same.
    let other = Tenure::connect(&url).await.unwrap().queue("mail").unwrap();
    let tx = there.transaction().await.unwrap();
    let error = push_in(&tx, &queue, "x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("another database"), "{error}");
    push_in(&tx, &other, "y").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((queue.counts().await.unwrap().ready, other.counts().await.unwrap().ready), (1, 1));
}

/// A future that is dropped may have pushed the job or not; the transaction goes on, and a job is
/// there at most once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_that_is_dropped_leaves_the_transaction_usable() {
    let server = Postgres::start();
    let (queue, mut client) = (queue(&server).await, client(&server.url()).await);
    for polls in 0.. {
        let tx = client.transaction().await.unwrap();
        let key = NewJob::new("").key(format!("k{polls}").parse().unwrap(), KeyMode::UntilDone);
        let done = dropped_after(polls, push_in(&tx, &queue, key.clone())).await;
        let id: JobId = push_in(&tx, &queue, key).await.unwrap();
        tx.commit().await.unwrap();
        assert!(queue.job(id).await.unwrap().is_some());
        assert_eq!(queue.counts().await.unwrap().ready, polls as u64 + 1, "one for each key");
        if let Some(done) = done {
            assert_eq!(done.unwrap(), id);
            return;
        }
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn register(client: &mut Client, queue: &JobQueue, name: &str) -> Result<(), Failure> {
    let transaction = client.transaction().await?;
    transaction.execute("INSERT INTO account (name) VALUES ($1)", &[&name]).await?;
    push_in(&transaction, queue, NewJob::new(name).priority(7)).await?;
    transaction.commit().await?; // the job is there, and a sleeping worker is woken
    Ok(())
}

async fn welcome(client: &mut Client, job: &Job) -> Result<(), Failure> {
    let transaction = client.transaction().await?;
    let name = std::str::from_utf8(job.payload())?;
    transaction.execute("INSERT INTO welcomed (name) VALUES ($1)", &[&name]).await?;
    complete_in(&transaction, job).await?;
    transaction.commit().await?; // the row is there exactly once
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_programs_of_the_page_are_these_and_run() {
    let page = include_str!("../../../../docs/jobs.md");
    let (_, program) = page.split_once("```rs\n").expect("a program");
    let (_, functions) = program.split_once("```").expect("its end").0.split_once("\n\n").unwrap();
    assert!(include_str!("jobs.rs").contains(functions), "{functions}");
    let server = Postgres::start();
    let queue = queue(&server).await;
    server.done("CREATE TABLE account (name text); CREATE TABLE welcomed (name text)");
    register(&mut client(&server.url()).await, &queue, "ann").await.unwrap();
    let (stop, url) = (Notify::new(), server.url());
    let work = queue.work_until(1, stop.notified(), |job| {
        let (stop, url) = (&stop, &url);
        async move {
            welcome(&mut client(url).await, &job).await?;
            stop.notify_one();
            Ok(())
        }
    });
    soon(work).await.unwrap();
    assert_eq!(server.done("SELECT * FROM welcomed").trim(), "ann");
    assert_eq!(queue.counts().await.unwrap().running, 0);
}

/// Keeps the warnings of this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Fields(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        writeln!(self.0, "{field}={value:?}").unwrap();
    }
}
