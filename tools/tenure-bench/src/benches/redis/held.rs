//! What 10,000 held locks ask of the server while nothing happens.

use std::time::{Duration, Instant};

use servers::Redis;
use tenure::{Error, MutexGuard, Tenure};
use tokio::time::{sleep, sleep_until};

use super::{asked, number};
use crate::figure::{Aim, Figure};
use crate::run::Run;

/// Over how many thirds of a lease commands are counted.
const THIRDS: u32 = 4;
/// Locks are taken in so many steps, spread over a third of the lease.
const STEPS: u32 = 100;

pub(crate) fn measure(run: &Run, redis: &Redis) -> Result<Vec<Figure>, Error> {
    let locks = run.count(200, 10_000);
    let third = Duration::from_millis(u64::from(run.count(700, 2_000)));
    let url = redis.url();
    let (tenure, guards) = run.in_task(async move {
        let tenure = Tenure::builder().lease(third * 3).connect(&url).await?;
        let guards = take(&tenure, locks, third).await?;
        // Every lock was renewed once when we begin to count.
        sleep(third).await;
        Ok::<_, Error>((tenure, guards))
    })?;
    let (before, start) = (asked(redis), Instant::now());
    run.here(async { sleep(third * THIRDS).await });
    let commands = number(asked(redis) - before);
    let thirds = start.elapsed().as_secs_f64() / third.as_secs_f64();
    // Calls that lost a lock would be no figure to be proud of.
    guards.iter().try_for_each(|guard| guard.check())?;
    drop(guards);
    run.here(tenure.close());
    let note = "per lease / 3, all renewed once";
    let figure = Figure::new("held_10k_commands", commands / thirds, "cmds", note);
    Ok(vec![figure.judged_by(Aim::Below(100.0))])
}

/// Spread over a third of the lease: locks taken at one instant would fit into batches better than
/// those of a real program.
async fn take(tenure: &Tenure, locks: u32, third: Duration) -> Result<Vec<MutexGuard>, Error> {
    let start = tokio::time::Instant::now();
    let mut guards = Vec::new();
    for step in 0..STEPS {
        sleep_until(start + third * step / STEPS).await;
        for number in locks * step / STEPS..locks * (step + 1) / STEPS {
            guards.push(tenure.mutex(format!("account:{number}"))?.lock().await?);
        }
    }
    Ok(guards)
}
