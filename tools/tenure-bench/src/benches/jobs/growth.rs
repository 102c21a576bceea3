//! What the work leaves behind on PostgreSQL: dead rows that claims have to pass while a snapshot
//! is held, and bytes in the log of writes.

use std::sync::Mutex;
use std::time::Instant;

use tenure::{Error, Tenure};
use tokio::sync::Notify;

use super::contender::{Contender, Kind, push};
use super::peers::{Peers, Settings};
use super::{QUEUE, SLOTS, by_hand, server};
use crate::benches::stores::failed;
use crate::figure::{Aim, Figure};
use crate::run::Run;

pub(super) const WAL_NAMES: [&str; 2] = ["wal_100b_postgres", "wal_1kb_postgres"];

/// How much longer a job takes after 60,000 others under a held snapshot than before them.
pub(super) fn held_snapshot(run: &Run) -> Result<Vec<Figure>, Error> {
    let (first, between) = (run.count(500, 10_000), run.count(500, 50_000));
    let server = server()?;
    let url = server.url();
    let times = run.in_task(async move {
        let queue = Tenure::connect(&url).await?.queue(QUEUE)?;
        let jobs = first + between + first;
        push(&queue, jobs, 100).await?;
        let reader = by_hand::connect(&url).await?;
        let vacuum = "VACUUM (ANALYZE) tenure.jobs, tenure.loads";
        reader.batch_execute(vacuum).await.map_err(|error| failed(&error))?;
        let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tenure.queues";
        reader.batch_execute(snapshot).await.map_err(|error| failed(&error))?;
        handler_times(&queue, jobs).await
    })?;
    let each = |from: u32| {
        let took = times[(from + first - 1) as usize] - times[from as usize];
        took.as_secs_f64() * 1e6 / f64::from(first)
    };
    let note = "a job after 60,000 under a held snapshot; x the same before them";
    let figure = Figure::new("held_snapshot_postgres", each(first + between), "us", note);
    Ok(vec![figure.relative_to(each(0)).judged_by(Aim::AtMost(1.5))])
}

/// Works until so many jobs have been handled, and returns when each handler began.
async fn handler_times(queue: &tenure::JobQueue, jobs: u32) -> Result<Vec<Instant>, Error> {
    let (times, all) = (Mutex::new(Vec::new()), Notify::new());
    let handler = async |_| {
        let mut times = times.lock().map_err(|_| failed(&"a handler panicked"))?;
        times.push(Instant::now());
        if times.len() == jobs as usize {
            all.notify_one();
        }
        Ok(())
    };
    queue.work_until(SLOTS, all.notified(), handler).await?;
    times.into_inner().map_err(|_| failed(&"a handler panicked"))
}

/// Bytes of log for the whole life of a job: pushed by 1,000, claimed and completed by one worker.
pub(super) fn wal(run: &Run, peers: &Peers) -> Result<Vec<Figure>, Error> {
    let jobs = run.count(1_000, 5_000);
    let server = server()?;
    let contenders = Contender::all(run, &server, peers, &[Settings::Best])?;
    let mut figures = Vec::new();
    for (name, bytes, aim) in [(WAL_NAMES[0], 100, 1_100.0), (WAL_NAMES[1], 1_024, 2_300.0)] {
        let mut each = Vec::new();
        for contender in &contenders {
            // The first life writes whole pages after the checkpoint.
            let _ = bytes_each(run, contender, jobs, bytes)?;
            each.push(bytes_each(run, contender, jobs, bytes)?);
        }
        let note = "bytes of log a job, its whole life";
        let figure = Figure::new(name, each[0], "bytes", note);
        figures.push(figure.judged_by(Aim::AtMost(aim)));
        for (contender, each_of) in contenders.iter().zip(&each).skip(1) {
            let (suffix, note) = match contender.kind {
                Kind::ByHand => ("_vs_by_hand".to_owned(), "x the batch by hand"),
                _ => (contender.suffix(), "x the peer"),
            };
            let figure = Figure::new(format!("{name}{suffix}"), each[0], "bytes", note);
            figures.push(figure.relative_to(*each_of));
        }
    }
    Ok(figures)
}

fn bytes_each(run: &Run, contender: &Contender, jobs: u32, bytes: usize) -> Result<f64, Error> {
    let jobs = contender.share(jobs);
    let before = written(run, contender)?;
    let _ = contender.rate(run, 1, jobs, bytes)?;
    Ok((written(run, contender)? - before) / f64::from(jobs))
}

/// How many bytes of log the server has ever written.
fn written(run: &Run, contender: &Contender) -> Result<f64, Error> {
    let query = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8";
    let row = run.here(contender.client.query_one(query, &[]));
    Ok(row.map_err(|error| failed(&error))?.get(0))
}
