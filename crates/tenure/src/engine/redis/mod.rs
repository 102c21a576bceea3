//! Locks in a Redis or Valkey server. One Lua script per verb, one round trip each; the scripts
//! restate the rules of `ledger/` (`lua/rules.lua`, `lua/slot.lua`).
//!
//! ```text
//! callers ─> claim.rs, release.rs ─> batch.rs ─> client/ ═══ server   front: callers' runtime
//! keeper ──> renew.rs, release.rs ─────────────> client/ ═══ server   back: engine's thread
//! sessions <─ signals.rs <────────── pushes <─── client/              RESP3, on one of the two
//! watchers <─ cell_watches.rs <─────┘
//! ```
//!
//! An engine has two connections to the server (`connection_pair.rs`). Callers use one that lives
//! on their own runtime, so that no other thread has to be woken; the keeper uses one that no busy
//! runtime can delay. `connect.rs` has the handshake of both. One of the two is subscribed to one
//! channel per session, and every session is resynchronized after a reconnection (`signals.rs`).
//!
//! All verbs are safe to repeat: a claim has an id, so that a call whose connection broke is sent
//! again, and the script recognizes it. `client/` is the connection itself; it knows nothing of
//! locks, and `redlock` uses it too. With sentinels the client resolves the primary; `cluster/` is
//! an engine of its own over the same scripts.

mod batch;
mod cell_watches;
mod cells;
mod claim;
pub(in crate::engine) mod client;
mod cluster;
mod codec;
mod connect;
mod connection_pair;
mod deadlock;
mod doctor;
mod errors;
mod evict;
mod inspect;
mod jobs;
mod keys;
mod names;
mod rates;
mod release;
mod renew;
mod replicas;
mod replies;
mod scripts;
mod signals;
mod terms;
#[cfg(feature = "conformance")]
mod testing;

use std::sync::{Arc, OnceLock, Weak};

use redis::Value;

use self::batch::Batcher;
use self::cell_watches::CellChanges;
use self::client::MultiplexedConnection;
use self::codec::push_reference;
use self::connect::NamespaceHandshake;
pub(super) use self::connect::connect;
use self::connection_pair::ConnectionPair;
use self::errors::to_error;
use self::keys::RedisKeys;
use self::names::ScanCache;
use self::replicas::Confirmations;
use self::scripts::{LuaScript, ScriptOptions};
#[cfg(feature = "conformance")]
pub(crate) use self::testing::{Staged, on_stage};
use super::common::runtime::EngineThread;
use crate::contract::{
    ClaimRef, DeadlockHandling, Engine, Error, Fence, FenceFloor, Fencing, Parts, Pending,
    Promises, Raised, SessionId, SignalListener, Survives, Verb, Wake, optional_objects,
};
use crate::engine::common::listeners::Listeners;
use crate::engine::common::verbs::boxed_verbs;
use crate::time::Clock;

/// The promises of the Redis engine.
pub const PROMISES: Promises = Promises {
    engine: "redis",
    fencing: Fencing::ClockBounded,
    fencing_rests_on: "a counter in the store; after a loss of its memory the store's wall clock",
    lists_rest_on: "an index of names in the store",
    jobs: true,
    deadlocks: DeadlockHandling::Broken,
    rates: true,
    wake: Wake::Push,
    survives: &[Survives::ClientCrash],
    replicas: true,
    drift_percent: 10,
    ..Promises::EVERY_RULE
};

/// The promises for a server that sentinels watch. A fail-over may lose what was written last,
/// grants included: then fences are as good as the clocks of two hosts.
pub const SENTINEL_PROMISES: Promises = Promises {
    engine: "redis+sentinel",
    fencing_rests_on: "a counter in the store; after a fail-over that lost writes the wall clocks \
                       of the old primary and of the new one",
    ..PROMISES
};

pub use self::cluster::PROMISES as CLUSTER_PROMISES;

/// The Redis engine.
#[derive(Clone)]
pub struct RedisEngine {
    inner: Arc<RedisInner>,
}

struct RedisInner {
    keys: Arc<RedisKeys>,
    options: Arc<ScriptOptions>,
    handshake: Arc<NamespaceHandshake>,
    listeners: Arc<Listeners>,
    changes: Arc<CellChanges>,
    scans: ScanCache,
    clock: Arc<dyn Clock>,
    batchers: ConnectionPair<Batcher>,
    /// Opened when first needed: most programs never wait for replicas.
    confirmations: OnceLock<Confirmations>,
    /// The thread of the back connection. Last, so that the connections are dropped first.
    own: EngineThread,
}

impl std::fmt::Debug for RedisEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let location = &self.inner.handshake.location;
        f.debug_struct("RedisEngine").field("location", location).finish_non_exhaustive()
    }
}

impl RedisInner {
    /// Returns all connections to the server.
    fn connections(&self) -> impl Iterator<Item = &MultiplexedConnection> {
        let confirmations = self.confirmations.get().map(Confirmations::connection);
        self.batchers.all().map(Batcher::connection).chain(confirmations)
    }
}

impl RedisEngine {
    /// Returns the batcher for the current caller.
    fn batcher(&self) -> &Batcher {
        self.inner.batchers.for_caller()
    }

    /// Runs a script in a call of its own.
    async fn run(
        &self,
        verb: Verb,
        script: &LuaScript,
        keys: &[&str],
        items: &[&[u8]],
    ) -> Result<Value, Error> {
        let reply = self.batcher().run(script, keys, items).await;
        reply.map_err(|error| to_error(error, verb))
    }

    fn slots(&self, parts: &Parts) -> Vec<String> {
        parts.names().map(|name| self.inner.keys.slot(name)).collect()
    }

    /// Runs a script over the slots of several claims. Each has one argument: the reference of the
    /// claim and a suffix.
    async fn run_batch(
        &self,
        verb: Verb,
        script: &LuaScript,
        batch: &[(&ClaimRef, &str)],
    ) -> Result<Value, Error> {
        let slots: Vec<String> = batch.iter().flat_map(|(one, _)| self.slots(&one.parts)).collect();
        let text = |(claim, suffix): &(&ClaimRef, &str)| {
            let mut text = String::with_capacity(56);
            push_reference(&mut text, claim);
            text + suffix
        };
        let texts: Vec<String> = batch.iter().map(text).collect();
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        self.run(verb, script, &slots, &texts).await
    }
}

impl Engine for RedisEngine {
    fn promises(&self) -> &Promises {
        match self.inner.handshake.location.primary() {
            Some(_) => &SENTINEL_PROMISES,
            None => &PROMISES,
        }
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
        fence_floor => Some(self),
        replication => Some(self),
        partitions => None,
        diagnostics => Some(self),
        ownership_proof => None,
        deadlocks => Some(self),
        local => None,
    );
}

impl FenceFloor for RedisEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        Box::pin(async move {
            let (script, to) = (&self.inner.options.scripts().raise_fences, to.get().to_string());
            let value = self.run(Verb::RaiseFences, script, &[], &[to.as_bytes()]).await?;
            replies::raised(&value)
        })
    }
}
