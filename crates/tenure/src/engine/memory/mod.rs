//! The memory engine: the ledger behind a mutex. Knows one process and no other.
//!
//! `memory:` opens a private store; `memory:NAME` opens the store that all sessions of this process
//! with that NAME share. Locks end with the process. It is the engine of
//! tests, and of programs that want these locks among their own tasks.

mod cells;
mod jobs;
mod rates;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use self::cells::MemoryCells;
use self::jobs::MemoryQueues;
use self::rates::MemoryRates;
use super::Terms;
use super::common::max_lease;
use crate::contract::{
    Claim, ClaimRef, DeadlockCase, DeadlockHandling, Deadlocks, Engine, Error, Evicted, Eviction,
    Fence, FenceFloor, Fencing, Grant, Immediate, Name, Namespace, Pending, Promises, Query,
    Raised, Release, Released, Renewed, SessionId, Signal, SignalListener, Snapshot, Verb, Verdict,
    VictimVerdict, Wake, optional_objects,
};
use crate::engine::common::listeners::Listeners;
pub use crate::ledger::Census;
use crate::ledger::{Ledger, Now};
use crate::limits;
use crate::process::forks;
use crate::time::{Clock, SystemClock};

/// What the memory engine promises.
pub const PROMISES: Promises = Promises {
    engine: "memory",
    fencing: Fencing::ClockBounded,
    fencing_rests_on: "a counter in this process; across processes the wall clock",
    lists_rest_on: "a sorted map in this process",
    jobs: true,
    deadlocks: DeadlockHandling::Broken,
    rates: true,
    wake: Wake::Push,
    survives: &[],
    replicas: false,
    drift_percent: 0,
    ..Promises::EVERY_RULE
};

/// The memory engine.
#[derive(Clone, Debug)]
pub struct MemoryEngine {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Arc<dyn Clock>,
    ledger: Mutex<Ledger>,
    listeners: Listeners,
    cells: MemoryCells,
    /// Locked after the ledger.
    queues: Mutex<MemoryQueues>,
    rates: MemoryRates,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryEngine").finish_non_exhaustive()
    }
}

impl MemoryEngine {
    /// An empty store on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store on this clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::with_terms(clock, limits::DEFAULT_MAX_LEASE)
    }

    fn with_terms(clock: Arc<dyn Clock>, max_lease: Duration) -> Self {
        let inner = Inner {
            cells: MemoryCells::new(Arc::clone(&clock), max_lease),
            rates: MemoryRates::new(Arc::clone(&clock)),
            clock,
            ledger: Mutex::new(Ledger::default()),
            listeners: Listeners::default(),
            queues: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// How much the store holds: for leak checks in tests.
    #[must_use]
    pub fn census(&self) -> Census {
        self.inner.lock().census(self.inner.now())
    }

    /// Ends everything a session holds or waits for, as if its process had died.
    pub fn end_session(&self, session: SessionId) {
        self.inner.step(|ledger, now| ledger.end_session(session, now));
    }

    /// Forgets all locks at once, but no jobs, as a store does that restarts without persistence.
    pub fn lose_memory(&self) {
        *self.inner.lock() = Ledger::default();
    }
}

impl Default for MemoryEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine for MemoryEngine {
    fn promises(&self) -> &Promises {
        &PROMISES
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        // The step runs when the future is polled, not when it is made.
        Box::pin(async move { Ok(self.inner.step(|ledger, now| ledger.claim(claim, now))) })
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(async move { Ok(self.inner.step(|ledger, now| ledger.renew(batch, now))) })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        Box::pin(async move { Ok(self.inner.step(|ledger, now| ledger.release(batch, now))) })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(async move { Ok(self.inner.step(|ledger, now| ledger.inspect(query, now))) })
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        Box::pin(async move { Ok(self.inner.step(|ledger, now| ledger.evict(eviction, now))) })
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.inner.listeners.remove_ended();
        self.inner.listeners.insert(session, listener, ());
    }

    optional_objects!(self:
        immediate => Some(self),
        cells => Some(&self.inner.cells),
        jobs => Some(self),
        rates => Some(&self.inner.rates),
        fence_floor => Some(self),
        replication => None,
        partitions => None,
        diagnostics => None,
        ownership_proof => None,
        deadlocks => Some(self),
        local => None,
    );
}

impl Immediate for MemoryEngine {
    fn claim_free(&self, claim: &Arc<Claim>) -> Option<Grant> {
        self.inner.step(|ledger, now| ledger.claim_free(claim, now))
    }

    fn release_lone(&self, claim: &Claim) -> bool {
        let mut ledger = self.inner.lock();
        // Neither the wall clock nor signals: no fence is made, and nothing waits.
        ledger.release_lone(claim, self.inner.clock.now())
    }
}

impl Deadlocks for MemoryEngine {
    fn refuse_victim<'a>(&'a self, case: &'a DeadlockCase) -> Pending<'a, VictimVerdict> {
        Box::pin(async move { Ok(self.inner.step(|ledger, now| ledger.refuse_victim(case, now))) })
    }
}

impl FenceFloor for MemoryEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        Box::pin(async move { Ok(self.inner.step(|ledger, _| ledger.raise_fences(to))) })
    }
}

impl Inner {
    fn now(&self) -> Now {
        Now { tick: self.clock.now(), wall_micros: self.clock.wall_micros() }
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queues(&self) -> MutexGuard<'_, MemoryQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One atomic step, then its signals, told after the ledger is free again.
    fn step<T>(&self, step: impl FnOnce(&mut Ledger, Now) -> T) -> T {
        let mut ledger = self.lock();
        // Read under the lock, so that time never goes back from one step to the next.
        let now = self.now();
        let answer = step(&mut ledger, now);
        let signals = ledger.take_signals();
        drop(ledger);
        if !signals.is_empty() {
            self.tell(signals);
        }
        answer
    }

    fn tell(&self, signals: Vec<(SessionId, Signal)>) {
        for (session, signal) in signals {
            self.listeners.notify(session, signal);
        }
    }
}

/// The stores that have a name, shared within the process, each with the lease limit it was
/// opened with.
type Named = HashMap<(u32, Name, Namespace), (Weak<Inner>, Duration)>;

static NAMED: LazyLock<Mutex<Named>> = LazyLock::new(Mutex::default);

/// Opens the store that the rest of a `memory:` URL names.
pub(super) fn connect(rest: &str, terms: Terms) -> Result<Arc<dyn Engine>, Error> {
    if rest.is_empty() {
        return Ok(Arc::new(MemoryEngine::with_terms(terms.clock, terms.max_lease)));
    }
    let name = Name::try_from(rest).map_err(|error| error.during(Verb::Connect))?;
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    named.retain(|_, (store, _)| store.strong_count() > 0);
    // A forked child has a store of its own: a copy of its parent's would serve neither.
    let key = (forks(), name, terms.namespace);
    let Some((store, stands)) = named.get(&key) else {
        let engine = MemoryEngine::with_terms(terms.clock, terms.max_lease);
        named.insert(key, (Arc::downgrade(&engine.inner), terms.max_lease));
        return Ok(Arc::new(engine));
    };
    if *stands != terms.max_lease {
        let because = "a client of this process is connected";
        return Err(max_lease::refused(*stands, terms.max_lease, because).during(Verb::Connect));
    }
    let engine = match store.upgrade() {
        Some(inner) => MemoryEngine { inner },
        None => MemoryEngine::with_terms(terms.clock, terms.max_lease),
    };
    named.insert(key, (Arc::downgrade(&engine.inner), terms.max_lease));
    Ok(Arc::new(engine))
}
