//! 256 tasks of one process that lock and release, a name each: Tenure beside two commands written
//! by hand and beside `rslock`.

use std::time::Instant;

use servers::Redis;
use tenure::Error;
use tokio::task::JoinSet;

use super::takers::{ByHand, Rslock, tenures};
use crate::benches::taker::Taker;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

pub(crate) const NAMES: [&str; 2] = ["throughput_256", "throughput_256_vs_rslock"];

const TASKS: u32 = 256;
/// Blocks at the start that are not counted: connections are made, caches settle.
const WARM_UP: u32 = 2;

pub(crate) fn measure(run: &Run, redis: &Redis) -> Result<Vec<Figure>, Error> {
    let (blocks, pairs) = (run.count(2, 15), run.count(2, 30));
    let mut ours = run.here(tenures(redis, TASKS))?;
    let mut by_hand = run.here(ByHand::several(redis, TASKS))?;
    let mut rslock = Rslock::several(redis, TASKS);
    let progress = run.progress.clone();
    run.in_task(async move {
        let (mut tenures, mut hands, mut rslocks) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..WARM_UP + blocks {
            tenures.push(block(&mut ours, pairs).await?);
            hands.push(block(&mut by_hand, pairs).await?);
            rslocks.push(block(&mut rslock, pairs).await?);
            if number < WARM_UP {
                for rates in [&mut tenures, &mut hands, &mut rslocks] {
                    rates.clear();
                }
            }
            progress.step(number + 1, WARM_UP + blocks);
        }
        let rate = median(&tenures);
        let figure = Figure::new(NAMES[0], rate, "per_s", "x written by hand");
        let figure = figure.relative_to(median(&hands)).judged_by(Aim::AtLeast(1.0));
        let times = Figure::new(NAMES[1], rate / median(&rslocks), "x", "to rslock");
        Ok(vec![figure, times.judged_by(Aim::AtLeast(1.5))])
    })
}

/// Pairs a second of all tasks together.
async fn block<T: Taker>(takers: &mut Vec<T>, pairs: u32) -> Result<f64, Error> {
    let all = pairs * TASKS;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for mut taker in takers.drain(..) {
        tasks.spawn(async move { taker.pairs(pairs).await.map(|()| taker) });
    }
    let ended = tasks.join_all().await;
    let rate = f64::from(all) / start.elapsed().as_secs_f64();
    *takers = ended.into_iter().collect::<Result<_, _>>()?;
    Ok(rate)
}
