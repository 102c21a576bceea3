//! The scenarios, a file for each group. Each file lists its scenarios at the top; a scenario that
//! is not listed is dead code, which the compiler refuses.

mod cell_batches;
mod cell_watch;
mod cells;
mod counting;
mod crossing;
mod deadlocks;
mod election;
mod exclusion;
mod expiry;
mod fairness;
mod fencing;
mod floors;
mod hostile;
mod idempotence;
mod inspection;
mod job_programs;
mod jobs;
mod lapsed;
mod loss;
mod outages;
mod rates;
mod reentry;
mod sets;
mod sharing;
mod terms;
mod timing;
mod together;
mod upgrade;
mod waiting;

use super::gate::RequestGate;
use super::link::{Fault, Link};
use super::raw::{Ask, Raw};
use super::registry::{Need, Scenario, ScenarioGroup};
use super::waiting::Waiting;
use super::world::{Actor, World, cells_of, floor_of, name};
use crate::contract::{Fence, Grant, Lineage, OwnerId};

/// All lists.
pub(super) const LISTS: &[&[Scenario]] = &[
    exclusion::LIST,
    expiry::LIST,
    lapsed::LIST,
    fencing::LIST,
    floors::LIST,
    sharing::LIST,
    upgrade::LIST,
    counting::LIST,
    sets::LIST,
    together::LIST,
    fairness::LIST,
    reentry::LIST,
    idempotence::LIST,
    crossing::LIST,
    waiting::LIST,
    outages::LIST,
    loss::LIST,
    timing::LIST,
    terms::LIST,
    inspection::LIST,
    deadlocks::LIST,
    cells::LIST,
    cell_batches::LIST,
    cell_watch::LIST,
    rates::LIST,
    election::LIST,
    jobs::LIST,
    job_programs::LIST,
    hostile::LIST,
];

/// The fence of a claim for one name.
fn fence(grant: &Grant) -> Fence {
    grant.fences.as_slice()[0]
}

/// An owner without a parent.
fn owner() -> Lineage {
    Lineage::root(OwnerId::new())
}

/// An owner nested in another.
fn child_of(parent: &Lineage) -> Lineage {
    let ancestors: Vec<OwnerId> = parent.all().collect();
    Lineage::nested(OwnerId::new(), &ancestors).expect("not too deep")
}

/// Lists the scenarios of a group: `name cites [promises] needs [needs];`
macro_rules! list {
    ($group:ident: $($name:ident cites [$($cite:literal),*] needs [$($need:ident),*];)*) => {
        pub(super) const LIST: &[super::Scenario] = &[$(super::Scenario {
            group: super::ScenarioGroup::$group,
            name: stringify!($name),
            cites: &[$($cite),*],
            needs: &[$(super::Need::$need),*],
            play: $name,
        }),*];
    };
}
use list;
