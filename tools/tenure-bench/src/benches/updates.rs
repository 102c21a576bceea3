//! Updates of one cell in a Redis: alone, beside get and put; by 64 tasks at once, beside a loop
//! that reads and writes until it succeeds; and one slow writer among fast ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use servers::Redis;
use tenure::{Error, Expect, Name, Put, PutVerdict, Tenure, WriteId};
use tokio::task::JoinSet;

use super::stores::failed;
use crate::figure::{Aim, Figure};
use crate::run::{Bench, Run};
use crate::stats::{median, micros, nanos_each};

const WRITERS: u32 = 64;
const FAST: u32 = 16;
const BLOCK: u32 = 30;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new(&["uncontended", "uncontended_vs_ids"], uncontended),
        Bench::new(
            &["contended_64_calls", "contended_64_slowest_vs_median", "naive_64_calls"],
            contended,
        ),
        Bench::new(&["slow_writer_tries"], slow_writer),
    ]
}

fn start() -> Result<Redis, Error> {
    Redis::builder().try_start().map_err(|why| failed(&why))
}

fn plus_one(old: Option<&[u8]>) -> String {
    let old = old.and_then(|old| std::str::from_utf8(old).ok()?.parse().ok());
    (old.unwrap_or(0_u64) + 1).to_string()
}

fn uncontended(run: &Run) -> Result<Vec<Figure>, Error> {
    let (blocks, server) = (run.count(3, 400), start()?);
    let url = server.url();
    run.in_task(async move {
        let tenure = Tenure::connect(&url).await?;
        let (cell, name, other): (_, Name, Name) =
            (tenure.cell("bench")?, "plain".parse()?, "ids".parse()?);
        let (mut updates, mut plain, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..blocks {
            let start = Instant::now();
            for _ in 0..BLOCK {
                cell.update(plus_one).await?;
            }
            updates.push(nanos_each(start, BLOCK) / 1e3);
            plain.push(gets_and_puts(&tenure, &name, |put| put).await?);
            ids.push(gets_and_puts(&tenure, &other, |put| put.id(WriteId::new())).await?);
        }
        let figure = Figure::new("uncontended", median(&updates), "us", "x a get and a put");
        let note = "x a get and a put with an id, which may be repeated like an update";
        let beside_ids = Figure::new("uncontended_vs_ids", median(&updates), "us", note);
        let figure = figure.relative_to(median(&plain)).judged_by(Aim::AtMost(1.05));
        Ok(vec![figure, beside_ids.relative_to(median(&ids))])
    })
}

/// Microseconds of a get and of a put on the condition that nothing has changed.
async fn gets_and_puts(
    tenure: &Tenure,
    name: &Name,
    finish: impl Fn(Put) -> Put,
) -> Result<f64, Error> {
    let start = Instant::now();
    for _ in 0..BLOCK {
        let old = tenure.cells().get(name).await?;
        let expect = old.as_ref().map_or(Expect::Absent, |old| Expect::Version(old.version));
        let new = plus_one(old.as_ref().map(|old| &*old.value));
        tenure.cells().put(&finish(Put::new(name.clone(), new).expect(expect))).await?;
    }
    Ok(nanos_each(start, BLOCK) / 1e3)
}

/// The commands that clients have sent.
fn calls(server: &Redis) -> u64 {
    server.commands("evalsha") + server.commands("eval")
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn contended(run: &Run) -> Result<Vec<Figure>, Error> {
    let (each, server) = (run.count(3, 100), start()?);
    let tenure = run.here(Tenure::connect(&server.url()))?;
    let total = f64::from(WRITERS * each);
    let before = calls(&server);
    let times = run.in_task(writers(tenure.clone(), each, false))?;
    let ours = (calls(&server) - before) as f64 / total;
    let before = calls(&server);
    run.in_task(writers(tenure, each, true))?;
    let naive = (calls(&server) - before) as f64 / total;
    let slowest = times.iter().copied().fold(0.0, f64::max);
    let note = "the slowest of 64 writers, x the median";
    Ok(vec![
        Figure::new("contended_64_calls", ours, "calls", "for each of 64 x 100 increments")
            .judged_by(Aim::AtMost(3.0)),
        Figure::new("contended_64_slowest_vs_median", slowest, "us", note)
            .relative_to(median(&times))
            .judged_by(Aim::AtMost(2.0)),
        Figure::new("naive_64_calls", naive, "calls", "the same by a loop of get and put"),
    ])
}

/// Microseconds that each writer took. Fails unless the sum is exact.
async fn writers(tenure: Tenure, each: u32, naive: bool) -> Result<Vec<f64>, Error> {
    let name: Name = if naive { "naive" } else { "sum" }.parse()?;
    let mut tasks = JoinSet::new();
    for _ in 0..WRITERS {
        let (tenure, name) = (tenure.clone(), name.clone());
        tasks.spawn(async move {
            let start = Instant::now();
            let cell = tenure.cell(name.as_str())?.timeout(Duration::from_secs(600));
            for _ in 0..each {
                if naive {
                    increment(&tenure, &name).await?;
                } else {
                    cell.update(plus_one).await?;
                }
            }
            Ok::<_, Error>(micros(start.elapsed()))
        });
    }
    let times: Vec<f64> = tasks.join_all().await.into_iter().collect::<Result<_, _>>()?;
    let sum = tenure.cells().get(&name).await?.map(|cell| cell.value);
    assert_eq!(sum, Some((WRITERS * each).to_string().into_bytes()), "the sum is exact");
    Ok(times)
}

/// What people write by hand.
async fn increment(tenure: &Tenure, name: &Name) -> Result<(), Error> {
    loop {
        let old = tenure.cells().get(name).await?;
        let expect = old.as_ref().map_or(Expect::Absent, |old| Expect::Version(old.version));
        let new = plus_one(old.as_ref().map(|old| &*old.value));
        let put = Put::new(name.clone(), new).expect(expect);
        if let PutVerdict::Done(_) = tenure.cells().put(&put).await? {
            return Ok(());
        }
    }
}

fn slow_writer(run: &Run) -> Result<Vec<Figure>, Error> {
    let (server, rounds) = (start()?, run.count(1, 5));
    let url = server.url();
    run.in_task(async move {
        let stop = Arc::new(AtomicBool::new(false));
        let mut fast = JoinSet::new();
        for _ in 0..FAST {
            let (tenure, stop) = (Tenure::connect(&url).await?, Arc::clone(&stop));
            fast.spawn(async move {
                let cell = tenure.cell("sum")?.timeout(Duration::from_secs(600));
                while !stop.load(Ordering::SeqCst) {
                    cell.update(plus_one).await?;
                }
                Ok::<_, Error>(())
            });
        }
        let tenure = Tenure::connect(&url).await?;
        let cell = tenure.cell("sum")?.timeout(Duration::from_secs(600));
        let mut most = 0;
        for _ in 0..rounds {
            let tries = AtomicU32::new(0);
            cell.update_async(|old| {
                tries.fetch_add(1, Ordering::SeqCst);
                async move {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    Ok(Some(plus_one(old.as_deref()).into_bytes()))
                }
            })
            .await?;
            most = most.max(tries.load(Ordering::SeqCst));
        }
        stop.store(true, Ordering::SeqCst);
        for ended in fast.join_all().await {
            ended?;
        }
        let note = "of a function that takes 200 ms, among 16 fast writers";
        let figure = Figure::new("slow_writer_tries", f64::from(most), "tries", note);
        Ok(vec![figure.judged_by(Aim::AtMost(4.0))])
    })
}
