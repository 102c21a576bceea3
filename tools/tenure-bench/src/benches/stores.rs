//! One store of each engine, for benchmarks that run on all of them: a server of its own, or a
//! directory. Dropping it ends the store.

use std::any::Any;

use servers::{Etcd, Postgres, Redis};
use tempfile::TempDir;
use tenure::{Error, ErrorKind};

/// The engines, in the order of the names of their figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Memory,
    Embedded,
    Redis,
    Postgres,
    Etcd,
}

/// A store that runs.
pub(crate) struct RunningStore {
    pub(crate) url: String,
    _server: Box<dyn Any>,
}

impl StoreKind {
    /// Starts a store of its own.
    pub(crate) fn start(self) -> Result<RunningStore, Error> {
        let (url, server): (String, Box<dyn Any>) = match self {
            Self::Memory => ("memory:bench".to_owned(), Box::new(())),
            Self::Embedded => {
                // In the directory for builds, which is on a disk: a sync costs what it costs.
                let directory = TempDir::new().map_err(|why| failed(&why))?;
                let url = format!("embedded://{}/store", directory.path().display());
                (url, Box::new(directory))
            }
            Self::Redis => {
                let server = Redis::builder().try_start().map_err(|why| failed(&why))?;
                (server.url(), Box::new(server))
            }
            Self::Postgres => {
                let server = Postgres::builder().try_start().map_err(|why| failed(&why))?;
                (server.url(), Box::new(server))
            }
            Self::Etcd => {
                let server = Etcd::builder().try_start().map_err(|why| failed(&why))?;
                (server.url(), Box::new(server))
            }
        };
        Ok(RunningStore { url, _server: server })
    }
}

pub(crate) fn failed(why: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no store: {why}"))
}
