//! The memory engine, as it would be if it could take only one name in a step. Refuses any other
//! claim as trouble, so that a session that sends one is found out.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure::conformance::{Absent, Harness, MemoryHarness, Stage};
use tenure::contract::{
    Cells, Claim, ClaimRef, Deadlocks, Diagnostics, Engine, Evicted, Eviction, FenceFloor,
    Immediate, Jobs, LocalSessions, OwnershipProof, Partitions, Pending, Promises, Query, Rates,
    Release, Released, Renewed, Replication, SessionId, SignalListener, Snapshot, Verdict,
};
use tenure::engine::memory::PROMISES;
use tenure::time::Clock;
use tenure::{Error, ErrorKind};

static SINGLES: Promises = Promises { engine: "singles", atomic_sets: false, ..PROMISES };

pub(crate) struct SinglesHarness;

impl Harness for SinglesHarness {
    fn promises(&self) -> Promises {
        SINGLES.clone()
    }

    fn open(&self) -> Result<Box<dyn Stage>, Absent> {
        Ok(Box::new(Singles(MemoryHarness.open()?)))
    }
}

struct Singles(Box<dyn Stage>);

impl Stage for Singles {
    fn client(&self) -> Arc<dyn Engine> {
        Arc::new(SinglesEngine(self.0.client()))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }

    fn pass(&self, time: Duration) {
        self.0.pass(time);
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn lease(&self) -> Duration {
        self.0.lease()
    }

    fn end_session(&self, session: SessionId) {
        self.0.end_session(session);
    }
}

#[derive(Debug)]
struct SinglesEngine(Arc<dyn Engine>);

impl Engine for SinglesEngine {
    fn promises(&self) -> &Promises {
        &SINGLES
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        if claim.parts.as_slice().len() > 1 {
            let what = "several names in one claim, which was not promised";
            return Box::pin(async move { Err(Error::new(ErrorKind::Unsupported, what)) });
        }
        self.0.claim(claim)
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        self.0.renew(batch)
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        self.0.release(batch)
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        self.0.inspect(query)
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        self.0.evict(eviction)
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.0.listen(session, listener);
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        self.0.immediate()
    }

    fn cells(&self) -> Option<&dyn Cells> {
        self.0.cells()
    }

    fn jobs(&self) -> Option<&dyn Jobs> {
        self.0.jobs()
    }

    fn rates(&self) -> Option<&dyn Rates> {
        self.0.rates()
    }

    fn fence_floor(&self) -> Option<&dyn FenceFloor> {
        self.0.fence_floor()
    }

    fn replication(&self) -> Option<&dyn Replication> {
        self.0.replication()
    }

    fn partitions(&self) -> Option<&dyn Partitions> {
        self.0.partitions()
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics> {
        self.0.diagnostics()
    }

    fn ownership_proof(&self) -> Option<&dyn OwnershipProof> {
        self.0.ownership_proof()
    }

    fn deadlocks(&self) -> Option<&dyn Deadlocks> {
        self.0.deadlocks()
    }

    fn local(&self) -> Option<&dyn LocalSessions> {
        self.0.local()
    }
}
