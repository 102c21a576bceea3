//! What 10,000 held locks cost while nothing happens: calls to the engine, and memory.
//!
//! Both are counts. Time is a manual clock's, so that they are the same on every machine.

use std::sync::Arc;

use tenure::contract::Engine;
use tenure::limits::DEFAULT_LEASE;
use tenure::time::ManualClock;
use tenure::{Error, MutexGuard, Tenure};

use super::counting::CountingEngine;
use crate::figure::Figure;
use crate::heap;
use crate::run::Run;

const LOCKS: u32 = 10_000;
/// Locks are taken in steps of this many, with some time between the steps.
const STEP: u32 = 10;

/// Renew calls in a third of a lease, in which every lock is renewed once.
pub(crate) fn renew_calls(
    run: &Run,
    clock: &ManualClock,
    engine: Arc<dyn Engine>,
) -> Result<Vec<Figure>, Error> {
    let third = DEFAULT_LEASE / 3;
    let engine = Arc::new(CountingEngine::new(engine));
    let counted = Arc::clone(&engine) as Arc<dyn Engine>;
    let tenure = Tenure::builder().clock(Arc::new(clock.clone())).open(counted)?;
    let mut guards = Vec::new();
    for taken in 0..LOCKS {
        guards.push(run.here(lock(&tenure, taken))?);
        // Spread over a third of the lease: locks taken at one instant would fit into batches
        // better than those of a real program.
        if taken % STEP == 0 {
            clock.advance(third * STEP / LOCKS);
            run.progress.step(taken, LOCKS);
        }
    }
    clock.advance(DEFAULT_LEASE);
    let before = engine.renew_calls();
    clock.advance(3 * third);
    let calls = engine.renew_calls() - before;
    // Calls that lost a lock would be no figure to be proud of.
    guards.iter().try_for_each(|guard| guard.check())?;
    end(run, &tenure, guards);
    let per_third = f64::from(calls) / 3.0;
    Ok(vec![Figure::new("held_10k_renew_calls", per_third, "calls", "per lease / 3; aim < 100")])
}

/// Heap bytes for each held lock: engine, session and the guards in their vector.
pub(crate) fn bytes(
    run: &Run,
    open: impl FnOnce(&ManualClock) -> Arc<dyn Engine>,
) -> Result<Vec<Figure>, Error> {
    let clock = ManualClock::new();
    let (held, bytes) = heap::grown_by(|| {
        let tenure = Tenure::builder().clock(Arc::new(clock.clone())).open(open(&clock))?;
        let mut guards = Vec::with_capacity(LOCKS as usize);
        for taken in 0..LOCKS {
            guards.push(run.here(lock(&tenure, taken))?);
        }
        clock.settle();
        Ok::<_, Error>((tenure, guards))
    });
    let (tenure, guards) = held?;
    guards.iter().try_for_each(|guard| guard.check())?;
    end(run, &tenure, guards);
    let each = i32::try_from(bytes / i64::from(LOCKS)).unwrap_or(i32::MAX);
    Ok(vec![Figure::new("held_10k_bytes", f64::from(each), "bytes", "per lock; aim < 1024")])
}

async fn lock(tenure: &Tenure, number: u32) -> Result<MutexGuard, Error> {
    tenure.mutex(format!("account:{number}"))?.lock().await
}

/// Gives everything back now, so that it does not happen while the next benchmark runs.
fn end(run: &Run, tenure: &Tenure, guards: Vec<MutexGuard>) {
    drop(guards);
    run.here(tenure.close());
}
