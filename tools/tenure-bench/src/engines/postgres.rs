//! The PostgreSQL engine: a server of its own for each benchmark, on loopback, which waits for no
//! disk. Knows which benchmarks make sense for it.

use servers::Postgres;
use tenure::{Builder, Error, ErrorKind};

use crate::benches::crowd;
use crate::benches::postgres::{advisory, handoff, neighbours, pair};
use crate::run::Bench;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new(&["advisory_pair"], |run| advisory::measure(run, &start()?)),
        Bench::new(&pair::NAMES, |run| pair::measure(run, start)),
        Bench::new(&handoff::NAMES, |run| handoff::measure(run, &start()?)),
        Bench::new(&["neighbours_10k"], |run| neighbours::measure(run, &start()?, &start()?)),
        Bench::new(&[crowd::NAME], |run| {
            let store = start()?;
            crowd::alone(run, async |builder: Builder| builder.connect(&store.url()).await)
        }),
    ]
}

fn start() -> Result<Postgres, Error> {
    let started = Postgres::builder().try_start();
    started.map_err(|why| Error::new(ErrorKind::Unavailable, format!("no server: {why}")))
}
