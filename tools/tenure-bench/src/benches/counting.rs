//! An engine that counts how often it is asked to renew. Passes everything on; knows no store.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use tenure::contract::{
    Claim, ClaimRef, Engine, Evicted, Eviction, Pending, Promises, Query, Release, Released,
    Renewed, SessionId, SignalListener, Snapshot, Verdict,
};
use tenure::optional_objects;

#[derive(Debug)]
pub(super) struct CountingEngine {
    inner: Arc<dyn Engine>,
    renew_calls: AtomicU32,
}

impl CountingEngine {
    pub(super) fn new(inner: Arc<dyn Engine>) -> Self {
        Self { inner, renew_calls: AtomicU32::new(0) }
    }

    pub(super) fn renew_calls(&self) -> u32 {
        self.renew_calls.load(Ordering::SeqCst)
    }
}

impl Engine for CountingEngine {
    fn promises(&self) -> &Promises {
        self.inner.promises()
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        self.inner.claim(claim)
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        self.renew_calls.fetch_add(1, Ordering::SeqCst);
        self.inner.renew(batch)
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        self.inner.release(batch)
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        self.inner.inspect(query)
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        self.inner.evict(eviction)
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.inner.listen(session, listener);
    }

    optional_objects!(self of inner:
        immediate, cells, jobs, rates, fence_floor, replication, partitions, diagnostics,
        ownership_proof, deadlocks, local
    );
}
