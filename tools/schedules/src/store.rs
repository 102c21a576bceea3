//! The ledger behind a mutex that the explorer controls.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::contract::{
    Claim, ClaimRef, DeadlockHandling, Engine, Evicted, Eviction, Fence, Fencing, Grant, Immediate,
    Pending, Promises, Query, Raised, Release, Released, Renewed, SessionId, Signal,
    SignalListener, Snapshot, Verdict, Wake, optional_objects,
};
use crate::ledger::{Ledger, Now};
use crate::sync::{Mutex, PoisonError};
use crate::time::{Clock, ManualClock};

const PROMISES: Promises = Promises {
    engine: "explored",
    fencing: Fencing::ClockBounded,
    fencing_rests_on: "a counter",
    jobs: false,
    deadlocks: DeadlockHandling::Unseen,
    rates: false,
    no_rates_because: "it has locks alone",
    wake: Wake::Push,
    survives: &[],
    replicas: false,
    drift_percent: 0,
    lacks_jobs_because: "it is a store for schedules",
    ..Promises::EVERY_RULE
};

pub(crate) struct Store {
    clock: ManualClock,
    ledger: Mutex<Ledger>,
    listeners: Mutex<Vec<(SessionId, Weak<dyn SignalListener>)>>,
}

impl Store {
    pub(crate) fn new(clock: &ManualClock) -> Arc<Self> {
        Arc::new(Self {
            clock: clock.clone(),
            ledger: Mutex::new(Ledger::default()),
            listeners: Mutex::new(Vec::new()),
        })
    }

    /// Living holds and tickets.
    pub(crate) fn census(&self) -> (usize, usize) {
        let census = self.step(Ledger::census);
        (census.holds, census.tickets)
    }

    fn step<T>(&self, step: impl FnOnce(&mut Ledger, Now) -> T) -> T {
        let now = Now { tick: self.clock.now(), wall_micros: self.clock.wall_micros() };
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = step(&mut ledger, now);
        let signals = ledger.take_signals();
        drop(ledger);
        for (session, signal) in signals {
            self.tell(session, signal);
        }
        answer
    }

    fn tell(&self, session: SessionId, signal: Signal) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = listeners
            .iter()
            .find(|(id, _)| *id == session)
            .and_then(|(_, listener)| listener.upgrade());
        drop(listeners);
        if let Some(listener) = listener {
            listener.on_signal(signal);
        }
    }
}

impl Engine for Store {
    fn promises(&self) -> &Promises {
        &PROMISES
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        Box::pin(async move { Ok(self.step(|ledger, now| ledger.claim(claim, now))) })
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(async move { Ok(self.step(|ledger, now| ledger.renew(batch, now))) })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        Box::pin(async move { Ok(self.step(|ledger, now| ledger.release(batch, now))) })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(async move { Ok(self.step(|ledger, now| ledger.inspect(query, now))) })
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        Box::pin(async move { Ok(self.step(|ledger, now| ledger.evict(eviction, now))) })
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push((session, listener));
    }

    optional_objects!(self:
        immediate => Some(self),
        cells => None,
        jobs => None,
        rates => None,
        fence_floor => None,
        replication => None,
        partitions => None,
        diagnostics => None,
        ownership_proof => None,
        deadlocks => None,
        local => None,
    );
}

impl Immediate for Store {
    fn claim_free(&self, claim: &Arc<Claim>) -> Option<Grant> {
        self.step(|ledger, now| ledger.claim_free(claim, now))
    }

    fn release_lone(&self, claim: &Claim) -> bool {
        self.step(|ledger, now| ledger.release_lone(claim, now.tick))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}
