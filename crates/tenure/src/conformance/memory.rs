//! The memory engine on stage, with a clock that the suite owns.

use std::sync::Arc;
use std::time::Duration;

use super::harness::{Absent, Harness, Stage};
use crate::contract::{Engine, Promises, SessionId};
use crate::engine::memory::{MemoryEngine, PROMISES};
use crate::time::{Clock, ManualClock};

/// Opens memory stores on a virtual clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryHarness;

impl Harness for MemoryHarness {
    fn promises(&self) -> Promises {
        PROMISES
    }

    fn open(&self) -> Result<Box<dyn Stage>, Absent> {
        let clock = ManualClock::new();
        let engine = MemoryEngine::with_clock(Arc::new(clock.clone()));
        Ok(Box::new(MemoryStage { clock, engine }))
    }
}

struct MemoryStage {
    clock: ManualClock,
    engine: MemoryEngine,
}

impl Stage for MemoryStage {
    fn client(&self) -> Arc<dyn Engine> {
        Arc::new(self.engine.clone())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn settle(&self) {
        self.clock.settle();
    }

    fn end_session(&self, session: SessionId) {
        self.engine.end_session(session);
    }
}
