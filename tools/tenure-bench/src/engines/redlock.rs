//! The quorum engine: nodes of its own for each benchmark, on loopback, without persistence. Knows
//! which benchmarks make sense for it.

use servers::Redis;
use tenure::{Builder, Error, ErrorKind};

use crate::benches::crowd;
use crate::benches::redlock::{measure, one_round_trip, url};
use crate::run::Bench;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new(&["pair_3", "pair_3_rslock"], |run| {
            measure(run, &start(3)?, ["pair_3", "pair_3_rslock"])
        }),
        Bench::new(&["pair_5", "pair_5_rslock"], |run| {
            measure(run, &start(5)?, ["pair_5", "pair_5_rslock"])
        }),
        Bench::new(&["one_round_trip_share"], |run| one_round_trip(run, &start(5)?)),
        Bench::new(&[crowd::NAME], |run| {
            let nodes = start(3)?;
            crowd::beside_postgres(run, async |builder: Builder| {
                builder.connect(&url(&nodes)).await
            })
        }),
    ]
}

fn start(nodes: usize) -> Result<Vec<Redis>, Error> {
    let started: Result<Vec<_>, _> = (0..nodes).map(|_| Redis::builder().try_start()).collect();
    started.map_err(|why| Error::new(ErrorKind::Unavailable, format!("no server: {why}")))
}
