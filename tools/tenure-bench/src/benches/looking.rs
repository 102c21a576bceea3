//! What looking costs: the share of a server that a sampler takes, the longest single call of a
//! look at many locks, and what a lock pays for being looked at, on every engine with a store of
//! its own.
//!
//! What a lock pays is judged by the mean of all pairs in some seconds, in which several looks are
//! made: a median would not show pairs that wait for a look. The slowest hundredth is shown too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use servers::{Etcd, Postgres, Redis, Reply};
use tenure::{Error, MutexGuard, Pattern, Tenure};

use super::stores::{StoreKind, failed};
use crate::figure::{Aim, Figure};
use crate::run::{Bench, Run};
use crate::stats::{median, micros, percentile};

/// How often a sampler looks.
const INTERVAL: Duration = Duration::from_secs(1);
const LOCKS: u32 = 2_000;

pub(crate) fn benches() -> Vec<Bench> {
    let pair = |kind: StoreKind, names: &'static [&'static str; 3]| {
        Bench::new(names, move |run| beside_looks(run, kind, names))
    };
    vec![
        Bench::new(&["redis_share"], redis_share),
        Bench::new(&["share_postgres"], postgres_share),
        Bench::new(&["share_etcd"], etcd_share),
        Bench::new(&["longest_call_us"], longest_call),
        pair(
            StoreKind::Redis,
            &["pair_while_looking_redis", "pair_p99_while_looking_redis", "look_2000_redis"],
        ),
        pair(
            StoreKind::Embedded,
            &[
                "pair_while_looking_embedded",
                "pair_p99_while_looking_embedded",
                "look_2000_embedded",
            ],
        ),
        pair(
            StoreKind::Postgres,
            &[
                "pair_while_looking_postgres",
                "pair_p99_while_looking_postgres",
                "look_2000_postgres",
            ],
        ),
        pair(
            StoreKind::Etcd,
            &["pair_while_looking_etcd", "pair_p99_while_looking_etcd", "look_2000_etcd"],
        ),
    ]
}

/// The share of a core that a Redis spends on a sampler, over five locks beside many other keys.
fn redis_share(run: &Run) -> Result<Vec<Figure>, Error> {
    let redis = Redis::builder().try_start().map_err(|why| failed(&why))?;
    let keys = run.count(1_000, 200_000);
    let fill = "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'other:' .. i, i) end";
    redis.cmd(&["EVAL", fill, "0", &keys.to_string()]).map_err(|why| failed(&why))?;
    let tenure = run.here(Tenure::connect(&redis.url()))?;
    let share = sampler_share(run, &tenure, redis.pid())?;
    let note = "of a core, sampler at 1 s, 5 locks beside 200,000 other keys";
    Ok(vec![Figure::new("redis_share", share, "%", note).judged_by(Aim::Below(2.0))])
}

/// The same of a PostgreSQL, over five locks beside many rows of another table.
fn postgres_share(run: &Run) -> Result<Vec<Figure>, Error> {
    let postgres = Postgres::builder().try_start().map_err(|why| failed(&why))?;
    let rows = run.count(1_000, 200_000);
    let fill = format!("CREATE TABLE other AS SELECT generate_series(1, {rows}) AS number");
    postgres.sql(&fill).map_err(|why| failed(&why))?;
    let tenure = run.here(Tenure::connect(&postgres.url()))?;
    let share = sampler_share(run, &tenure, postgres.pid())?;
    let note = "of a core, sampler at 1 s, 5 locks beside 200,000 other rows";
    Ok(vec![Figure::new("share_postgres", share, "%", note).judged_by(Aim::Below(2.0))])
}

/// The same of an etcd, over five locks beside many other keys.
fn etcd_share(run: &Run) -> Result<Vec<Figure>, Error> {
    let etcd = Etcd::builder().try_start().map_err(|why| failed(&why))?;
    // In transactions of a hundred: `etcdctl` reads comparisons, then what to do, then the rest.
    for first in (0..run.count(1_000, 20_000)).step_by(100) {
        let puts: Vec<_> = (first..first + 100).map(|at| format!("put other:{at} x\n")).collect();
        let puts = puts.concat();
        etcd.ctl_with(&["txn"], &format!("\n{puts}\n\n")).map_err(|why| failed(&why))?;
    }
    let tenure = run.here(Tenure::connect(&etcd.url()))?;
    let share = sampler_share(run, &tenure, etcd.pid(0))?;
    let note = "of a core, sampler at 1 s, 5 locks beside 20,000 other keys";
    Ok(vec![Figure::new("share_etcd", share, "%", note).judged_by(Aim::Below(2.0))])
}

/// How many percent of a core a server spends on a sampler over five locks.
fn sampler_share(run: &Run, tenure: &Tenure, server: u32) -> Result<f64, Error> {
    let _held = hold(run, tenure, 5)?;
    let long = Duration::from_secs(u64::from(run.count(2, 20)));
    // What the server does without being looked at: its timers, and the renewals of five locks.
    let idle = processor_share(server, || std::thread::sleep(long));
    let mut failure = None;
    let looked = processor_share(server, || {
        let sampler = tenure.sampler(Pattern::all(), INTERVAL);
        let (end, mut number) = (Instant::now() + long, 0);
        while Instant::now() < end {
            match sampler.blocking_next(number) {
                Ok(sample) => number = sample.number,
                Err(error) => {
                    failure = Some(error);
                    return;
                }
            }
        }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok((looked - idle).max(0.0) * 100.0),
    }
}

/// The longest call that a look at 2,000 locks makes, by the server's own stopwatch.
fn longest_call(run: &Run) -> Result<Vec<Figure>, Error> {
    let redis = Redis::builder().try_start().map_err(|why| failed(&why))?;
    let tenure = run.here(Tenure::connect(&redis.url()))?;
    let _held = hold(run, &tenure, run.count(50, LOCKS))?;
    let config = |word: &str, value: &str| {
        redis.cmd(&["CONFIG", "SET", word, value]).map_err(|why| failed(&why))
    };
    config("slowlog-max-len", "100000")?;
    config("slowlog-log-slower-than", "0")?;
    redis.cmd(&["SLOWLOG", "RESET"]).map_err(|why| failed(&why))?;
    for _ in 0..run.count(1, 5) {
        // A sampler of its own each time: the first look is at everything.
        run.here(tenure.sampler(Pattern::all(), INTERVAL).next(0))?;
    }
    let calls = redis.cmd(&["SLOWLOG", "GET", "-1"]).map_err(|why| failed(&why))?;
    // A row is a number, an instant, microseconds, and the words of the call.
    let micros_of = |call: &Reply| match call {
        Reply::List(fields) => fields.get(2).and_then(Reply::int),
        _ => None,
    };
    let Reply::List(calls) = calls else { return Err(failed(&"no slow log")) };
    let longest = calls.iter().filter_map(micros_of).max().unwrap_or_default();
    let longest = f64::from(u32::try_from(longest).unwrap_or(u32::MAX));
    let note = "of a look at 2,000 locks, by the server's stopwatch";
    let figure = Figure::new("longest_call_us", longest, "us", note);
    Ok(vec![figure.judged_by(Aim::Below(2_000.0))])
}

/// An uncontended pair with a sampler beside it and without one, taking turns; and how long a look
/// at everything takes.
fn beside_looks(
    run: &Run,
    kind: StoreKind,
    names: &[&'static str; 3],
) -> Result<Vec<Figure>, Error> {
    let store = kind.start()?;
    let tenure = run.here(Tenure::connect(&store.url))?;
    let _held = hold(run, &tenure, run.count(20, LOCKS))?;
    let viewer = run.here(Tenure::connect(&store.url))?;
    let blocks = run.count(1, 6);
    let (mut quiet, mut looked, mut looks) = (Vec::new(), Vec::new(), Vec::new());
    for block in 0..blocks {
        quiet.extend(pairs(run, &tenure)?);
        let over = Arc::new(AtomicBool::new(false));
        let (sampler, ended) = (viewer.sampler(Pattern::all(), INTERVAL), Arc::clone(&over));
        let looking = std::thread::spawn(move || {
            let (mut number, mut took) = (0, Vec::new());
            while !ended.load(Ordering::SeqCst) {
                let sample = sampler.blocking_next(number)?;
                number = sample.number;
                took.push(micros(sample.took));
            }
            Ok::<_, Error>(took)
        });
        let beside = pairs(run, &tenure);
        over.store(true, Ordering::SeqCst);
        // The first look is at everything.
        let took = looking.join().expect("the viewer does not panic")?;
        looks.extend(took.first());
        looked.extend(beside?);
        run.progress.step(block + 1, blocks);
    }
    let pair = Figure::new(names[0], mean(&looked), "us", "mean pair beside a sampler, x alone");
    let slow = percentile(&looked, 99);
    let slow = Figure::new(names[1], slow, "us", "p99 of a pair beside a sampler, x alone");
    let look = Figure::new(names[2], median(&looks), "us", "one look, 2,000 locks held");
    Ok(vec![
        pair.relative_to(mean(&quiet)).judged_by(Aim::AtMost(1.02)),
        slow.relative_to(percentile(&quiet, 99)),
        look,
    ])
}

/// Microseconds of each uncontended pair of a block, which lasts several intervals of a sampler.
fn pairs(run: &Run, tenure: &Tenure) -> Result<Vec<f64>, Error> {
    let tenure = tenure.clone();
    let long = INTERVAL * run.count(0, 4) + Duration::from_millis(50);
    run.in_task(async move {
        let mutex = tenure.mutex("bench:free")?;
        let (mut samples, end) = (Vec::new(), Instant::now() + long);
        while samples.len() < 3 || Instant::now() < end {
            let start = Instant::now();
            mutex.lock().await?.release().await?;
            samples.push(micros(start.elapsed()));
        }
        Ok(samples)
    })
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / f64::from(u32::try_from(samples.len()).unwrap_or(u32::MAX))
}

/// Holds so many locks.
fn hold(run: &Run, tenure: &Tenure, locks: u32) -> Result<Vec<MutexGuard>, Error> {
    run.here(async {
        let mut held = Vec::new();
        for number in 0..locks {
            let lease = tenure::limits::DEFAULT_MAX_LEASE;
            held.push(tenure.mutex(format!("held:{number}"))?.lease(lease).lock().await?);
        }
        Ok(held)
    })
}

/// The share of a core that a process and its children take while the work runs.
fn processor_share(pid: u32, work: impl FnOnce()) -> f64 {
    let (before, start) = (processor_seconds(pid), Instant::now());
    work();
    (processor_seconds(pid) - before) / start.elapsed().as_secs_f64()
}

/// Processor time so far of a process and its children, running and ended, by the kernel's count of
/// ticks. PostgreSQL has a process for each connection.
fn processor_seconds(pid: u32) -> f64 {
    let own = ticks_of(pid);
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    (own + children.map(ticks_of).sum::<f64>()) / 100.0
}

/// Ticks of a process and of its children that have ended.
fn ticks_of(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program may contain anything; what follows its last parenthesis does not.
    let fields: Vec<&str> =
        text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (11..15).map(ticks).sum()
}
