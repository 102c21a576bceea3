//! Cells on every engine: one call at a time, refused writes, 64 tasks and 8 processes at once, and
//! how long a change takes to reach a watch, beside a hand-off of the same engine.
//!
//! Names of figures end in the engine; those of memory have no ending.

use std::sync::Arc;
use std::time::Instant;

use tenure::{CellRange, Error, Expect, Name, Put, PutVerdict, Tenure, Version};
use tokio::task::JoinSet;

use super::processes::throughput;
use super::stores::StoreKind;
use crate::figure::{Aim, Figure};
use crate::run::{Bench, Run};
use crate::stats::{median, micros};

/// What is measured on each engine.
const NAMES: [[&str; 6]; 5] = [
    ["get", "put", "put_refused", "put_64_tasks", "put_8_procs", "watch_latency"],
    [
        "get_embedded",
        "put_embedded",
        "put_refused_embedded",
        "put_64_tasks_embedded",
        "put_8_procs_embedded",
        "watch_latency_embedded",
    ],
    [
        "get_redis",
        "put_redis",
        "put_refused_redis",
        "put_64_tasks_redis",
        "put_8_procs_redis",
        "watch_latency_redis",
    ],
    [
        "get_postgres",
        "put_postgres",
        "put_refused_postgres",
        "put_64_tasks_postgres",
        "put_8_procs_postgres",
        "watch_latency_postgres",
    ],
    [
        "get_etcd",
        "put_etcd",
        "put_refused_etcd",
        "put_64_tasks_etcd",
        "put_8_procs_etcd",
        "watch_latency_etcd",
    ],
];

const TASKS: u32 = 64;
const PROCESSES: u32 = 8;
/// As many writers as there are tasks in one process.
const TASKS_EACH: u32 = TASKS / PROCESSES;

pub(crate) fn benches() -> Vec<Bench> {
    use StoreKind::{Embedded, Etcd, Memory, Postgres, Redis};
    let engine = |(kind, names): (StoreKind, &'static [&'static str; 6])| {
        // No process can share the memory of another.
        let shown = if kind == Memory { &names[..4] } else { &names[..] };
        Bench::new(shown, move |run| measure(run, kind, names))
    };
    [Memory, Embedded, Redis, Postgres, Etcd].into_iter().zip(&NAMES).map(engine).collect()
}

fn measure(run: &Run, kind: StoreKind, names: &[&'static str; 6]) -> Result<Vec<Figure>, Error> {
    let store = kind.start()?;
    let tenure = run.here(Tenure::connect(&store.url))?;
    let calls = run.count(5, if kind == StoreKind::Memory { 20_000 } else { 400 });
    let (get, put, refused) = singly(run, &tenure, calls)?;
    let together =
        tasks(run, &tenure, run.count(1, if kind == StoreKind::Memory { 200 } else { 50 }))?;
    let note = "puts a second of 64 tasks, x one by one";
    let together = Figure::new(names[3], together, "1/s", note).relative_to(1e6 / put);
    let aim = kind == StoreKind::Embedded;
    let judged = |figure: Figure| if aim { figure.judged_by(Aim::AtLeast(20.0)) } else { figure };
    let mut figures = vec![
        Figure::new(names[0], get, "us", "x a put").relative_to(put),
        Figure::new(names[1], put, "us", "one at a time"),
        Figure::new(names[2], refused, "us", "x a put that is done").relative_to(put),
        judged(together),
    ];
    if kind != StoreKind::Memory {
        let times = run.count(2, 400);
        let rate = throughput(PROCESSES, TASKS_EACH * times, |number| {
            let counts = [number, TASKS_EACH, times].map(|count| count.to_string());
            ["puts".to_owned(), store.url.clone()].into_iter().chain(counts).collect()
        })?;
        let note = "puts a second of 8 processes with 8 tasks each, x one by one";
        figures.push(judged(Figure::new(names[4], rate, "1/s", note).relative_to(1e6 / put)));
    }
    let (watch, handoff) = watched(run, &store.url, run.count(3, 200))?;
    let note = "from the put to the watch, x release to grant";
    figures.push(Figure::new(names[5], watch, "us", note).relative_to(handoff));
    Ok(figures)
}

/// Microseconds of a get, of a put that is done and of one that is refused, taking turns.
fn singly(run: &Run, tenure: &Tenure, calls: u32) -> Result<(f64, f64, f64), Error> {
    let tenure = tenure.clone();
    run.in_task(async move {
        let name: Name = "bench".parse()?;
        let done = Put::new(name.clone(), [7; 64]);
        let refused = done.clone().expect(Expect::Version(Version(1)));
        let cells = tenure.cells();
        cells.put(&done).await?;
        let (mut gets, mut puts, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..calls {
            let start = Instant::now();
            cells.get(&name).await?;
            gets.push(micros(start.elapsed()));
            let start = Instant::now();
            cells.put(&done).await?;
            puts.push(micros(start.elapsed()));
            let start = Instant::now();
            let verdict = cells.put(&refused).await?;
            refusals.push(micros(start.elapsed()));
            assert!(matches!(verdict, PutVerdict::Refused(Some(_))), "it has another version");
        }
        Ok((median(&gets), median(&puts), median(&refusals)))
    })
}

/// Puts a second of many tasks, each to a cell of its own.
fn tasks(run: &Run, tenure: &Tenure, each: u32) -> Result<f64, Error> {
    let tenure = tenure.clone();
    run.in_task(async move {
        let start = Instant::now();
        put_from_tasks(&tenure, "bench", TASKS, each).await?;
        Ok(f64::from(TASKS * each) / start.elapsed().as_secs_f64())
    })
}

/// Starts tasks that write a cell of their own so many times, and waits for all of them.
pub(super) async fn put_from_tasks(
    tenure: &Tenure,
    prefix: &str,
    tasks: u32,
    each: u32,
) -> Result<(), Error> {
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (tenure, name) = (tenure.clone(), format!("{prefix}:{task}").parse::<Name>()?);
        running.spawn(async move {
            let put = Put::new(name, [7; 64]);
            for _ in 0..each {
                tenure.cells().put(&put).await?;
            }
            Ok::<(), Error>(())
        });
    }
    running.join_all().await.into_iter().collect()
}

/// Microseconds from a put to its change in a watch of another session, and from a release to the
/// grant of a waiter there, taking turns.
fn watched(run: &Run, url: &str, rounds: u32) -> Result<(f64, f64), Error> {
    let (writer, watcher) = run.here(async {
        Ok::<_, Error>((Tenure::connect(url).await?, Tenure::connect(url).await?))
    })?;
    run.in_task(async move {
        let name: Name = "bench:watched".parse()?;
        let mut watch = watcher.cells().watch(CellRange::One(name.clone())).await?;
        watch.next().await?;
        let mutex = Arc::new(watcher.mutex("bench:lock")?);
        let (mut watches, mut handoffs) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let put = Put::new(name.clone(), round.to_string());
            let start = Instant::now();
            let seen = tokio::spawn(async move {
                let change = watch.next().await;
                (watch, change, Instant::now())
            });
            writer.cells().put(&put).await?;
            let (again, change, at) = seen.await.expect("the watch does not panic");
            watch = again;
            change?;
            watches.push(micros(at - start));

            let held = writer.mutex("bench:lock")?.lock().await?;
            let waiter = Arc::clone(&mutex);
            let granted = tokio::spawn(async move {
                let guard = waiter.lock().await?;
                let at = Instant::now();
                guard.release().await?;
                Ok::<_, Error>(at)
            });
            while watcher.claim_count() == 0 {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            let start = Instant::now();
            held.release().await?;
            let at = granted.await.expect("the waiter does not panic")?;
            handoffs.push(micros(at - start));
        }
        Ok((median(&watches), median(&handoffs)))
    })
}
