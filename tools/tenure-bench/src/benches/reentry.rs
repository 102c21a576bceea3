//! Entering a lock that is held already, and leaving it again: no call to the engine.

use std::sync::Arc;
use std::time::Instant;

use tenure::contract::Engine;
use tenure::{Error, Mutex, Tenure};

use crate::figure::Figure;
use crate::run::Run;
use crate::stats::{median, nanos_each};

pub(crate) fn measure(run: &Run, engine: Arc<dyn Engine>) -> Result<Vec<Figure>, Error> {
    let (blocks, entries) = (run.count(20, 300), run.count(50, 1_000));
    let progress = run.progress.clone();
    let tenure = Tenure::builder().open(engine)?;
    let mutex = tenure.mutex("reentry")?;
    run.in_task(tenure::scope(async move {
        let outer = mutex.lock().await?;
        let mut samples = Vec::new();
        for block in 0..blocks {
            samples.push(entry_block(&mutex, entries).await?);
            progress.step(block + 1, blocks);
        }
        outer.release().await?;
        Ok(vec![Figure::new("reentry", median(&samples), "ns", "aim < 1000")])
    }))
}

async fn entry_block(mutex: &Mutex, entries: u32) -> Result<f64, Error> {
    let start = Instant::now();
    for _ in 0..entries {
        drop(mutex.lock().await?);
    }
    Ok(nanos_each(start, entries))
}
