//! What looking costs: the share of a Redis that a sampler takes, the longest single call of a look
//! at many locks, and what a lock pays for being looked at, on every engine with a store of its
//! own.

use std::time::{Duration, Instant};

use servers::{Redis, Reply};
use tenure::{Error, MutexGuard, Pattern, Tenure};

use super::stores::{StoreKind, failed};
use crate::figure::{Aim, Figure};
use crate::run::{Bench, Run};
use crate::stats::{median, micros};

/// How often a sampler looks.
const INTERVAL: Duration = Duration::from_secs(1);
const LOCKS: u32 = 2_000;

pub(crate) fn benches() -> Vec<Bench> {
    let pair = |kind: StoreKind, names: &'static [&'static str; 2]| {
        Bench::new(names, move |run| beside_looks(run, kind, names))
    };
    vec![
        Bench::new(&["redis_share"], redis_share),
        Bench::new(&["longest_call_us"], longest_call),
        pair(StoreKind::Redis, &["pair_while_looking", "look_2000"]),
        pair(StoreKind::Embedded, &["pair_while_looking_embedded", "look_2000_embedded"]),
        pair(StoreKind::Postgres, &["pair_while_looking_postgres", "look_2000_postgres"]),
        pair(StoreKind::Etcd, &["pair_while_looking_etcd", "look_2000_etcd"]),
    ]
}

/// The share of a core that a Redis spends on a sampler, over five locks beside many other keys.
fn redis_share(run: &Run) -> Result<Vec<Figure>, Error> {
    let redis = Redis::builder().try_start().map_err(|why| failed(&why))?;
    let keys = run.count(1_000, 200_000);
    let fill = "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'other:' .. i, i) end";
    redis.cmd(&["EVAL", fill, "0", &keys.to_string()]).map_err(|why| failed(&why))?;
    let tenure = run.here(Tenure::connect(&redis.url()))?;
    let _held = hold(run, &tenure, 5)?;
    let long = Duration::from_secs(u64::from(run.count(2, 20)));
    // What the server does without being looked at: its timers, and the renewals of five locks.
    let idle = processor_share(redis.pid(), || std::thread::sleep(long));
    let looked = processor_share(redis.pid(), || {
        let sampler = tenure.sampler(Pattern::all(), INTERVAL);
        let (end, mut number) = (Instant::now() + long, 0);
        while Instant::now() < end {
            match sampler.blocking_next(number) {
                Ok(sample) => number = sample.number,
                Err(_) => return,
            }
        }
    });
    let note = "of a core, sampler at 1 s, 5 locks beside 200,000 other keys";
    let share = (looked - idle).max(0.0) * 100.0;
    Ok(vec![Figure::new("redis_share", share, "%", note).judged_by(Aim::Below(2.0))])
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
    names: &[&'static str; 2],
) -> Result<Vec<Figure>, Error> {
    let store = kind.start()?;
    let tenure = run.here(Tenure::connect(&store.url))?;
    let _held = hold(run, &tenure, run.count(20, LOCKS))?;
    let viewer = run.here(Tenure::connect(&store.url))?;
    let blocks = run.count(1, 6);
    let (mut quiet, mut looked, mut looks) = (Vec::new(), Vec::new(), Vec::new());
    for block in 0..blocks {
        quiet.push(pairs(run, &tenure)?);
        // The pairs of a block take about as long as the interval, so one look meets them.
        let sampler = viewer.sampler(Pattern::all(), INTERVAL);
        let looking = std::thread::spawn(move || {
            let sample = sampler.blocking_next(0)?;
            Ok::<_, Error>(micros(sample.took))
        });
        looked.push(pairs(run, &tenure)?);
        looks.push(looking.join().expect("the viewer does not panic")?);
        run.progress.step(block + 1, blocks);
    }
    let pair = Figure::new(names[0], median(&looked), "us", "a pair beside a sampler, x alone");
    let look = Figure::new(names[1], median(&looks), "us", "one look, 2,000 locks held");
    Ok(vec![pair.relative_to(median(&quiet)).judged_by(Aim::AtMost(1.02)), look])
}

/// Microseconds of an uncontended pair, over a second or so.
fn pairs(run: &Run, tenure: &Tenure) -> Result<f64, Error> {
    let (tenure, times) = (tenure.clone(), run.count(3, 3_000));
    run.in_task(async move {
        let mutex = tenure.mutex("bench:free")?;
        let mut samples = Vec::new();
        for _ in 0..times {
            let start = Instant::now();
            mutex.lock().await?.release().await?;
            samples.push(micros(start.elapsed()));
        }
        Ok(median(&samples))
    })
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

/// The share of a core that a process takes while the work runs.
fn processor_share(pid: u32, work: impl FnOnce()) -> f64 {
    let (before, start) = (processor_seconds(pid), Instant::now());
    work();
    (processor_seconds(pid) - before) / start.elapsed().as_secs_f64()
}

/// Processor time of a process so far, by the kernel's count of ticks.
fn processor_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program may contain anything; what follows its last parenthesis does not.
    let fields: Vec<&str> =
        text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
