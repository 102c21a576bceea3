//! What the tests share: a world with a clock of its own, and an engine that can be meddled with.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part of it")]

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure::contract::{
    About, Batch, BatchVerdict, Cell, CellQuery, CellRange, Cells, Claim, ClaimId, ClaimRef,
    Delivery, Engine, Evicted, Eviction, Fence, FenceFloor, Grant, Immediate, Lineage, Name,
    OwnerId, Part, Parts, Patience, Pending, Promises, Query, Raised, Release, Released, Renewed,
    SessionId, SignalListener, Snapshot, Verdict, WeakWatcher,
};
use tenure::engine::memory::{self, Census, MemoryEngine};
use tenure::time::ManualClock;
use tenure::{Error, ErrorKind, Tenure, optional_objects};

/// A store and a clock that the test owns.
pub struct World {
    pub clock: ManualClock,
    pub store: MemoryEngine,
    pub engine: Arc<Meddler>,
}

impl World {
    pub fn new() -> Self {
        let clock = ManualClock::new();
        let store = MemoryEngine::with_clock(Arc::new(clock.clone()));
        let engine = Arc::new(Meddler::new(store.clone()));
        Self { clock, store, engine }
    }

    /// A store that takes one name at a time.
    pub fn one_by_one() -> Self {
        static PROMISES: Promises = Promises { atomic_sets: false, ..memory::PROMISES };
        let world = Self::new();
        *world.engine.promises.lock().unwrap() = Some(&PROMISES);
        world
    }

    /// A new session on the store.
    pub fn tenure(&self) -> Tenure {
        let builder = Tenure::builder().clock(Arc::new(self.clock.clone()));
        builder.open(Arc::clone(&self.engine) as _).unwrap()
    }

    /// A claim for a mutex that belongs to no session.
    pub fn detached_claim(name: &str, lease: Duration) -> Arc<Claim> {
        Arc::new(Claim {
            id: ClaimId::new(),
            session: None,
            lineage: Lineage::root(OwnerId::new()),
            parts: Parts::one(Part::write(name.parse().unwrap())),
            lease,
            lock_delay: Duration::ZERO,
            patience: Patience::Wait,
            replaces: None,
            about: About {
                host: "elsewhere".into(),
                pid: 1,
                place: None,
                label: None,
                conduct: tenure::contract::Conduct::default(),
            },
        })
    }

    /// Waits until the keepers have nothing to do.
    pub fn settle(&self) {
        self.clock.settle();
    }

    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Holds and tickets in the store.
    pub fn census(&self) -> (usize, usize) {
        let Census { holds, tickets, .. } = self.store.census();
        (holds, tickets)
    }

    /// After the keepers have settled nothing is left in the store.
    #[track_caller]
    pub fn assert_empty(&self, context: &str) {
        self.settle();
        assert_eq!(self.census(), (0, 0), "left behind: {context}");
    }
}

/// Passes everything on to the memory engine, and interferes as it is told.
#[derive(Debug)]
pub struct Meddler {
    inner: MemoryEngine,
    /// Suspend before and after every call, so that a test can drop there.
    pub suspend: AtomicBool,
    /// Answer every call with an error, without passing it on.
    pub refuse: AtomicBool,
    /// Pass every call on but never answer it.
    pub swallow: AtomicBool,
    /// Answer every renewal for one claim less than it was asked for.
    pub short: AtomicBool,
    /// Let so much time pass between the store's reply to the next renewal and its arrival.
    pub stall: Mutex<Option<(ManualClock, Duration)>>,
    /// Lose all signals.
    pub deaf: AtomicBool,
    /// The promises to show instead of the engine's own.
    pub promises: Mutex<Option<&'static Promises>>,
    pub claims: AtomicUsize,
    pub renews: AtomicUsize,
    pub releases: AtomicUsize,
}

impl Meddler {
    pub fn new(inner: MemoryEngine) -> Self {
        Self {
            inner,
            suspend: AtomicBool::new(false),
            refuse: AtomicBool::new(false),
            swallow: AtomicBool::new(false),
            short: AtomicBool::new(false),
            stall: Mutex::new(None),
            deaf: AtomicBool::new(false),
            promises: Mutex::new(None),
            claims: AtomicUsize::new(0),
            renews: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
        }
    }

    /// Whether a call may be answered in another way than by the store, or later.
    fn interferes(&self) -> bool {
        [&self.suspend, &self.refuse, &self.swallow].iter().any(|on| on.load(Ordering::SeqCst))
    }

    /// Suspends before and after a call, and does nothing else to it.
    fn suspended<'a, T: Send + 'a>(&'a self, call: Pending<'a, T>) -> Pending<'a, T> {
        Box::pin(async move {
            if self.suspend.load(Ordering::SeqCst) {
                yield_once().await;
            }
            let answer = call.await;
            if self.suspend.load(Ordering::SeqCst) {
                yield_once().await;
            }
            answer
        })
    }

    fn call<'a, T: Send + 'a>(&'a self, call: Pending<'a, T>) -> Pending<'a, T> {
        Box::pin(async move {
            if self.refuse.load(Ordering::SeqCst) {
                return Err(Error::new(ErrorKind::Unavailable, "the link is cut"));
            }
            if self.suspend.load(Ordering::SeqCst) {
                yield_once().await;
            }
            let answer = call.await;
            if self.swallow.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            if self.suspend.load(Ordering::SeqCst) {
                yield_once().await;
            }
            answer
        })
    }
}

impl Engine for Meddler {
    fn promises(&self) -> &Promises {
        self.promises.lock().unwrap().unwrap_or_else(|| self.inner.promises())
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        if !self.promises().atomic_sets && claim.parts.as_slice().len() > 1 {
            let what = "several names in one claim, which was not promised";
            return Box::pin(async move { Err(Error::new(ErrorKind::Unsupported, what)) });
        }
        self.call(self.inner.claim(claim))
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        self.renews.fetch_add(1, Ordering::SeqCst);
        let renewal = self.call(self.inner.renew(batch));
        Box::pin(async move {
            let mut answers = renewal.await?;
            if let Some((clock, pause)) = self.stall.lock().unwrap().take() {
                clock.jump(pause);
            }
            if self.short.load(Ordering::SeqCst) {
                answers.pop();
            }
            Ok(answers)
        })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        self.call(self.inner.release(batch))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        self.call(self.inner.inspect(query))
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        self.call(self.inner.evict(eviction))
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        if !self.deaf.load(Ordering::SeqCst) {
            self.inner.listen(session, listener);
        }
    }

    optional_objects!(self:
        immediate => Some(self),
        cells => Some(self),
        fence_floor => Some(self),
    );
    optional_objects!(self of inner:
        jobs, rates, replication, partitions, diagnostics, ownership_proof,
        deadlocks, local
    );
}

impl Immediate for Meddler {
    fn claim_free(&self, claim: &Arc<Claim>) -> Option<Grant> {
        let engine = self.inner.immediate().filter(|_| !self.interferes())?;
        engine.claim_free(claim).inspect(|_| _ = self.claims.fetch_add(1, Ordering::SeqCst))
    }

    fn release_lone(&self, claim: &Claim) -> bool {
        let engine = self.inner.immediate().filter(|_| !self.interferes());
        let released = engine.is_some_and(|engine| engine.release_lone(claim));
        if released {
            self.releases.fetch_add(1, Ordering::SeqCst);
        }
        released
    }
}

impl Cells for Meddler {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        self.suspended(cells_of(&self.inner).get(name))
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        self.suspended(cells_of(&self.inner).write(batch))
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        self.suspended(cells_of(&self.inner).list(query))
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        self.suspended(cells_of(&self.inner).watch(range, watcher))
    }
}

fn cells_of(inner: &MemoryEngine) -> &dyn Cells {
    inner.cells().expect("the memory engine has cells")
}

impl FenceFloor for Meddler {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        self.call(self.inner.fence_floor().expect("the memory engine has one").raise_fences(to))
    }
}

/// Suspends once.
pub async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Polls a future once, without a runtime.
pub fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Polls a future that must be ready at once.
#[track_caller]
pub fn now<F: Future>(future: F) -> F::Output {
    poll_once(pin!(future)).expect("the future should be ready at once")
}

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
