//! Locks between hosts, in a Redis or Valkey server. One script per verb, one round trip each; the
//! rules are those of the `ledger` room, in Lua.
//!
//! ```text
//! callers ─> lane.rs ─> wire.rs ═══ store       front: on the callers' runtime, if there is one
//! keeper ──> lane.rs ─> wire.rs ═══ store       back: on a thread of the engine's own
//! sessions <─ reception.rs <──── pushes          RESP3, on the connection that sends commands
//! ```
//!
//! Calls by callers go out on a connection that lives on their own runtime, so that no other thread
//! has to be woken; the keeper's go out on one that no busy runtime can hold up. A session hears on
//! one channel; after every reconnection it is told that it may have missed something.

pub(in crate::engine) mod answers;
mod backoff;
mod cells;
pub(in crate::engine) mod change_terms;
mod cluster;
pub(in crate::engine) mod codec;
mod doctor;
mod driver;
pub(in crate::engine) mod errors;
mod greeting;
mod inspect;
mod item;
pub(in crate::engine) mod keys;
mod lane;
mod line;
mod manner;
pub(in crate::engine) mod pack;
mod pair;
pub(in crate::engine) mod reception;
mod replicas;
mod scripts;
mod sentinel;
mod stream;
mod talk;
#[cfg(feature = "conformance")]
mod testing;
pub(in crate::engine) mod url;
pub(in crate::engine) mod wire;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use redis::Value;

use self::cells::CellRead;
use self::codec::push_reference;
use self::errors::Trouble;
use self::inspect::Store;
use self::item::{Item, Joint};
use self::keys::Keys;
use self::lane::Lane;
use self::manner::Manner;
use self::pair::Pair;
use self::reception::{Clerk, Reception};
use self::replicas::Replicas;
use self::scripts::Script;
#[cfg(feature = "conformance")]
pub(crate) use self::testing::{Staged, on_stage};
use self::url::{Address, Location};
use self::wire::{Home, Reply, Wire};
use super::Terms;
use super::runtime::{Callers, Own};
use crate::contract::{
    Cells, Claim, ClaimRef, Diagnostics, Engine, Error, Evicted, Eviction, Fence, FenceFloor,
    Fencing, LocalSessions, Name, OwnershipProof, Partitions, Parts, Pending, Promises, Query,
    Raised, Release, Released, Renewed, Replication, SessionId, Signal, SignalListener, Snapshot,
    Survives, Verb, Verdict, Wake,
};
use crate::time::Clock;

/// What the Redis engine promises.
pub const PROMISES: Promises = Promises {
    engine: "redis",
    fencing: Fencing::ClockBounded,
    fencing_rests_on: "a counter in the store; after a loss of its memory the store's wall clock",
    fence_floor: true,
    queue: true,
    sharing: true,
    counting: true,
    atomic_sets: true,
    cells: true,
    wake: Wake::Push,
    survives: &[Survives::ClientCrash],
    replicas: true,
    drift_percent: 10,
    lacks_because: "",
};

/// What it promises of a server that sentinels watch over. A fail-over may lose what was written
/// last, grants included: then fences are as good as the clocks of two hosts.
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
    inner: Arc<Inner>,
}

struct Inner {
    keys: Arc<Keys>,
    manner: Arc<Manner>,
    reception: Arc<Reception>,
    clock: Arc<dyn Clock>,
    lanes: Pair<Lane>,
    /// Made when first asked for: most never ask replicas.
    replicas: OnceLock<Replicas>,
    /// The thread that the back lane lives on. Last, so that the lanes end first.
    #[allow(dead_code, reason = "it lives as long as we do")]
    own: Own,
}

impl std::fmt::Debug for RedisEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let location = &self.inner.reception.location;
        f.debug_struct("RedisEngine").field("location", location).finish_non_exhaustive()
    }
}

impl Inner {
    /// All connections to the server.
    fn wires(&self) -> impl Iterator<Item = &Wire> {
        self.lanes.all().map(Lane::wire).chain(self.replicas.get().map(Replicas::wire))
    }
}

/// Opens the store that a URL names.
pub(super) async fn connect(url: &str, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let during = |error: Error| error.during(Verb::Connect);
    let location = Location::parse(url).map_err(during)?;
    if !location.seeds().is_empty() {
        return cluster::connect(location, terms).await.map_err(during);
    }
    let engine = RedisEngine::connect(&location, terms, Manner::new, false).await;
    let engine = engine.map_err(during)?;
    Ok(Arc::new(engine))
}

impl RedisEngine {
    /// Connects, and changes the longest lease of the namespace where it may. `manner` is told for
    /// how long nobody comes in after a loss of memory. On stage it has no connection
    /// but its own.
    async fn connect(
        location: &Location,
        terms: &Terms,
        manner: impl Fn(Duration) -> Manner,
        staged: bool,
    ) -> Result<Self, Error> {
        let grace = |lease: Duration| if location.grace() { lease } else { Duration::ZERO };
        let own = Own::start("tenure-redis")?;
        let found = if staged { None } else { Callers::find(&own).await };
        let how = manner(grace(terms.max_lease));
        let engine = Self::open(location.clone(), terms, how, own, found.as_ref(), |one| one);
        let refused = match engine.greet().await {
            Ok(()) => return Ok(engine),
            Err(error) => error,
        };
        let Some(stands) = engine.inner.reception.stands() else { return Err(refused) };
        drop(engine);
        // If memory was lost, somebody may hold for as long as the lease that stands.
        let how = manner(grace(stands.max(terms.max_lease)));
        let (own, finish) = (Own::start("tenure-redis")?, Reception::only_looks);
        let looks = Self::open(location.clone(), terms, how, own, None, finish);
        looks.greet().await?;
        change_terms::change_terms(&looks, terms, stands).await?;
        drop(looks);
        let own = Own::start("tenure-redis")?;
        let found = if staged { None } else { Callers::find(&own).await };
        let how = manner(grace(terms.max_lease));
        let engine = Self::open(location.clone(), terms, how, own, found.as_ref(), |one| one);
        engine.greet().await?;
        Ok(engine)
    }

    fn open(
        location: Location,
        terms: &Terms,
        manner: Manner,
        own: Own,
        callers: Option<&Callers>,
        finish: fn(Reception) -> Reception,
    ) -> Self {
        let (location, manner) = (Arc::new(location), Arc::new(manner));
        let keys = Arc::new(Keys::new(&terms.namespace));
        let (all, how) = (Arc::clone(&keys), Arc::clone(&manner));
        let reception = Reception::new(all, how, Arc::clone(&location), terms.max_lease);
        let reception = Arc::new(finish(reception));
        let lanes = Pair::open(callers, own.handle(), |hears, home| {
            let clerk = Clerk { reception: Arc::clone(&reception), hears };
            Lane::open(Arc::clone(&location), Arc::new(clerk), &keys, &manner, home)
        });
        let replicas = OnceLock::new();
        let clock = Arc::clone(&terms.clock);
        let inner = Inner { keys, manner, reception, clock, lanes, replicas, own };
        let inner = Arc::new(inner);
        if location.primary().is_some() {
            let (asked, told) = (Arc::downgrade(&inner), Arc::downgrade(&inner));
            let elsewhere = move |address: &Address| {
                asked
                    .upgrade()
                    .is_some_and(|inner| inner.wires().any(|wire| wire.is_elsewhere(address)))
            };
            let moved = move |address: &Address| {
                if let Some(inner) = told.upgrade() {
                    inner.wires().for_each(|wire| wire.go_to(address));
                }
            };
            inner.own.handle().spawn(sentinel::follow(location, elsewhere, moved));
        }
        Self { inner }
    }

    /// Where replicas are asked.
    fn replicas(&self) -> &Replicas {
        self.inner.replicas.get_or_init(|| {
            let Inner { keys, manner, reception, own, .. } = &*self.inner;
            let clerk = Clerk { reception: Arc::clone(reception), hears: false };
            let home = Home { first: own.handle().clone(), fallback: own.handle().clone() };
            let location = Arc::clone(&reception.location);
            let wire = Wire::open(location, Arc::new(clerk), Box::new(|_| ()), home);
            Replicas::new(wire, Arc::clone(keys), Arc::clone(manner), own.handle().clone())
        })
    }

    /// Waits until the store has been greeted on all connections.
    async fn greet(&self) -> Result<(), Error> {
        for lane in self.inner.lanes.all() {
            lane.wire().call(&pack::pack(&[b"PING"])).await.map_err(Trouble::into_error)?;
        }
        Ok(())
    }

    /// The lane that suits whoever calls.
    fn lane(&self) -> &Lane {
        self.inner.lanes.here()
    }

    /// Makes one claim or gives one back, together with others that are on their way.
    async fn send(&self, joint: Joint, item: impl Fn() -> Item) -> Result<(u64, Value), Trouble> {
        let lane = self.lane();
        match lane.send(joint, item()).await {
            Err(trouble) if trouble.is_unknown_script() => {}
            answer => return answer,
        }
        // The store had forgotten the script and did not run it. This teaches it again.
        let script = lane::script(joint, &self.inner.manner);
        lane.wire().call(&pack::pack(&[b"SCRIPT", b"LOAD", script.text.as_bytes()])).await?;
        match lane.send(joint, item()).await {
            // Forgotten again meanwhile. By its text it runs all the same.
            Err(trouble) if trouble.is_unknown_script() => lane.alone(joint, item()).await,
            answer => answer,
        }
    }

    /// Runs a script with a call of its own.
    async fn run(
        &self,
        verb: Verb,
        script: &Script,
        keys: &[&str],
        items: &[&[u8]],
    ) -> Result<Value, Error> {
        let answer = self.lane().run(script, keys, items).await;
        answer.map_err(|trouble| to_error(trouble, verb))
    }

    fn slots(&self, parts: &Parts) -> Vec<String> {
        parts.names().map(|name| self.inner.keys.slot(name)).collect()
    }

    /// Runs a script over the slots of a batch of claims, each told of by a text.
    async fn run_batch(
        &self,
        verb: Verb,
        script: &Script,
        batch: &[(&ClaimRef, &str)],
    ) -> Result<Value, Error> {
        let slots: Vec<String> = batch.iter().flat_map(|(one, _)| self.slots(&one.parts)).collect();
        let text = |(claim, more): &(&ClaimRef, &str)| {
            let mut text = String::with_capacity(56);
            push_reference(&mut text, claim);
            text + more
        };
        let texts: Vec<String> = batch.iter().map(text).collect();
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        self.run(verb, script, &slots, &texts).await
    }

    async fn release_one(&self, release: &Release) -> Result<Released, Error> {
        let item = || Item::release(release, &self.inner.keys);
        let answer = self.send(Joint::Release, item).await;
        let (_, value) = answer.map_err(|trouble| to_error(trouble, Verb::Release))?;
        answers::released(&value)
    }
}

/// What a script says of damage has words of its own.
fn to_error(trouble: Trouble, verb: Verb) -> Error {
    let error = match trouble.script_message() {
        Some(message) => answers::said(message),
        None => trouble.into_error(),
    };
    error.during(verb)
}

impl Engine for RedisEngine {
    fn promises(&self) -> &Promises {
        match self.inner.reception.location.primary() {
            Some(_) => &SENTINEL_PROMISES,
            None => &PROMISES,
        }
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        Box::pin(async move {
            let keys = &self.inner.keys;
            let item = || Item::claim(claim, keys);
            let answer = self.send(Joint::Claim, item).await;
            let (now, value) = answer.map_err(|trouble| to_error(trouble, Verb::Claim))?;
            answers::verdict(&value, claim.parts.as_slice().len(), now, keys)
        })
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(async move {
            let script = &self.inner.manner.scripts().renew;
            let claims: Vec<_> = batch.iter().map(|claim| (claim, "")).collect();
            let value = self.run_batch(Verb::Renew, script, &claims).await?;
            let all = answers::list(&value).unwrap_or_default();
            if all.len() != batch.len() + 1 {
                return Err(answers::strange(&value));
            }
            let one = |(claim, answer): (&ClaimRef, &Value)| {
                answers::renewed(answer, claim.parts.as_slice().len())
            };
            batch.iter().zip(&all[1..]).map(one).collect()
        })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        Box::pin(async move {
            if let [release] = batch {
                return Ok(vec![self.release_one(release).await?]);
            }
            let script = &self.inner.manner.scripts().release;
            let mark = |release: &Release| if release.uncertain { " 1" } else { "" };
            let claims: Vec<_> =
                batch.iter().map(|release| (&release.claim, mark(release))).collect();
            let value = self.run_batch(Verb::Release, script, &claims).await?;
            match answers::list(&value) {
                None if value == Value::Int(1) => Ok(vec![Released::Done; batch.len()]),
                Some(all) if all.len() == batch.len() => {
                    all.iter().map(answers::released).collect()
                }
                _ => Err(answers::strange(&value)),
            }
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(async move { self.look(query).await })
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        Box::pin(async move {
            let (key, fence) =
                (self.inner.keys.slot(&eviction.name), eviction.fence.get().to_string());
            let items: [&[u8]; 2] = [fence.as_bytes(), eviction.reason.as_bytes()];
            let script = &self.inner.manner.scripts().evict;
            let value = self.run(Verb::Evict, script, &[&key], &items).await;
            answers::evicted(&value.map_err(|error| error.on(&eviction.name))?, &key)
        })
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let (wire, keys) = (self.inner.lanes.hearing().wire(), &self.inner.keys);
        for gone in self.inner.reception.gone() {
            drop(wire.unsubscribe(keys.channel(gone).as_bytes()));
        }
        self.inner.reception.listen(session, listener.clone());
        // In order with later claims on this connection; a reconnection names it by itself. On the
        // other connection a claim may have been faster, and its grant told to nobody.
        let one_lane = self.inner.lanes.is_one();
        let subscribed = move |outcome: Result<Value, Trouble>| {
            if let Some(listener) = listener.upgrade().filter(|_| outcome.is_ok() && !one_lane) {
                listener.on_signal(Signal::Resync);
            }
        };
        let reply = Reply::Many(Box::new(subscribed));
        wire.subscribe(keys.channel(session).as_bytes(), reply);
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn fence_floor(&self) -> Option<&dyn FenceFloor> {
        Some(self)
    }

    fn replication(&self) -> Option<&dyn Replication> {
        Some(self)
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

impl FenceFloor for RedisEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        Box::pin(async move {
            let (script, to) = (&self.inner.manner.scripts().raise_fences, to.get().to_string());
            let value = self.run(Verb::RaiseFences, script, &[], &[to.as_bytes()]).await?;
            answers::raised(&value)
        })
    }
}

impl Store for RedisEngine {
    fn keys(&self) -> &Keys {
        &self.inner.keys
    }

    fn read_cells<'a>(&'a self, names: &'a [Name]) -> Pending<'a, Vec<CellRead>> {
        Box::pin(async move {
            let keys: Vec<String> = names.iter().map(|name| self.inner.keys.cell(name)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let script = &self.inner.manner.scripts().get;
            let value = self.run(Verb::Cell, script, &keys, &[]).await?;
            let cells = answers::cells(&value)?;
            if cells.len() == names.len() { Ok(cells) } else { Err(answers::strange(&value)) }
        })
    }

    fn write_cell<'a>(&'a self, name: &'a Name, items: [&'a [u8]; 6]) -> Pending<'a, Value> {
        Box::pin(async move {
            let script = &self.inner.manner.scripts().put;
            self.run(Verb::Cell, script, &[&self.inner.keys.cell(name)], &items).await
        })
    }

    fn ask_to_change<'a>(&'a self, items: [&'a [u8]; 3]) -> Pending<'a, Value> {
        Box::pin(async move {
            let script = &self.inner.manner.scripts().change_terms;
            self.run(Verb::Connect, script, &[&self.inner.keys.terms], &items).await
        })
    }

    fn look_at<'a>(&'a self, names: &'a [Name]) -> Pending<'a, (Snapshot, Vec<Error>)> {
        Box::pin(async move {
            let keys: Vec<String> = names.iter().map(|name| self.inner.keys.slot(name)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            self.inspect_script(&keys, &[b""]).await
        })
    }

    fn scan<'a>(&'a self, pattern: &'a str) -> Pending<'a, Vec<Vec<u8>>> {
        Box::pin(async move {
            let found = inspect::scan(self.lane().wire(), pattern).await;
            found.map_err(|trouble| to_error(trouble, Verb::Inspect))
        })
    }
}
