//! Locks held at a majority of independent Redis servers, with fences that grow.
//!
//! ```text
//! claim ────> claim.rs ──> attempt.rs ── acquire, raise ──> node.rs ═══ every node at once
//! renew ────> renew.rs ───────────────── extend ──────────> node.rs ═══
//! release ──> release.rs ─────────────── release ─────────> node.rs ═══
//!             protocol.rs counts votes; rules.rs is what a node does, in Lua at the nodes
//! ```
//!
//! The engine uses the connections of the `redis` engine and none of its rules. A *node* is one
//! server, a *round* is one script call to all nodes, an *attempt* is one or two rounds that win
//! the name at a majority or are withdrawn everywhere. Why fences grow and holders do not overlap
//! is proved in `docs/redlock.md` and checked by `tests/redlock_model.rs`.
//!
//! Nodes do not know each other, so the engine has no queue in the store, no shared locks, no
//! semaphores, no sets, and no cells (hence no `cells.rs`: a compare-and-set at a majority would
//! need a consensus protocol). A waiter that finds a name taken pauses and tries again, earlier if
//! a node publishes that the name is free; of the waiters of one process only one tries at a time
//! (`queue.rs`).

mod attempt;
mod claim;
mod claims;
mod connect;
mod deadlines;
mod doctor;
mod errors;
mod evict;
mod inspect;
mod keys;
mod node;
#[cfg(not(feature = "test-util"))]
mod protocol;
// Public for `tests/redlock_model.rs`, whose model is made of it.
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod protocol;
mod queue;
mod raise_fences;
mod record;
mod release;
mod renew;
mod round;
#[cfg(not(feature = "test-util"))]
mod rules;
// Public for `tests/redlock_model.rs`, whose model is made of it.
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod rules;
mod scripts;
mod signals;
mod terms;
#[cfg(feature = "conformance")]
mod testing;
#[cfg(all(test, feature = "conformance"))]
mod tests;
mod url;

use std::sync::{Arc, Weak};

use self::claims::Claims;
use self::connect::QuorumContext;
pub(super) use self::connect::connect;
use self::deadlines::Deadlines;
use self::node::{Placement, QuorumNode};
use self::protocol::quorum;
use self::signals::ProcessWaiters;
#[cfg(feature = "conformance")]
pub(crate) use self::testing::WeakEngine;
use super::common::runtime::{Callers, EngineThread};
use crate::contract::{
    Claim, ClaimRef, DeadlockHandling, Diagnostics, Engine, Error, ErrorKind, Evicted, Eviction,
    Fence, FenceFloor, Fencing, Finding, Pending, Promises, Query, Raised, Release, Released,
    Renewed, SessionId, SignalListener, Snapshot, Survives, Verdict, Wake, optional_objects,
};
use crate::engine::redis::client::RequestError;

/// What the quorum engine promises.
pub const PROMISES: Promises = Promises {
    engine: "redlock",
    fencing: Fencing::ClockBounded,
    fencing_rests_on: "counters at a majority of nodes; for nodes that keep no append-only file, \
                       after a restart the nodes' clocks",
    fence_floor: true,
    queue: false,
    sharing: false,
    counting: false,
    atomic_sets: false,
    cells: false,
    lists_rest_on: "",
    jobs: false,
    deadlocks: DeadlockHandling::Unseen,
    rates: false,
    no_rates_because: "majorities of N nodes admit up to N / q times the limit, q being the \
                       majority: use the memory, embedded, redis or postgres engine",
    wake: Wake::Poll,
    survives: &[Survives::ClientCrash, Survives::NodeLoss],
    replicas: false,
    drift_percent: 10,
    lacks_because: "its nodes do not know each other, so no majority can keep an order, count \
                    permits or readers, or tell that the last of them has left",
    lacks_jobs_because: "independent nodes have no common order, and nothing to keep jobs in",
};

/// The quorum engine.
#[derive(Clone)]
pub struct RedlockEngine {
    quorum: Arc<Quorum>,
}

/// All nodes, and the claims and waiters that this client has with them.
struct Quorum {
    context: Arc<QuorumContext>,
    nodes: Vec<Arc<QuorumNode>>,
    promises: Promises,
    waiters: Arc<ProcessWaiters>,
    claims: Claims,
    deadlines: Deadlines,
    /// The callers' runtime, if connections live there.
    callers: Option<Callers>,
    /// The engine's own thread. Last, so that the connections end first.
    own: EngineThread,
}

impl std::fmt::Debug for RedlockEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = &self.quorum.context.nodes;
        f.debug_struct("RedlockEngine").field("nodes", nodes).finish_non_exhaustive()
    }
}

impl Quorum {
    /// Returns which connections serve this call: those on the caller's runtime if it can.
    fn placement(&self) -> Placement {
        if self.callers.as_ref().is_some_and(Callers::serves) {
            Placement::Callers
        } else {
            Placement::Own
        }
    }

    /// Returns which connections are subscribed to channels.
    fn subscriber(&self) -> Placement {
        let in_front = self.callers.as_ref().is_some_and(Callers::has_threads);
        if in_front { Placement::Callers } else { Placement::Own }
    }

    /// Builds the error for a round with too few replies: which nodes gave none, and why.
    fn too_few_replies(
        &self,
        answered: usize,
        why: impl Iterator<Item = (usize, RequestError)>,
    ) -> Error {
        let (nodes, needed) = (self.nodes.len(), quorum(self.nodes.len()));
        let mut reasons: Vec<String> = Vec::new();
        for (at, trouble) in why {
            reasons.push(format!(
                "{}: {}",
                self.nodes[at].location,
                trouble.into_error().without_help()
            ));
        }
        let silent = nodes.saturating_sub(answered + reasons.len());
        if silent > 0 {
            reasons.push(format!("{silent} did not answer in time"));
        }
        let reasons = reasons.join("; ");
        let what = format!("only {answered} of {nodes} nodes answered, {needed} must: {reasons}");
        Error::new(ErrorKind::Unavailable, what)
            .with_help("check the nodes; `tenure doctor` looks at each")
    }
}

impl Engine for RedlockEngine {
    fn promises(&self) -> &Promises {
        &self.quorum.promises
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        Box::pin(self.quorum.claim(claim))
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(async move { Ok(self.quorum.renew(batch).await) })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        Box::pin(self.quorum.release(self.quorum.placement(), batch))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(self.quorum.inspect(self.quorum.placement(), query))
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        Box::pin(self.quorum.evict(self.quorum.placement(), eviction))
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.quorum.listen(session, listener);
    }

    optional_objects!(self:
        immediate => None,
        cells => None,
        jobs => None,
        rates => None,
        fence_floor => Some(self),
        replication => None,
        partitions => None,
        diagnostics => Some(self),
        ownership_proof => None,
        deadlocks => None,
        local => None,
    );
}

impl FenceFloor for RedlockEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        Box::pin(self.quorum.raise_fences(self.quorum.placement(), to))
    }
}

impl Diagnostics for RedlockEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async move { Ok(self.quorum.doctor().await) })
    }
}
