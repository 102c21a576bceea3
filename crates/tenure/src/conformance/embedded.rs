//! The embedded engine on stage: a directory of its own, with a clock that the suite owns.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::harness::{Absent, Connected, Harness, Stage};
use super::paths;
use crate::contract::{Engine, Error, Namespace, Promises, SessionId};
use crate::engine::Terms;
use crate::engine::embedded::{EmbeddedEngine, Location, PROMISES};
use crate::limits;
use crate::time::{Clock, ManualClock};

/// Opens embedded stores in directories of their own, on a virtual clock.
///
/// All clients are in this process, as far as the store is concerned; what happens between
/// processes is for tests with real ones. Queues and holders get rows of their own early, so that
/// every scenario sees both layouts.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbeddedHarness;

impl Harness for EmbeddedHarness {
    fn promises(&self) -> Promises {
        PROMISES
    }

    fn paths(&self) -> Result<Vec<(String, u64)>, Absent> {
        Ok(paths::counted_in_process("embedded"))
    }

    fn open(&self) -> Result<Box<dyn Stage>, Absent> {
        let name = format!("tenure-conformance-{}", SessionId::new().to_hex());
        let path = std::env::temp_dir().join(name);
        let clock = ManualClock::new();
        // The first client makes the store, so that an absent one is noticed here.
        let first = open(&path, &clock).map_err(|error| Absent(error.to_string()))?;
        Ok(Box::new(EmbeddedStage { clock, path, first }))
    }
}

struct EmbeddedStage {
    clock: ManualClock,
    path: PathBuf,
    /// Keeps the store open between the clients of a scenario.
    first: EmbeddedEngine,
}

fn open(path: &Path, clock: &ManualClock) -> Result<EmbeddedEngine, Error> {
    let terms = Terms {
        namespace: Namespace::default(),
        max_lease: limits::DEFAULT_MAX_LEASE,
        clock: Arc::new(clock.clone()),
    };
    EmbeddedEngine::open_small(&Location::at(path), terms)
}

impl Stage for EmbeddedStage {
    fn client(&self) -> Arc<dyn Engine> {
        Arc::new(open(&self.path, &self.clock).expect("the store is there"))
    }

    fn connect(&self, namespace: &Namespace, max_lease: Duration) -> Connected {
        let (namespace, clock) = (namespace.clone(), Arc::new(self.clock.clone()));
        let terms = Terms { namespace, max_lease, clock };
        let engine = EmbeddedEngine::open_small(&Location::at(&self.path), terms);
        Some(engine.map(|engine| Arc::new(engine) as _))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn settle(&self) {
        self.clock.settle();
        self.first.settle();
        // What was done may have woken a keeper.
        self.clock.settle();
    }

    fn end_session(&self, session: SessionId) {
        self.first.end_session(session).expect("ends the session");
    }
}

impl Drop for EmbeddedStage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
