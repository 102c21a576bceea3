//! Elections: how long it takes until there is a leader again after `kill -9`, and how soon an
//! observer sees what a leader publishes, beside a hand-off of a mutex on the same store.
//!
//! Where the store notices the death of a process (embedded), the fail-over is a time; elsewhere it
//! is at most the lease, and the figure is the ratio to it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenure::{Election, Error, Mutex, Observed, Tenure};

use super::processes::{Process, broken};
use super::stores::StoreKind;
use crate::figure::{Aim, Figure};
use crate::run::{Bench, Run};
use crate::stats::{median, micros};

/// The election that all workers stand for.
pub(crate) const NAME: &str = "bench";

/// How long a thread has to fall asleep where it waits.
const ASLEEP: Duration = Duration::from_millis(20);

pub(crate) fn benches() -> Vec<Bench> {
    use StoreKind as K;
    let failover = |name: &'static [&'static str; 1], kind: K, lease: u32| {
        Bench::new(name, move |run| failover(run, name[0], kind, lease))
    };
    let observe = |name: &'static [&'static str; 1], kind: K| {
        Bench::new(name, move |run| observe_latency(run, name[0], kind))
    };
    vec![
        Bench::new(&["failover_embedded_ms"], failover_embedded),
        failover(&["failover_redis_ratio"], K::Redis, 10),
        failover(&["failover_postgres_ratio"], K::Postgres, 10),
        failover(&["failover_etcd_ratio"], K::Etcd, 30),
        observe(&["observe_latency"], K::Memory),
        observe(&["observe_latency_embedded"], K::Embedded),
        observe(&["observe_latency_redis"], K::Redis),
        observe(&["observe_latency_postgres"], K::Postgres),
        observe(&["observe_latency_etcd"], K::Etcd),
    ]
}

fn failover_embedded(run: &Run) -> Result<Vec<Figure>, Error> {
    let store = StoreKind::Embedded.start()?;
    let rounds = run.count(3, 50);
    let times = fail_over(run, &store.url, Duration::from_secs(30), rounds)?;
    let note = "kill -9 of the leader to the next one's first act, p50";
    let figure = Figure::new("failover_embedded_ms", median(&times) * 1e3, "ms", note);
    Ok(vec![figure.judged_by(Aim::Below(10.0))])
}

/// The time until the next leader acts, as a part of the lease.
fn failover(
    run: &Run,
    name: &'static str,
    kind: StoreKind,
    seconds: u32,
) -> Result<Vec<Figure>, Error> {
    let store = kind.start()?;
    let lease = Duration::from_secs(run.count(3, seconds).into());
    let times = fail_over(run, &store.url, lease, run.count(1, 5))?;
    let ratio = median(&times) / lease.as_secs_f64();
    let note = "kill -9 of the leader to the next one's first act, x lease, p50";
    Ok(vec![Figure::new(name, ratio, "x", note)])
}

/// Kills leaders, and measures in seconds how long it takes until the next one acts.
fn fail_over(run: &Run, url: &str, lease: Duration, rounds: u32) -> Result<Vec<f64>, Error> {
    let election = Tenure::blocking_connect(url)?.election(NAME)?.lease(lease);
    let mut times = Vec::new();
    for round in 0..rounds {
        let order = ["leads".into(), url.to_owned(), lease.as_millis().to_string()];
        let mut leader = Process::start(&order)?;
        let (tell, told) = channel();
        let election = election.clone();
        let candidate = std::thread::spawn(move || -> Result<(), Error> {
            let leader = election.blocking_campaign("next")?;
            leader.term()?; // its first act
            let _ = tell.send(Instant::now());
            leader.blocking_resign()
        });
        // Time to take its place in the queue and to fall asleep.
        std::thread::sleep(ASLEEP.max(lease / 20));
        let start = Instant::now();
        leader.kill()?;
        let at = told.recv().map_err(|_| broken("there is no leader any more"))?;
        times.push(at.duration_since(start).as_secs_f64());
        candidate.join().map_err(|_| broken("the candidate panicked"))??;
        run.progress.step(round + 1, rounds);
    }
    Ok(times)
}

/// From the call of `publish` until an observer in another session returns the value, beside a
/// hand-off: from the call of `release` until a waiter in another session has the lock.
fn observe_latency(run: &Run, name: &'static str, kind: StoreKind) -> Result<Vec<Figure>, Error> {
    let store = kind.start()?;
    let url = store.url.as_str();
    let rounds = run.count(3, 300);
    let mine = Tenure::blocking_connect(url)?;
    let leader = mine.election(NAME)?.blocking_campaign("0")?;
    let (seen, observer) = observe(&Tenure::blocking_connect(url)?.election(NAME)?)?;
    let mutex = Tenure::blocking_connect(url)?.mutex("handoff")?;
    let (mut latencies, mut handoffs) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        std::thread::sleep(Duration::from_millis(2));
        let start = Instant::now();
        leader.blocking_publish(round.to_string())?;
        let (_, at) = wait_for(&seen, &round.to_string())?;
        latencies.push(micros(at.duration_since(start)));
        handoffs.push(hand_off(&mine.mutex("handoff")?, mutex.clone())?);
        run.progress.step(round, rounds);
    }
    leader.blocking_publish("end")?;
    observer.join().map_err(|_| broken("the observer panicked"))??;
    leader.blocking_resign()?;
    let figure = Figure::new(name, median(&latencies), "us", "publish to observer, x hand-off");
    Ok(vec![figure.relative_to(median(&handoffs))])
}

type Seen = (Vec<u8>, Instant);

/// The thread of an observer.
type Observing = JoinHandle<Result<(), Error>>;

/// Observes until a leader publishes `end`.
fn observe(election: &Election) -> Result<(Receiver<Seen>, Observing), Error> {
    let mut observer = election.blocking_observe()?;
    let (tell, told): (Sender<Seen>, _) = channel();
    let observing = std::thread::spawn(move || {
        loop {
            if let Observed::Leader(leader) = observer.blocking_next()? {
                let is_end = leader.value == b"end";
                let _ = tell.send((leader.value, Instant::now()));
                if is_end {
                    return Ok(());
                }
            }
        }
    });
    Ok((told, observing))
}

fn wait_for(seen: &Receiver<Seen>, value: &str) -> Result<Seen, Error> {
    loop {
        let one = seen.recv().map_err(|_| broken("the observer has ended"))?;
        if one.0 == value.as_bytes() {
            return Ok(one);
        }
    }
}

/// Microseconds from a release to the next holder, in another session.
fn hand_off(mine: &Mutex, other: Mutex) -> Result<f64, Error> {
    let guard = mine.blocking_lock()?;
    let (tell, told) = channel();
    let waiter = std::thread::spawn(move || -> Result<(), Error> {
        let guard = other.blocking_lock()?;
        let _ = tell.send(Instant::now());
        guard.blocking_release()
    });
    // Time to take its place in the queue and to fall asleep.
    std::thread::sleep(Duration::from_millis(2));
    let start = Instant::now();
    guard.blocking_release()?;
    let at = told.recv().map_err(|_| broken("the waiter got nothing"))?;
    waiter.join().map_err(|_| broken("the waiter panicked"))??;
    Ok(micros(at.duration_since(start)))
}
