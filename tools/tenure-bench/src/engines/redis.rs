//! The Redis engine: a server of its own for each benchmark, on loopback, without persistence.
//! Knows which benchmarks make sense for it.

use servers::Redis;
use tenure::{Builder, Error, ErrorKind};

use crate::benches::crowd;
use crate::benches::redis::{handoff, held, pair, server, throughput};
use crate::run::Bench;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new(&["pair_1"], |run| pair::measure(run, &start()?)),
        Bench::new(&throughput::NAMES, |run| throughput::measure(run, &start()?)),
        Bench::new(&handoff::NAMES, |run| handoff::measure(run, &start()?)),
        Bench::new(&["held_10k_commands"], |run| held::measure(run, &start()?)),
        Bench::new(&["server_time_10k"], |run| server::measure(run, &start()?)),
        Bench::new(&[crowd::NAME], |run| {
            let store = start()?;
            crowd::beside_postgres(run, async |builder: Builder| {
                builder.connect(&store.url()).await
            })
        }),
    ]
}

fn start() -> Result<Redis, Error> {
    let started = Redis::builder().try_start();
    started.map_err(|why| Error::new(ErrorKind::Unavailable, format!("no server: {why}")))
}
