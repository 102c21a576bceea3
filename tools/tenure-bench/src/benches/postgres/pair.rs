//! An uncontended lock and its release, one task, where commits are not waited for: Tenure beside
//! two functions written by hand. Once on all cores, and once with client and server on one: which
//! thread of the client wakes on which core decides the times of the first, not of the second.

use servers::Postgres;
use tenure::{Error, Tenure};

use super::by_hand::ByHand;
use crate::benches::lane::{LanePlan, beside, figure};
use crate::figure::{Aim, Figure};
use crate::run::Run;

pub(crate) const NAMES: [&str; 2] = ["pair_async", "pair_async_pinned"];

pub(crate) fn measure(
    run: &Run,
    start: fn() -> Result<Postgres, Error>,
) -> Result<Vec<Figure>, Error> {
    let free = pair(run, NAMES[0], &start()?)?;
    // The server is started by the pinned thread, and its processes inherit the core.
    let pinned = run.pinned(|run| pair(run, NAMES[1], &start()?))?;
    Ok(vec![free.judged_by(Aim::AtMost(1.6)), pinned.judged_by(Aim::AtMost(1.35))])
}

fn pair(run: &Run, name: &'static str, server: &Postgres) -> Result<Figure, Error> {
    let plan = LanePlan { warm_up: 10, blocks: run.count(5, 400), pairs: 20 };
    let url = format!("{}?durability=grace", server.url());
    let ours = run.here(Tenure::connect(&url))?.mutex("ours")?;
    let by_hand = run.here(ByHand::new(server))?;
    let [ours, hand] = beside(run, plan, ours, by_hand)?;
    Ok(figure(name, "x an upsert by hand", &ours, &hand))
}
