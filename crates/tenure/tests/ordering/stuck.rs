//! A store whose cells do not respond while its locks do: no lock waits for them for long.

use std::future::pending;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use tenure::contract::{
    Batch, BatchVerdict, Cell, CellQuery, CellRange, Cells, Claim, ClaimRef, Delivery, Engine,
    Evicted, Eviction, Pending, Promises, Query, Release, Released, Renewed, SessionId,
    SignalListener, Snapshot, Verdict, WeakWatcher,
};
use tenure::engine::memory::MemoryEngine;
use tenure::time::ManualClock;
use tenure::{LockOrder, Name, OrderMode, Tenure, optional_objects};

/// An engine whose cells never reply.
#[derive(Debug)]
struct StuckCells {
    inner: MemoryEngine,
    /// Told of each call.
    called: Sender<()>,
}

impl StuckCells {
    fn call<T: Send + 'static>(&self) -> Pending<'_, T> {
        self.called.send(()).unwrap();
        Box::pin(pending())
    }
}

impl Cells for StuckCells {
    fn get<'a>(&'a self, _name: &'a Name) -> Pending<'a, Option<Cell>> {
        self.call()
    }

    fn write<'a>(&'a self, _batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        self.call()
    }

    fn list<'a>(&'a self, _query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        self.call()
    }

    fn watch<'a>(&'a self, _range: &'a CellRange, _watcher: WeakWatcher) -> Pending<'a, Delivery> {
        self.call()
    }
}

impl Engine for StuckCells {
    fn promises(&self) -> &Promises {
        self.inner.promises()
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        self.inner.claim(claim)
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
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

    optional_objects!(self:
        immediate => self.inner.immediate(),
        cells => Some(self),
    );
    optional_objects!(self of inner:
        jobs, rates, fence_floor, replication, partitions, diagnostics, ownership_proof,
        deadlocks, local
    );
}

/// Acquires `b` under `a`, and lets time pass once the cells were called.
fn acquired_after(limit: Option<Duration>, pause: Duration) -> Result<(), tenure::Error> {
    let clock = ManualClock::new();
    let (called, calls) = channel();
    let inner = MemoryEngine::with_clock(Arc::new(clock.clone()));
    let order = LockOrder::new(OrderMode::Warn).service("billing");
    let builder = Tenure::builder().order(order).clock(Arc::new(clock.clone()));
    let builder = builder.call_limit(Duration::from_secs(2));
    let tenure = builder.open(Arc::new(StuckCells { inner, called })).unwrap();
    let (sender, acquired) = channel();
    let flow = thread::spawn(move || {
        let _a = tenure.mutex("a").unwrap().blocking_lock().unwrap();
        let b = tenure.mutex("b").unwrap();
        let b = if let Some(limit) = limit { b.timeout(limit) } else { b };
        sender.send(b.blocking_lock().map(drop)).unwrap();
    });
    let patience = Duration::from_secs(60);
    calls.recv_timeout(patience).expect("the edge is shared");
    clock.settle();
    clock.advance(pause);
    let reply = acquired.recv_timeout(patience).expect("the lock is free");
    flow.join().unwrap();
    assert!(calls.try_recv().is_err(), "a second call to the store that does not respond");
    reply
}

#[test]
fn cells_that_do_not_respond_take_half_of_the_timeout_of_a_lock_at_most() {
    acquired_after(Some(Duration::from_millis(200)), Duration::from_millis(110)).unwrap();
}

#[test]
fn cells_that_do_not_respond_delay_a_lock_by_one_call_at_most() {
    acquired_after(None, Duration::from_millis(2_100)).unwrap();
}
