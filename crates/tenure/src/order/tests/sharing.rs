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
    lists: AtomicUsize,
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
        self.lists.fetch_add(1, Ordering::Relaxed);
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

    /// The same flow, which acquires a lock of this name.
    fn wants(&self, name: &str) -> Self {
        let mut wanted = self.wanted.clone();
        wanted.parts = samples::claim(Part::write(Name::try_from(name).unwrap())).parts;
        let (checker, clock) = (self.checker.clone(), Arc::clone(&self.clock));
        Self { checker, clock, held: Arc::clone(&self.held), wanted }
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

/// After a deploy every edge is new.
#[test]
fn many_new_edges_read_those_of_all_services_once_a_second_and_once_behind_the_last() {
    let (clock, cells) = (ManualClock::new(), Faulty::default());
    let flow = flow(&clock);
    let lists = || cells.lists.load(Ordering::Relaxed);
    let learn = |names: std::ops::Range<char>| {
        for name in names {
            let flow = flow.wants(&name.to_string());
            assert_eq!(flow.check(1), 1, "{name} is news");
            flow.share(&cells);
        }
    };
    learn('b'..'n');
    assert_eq!(lists(), 2, "before the first edge and behind it");
    assert_eq!(block_on(stored_graph(&cells)).unwrap().edges().len(), 12, "all are written");
    assert_eq!((lists(), flow.check(100)), (3, 0), "not yet");
    clock.advance(Duration::from_secs(1));
    assert_eq!(flow.check(100), 1, "one of many reads again");
    flow.share(&cells);
    assert_eq!((lists(), flow.check(100)), (4, 0));
    // In mode `deny` the verdict comes before the lock.
    let flow = Flow::new(OrderChecker::new(OrderMode::Deny), &clock);
    for name in ["b", "c", "d"] {
        let flow = flow.wants(name);
        assert_eq!(flow.check(1), 1);
        flow.share(&cells);
    }
    assert_eq!(lists(), 8);
}
