//! Locks held at a majority of independent Redis servers, with fences that grow.
//!
//! ```text
//! claim ──> trying.rs ── acquire, raise ──> node.rs ═══ every node at once
//! renew ──> renewing.rs ── extend ────────> node.rs ═══
//! release ─> releasing.rs ── release ─────> node.rs ═══
//!           protocol.rs counts votes; rules.rs is what a node does, in Lua at the nodes
//! ```
//!
//! An engine made of engines: it uses the connections of the `redis` room, and none of its rules.
//! No node knows another, so there is no queue, no counting and no sharing. A waiter that finds a
//! name taken pauses and tries again, earlier if a node publishes that the name is free; of the
//! waiters of one process only one tries at a time (`queue.rs`).

#[cfg(all(test, feature = "conformance"))]
mod agreement;
mod change_terms;
mod claims;
mod doctor;
mod hints;
mod inspect;
mod keys;
mod node;
mod patience;
#[cfg(not(feature = "test-util"))]
mod protocol;
mod url;
// Public for `tests/redlock_model.rs`, whose model is made of it.
mod errors;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod protocol;
mod queue;
mod raise_fences;
mod record;
mod releasing;
mod renewing;
mod round;
#[cfg(not(feature = "test-util"))]
mod rules;
// Public for `tests/redlock_model.rs`, whose model is made of it.
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod rules;
mod scripts;
mod site;
#[cfg(feature = "conformance")]
mod testing;
mod trying;
mod waiting;

use std::sync::{Arc, Weak};
use std::time::Duration;

use self::claims::Claims;
use self::hints::Hints;
use self::node::{Lane, Node};
use self::patience::Patience;
use self::protocol::quorum;
use self::renewing::Hold;
use self::round::together;
use self::site::Site;
#[cfg(feature = "conformance")]
pub(crate) use self::testing::WeakEngine;
use self::url::Set;
use super::Terms;
use super::redis::client::{ReplyTo as Reply, RequestError as Trouble};
use super::runtime::{Callers, Own};
use crate::contract::{
    Cells, Claim, ClaimRef, Diagnostics, Engine, Error, ErrorKind, Evicted, Eviction, Fence,
    FenceFloor, Fencing, Finding, LocalSessions, Loss, OwnershipProof, Partitions, Pending,
    Promises, Query, Raised, Release, Released, Renewed, Replication, SessionId, SignalListener,
    Snapshot, Survives, Verb, Verdict, Wake,
};

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
    wake: Wake::Poll,
    survives: &[Survives::ClientCrash, Survives::NodeLoss],
    replicas: false,
    drift_percent: 10,
    lacks_because: "its nodes do not know each other, so no majority can keep an order, count \
                    permits or readers, or tell that the last of them has left",
};

/// The quorum engine.
#[derive(Clone)]
pub struct RedlockEngine {
    quorum: Arc<Quorum>,
}

/// All nodes, and what this client has with them.
struct Quorum {
    site: Arc<Site>,
    nodes: Vec<Arc<Node>>,
    promises: Promises,
    hints: Arc<Hints>,
    claims: Claims,
    patience: Patience,
    /// The runtime that the front lanes live on, if there are any.
    callers: Option<Callers>,
    /// The thread of the back lanes. Last, so that the connections end first.
    own: Own,
}

impl std::fmt::Debug for RedlockEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = &self.quorum.site.nodes;
        f.debug_struct("RedlockEngine").field("nodes", nodes).finish_non_exhaustive()
    }
}

/// Opens the set of nodes that a URL names.
pub(super) async fn connect(url: &str, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let during = |error: Error| error.during(Verb::Connect);
    let set = Set::parse(url).map_err(during)?;
    let quorum = Quorum::connect(&set, terms, false).await.map_err(during)?;
    Ok(Arc::new(RedlockEngine { quorum: Arc::new(quorum) }))
}

impl Quorum {
    fn open(set: &Set, site: Site, own: Own, callers: Option<Callers>) -> Self {
        let site = Arc::new(site);
        let hints = Arc::new(Hints::new(quorum(set.nodes.len()), &site.clock));
        let open = |at| Arc::new(Node::open(at, &site, &hints, callers.as_ref(), own.handle()));
        let nodes = (0..set.nodes.len()).map(open).collect();
        let mut promises = PROMISES;
        promises.drift_percent = set.drift.unwrap_or(promises.drift_percent);
        let patience = Patience::start(own.handle());
        let claims = Claims::default();
        Self { site, nodes, promises, hints, claims, patience, callers, own }
    }

    /// Waits until a majority of nodes has been greeted. What no node may be is refused at once.
    async fn greet(&self, new: bool) -> Result<(), Error> {
        let greeted = together(self.nodes.iter().map(|node| node.greet()).collect()).await;
        let mut away = Vec::new();
        for (at, outcome) in greeted.into_iter().enumerate() {
            match outcome {
                Ok(()) => {}
                Err(error) if error.is_transient() => {
                    tracing::warn!("{} is away: {error}", self.nodes[at].location);
                    away.push((at, Trouble::NotConnected(error)));
                }
                Err(error) => return Err(error),
            }
        }
        let nodes = self.nodes.len();
        if nodes - away.len() < quorum(nodes) {
            return Err(self.too_few(nodes - away.len(), away.into_iter()));
        }
        if nodes.is_multiple_of(2) {
            tracing::warn!(
                "a quorum of {nodes} nodes survives no more failures than one of {}; name an odd \
                 number",
                nodes - 1
            );
        }
        if new && away.is_empty() {
            self.open_new_set().await?;
        }
        self.warn_if_closed();
        Ok(())
    }

    /// The caller declares that nobody has used this set. If any node has a past, or is open, that
    /// is not so, and the nodes that have none have lost it.
    async fn open_new_set(&self) -> Result<(), Error> {
        if !self.nodes.iter().all(|node| node.is_fresh() && node.closed_for().is_some()) {
            return Ok(());
        }
        let site = &self.site;
        let calling = Arc::new(site.calling(&site.scripts().open, vec![site.keys.node.clone()]));
        let packed = calling.packed(true);
        let calls = self.nodes.iter().map(|node| node.wire(Lane::Back).call(&packed)).collect();
        for (node, outcome) in self.nodes.iter().zip(together(calls).await) {
            outcome.map_err(Trouble::into_error)?;
            node.opened();
        }
        Ok(())
    }

    fn warn_if_closed(&self) {
        let closed = self.nodes.iter().filter_map(|node| node.closed_for());
        let closed: Vec<Duration> = closed.collect();
        if let Some(longest) =
            closed.iter().max().filter(|_| closed.len() >= quorum(self.nodes.len()))
        {
            tracing::warn!(
                "{} of {} nodes have no past: nothing is granted for {longest:?}; if nobody has \
                 ever used this set of nodes, connect with ?new=yes",
                closed.len(),
                self.nodes.len()
            );
        }
    }

    /// The lane that suits whoever calls.
    fn lane(&self) -> Lane {
        if self.callers.as_ref().is_some_and(Callers::serves) { Lane::Front } else { Lane::Back }
    }

    /// The lane that hears what is published.
    fn hearing(&self) -> Lane {
        let in_front = self.callers.as_ref().is_some_and(Callers::has_threads);
        if in_front { Lane::Front } else { Lane::Back }
    }

    /// Too few nodes answered: says which did not, and why.
    fn too_few(&self, answered: usize, why: impl Iterator<Item = (usize, Trouble)>) -> Error {
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

    async fn claim(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Verdict, Error> {
        errors::unless_plain(claim)?;
        let lane = self.lane();
        if let Some(standing) = self.claims.get(claim.id)
            && let Some(fence) = standing.fence
        {
            let reference = claim.to_ref();
            let hold = Hold { claim: &reference, token: standing.token(), fence };
            match self.extend(lane, &[hold]).await.pop() {
                Some(Renewed::Held(grant)) => return Ok(Verdict::Granted(grant)),
                Some(Renewed::Gone(_)) => {}
                _ => return Err(self.too_few(0, std::iter::empty())),
            }
        }
        self.advance(lane, claim).await
    }

    /// Renews what is not extended with the others: what waits asks again; what this client does
    /// not know is looked for.
    async fn renew_apart(self: &Arc<Self>, lane: Lane, claim: &ClaimRef) -> Renewed {
        let Some(standing) = self.claims.get(claim.id) else {
            return self.renew_stranger(lane, claim).await;
        };
        match self.advance(lane, &standing.claim).await {
            Ok(Verdict::Granted(grant)) => Renewed::Held(grant),
            Ok(Verdict::Queued(queued)) => Renewed::Waiting(queued),
            Ok(Verdict::Refused(_)) => Renewed::Gone(Loss::Forgotten),
            Err(error) => Renewed::Unanswered(error.without_help()),
        }
    }

    /// Renews a claim that another process made.
    async fn renew_stranger(&self, lane: Lane, claim: &ClaimRef) -> Renewed {
        let name = claim.parts.first_name();
        match self.standing_of(lane, name, claim.id).await {
            Ok(Some((attempt, fence))) => {
                let token = rules::Token { claim: claim.id, attempt };
                let hold = Hold { claim, token, fence };
                self.extend(lane, &[hold]).await.pop().unwrap_or_else(silence)
            }
            Ok(None) => Renewed::Gone(Loss::Forgotten),
            Err(error) => Renewed::Unanswered(error.without_help()),
        }
    }

    async fn renew(self: &Arc<Self>, batch: &[ClaimRef]) -> Vec<Renewed> {
        let lane = self.lane();
        let mut answers: Vec<Option<Renewed>> = vec![None; batch.len()];
        let (mut holds, mut places, mut apart) = (Vec::new(), Vec::new(), Vec::new());
        for (at, claim) in batch.iter().enumerate() {
            match self.claims.get(claim.id) {
                Some(standing) if standing.fence.is_some() => {
                    let (token, fence) = (standing.token(), standing.fence.unwrap_or_default());
                    holds.push(Hold { claim, token, fence });
                    places.push(at);
                }
                _ => apart.push(at),
            }
        }
        // Side by side: who waits must not hold up who holds.
        let extended = self.extend(lane, &holds);
        let others = apart.iter().map(|at| self.renew_apart(lane, &batch[*at])).collect();
        let (extended, others) = both(extended, together(others)).await;
        for (at, answer) in places.into_iter().zip(extended).chain(apart.into_iter().zip(others)) {
            if let Renewed::Gone(_) = &answer {
                self.claims.end(batch[at].id);
                self.stop_waiting(batch[at].parts.first_name(), batch[at].id);
            }
            answers[at] = Some(answer);
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(silence)).collect()
    }
}

/// Nothing was said at all.
fn silence() -> Renewed {
    Renewed::Unanswered("too few nodes answered".to_owned())
}

/// Runs two futures side by side.
async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        use std::task::Poll;
        if first.is_none()
            && let Poll::Ready(done) = one.as_mut().poll(cx)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = other.as_mut().poll(cx)
        {
            second = Some(done);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (kept, also) => {
                (first, second) = (kept, also);
                Poll::Pending
            }
        }
    })
    .await
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
        Box::pin(self.quorum.release(self.quorum.lane(), batch))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(self.quorum.look(self.quorum.lane(), query))
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        Box::pin(async move {
            let evicted = self.quorum.evict(self.quorum.lane(), eviction).await;
            evicted.map_err(|error| error.during(Verb::Evict).on(&eviction.name))
        })
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let quorum = &self.quorum;
        quorum.hints.listen(session, listener);
        let channel = quorum.site.keys.channel(session);
        for node in &quorum.nodes {
            let wire = node.wire(quorum.hearing());
            wire.subscribe(channel.as_bytes(), Reply::Many(Box::new(drop)));
        }
    }

    fn cells(&self) -> Option<&dyn Cells> {
        None
    }

    fn fence_floor(&self) -> Option<&dyn FenceFloor> {
        Some(self)
    }

    fn replication(&self) -> Option<&dyn Replication> {
        None
    }

    fn partitions(&self) -> Option<&dyn Partitions> {
        None
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics> {
        Some(self)
    }

    fn ownership_proof(&self) -> Option<&dyn OwnershipProof> {
        None
    }

    fn local(&self) -> Option<&dyn LocalSessions> {
        None
    }
}

impl FenceFloor for RedlockEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        Box::pin(async move {
            let raised = self.quorum.raise_fences(self.quorum.lane(), to).await;
            raised.map_err(|error| error.during(Verb::RaiseFences))
        })
    }
}

impl Diagnostics for RedlockEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async move { Ok(self.quorum.ask_the_nodes().await) })
    }
}
