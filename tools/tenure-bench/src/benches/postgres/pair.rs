//! An uncontended lock and its release, one task, where commits are not waited for: Tenure beside
//! two functions written by hand.

use servers::Postgres;
use tenure::{Error, Tenure};

use super::block;
use super::by_hand::ByHand;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

/// Pairs in a block: short enough that both meet the same moments of the machine.
const PAIRS: u32 = 20;
/// Blocks at the start that are not counted: plans are made, caches settle.
const WARM_UP: u32 = 10;

pub(crate) fn measure(run: &Run, server: &Postgres) -> Result<Vec<Figure>, Error> {
    let blocks = run.count(5, 400);
    let url = format!("{}?durability=grace", server.url());
    let mut ours = run.here(Tenure::connect(&url))?.mutex("ours")?;
    let mut by_hand = run.here(ByHand::new(server))?;
    let progress = run.progress.clone();
    run.in_task(async move {
        let (mut tenures, mut hands) = (Vec::new(), Vec::new());
        for number in 0..WARM_UP + blocks {
            let tenure = block(&mut ours, PAIRS).await?;
            let hand = block(&mut by_hand, PAIRS).await?;
            if number >= WARM_UP {
                tenures.push(tenure);
                hands.push(hand);
                progress.step(number + 1 - WARM_UP, blocks);
            }
        }
        let figure = Figure::new("pair_async", median(&tenures), "us", "x an upsert by hand");
        Ok(vec![figure.relative_to(median(&hands)).judged_by(Aim::AtMost(1.6))])
    })
}
