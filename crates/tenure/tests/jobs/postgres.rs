//! Queues of jobs in a PostgreSQL: what a server has that no other store has. Transactions that are
//! open for long, connections that are cut, a restart, and what the server is asked to do.

use std::time::Duration;

use servers::{Postgres, eventually};
use tenure::{JobFilter, JobState, KeyMode, NewJob, Tenure, block_on};
use tokio::sync::Notify;

use super::{Place, history};

fn place(server: &Postgres) -> Place {
    Place { url: server.patient_url(), _directory: None, _server: None }
}

#[test]
fn no_job_is_lost_while_processes_are_killed_connections_cut_and_the_server_restarts() {
    let server = Postgres::start();
    history::play(&place(&server), history::SHORT_LEASE, |fault| match fault {
        4 => server.restart(),
        2 | 7 | 10 => drop(server.terminate_all()),
        _ => {}
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeping_worker_is_woken_by_each_push() {
    let server = Postgres::start();
    let (one, two) = (place(&server).connect(), Tenure::connect(&server.url()).await.unwrap());
    let queue = one.queue("mail").unwrap();
    let (stop, done) = (Notify::new(), Notify::new());
    let work = queue.work_until(1, stop.notified(), |_| {
        done.notify_one();
        async { Ok(()) }
    });
    let push = async {
        let sleepers = || server.done("SELECT count(*) FROM tenure.sleepers");
        for _ in 0..5 {
            super::eventually("the worker sleeps", async || sleepers().trim() == "1").await;
            two.queue("mail").unwrap().push("").await.unwrap();
            done.notified().await;
        }
        stop.notify_one();
    };
    tokio::join!(work, push).0.unwrap();
}

/// A job that is pushed by plain SQL is there with its transaction, and wakes a sleeping worker
/// when that commits. An attempt that is completed in a transaction ends with it, exactly once
/// (J6).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_pushed_and_completed_in_a_transaction_of_the_caller() {
    let server = Postgres::start();
    let tenure = place(&server).connect();
    let queue = tenure.queue("mail").unwrap();
    server.done("CREATE TABLE sent (job int8)");
    let (mut client, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let push = "SELECT tenure.push_job('default', 'mail', $1, p_lane => 'l')";
    let tx = client.transaction().await.unwrap();
    tx.query_one(push, &[&&b"undone"[..]]).await.unwrap();
    tx.rollback().await.unwrap();
    let tries = std::sync::atomic::AtomicU32::new(0);
    let (stop, url) = (Notify::new(), server.url());
    let work = queue.work_until(2, stop.notified(), |job| {
        let (tries, stop, url) = (&tries, &stop, &url);
        async move {
            let (mut client, connection) =
                tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let (id, fence) = (i64::try_from(job.id().0)?, i64::try_from(job.fence()?.get())?);
            let tx = client.transaction().await?;
            tx.execute("INSERT INTO sent VALUES ($1)", &[&id]).await?;
            let complete = "SELECT tenure.complete_job('default', 'mail', $1, $2)";
            tx.execute(complete, &[&id, &fence]).await?;
            if tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
                // Rolled back: neither the row nor the completion is there.
                tx.rollback().await?;
                return Err(job.later(Duration::ZERO));
            }
            tx.commit().await?;
            if job.payload() == b"last" {
                stop.notify_one();
            }
            Ok(())
        }
    });
    let push = async {
        let sleepers = || server.done("SELECT count(*) FROM tenure.sleepers");
        super::eventually("the worker sleeps", async || sleepers().trim() == "1").await;
        let tx = client.transaction().await.unwrap();
        for payload in [&b"first"[..], b"last"] {
            tx.query_one(push, &[&payload]).await.unwrap();
        }
        assert_eq!(sleepers().trim(), "1", "not before the commit");
        tx.commit().await.unwrap();
    };
    tokio::join!(work, push).0.unwrap();
    assert_eq!(server.done("SELECT count(*), count(DISTINCT job) FROM sent").trim(), "2|2");
    assert_eq!(server.done("SELECT count(*) FROM tenure.job_ends").trim(), "0");
    let left = queue.list(&JobFilter { limit: 9, ..JobFilter::default() }).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    let (id, fence) = (1_i64, 1_i64);
    let complete = "SELECT tenure.complete_job('default', 'mail', $1, $2)";
    let refused = client.execute(complete, &[&id, &fence]).await.unwrap_err();
    assert_eq!(refused.code().map(tokio_postgres::error::SqlState::code), Some("TNJ01"));
    let wrong = "SELECT tenure.push_job('default', 'mail', '', p_priority => 10)";
    let refused = client.execute(wrong, &[]).await.unwrap_err();
    assert!(refused.as_db_error().unwrap().message().contains("0 to 9"), "{refused}");
}

/// A claim must not wait for a row that another transaction has locked, and must find it later.
#[test]
fn a_job_that_is_locked_is_passed_and_found_again() {
    let server = Postgres::start();
    let tenure = place(&server).connect();
    let queue = tenure.queue("mail").unwrap();
    let first = queue.blocking_push("one").unwrap().id();
    queue.blocking_push("two").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let lock = format!("BEGIN; SELECT FROM tenure.jobs WHERE id = {first} FOR UPDATE");
        client.batch_execute(&lock).await.unwrap();
        client
    });
    let (stop, taken) = (Notify::new(), std::sync::Mutex::new(Vec::new()));
    let work = queue.work_until(1, stop.notified(), |job| {
        let mut all = taken.lock().unwrap();
        all.push(job.payload().to_vec());
        let count = all.len();
        drop(all);
        if count == 2 {
            stop.notify_one();
        }
        let client = &client;
        async move {
            if count == 1 {
                client.batch_execute("COMMIT").await?;
            }
            Ok(())
        }
    });
    runtime.block_on(work).unwrap();
    assert_eq!(*taken.lock().unwrap(), [b"two".to_vec(), b"one".to_vec()]);
}

/// What is counted exactly and what is estimated: the cost of a count does not grow with the queue.
#[test]
fn counts_of_a_large_queue_are_bounded_and_near() {
    let server = Postgres::start();
    let tenure = place(&server).connect();
    let queue = tenure.queue("mail").unwrap();
    for _ in 0..25 {
        queue.blocking_push_many((0..1_000).map(|_| NewJob::new(""))).unwrap();
    }
    queue.blocking_push(NewJob::new("").after(Duration::from_secs(60))).unwrap();
    server.done("ANALYZE tenure.jobs");
    let counts = queue.blocking_counts().unwrap();
    assert_eq!((counts.scheduled, counts.running, counts.dead), (1, 0, 0));
    assert!((20_000..=30_000).contains(&counts.ready), "{counts:?}");
    let filter = JobFilter { state: Some(JobState::Scheduled), limit: 9, ..JobFilter::default() };
    assert_eq!(queue.blocking_list(&filter).unwrap().len(), 1);
}

/// Many processes push the same keys and the same lanes at once: no key twice, no lane over its
/// limit, no deadlock.
#[test]
fn keys_and_lanes_hold_among_many_clients_at_once() {
    let server = Postgres::start();
    let place = place(&server);
    let tenure = place.connect();
    let queue = tenure.queue("mail").unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let most = "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM tenure.jobs \
                        WHERE state IN ('r', 'w') AND lane IS NOT NULL GROUP BY lane) l";
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                let most: u32 = server.done(most).trim().parse().unwrap();
                assert!(most <= 2, "{most} jobs of a lane at once");
            }
        });
        let mut pushers = Vec::new();
        for client in 0..4 {
            let place = &place;
            pushers.push(scope.spawn(move || {
                let queue = place.connect().queue("mail").unwrap();
                for round in 0..20 {
                    let key = |number: u32| format!("k{number}").parse().unwrap();
                    let lane = |number: u32| format!("l{number}").parse().unwrap();
                    let jobs = (0..4).map(|number| {
                        // Opposite orders, which would deadlock if locks were taken as they come.
                        let nth = if client % 2 == 0 { number } else { 3 - number };
                        let mode = [KeyMode::UntilStarted, KeyMode::Replace][round % 2];
                        NewJob::new("").key(key(nth), mode).lane(lane(3 - nth), 2)
                    });
                    queue.blocking_push_many(jobs).unwrap();
                }
            }));
        }
        let mut workers = Vec::new();
        for _ in 0..2 {
            let (place, over) = (&place, &over);
            workers.push(scope.spawn(move || {
                let queue = place.connect().queue("mail").unwrap();
                let stop = async {
                    while !over.load(std::sync::atomic::Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let work = queue.work_until(4, stop, |job| async move {
                    if job.attempt() == 1 { Err("once more".into()) } else { Ok(()) }
                });
                runtime.block_on(work).unwrap();
            }));
        }
        for pusher in pushers {
            pusher.join().unwrap();
        }
        eventually("all jobs are done", || {
            let counts = queue.blocking_counts().unwrap();
            counts.ready + counts.running + counts.blocked + counts.scheduled == 0
        });
        over.store(true, std::sync::atomic::Ordering::SeqCst);
        for worker in workers {
            worker.join().unwrap();
        }
        watch.join().unwrap();
    });
    let limits = server.done("SELECT count(*) FROM tenure.lanes");
    assert_eq!(limits.trim(), "0", "limits are forgotten");
    block_on(tenure.close());
}

/// Where commits do not wait for the disk, those of a worker that was asked to do: what is done is
/// done after a crash that loses everything that was only in memory.
#[test]
fn what_is_done_durably_outlives_a_crash_where_commits_do_not_wait() {
    let server = Postgres::start();
    let url = format!("{}&durability=grace", server.patient_url());
    let place = Place { url, _directory: None, _server: None };
    let tenure = place.connect();
    let queue = tenure.queue("mail").unwrap().durably();
    queue.blocking_push_many((0..3).map(|_| NewJob::new(""))).unwrap();
    server.done("CHECKPOINT");
    server.stop_wal_writer();
    let stop = Notify::new();
    let left = std::sync::atomic::AtomicU32::new(3);
    let work = queue.work_until(1, stop.notified(), |_| {
        if left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) == 1 {
            stop.notify_one();
        }
        async { Ok(()) }
    });
    block_on(work).unwrap();
    server.lose_power();
    server.restart();
    let after = "SELECT count(*) FROM tenure.jobs";
    assert_eq!(server.done(after).trim(), "0", "all of them are done");
}

/// A role with the rights that the page names pushes jobs, also in a transaction of its own, and
/// works on them until they are done or dead.
#[test]
fn the_rights_of_the_page_suffice_for_jobs() {
    let server = Postgres::start();
    block_on(place(&server).connect().close());
    let page = include_str!("../../../../docs/postgres.md");
    let (_, grants) = page.split_once("```sql\nGRANT").expect("the rights of a role");
    let (grants, _) = grants.split_once("```").expect("their end");
    server.done(&format!("CREATE ROLE app LOGIN PASSWORD 'word'; GRANT{grants}"));
    let url = server.url_as("app", "word");
    let place = Place { url: url.clone(), _directory: None, _server: None };
    let queue = place.connect().queue("mail").unwrap();
    let keyed = NewJob::new("x".repeat(500)).key("k".parse().unwrap(), KeyMode::Replace);
    queue.blocking_push(keyed.clone()).unwrap();
    queue.blocking_push(keyed.lane("l".parse().unwrap(), 1)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let push = "SELECT tenure.push_job('default', 'mail', 'bad', p_max_attempts => 1)";
        client.execute(push, &[]).await.unwrap();
        let stop = Notify::new();
        let work = queue.work_until(1, stop.notified(), |job| async move {
            if job.payload() == b"bad" { Err("no".into()) } else { Ok(()) }
        });
        let watch = async {
            super::eventually("all have ended", async || {
                let counts = queue.counts().await.unwrap();
                (counts.ready, counts.scheduled, counts.running, counts.dead) == (0, 0, 0, 1)
            })
            .await;
            stop.notify_one();
        };
        tokio::join!(work, watch).0.unwrap();
        let dead = queue.dead(None, 9).await.unwrap().remove(0).id;
        queue.retry(dead).await.unwrap();
        queue.cancel(dead).await.unwrap();
    });
}
