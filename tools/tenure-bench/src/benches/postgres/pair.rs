//! An uncontended lock and its release, one task, where commits are not waited for: Tenure beside
//! two functions written by hand.

use servers::Postgres;
use tenure::{Error, Tenure};

use super::by_hand::ByHand;
use crate::benches::lane::{LanePlan, beside, figure};
use crate::figure::{Aim, Figure};
use crate::run::Run;

pub(crate) fn measure(run: &Run, server: &Postgres) -> Result<Vec<Figure>, Error> {
    let plan = LanePlan { warm_up: 10, blocks: run.count(5, 400), pairs: 20 };
    let url = format!("{}?durability=grace", server.url());
    let ours = run.here(Tenure::connect(&url))?.mutex("ours")?;
    let by_hand = run.here(ByHand::new(server))?;
    let [ours, hand] = beside(run, plan, ours, by_hand)?;
    let figure = figure("pair_async", "x an upsert by hand", &ours, &hand);
    Ok(vec![figure.judged_by(Aim::AtMost(1.6))])
}
