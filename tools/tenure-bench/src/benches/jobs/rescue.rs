//! From `kill -9` of a worker to the handler of its job in another worker. Embedded, the end of a
//! process is noticed; elsewhere the lease has to end, so the time is a share of it.

use std::time::{Duration, Instant};

use tenure::{Error, NewJob, Tenure};
use tokio::sync::mpsc::unbounded_channel;

use crate::benches::processes::{Process, broken};
use crate::benches::stores::{RunningStore, StoreKind, failed};
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

pub(super) const LEASE_NAMES: [&str; 2] = ["rescue_redis", "rescue_postgres"];

/// Milliseconds on the embedded store.
pub(super) fn embedded(run: &Run) -> Result<Vec<Figure>, Error> {
    let remote = run.remote().map_err(|error| failed(&error))?;
    let (rounds, lease) = (run.count(2, 30), tenure::limits::DEFAULT_LEASE);
    let store = StoreKind::Embedded.start()?;
    let mut times = Vec::new();
    for round in 0..rounds {
        let rescue = Rescue::begin(&remote, &store, &format!("round-{round}"), lease)?;
        times.push(rescue.kill(&remote)?.as_secs_f64() * 1e3);
        run.progress.step(round + 1, rounds);
    }
    let note = "kill -9 of a worker to its job in another";
    let figure = Figure::new("rescue_embedded", median(&times), "ms", note);
    Ok(vec![figure.judged_by(Aim::Below(50.0))])
}

/// The longest of several, with the default lease; in a quick run with a shorter one.
pub(super) fn by_lease(run: &Run) -> Result<Vec<Figure>, Error> {
    let lease = Duration::from_secs(u64::from(run.count(3, 30)));
    let rounds = run.count(1, 4);
    let mut figures = Vec::new();
    for (name, kind) in LEASE_NAMES.into_iter().zip([StoreKind::Redis, StoreKind::Postgres]) {
        let store = kind.start()?;
        let mut rescues = Vec::new();
        for round in 0..rounds {
            rescues.push(Rescue::begin(run, &store, &format!("round-{round}"), lease)?);
        }
        // Side by side, killed at different moments between two renewals.
        let mut longest: f64 = 0.0;
        let mut killed = Vec::new();
        for rescue in rescues {
            std::thread::sleep(lease / (3 * rounds));
            killed.push(rescue.killed()?);
        }
        for mut rescue in killed {
            longest = longest.max(rescue.wait(run)?.as_secs_f64());
        }
        let note = "the longest of several after kill -9 of a worker; x the lease";
        let figure = Figure::new(name, longest, "s", note).relative_to(lease.as_secs_f64());
        figures.push(figure.judged_by(Aim::AtMost(1.1)));
    }
    Ok(figures)
}

/// A job in the hands of another process, and a worker here that waits for it.
struct Rescue {
    holder: Process,
    starts: tokio::sync::mpsc::UnboundedReceiver<Instant>,
    worker: tokio::task::JoinHandle<Result<(), Error>>,
    killed_at: Instant,
}

impl Rescue {
    fn begin(run: &Run, store: &RunningStore, name: &str, lease: Duration) -> Result<Self, Error> {
        let url = store.url.clone();
        let queue = run.here(async { Tenure::connect(&url).await?.queue(name) })?;
        run.here(queue.push(NewJob::new("x")))?;
        let millis = lease.as_millis().to_string();
        let holder = Process::start(&["keeps-job".to_owned(), url, name.to_owned(), millis])?;
        let (started, starts) = unbounded_channel();
        let worker = run.spawn(async move {
            let started = &started;
            let handler = async |_| {
                // The benchmark may be over.
                let _ = started.send(Instant::now());
                Ok(())
            };
            queue.lease(lease).work(1, handler).await
        });
        // Time to find nothing and to fall asleep.
        std::thread::sleep(Duration::from_millis(50));
        Ok(Self { holder, starts, worker, killed_at: Instant::now() })
    }

    fn killed(mut self) -> Result<Self, Error> {
        self.killed_at = Instant::now();
        self.holder.kill()?;
        Ok(self)
    }

    fn wait(&mut self, run: &Run) -> Result<Duration, Error> {
        let begun = run.here(self.starts.recv());
        self.worker.abort();
        Ok(begun.ok_or_else(|| broken("the worker has stopped"))? - self.killed_at)
    }

    fn kill(self, run: &Run) -> Result<Duration, Error> {
        self.killed()?.wait(run)
    }
}
