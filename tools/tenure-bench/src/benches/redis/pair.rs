//! An uncontended lock and its release, one task: Tenure beside two commands written by hand.

use servers::Redis;
use tenure::Error;

use super::takers::{ByHand, tenures};
use crate::benches::lane::{LanePlan, beside, figure};
use crate::figure::{Aim, Figure};
use crate::run::Run;

pub(crate) fn measure(run: &Run, redis: &Redis) -> Result<Vec<Figure>, Error> {
    let plan = LanePlan { warm_up: 5, blocks: run.count(5, 800), pairs: 30 };
    let ours = run.here(tenures(redis, 1))?.remove(0);
    let by_hand = run.here(ByHand::several(redis, 1))?.remove(0);
    let [ours, hand] = beside(run, plan, ours, by_hand)?;
    let figure = figure("pair_1", "x written by hand", &ours, &hand);
    Ok(vec![figure.judged_by(Aim::AtMost(1.15))])
}
