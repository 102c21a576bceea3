//! Locks between hosts, in an etcd cluster.
//!
//! The rules are those of `ledger/`, run by the client. A verb reads the keys of some slots at one
//! revision (`snapshot`), lets the ledger decide, and writes the difference in one transaction that
//! succeeds only if nothing that the decision depends on has changed (`transaction`).
//!
//! ```text
//! callers, keeper ─> claim.rs renew.rs release.rs ─> transaction.rs ─> connection.rs ═══ members
//!                         │         snapshot.rs <─> ledger                                 ║
//! sessions <─ signals.rs <┴─ grant.rs <─ waiters.rs <─ watches.rs <════════════════════════╝
//! ```
//!
//! A claim is a set of keys that are attached to an etcd lease of its session (`leases`). The
//! creation revisions of tickets are the order of the queue, and the revision that wrote a hold is
//! its fence (`fences`). Acquiring a free lock is one transaction, and so is its release. Holding
//! is written, never inferred: each waiter watches the keys that block it (`waiters`, `watches`),
//! and writes its own hold when its turn has come (`grant`). A process never writes holds for
//! claims of other processes.

mod cell_watches;
mod cell_writes;
mod cells;
mod claim;
mod claims;
#[cfg(not(feature = "test-util"))]
mod client;
// Public for `tests/etcd` and for `tenure-bench`, which compares with locks written by hand on it.
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod client;
mod cluster_check;
mod connect;
mod connection;
mod deadlock;
mod doctor;
mod errors;
mod evict;
mod expiry;
mod fences;
mod grant;
mod in_flight;
mod inspect;
mod keys;
mod lease_moves;
mod leases;
mod queue;
mod record;
mod release;
mod renew;
mod signals;
mod snapshot;
mod tasks;
mod terms;
#[cfg(feature = "conformance")]
mod testing;
#[cfg(test)]
mod tests;
mod transaction;
mod url;
mod waiters;
mod watches;

use std::future::Future;
use std::sync::{Arc, Weak};

use self::cell_watches::CellWatches;
use self::claims::Claims;
pub(super) use self::connect::connect;
use self::connection::ClusterConnection;
use self::errors::VerbError;
use self::fences::Epoch;
use self::in_flight::InFlightClaims;
use self::keys::{KeyKind, Keys};
use self::leases::Leases;
use self::signals::SessionListeners;
use self::tasks::Tasks;
use self::terms::StatedTerms;
#[cfg(feature = "conformance")]
pub(crate) use self::testing::{GatePass, Lessor, WeakEngine};
use self::url::Location;
use self::waiters::Waiters;
use self::watches::Watches;
use super::common::runtime::EngineThread;
use crate::contract::{
    Claim, ClaimId, ClaimRef, DeadlockCase, DeadlockHandling, Deadlocks, Diagnostics, Engine,
    Error, Evicted, Eviction, Fence, FenceFloor, Fencing, Finding, Name, Ownership, OwnershipProof,
    Pending, Promises, Query, Raised, Release, Released, Renewed, SessionId, SignalListener,
    Snapshot, Survives, Verb, Verdict, VictimVerdict, Wake, optional_objects,
};
use crate::ledger::Now;
use crate::sync::Mutex;
use crate::time::Clock;

/// What the etcd engine promises.
pub const PROMISES: Promises = Promises {
    engine: "etcd",
    fencing: Fencing::Strict,
    fencing_rests_on: "the cluster's revision; a restored backup is noticed and refused",
    lists_rest_on: "the order of keys, a range at a time",
    jobs: false,
    deadlocks: DeadlockHandling::Broken,
    rates: false,
    no_rates_because: "etcd has no clock that a transaction could read, so no window can be \
                       exact: use the memory, embedded, redis or postgres engine",
    wake: Wake::Push,
    survives: &[
        Survives::ClientCrash,
        Survives::StoreRestart,
        Survives::PowerLoss,
        Survives::NodeLoss,
    ],
    replicas: false,
    drift_percent: 10,
    lacks_jobs_because: "each change of a job would be a write by consensus, kept in the \
                         history until that is compacted",
    ..Promises::EVERY_RULE
};

/// The etcd engine.
#[derive(Clone)]
pub struct EtcdEngine {
    inner: Arc<Inner>,
}

struct Inner {
    location: Location,
    keys: Keys,
    /// How fences are computed, from the newest terms of the namespace that were read.
    epoch: Mutex<Epoch>,
    /// What this client states when it has to agree again because the terms have changed.
    stated: StatedTerms,
    connection: Arc<ClusterConnection>,
    leases: Leases,
    claims: Arc<Claims>,
    waiters: Waiters,
    in_flight: InFlightClaims,
    watches: Watches,
    cell_watches: CellWatches,
    listeners: SessionListeners,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    /// The number of the latest beacon event, for the conformance suite.
    #[cfg(feature = "conformance")]
    seen: std::sync::atomic::AtomicU64,
    /// The engine's own thread. The last field, so that the others are dropped first.
    #[allow(dead_code, reason = "dropping it ends the thread")]
    own: EngineThread,
}

impl std::fmt::Debug for EtcdEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdEngine").field("location", &self.inner.location).finish_non_exhaustive()
    }
}

impl EtcdEngine {
    /// Runs a verb on the engine's own thread.
    async fn run<T: Send + 'static>(
        &self,
        verb: Verb,
        work: impl Future<Output = Result<T, VerbError>> + Send + 'static,
    ) -> Result<T, Error> {
        let work = async move { work.await.map_err(|error| error.into_error(verb)) };
        self.inner.tasks.run(work).await
    }
}

fn now(clock: &dyn Clock) -> Now {
    Now { tick: clock.now(), wall_micros: clock.wall_micros() }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.claims.close();
    }
}

impl Inner {
    fn now(&self) -> Now {
        now(&*self.clock)
    }
}

impl Engine for EtcdEngine {
    fn promises(&self) -> &Promises {
        &PROMISES
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        Box::pin(async move {
            let (inner, claim) = (Arc::clone(&self.inner), Arc::clone(claim));
            let since = inner.clock.now();
            self.inner
                .tasks
                .run_on_caller(move || async move { inner.claim(&claim, since).await })
                .await
        })
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(async move {
            let (inner, batch) = (Arc::clone(&self.inner), batch.to_vec());
            let since = inner.clock.now();
            // Before the task is scheduled: the claims could expire while it waits for its turn.
            inner.claims.extend(&batch, since);
            self.inner.tasks.run(async move { inner.renew(&batch, since).await }).await
        })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        Box::pin(async move {
            let (inner, batch) = (Arc::clone(&self.inner), batch.to_vec());
            let since = inner.clock.now();
            self.inner
                .tasks
                .run_on_caller(move || async move { inner.release(&batch, since).await })
                .await
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(async move {
            let (inner, query) = (Arc::clone(&self.inner), query.clone());
            self.inner.tasks.run(async move { inner.inspect(&query).await }).await
        })
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        Box::pin(async move {
            let (inner, eviction) = (Arc::clone(&self.inner), eviction.clone());
            let since = inner.clock.now();
            self.inner.tasks.run(async move { inner.evict(&eviction, since).await }).await
        })
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.inner.listen(session, listener);
    }

    optional_objects!(self:
        immediate => None,
        cells => Some(self),
        jobs => None,
        rates => None,
        fence_floor => Some(self),
        replication => None,
        partitions => None,
        diagnostics => Some(self),
        ownership_proof => Some(self),
        deadlocks => Some(self),
        local => None,
    );
}

impl Deadlocks for EtcdEngine {
    fn refuse_victim<'a>(&'a self, case: &'a DeadlockCase) -> Pending<'a, VictimVerdict> {
        Box::pin(async move {
            let (inner, case) = (Arc::clone(&self.inner), case.clone());
            let since = inner.clock.now();
            self.inner.tasks.run(async move { inner.refuse_victim(&case, since).await }).await
        })
    }
}

impl FenceFloor for EtcdEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        let inner = Arc::clone(&self.inner);
        Box::pin(self.run(Verb::RaiseFences, async move { inner.raise_fences(to).await }))
    }
}

impl Diagnostics for EtcdEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async move {
            let inner = Arc::clone(&self.inner);
            self.inner.tasks.run(async move { Ok(inner.doctor().await) }).await
        })
    }
}

impl OwnershipProof for EtcdEngine {
    fn ownership<'a>(&'a self, name: &'a Name, claim: ClaimId) -> Pending<'a, Option<Ownership>> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        Box::pin(self.run(Verb::Inspect, async move {
            let found = inner.read_slots(std::slice::from_ref(&name), &[]).await?;
            Ok(found.key_of(&name, KeyKind::Hold, claim).map(|seen| Ownership {
                key: seen.key.clone(),
                revision: transaction::as_i64(seen.created),
            }))
        }))
    }
}
