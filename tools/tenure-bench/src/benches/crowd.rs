//! Many waiters of one process on one name: how long until all of them were served, beside the same
//! crowd on a PostgreSQL server of this run.
//!
//! One task holds the lock until every waiter has been told to wait. What is measured begins with
//! its release and ends when the last waiter has released. The two crowds take turns, so that a
//! slow moment of the machine meets both.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use servers::Postgres;
use tenure::contract::Claim;
use tenure::time::Tick;
use tenure::{Builder, Error, ErrorKind, Event, Tenure, Witness};
use tokio::sync::Notify;
use tokio::task::{JoinSet, yield_now};

use crate::figure::Figure;
use crate::run::Run;
use crate::stats::{median, micros};

pub(crate) const NAME: &str = "crowd_2000";

/// Longer than any wait between two renewals of a crowd.
const LEASE: Duration = Duration::from_secs(20);

/// Measures a crowd on what `connect` opens, and beside it one on a PostgreSQL server.
pub(crate) fn beside_postgres(
    run: &Run,
    connect: impl AsyncFn(Builder) -> Result<Tenure, Error>,
) -> Result<Vec<Figure>, Error> {
    let failed = |why: String| Error::new(ErrorKind::Unavailable, why);
    let server = Postgres::builder().try_start();
    let server = server.map_err(|why| failed(format!("no server to compare with: {why}")))?;
    let remote = run.remote().map_err(|error| failed(error.to_string()))?;
    let ours = Crowd::gather(run, &connect)?;
    let theirs =
        Crowd::gather(&remote, &async |builder: Builder| builder.connect(&server.url()).await)?;
    let (mut times, mut references) = (Vec::new(), Vec::new());
    let rounds = run.count(1, 3);
    for round in 0..rounds {
        times.push(ours.round(run)?);
        references.push(theirs.round(&remote)?);
        run.progress.step(round + 1, rounds);
    }
    let figure = Figure::new(NAME, median(&times), "ms", "until all were served, x PostgreSQL");
    Ok(vec![figure.relative_to(median(&references))])
}

/// Measures a crowd on what `connect` opens.
pub(crate) fn alone(
    run: &Run,
    connect: impl AsyncFn(Builder) -> Result<Tenure, Error>,
) -> Result<Vec<Figure>, Error> {
    let crowd = Crowd::gather(run, &connect)?;
    let rounds = run.count(1, 3);
    let times: Result<Vec<_>, _> = (0..rounds).map(|_| crowd.round(run)).collect();
    Ok(vec![Figure::new(NAME, median(&times?), "ms", "until all were served")])
}

/// One session, and how many of its claims were told to wait.
struct Crowd {
    tenure: Tenure,
    queued: Arc<Queued>,
    waiters: usize,
}

impl Crowd {
    fn gather(
        run: &Run,
        connect: &impl AsyncFn(Builder) -> Result<Tenure, Error>,
    ) -> Result<Self, Error> {
        let queued = Arc::<Queued>::default();
        let builder = Tenure::builder().lease(LEASE).witness(Arc::clone(&queued) as _);
        let tenure = run.here(connect(builder))?;
        Ok(Self { tenure, queued, waiters: run.count(20, 2_000) as usize })
    }

    /// Milliseconds from the release of the first holder until all waiters have been served.
    fn round(&self, run: &Run) -> Result<f64, Error> {
        let (tenure, queued, waiters) =
            (self.tenure.clone(), Arc::clone(&self.queued), self.waiters);
        run.in_task(async move {
            let mutex = tenure.mutex("crowd")?;
            let first = mutex.lock().await?;
            queued.count.store(0, Ordering::SeqCst);
            queued.awaited.store(waiters, Ordering::SeqCst);
            let mut tasks = JoinSet::new();
            for _ in 0..waiters {
                let mutex = mutex.clone();
                tasks.spawn(async move {
                    let guard = mutex.lock().await?;
                    yield_now().await;
                    guard.release().await
                });
            }
            queued.all.notified().await;
            let start = Instant::now();
            first.release().await?;
            for ended in tasks.join_all().await {
                ended?;
            }
            Ok(micros(start.elapsed()) / 1e3)
        })
    }
}

/// Counts the claims that were told to wait.
#[derive(Debug, Default)]
struct Queued {
    count: AtomicUsize,
    awaited: AtomicUsize,
    all: Notify,
}

impl Witness for Queued {
    fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, event: &Event) {
        if matches!(event, Event::Queued { .. })
            && self.count.fetch_add(1, Ordering::SeqCst) + 1 == self.awaited.load(Ordering::SeqCst)
        {
            self.all.notify_one();
        }
    }
}
