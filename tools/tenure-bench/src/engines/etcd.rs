//! The etcd engine: a cluster of one member for each benchmark, on loopback, with its files where
//! it always has them. Knows which benchmarks make sense for it.

use servers::Etcd;
use tenure::{Builder, Error, ErrorKind};

use crate::benches::crowd;
use crate::benches::etcd::{handoff, pair};
use crate::figure::Aim;
use crate::run::Bench;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new(&["pair"], |run| pair::measure(run, &start()?)),
        Bench::new(&handoff::NAMES, |run| handoff::measure(run, &start()?)),
        Bench::new(&[crowd::NAME], |run| {
            let store = start()?;
            let connect = async |builder: Builder| builder.connect(&store.url()).await;
            let figures = crowd::beside_postgres(run, connect)?;
            Ok(figures.into_iter().map(|figure| figure.judged_by(Aim::AtMost(10.0))).collect())
        }),
    ]
}

fn start() -> Result<Etcd, Error> {
    let started = Etcd::builder().try_start();
    started.map_err(|why| Error::new(ErrorKind::Unavailable, format!("no server: {why}")))
}
