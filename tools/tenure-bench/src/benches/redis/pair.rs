//! An uncontended lock and its release, one task: Tenure beside two commands written by hand.

use std::time::Instant;

use servers::Redis;
use tenure::Error;

use super::takers::{ByHand, tenures};
use crate::benches::taker::Taker;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::{median, nanos_each};

/// Pairs in a block: short enough that both meet the same moments of the machine.
const PAIRS: u32 = 30;
/// Blocks at the start that are not counted: scripts are loaded, caches settle.
const WARM_UP: u32 = 5;

pub(crate) fn measure(run: &Run, redis: &Redis) -> Result<Vec<Figure>, Error> {
    let blocks = run.count(5, 800);
    let mut ours = run.here(tenures(redis, 1))?.remove(0);
    let mut by_hand = run.here(ByHand::several(redis, 1))?.remove(0);
    let progress = run.progress.clone();
    run.in_task(async move {
        let (mut tenures, mut hands) = (Vec::new(), Vec::new());
        for number in 0..WARM_UP + blocks {
            let (tenure, hand) = (block(&mut ours).await?, block(&mut by_hand).await?);
            if number >= WARM_UP {
                tenures.push(tenure);
                hands.push(hand);
                progress.step(number + 1 - WARM_UP, blocks);
            }
        }
        let figure = Figure::new("pair_1", median(&tenures), "us", "x written by hand");
        Ok(vec![figure.relative_to(median(&hands)).judged_by(Aim::AtMost(1.15))])
    })
}

/// Microseconds a pair.
async fn block(taker: &mut impl Taker) -> Result<f64, Error> {
    let start = Instant::now();
    taker.pairs(PAIRS).await?;
    Ok(nanos_each(start, PAIRS) / 1e3)
}
