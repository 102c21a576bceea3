//! A reader of a name that thousands of others read, beside one of a name that ten others read.
//! Bare calls to the engine: what the store does for a reader must not depend on the other readers.

use std::sync::Arc;
use std::time::Instant;

use tenure::contract::{Claim, Engine, Patience, Release, Released, Verdict, samples};
use tenure::{Error, ErrorKind, Name, Part};

use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::{median, nanos_each};

const MANY: u32 = 4_000;
const FEW: u32 = 10;

/// Claim and release of a reader beside 4,000 others; ratio to the same beside 10.
pub(crate) fn crowd(run: &Run, engine: Arc<dyn Engine>) -> Result<Vec<Figure>, Error> {
    let (blocks, pairs) = (run.count(5, 100), run.count(5, 100));
    let progress = run.progress.clone();
    run.in_task(async move {
        for (name, readers) in [("many", MANY), ("few", FEW)] {
            for _ in 0..readers {
                granted(&*engine, &reader(name)?).await?;
            }
        }
        let (mut many, mut few) = (Vec::new(), Vec::new());
        for block in 0..blocks {
            many.push(block_of(&*engine, &reader("many")?, pairs).await?);
            few.push(block_of(&*engine, &reader("few")?, pairs).await?);
            progress.step(block + 1, blocks);
        }
        let figure = Figure::new("readers_4000_vs_10", median(&many), "ns", "x beside 10 readers");
        Ok(vec![figure.relative_to(median(&few)).judged_by(Aim::AtMost(2.0))])
    })
}

async fn block_of(engine: &dyn Engine, claim: &Arc<Claim>, pairs: u32) -> Result<f64, Error> {
    let batch = [Release { claim: claim.to_ref(), uncertain: false }];
    let start = Instant::now();
    for _ in 0..pairs {
        granted(engine, claim).await?;
        if engine.release(&batch).await? != [Released::Done] {
            return Err(Error::new(ErrorKind::Unavailable, "a reader was not given back"));
        }
    }
    Ok(nanos_each(start, pairs))
}

async fn granted(engine: &dyn Engine, claim: &Arc<Claim>) -> Result<(), Error> {
    match engine.claim(claim).await? {
        Verdict::Granted(_) => Ok(()),
        _ => Err(Error::new(ErrorKind::Unavailable, "a reader among readers was not granted")),
    }
}

fn reader(name: &str) -> Result<Arc<Claim>, Error> {
    let part = Part::read(Name::try_from(name)?);
    let (lease, patience) = (tenure::limits::DEFAULT_LEASE, Patience::Try);
    Ok(Arc::new(Claim { lease, patience, ..samples::claim(part) }))
}
