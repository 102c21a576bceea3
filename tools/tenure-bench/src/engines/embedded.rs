//! The embedded engine: a directory of its own for each benchmark. Knows which make sense for it.

use std::fs::File;
use std::sync::Arc;

use tempfile::TempDir;
use tenure::contract::Namespace;
use tenure::engine::Terms;
use tenure::engine::embedded::{EmbeddedEngine, Location};
use tenure::time::{Clock, ManualClock, SystemClock};
use tenure::{Builder, Error, ErrorKind, limits};

use crate::benches::taker::Taker;
use crate::benches::{crowd, held, pair, processes, readers, reentry};
use crate::run::Bench;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new(&["pair"], |run| {
            let directory = directory()?;
            let engine = open(&directory, Arc::new(SystemClock))?;
            let flock = Flock::new(&directory)?;
            pair::beside(run, Arc::new(engine), "x flock of one file; aim <= 5", flock)
        }),
        Bench::new(&["reentry"], |run| {
            let directory = directory()?;
            reentry::measure(run, Arc::new(open(&directory, Arc::new(SystemClock))?))
        }),
        Bench::new(&processes::HANDOFF, |run| processes::handoff(run, &directory()?)),
        Bench::new(&["takeover_kill9"], |run| processes::takeover(run, &directory()?)),
        Bench::new(&["readers_4000_vs_10"], |run| {
            // Time stands still: none of them has to be renewed.
            let directory = directory()?;
            readers::crowd(run, Arc::new(open(&directory, Arc::new(ManualClock::new()))?))
        }),
        Bench::new(&["held_10k_renew_calls"], |run| {
            let directory = directory()?;
            let clock = ManualClock::new();
            let engine = open(&directory, Arc::new(clock.clone()))?;
            held::renew_calls(run, &clock, Arc::new(engine))
        }),
        Bench::new(&[crowd::NAME], |run| {
            let directory = directory()?;
            crowd::beside_postgres(run, async |builder: Builder| {
                builder.open(Arc::new(open(&directory, Arc::new(SystemClock))?))
            })
        }),
    ]
}

fn open(directory: &TempDir, clock: Arc<dyn Clock>) -> Result<EmbeddedEngine, Error> {
    let max_lease = limits::DEFAULT_MAX_LEASE;
    let terms = Terms { namespace: Namespace::default(), max_lease, clock };
    EmbeddedEngine::open(&Location::at(directory.path()), terms)
}

fn directory() -> Result<TempDir, Error> {
    tempfile::tempdir().map_err(|error| failed("cannot make a directory", error))
}

/// Something outside Tenure went wrong.
pub(crate) fn failed(what: &'static str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, what).caused_by(error)
}

/// The lock that every host has: no queue, no lease, no fence.
struct Flock {
    file: File,
}

impl Flock {
    fn new(directory: &TempDir) -> Result<Self, Error> {
        let file = File::create(directory.path().join("flock"));
        Ok(Self { file: file.map_err(|error| failed("cannot make a file", error))? })
    }
}

impl Taker for Flock {
    type Held = ();

    async fn take(&mut self) -> Result<(), Error> {
        self.file.lock().map_err(|error| failed("cannot lock a file", error))
    }

    async fn give(&mut self, (): ()) -> Result<(), Error> {
        self.file.unlock().map_err(|error| failed("cannot unlock a file", error))
    }
}
