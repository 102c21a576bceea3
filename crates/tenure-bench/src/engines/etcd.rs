//! The etcd engine: a cluster of one member for each benchmark, on loopback, with its files where
//! it always has them. Knows which benchmarks make sense for it.

use servers::Etcd;
use tenure::{Error, ErrorKind};

use crate::benches::etcd::{handoff, pair};
use crate::run::Bench;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new(&["pair"], |run| pair::measure(run, &start()?)),
        Bench::new(&handoff::NAMES, |run| handoff::measure(run, &start()?)),
    ]
}

fn start() -> Result<Etcd, Error> {
    let started = Etcd::builder().try_start();
    started.map_err(|why| Error::new(ErrorKind::Unavailable, format!("no server: {why}")))
}
