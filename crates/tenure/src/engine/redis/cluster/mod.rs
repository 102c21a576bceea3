//! Locks in a Redis Cluster: the same scripts, each call sent to the node that keeps the name.
//!
//! ```text
//! callers ─> claim.rs, ... ─> calls.rs ─> node.rs ═══ node    slots.rs: which node keeps a slot
//!                                ▲          │     ═══ node    topology.rs: refreshes that map
//! sessions <── signals.rs <──────┴── pushes ┘                 one channel per session and name
//! watchers <── cell_watches.rs <─────┘                        and one per watched cell
//! ```
//!
//! Everything of a name is in one hash slot: its keys, the top from which its fences grow, the
//! channels of its waiters. So a call concerns one name, and a batch of the keeper becomes one call
//! per claim, all in flight at the same time. A call that meets the wrong node had no effect; it
//! follows the redirection, or the map is refreshed and the call is repeated (`calls.rs`).

mod calls;
mod cell_watches;
mod claim;
mod connect;
mod doctor;
mod evict;
mod inspect;
mod node;
mod release;
mod renew;
mod signals;
mod slots;
mod subscriptions;
#[cfg(feature = "conformance")]
mod testing;
mod topology;
mod views;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::Value;
use tokio::sync::Notify;

use self::calls::SlotRequest;
use self::cell_watches::ClusterChanges;
pub(super) use self::connect::connect;
use self::node::ClusterNode;
use self::slots::{NodeAddress, SLOTS, SlotMap};
use self::subscriptions::Subscriptions;
use self::views::Membership;
use super::connect::NamespaceHandshake;
use super::errors::to_error;
use super::keys::RedisKeys;
use super::names::ScanCache;
use super::scripts::ScriptOptions;
use crate::contract::{
    ClaimRef, Confirmed, DeadlockHandling, Diagnostics, Engine, Error, ErrorKind, Finding, Name,
    Part, Partitions, Parts, Pending, Promises, Replication, SessionId, SignalListener, Verb,
    optional_objects,
};
use crate::engine::common::listeners::Listeners;
use crate::engine::common::runtime::{Callers, EngineThread};
use crate::engine::common::verbs::boxed_verbs;
use crate::time::Clock;

/// The promises of the Redis engine for a cluster. There is no counter for all names, and a
/// fail-over may lose what was written last, grants included.
pub const PROMISES: Promises = Promises {
    engine: "redis+cluster",
    fencing_rests_on: "a counter for each name, kept for an hour after its last use, and the wall \
                       clock; no floor for the namespace, and a fail-over may lose the last grants",
    fence_floor: false,
    atomic_sets: false,
    lists_rest_on: "a scan of all keys of every primary, for each list and each look of a \
                    prefix watch",
    deadlocks: DeadlockHandling::Reported,
    lacks_because: "its slots have no key in common that one call could read or raise",
    ..super::PROMISES
};

/// The engine for a cluster.
#[derive(Clone)]
pub(crate) struct ClusterEngine {
    inner: Arc<ClusterInner>,
}

struct ClusterInner {
    keys: Arc<RedisKeys>,
    options: Arc<ScriptOptions>,
    handshake: Arc<NamespaceHandshake>,
    listeners: Arc<Listeners>,
    clock: Arc<dyn Clock>,
    subscriptions: Subscriptions,
    changes: ClusterChanges,
    scans: ScanCache,
    map: RwLock<SlotMap>,
    nodes: Mutex<HashMap<NodeAddress, Arc<ClusterNode>>>,
    /// Slots on which calls failed although their nodes reply: they are being moved.
    unstable: Mutex<HashSet<u16>>,
    /// The nodes whose views make up the map.
    membership: Mutex<Membership>,
    /// How many times the map was refreshed, and the lock of the refresh in progress.
    refreshes: AtomicU64,
    refreshing: tokio::sync::Mutex<()>,
    /// Wakes the task of `topology.rs`.
    changed: Arc<Notify>,
    /// The task has to refresh the map.
    outdated: AtomicBool,
    /// The runtime of the caller that opened the engine.
    callers: Option<Callers>,
    me: Weak<ClusterInner>,
    /// The thread of the nodes' back connections. Last, so that the nodes are dropped first.
    own: EngineThread,
}

impl fmt::Debug for ClusterEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = &self.inner.handshake.location;
        f.debug_struct("ClusterEngine").field("location", location).finish_non_exhaustive()
    }
}

impl ClusterEngine {
    /// Runs one script per claim, all in flight at the same time.
    async fn run_each(
        &self,
        verb: Verb,
        requests: impl Iterator<Item = Result<SlotRequest, Error>>,
    ) -> Result<Vec<Value>, Error> {
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        let sent: Vec<_> = requests.into_iter().map(|request| self.inner.send(request)).collect();
        let mut values = Vec::with_capacity(sent.len());
        for one in sent {
            let result = self.inner.wait(one).await;
            values.push(result.map_err(|error| to_error(error, verb))?);
        }
        Ok(values)
    }
}

/// Returns the name of a claim on one name.
fn only(parts: &Parts) -> Result<&Name, Error> {
    only_part(parts.as_slice()).map(Part::name)
}

/// Returns the part of a claim or of a write that concerns one name.
fn only_part<T>(parts: &[T]) -> Result<&T, Error> {
    match parts {
        [part] => Ok(part),
        _ => Err(Error::new(ErrorKind::Unsupported, "a cluster takes one name at a time")
            .with_help("claim or write the names one by one, sorted")),
    }
}

impl Engine for ClusterEngine {
    fn promises(&self) -> &Promises {
        &PROMISES
    }

    boxed_verbs!();

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.listen(session, listener);
    }

    optional_objects!(self:
        immediate => None,
        cells => Some(self),
        jobs => Some(self),
        rates => Some(self),
        fence_floor => None,
        replication => Some(self),
        partitions => Some(self),
        diagnostics => Some(self),
        ownership_proof => None,
        deadlocks => None,
        local => None,
    );
}

impl Replication for ClusterEngine {
    fn confirm<'a>(
        &'a self,
        claim: &'a ClaimRef,
        replicas: u32,
        within: Duration,
    ) -> Pending<'a, Confirmed> {
        Box::pin(async move {
            let confirmed = self.confirm(claim, replicas, within).await;
            confirmed.map_err(|error| to_error(error, Verb::Renew))
        })
    }
}

impl Partitions for ClusterEngine {
    fn partition_of(&self, name: &Name) -> u32 {
        let slot = self.inner.slot(name);
        let unstable = self.inner.unstable.lock().unwrap_or_else(PoisonError::into_inner);
        if unstable.contains(&slot) {
            return u32::from(slot);
        }
        drop(unstable);
        let map = self.inner.map.read().unwrap_or_else(PoisonError::into_inner);
        u32::from(SLOTS) + u32::from(map.keeper_number(slot))
    }
}

impl Diagnostics for ClusterEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(self.examine())
    }
}
