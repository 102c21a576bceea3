//! Queues of jobs. On PostgreSQL each figure stands beside a batch written by hand with the same
//! client crate, and beside each installed peer; both run in turns with Tenure, in databases of
//! their own of one server, which syncs its commits to the disk.
//!
//! A contender (`contender.rs`) pushes, works and says when nothing is left.
//! Workers are processes of their own: this program again, or that of a peer.

pub(super) mod by_hand;
mod contender;
mod embedded;
mod enqueue;
mod growth;
mod latency;
mod peers;
mod redis;
mod rescue;
mod throughput;
pub(super) mod workers;

use servers::Postgres;
use tenure::Error;

use super::stores::failed;
pub(crate) use peers::Peers;

use crate::figure::Figure;
use crate::run::{Bench, Run};

/// The queue that all benchmarks use, each in a store of its own.
const QUEUE: &str = "bench";
/// Slots of a worker, and jobs of a batch by hand.
const SLOTS: usize = 256;

pub(crate) fn benches(peers: &Peers) -> Vec<Bench> {
    let mut benches = Vec::new();
    for setup in throughput::SETUPS {
        let peers = peers.clone();
        benches.push(Bench::new(setup.name, move |run| throughput::measure(run, &setup, &peers)));
    }
    let with = |measure: Measure| {
        let peers = peers.clone();
        move |run: &Run| measure(run, &peers)
    };
    benches.push(Bench::new(&enqueue::NAMES, with(enqueue::measure)));
    benches.push(Bench::new(&latency::NAMES, with(latency::measure)));
    benches.push(Bench::new(&["held_snapshot_postgres"], growth::held_snapshot));
    benches.push(Bench::new(&growth::WAL_NAMES, with(growth::wal)));
    benches.push(Bench::new(&["claim_complete_embedded"], with(embedded::throughput)));
    benches.push(Bench::new(&["enqueue_64_embedded"], with(embedded::enqueue)));
    benches.push(Bench::new(&["claim_complete_redis"], with(redis::measure)));
    benches.push(Bench::new(&["rescue_embedded"], rescue::embedded));
    benches.push(Bench::new(&rescue::LEASE_NAMES, rescue::by_lease));
    benches
}

type Measure = fn(&Run, &Peers) -> Result<Vec<Figure>, Error>;

/// A server that waits for its disk, large enough that a run is not interrupted by a checkpoint.
fn server() -> Result<Postgres, Error> {
    let builder = Postgres::builder().durable();
    let builder = builder.set("shared_buffers", "256MB").set("max_wal_size", "4GB");
    let started = builder.set("checkpoint_timeout", "30min").try_start();
    started.map_err(|why| failed(&why))
}
