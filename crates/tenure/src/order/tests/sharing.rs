//! What becomes of an edge whose sharing fails: a store that refuses, or a caller that leaves.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::contract::{
    Batch, BatchVerdict, Cell, CellQuery, CellRange, Cells, Claim, Delivery, Engine, Error,
    ErrorKind, Name, Part, Pending, WeakWatcher, samples,
};
use crate::engine::memory::MemoryEngine;
use crate::order::{LockOrder, OrderChecker, OrderMode, OrderRequest, WaitLimit, stored_graph};
use crate::session::block_on;
use crate::time::{Clock, ManualClock};

/// Cells that can fail, or never reply.
#[derive(Default)]
struct Faulty {
    store: MemoryEngine,
    fails: AtomicBool,
    hangs: AtomicBool,
    calls: AtomicUsize,
}

impl Faulty {
    fn call<'a, T: Send + 'a>(&'a self, reply: Pending<'a, T>) -> Pending<'a, T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.hangs.load(Ordering::Relaxed) {
            return Box::pin(pending());
        }
        if self.fails.load(Ordering::Relaxed) {
            let error = Error::new(ErrorKind::Unavailable, "the store is down");
            return Box::pin(async move { Err(error) });
        }
        reply
    }

    fn cells(&self) -> &dyn Cells {
        self.store.cells().expect("the memory engine has cells")
    }
}

impl Cells for Faulty {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        self.call(self.cells().get(name))
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        self.call(self.cells().write(batch))
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        self.call(self.cells().list(query))
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        self.call(self.cells().watch(range, watcher))
    }
}

/// A flow that holds `a` and acquires another lock again and again.
struct Flow {
    checker: OrderChecker,
    clock: Arc<dyn Clock>,
    held: Arc<Claim>,
    wanted: Claim,
}

impl Flow {
    fn new(checker: OrderChecker, clock: &ManualClock) -> Self {
        let claim = |name: &str| samples::claim(Part::write(Name::try_from(name).unwrap()));
        let (held, mut wanted) = (Arc::new(claim("a")), claim("b"));
        wanted.lineage = held.lineage.clone();
        Self { checker, clock: Arc::new(clock.clone()), held, wanted }
    }

    fn request(&self) -> OrderRequest<'_> {
        OrderRequest {
            parts: &self.wanted.parts,
            lineage: &self.wanted.lineage,
            scoped: true,
            level: None,
            wait: WaitLimit::Unlimited,
            upgrades: false,
            about: &self.wanted.about,
        }
    }

    /// Checks the request this many times. Returns how often there was something to share.
    fn check(&self, times: usize) -> usize {
        let _mark = self.checker.hold(&self.held, true, None, None, &self.clock).unwrap();
        let checked = || self.checker.check(&self.request(), None, &*self.clock).unwrap();
        (0..times).filter(|_| checked()).count()
    }

    fn share(&self, cells: &Faulty) {
        block_on(self.checker.share(cells, &self.request(), &*self.clock)).unwrap();
    }
}

fn flow(clock: &ManualClock) -> Flow {
    Flow::new(OrderChecker::new(LockOrder::new(OrderMode::Warn).service("billing")), clock)
}

/// The edge is known to the process from the first time on: no later lock learns it again.
#[test]
fn an_edge_whose_sharing_failed_or_was_abandoned_is_shared_by_a_later_lock() {
    for abandoned in [false, true] {
        let (clock, cells) = (ManualClock::new(), Faulty::default());
        let flow = flow(&clock);
        assert_eq!(flow.check(1), 1, "it is news");
        if abandoned {
            cells.hangs.store(true, Ordering::Relaxed);
            let request = flow.request();
            let mut shared = pin!(flow.checker.share(&cells, &request, &*flow.clock));
            let polled = shared.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending));
        } else {
            cells.fails.store(true, Ordering::Relaxed);
            flow.share(&cells);
        }
        assert_eq!(cells.calls.load(Ordering::Relaxed), 1);
        assert_eq!(flow.check(200), 0, "not each lock asks a store that is down");
        cells.fails.store(false, Ordering::Relaxed);
        cells.hangs.store(false, Ordering::Relaxed);
        clock.advance(Duration::from_secs(61));
        assert_eq!(flow.check(200), 1, "one of many tries again");
        flow.share(&cells);
        let stored = block_on(stored_graph(&cells)).unwrap();
        assert_eq!(stored.edges().len(), 1, "{stored:?}");
        assert_eq!(stored.edges()[0].acquired, "b");
    }
}
