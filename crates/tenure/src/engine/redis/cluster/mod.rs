//! Locks in a Redis Cluster: the same scripts, each call at the node that keeps the name. Knows how
//! verbs are spread over nodes; `calls.rs` follows redirections, `survey.rs` keeps the map.
//!
//! ```text
//! callers ─> calls.rs ─> node.rs ═══ a node           slots.rs: which keeps which slot
//!                 ▲        │     ═══ another node     survey.rs: asks again when that changes
//! sessions <──────┴── hearing.rs <── pushes           one channel for each session and name
//! ```
//!
//! Everything of a name is in one slot: its keys, the number its fences grow from, the channels on
//! which its waiters hear. So a call speaks of one name; many are under way at a time.

mod calls;
mod doctor;
mod hearing;
mod inspect;
mod node;
mod slots;
mod survey;
#[cfg(feature = "conformance")]
mod testing;
mod views;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::Value;
use tokio::sync::Notify;

use self::calls::Order;
use self::hearing::{CHANNELS, Channel, Hearing};
use self::node::Node;
use self::slots::{Peer, SLOTS, SlotMap, slot_of};
use self::survey::Asked;
use self::views::Witnesses;
use super::change_terms::change_terms;
use super::codec::{plain_lease, push_claim, push_reference};
use super::errors::Trouble;
use super::item::Joint;
use super::keys::Keys;
use super::lane::single;
use super::manner::Manner;
use super::pack::pack;
use super::reception::Reception;
use super::scripts::Script;
use super::url::Location;
use super::wire::Reply;
use super::{answers, to_error};
use crate::contract::{
    Cells, Claim, ClaimRef, Confirmed, Diagnostics, Engine, Error, ErrorKind, Evicted, Eviction,
    FenceFloor, Finding, LocalSessions, Name, OwnershipProof, Partitions, Parts, Pending, Promises,
    Query, Release, Released, Renewed, Replication, SessionId, SignalListener, Snapshot, Verb,
    Verdict,
};
use crate::engine::Terms;
use crate::engine::runtime::{Callers, Own};
use crate::time::Clock;

/// What the Redis engine promises of a cluster. There is no counter for all names, and a fail-over
/// may lose what was written last, grants included.
pub const PROMISES: Promises = Promises {
    engine: "redis+cluster",
    fencing_rests_on: "a counter for each name, kept for an hour after its last use, and the wall \
                       clock; no floor for the namespace, and a fail-over may lose the last grants",
    fence_floor: false,
    atomic_sets: false,
    lacks_because: "its slots have no key in common that one call could read or raise",
    ..super::PROMISES
};

/// The engine for a cluster.
#[derive(Clone)]
pub(crate) struct ClusterEngine {
    inner: Arc<Inner>,
}

struct Inner {
    keys: Arc<Keys>,
    manner: Arc<Manner>,
    reception: Arc<Reception>,
    clock: Arc<dyn Clock>,
    hearing: Hearing,
    map: RwLock<SlotMap>,
    nodes: Mutex<HashMap<Peer, Arc<Node>>>,
    /// Slots on which calls failed although their nodes answer: they are being moved.
    restless: Mutex<HashSet<u16>>,
    /// On whose word the map rests.
    witnesses: Mutex<Witnesses>,
    /// How often the map was made, and who makes it.
    surveys: AtomicU64,
    surveying: tokio::sync::Mutex<()>,
    news: Arc<Notify>,
    /// There is a reason to make it again.
    outdated: AtomicBool,
    /// The runtime of those who opened the engine.
    callers: Option<Callers>,
    me: Weak<Inner>,
    /// The thread that nodes live on. Last, so that they end first.
    own: Own,
}

impl fmt::Debug for ClusterEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = &self.inner.reception.location;
        f.debug_struct("ClusterEngine").field("location", location).finish_non_exhaustive()
    }
}

/// Opens the cluster that a location names some nodes of.
pub(super) async fn connect(location: Location, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let manner = || Manner::in_cluster(terms.max_lease);
    Ok(Arc::new(ClusterEngine::connect(&location, terms, manner, false).await?))
}

impl ClusterEngine {
    /// Connects, and changes the longest lease of the namespace where it may. On stage it has
    /// no connections but its own.
    async fn connect(
        location: &Location,
        terms: &Terms,
        manner: impl Fn() -> Manner,
        staged: bool,
    ) -> Result<Self, Error> {
        let own = Own::start("tenure-redis")?;
        let found = if staged { None } else { Callers::find(&own).await };
        let engine = Self::open(location.clone(), terms, manner(), own, found, |one| one);
        let refused = match engine.greet().await {
            Ok(()) => return Ok(engine),
            Err(error) => error,
        };
        let Some(stands) = engine.inner.reception.stands() else { return Err(refused) };
        drop(engine);
        let (own, finish) = (Own::start("tenure-redis")?, Reception::only_looks);
        let looks = Self::open(location.clone(), terms, manner(), own, None, finish);
        looks.greet().await?;
        change_terms(&looks, terms, stands).await?;
        drop(looks);
        let own = Own::start("tenure-redis")?;
        let found = if staged { None } else { Callers::find(&own).await };
        let engine = Self::open(location.clone(), terms, manner(), own, found, |one| one);
        engine.greet().await?;
        Ok(engine)
    }

    fn open(
        location: Location,
        terms: &Terms,
        manner: Manner,
        own: Own,
        callers: Option<Callers>,
        finish: fn(Reception) -> Reception,
    ) -> Self {
        let (location, manner) = (Arc::new(location), Arc::new(manner));
        let keys = Arc::new(Keys::in_cluster(&terms.namespace));
        let (all, how) = (Arc::clone(&keys), Arc::clone(&manner));
        let reception = finish(Reception::new(all, how, location, terms.max_lease));
        let reception = Arc::new(reception);
        let news = Arc::new(Notify::new());
        let inner = Arc::new_cyclic(|me: &Weak<Inner>| Inner {
            keys,
            manner,
            reception,
            clock: Arc::clone(&terms.clock),
            hearing: Hearing::new(CHANNELS),
            map: RwLock::new(SlotMap::empty()),
            nodes: Mutex::default(),
            restless: Mutex::default(),
            witnesses: Mutex::default(),
            surveys: AtomicU64::new(0),
            surveying: tokio::sync::Mutex::default(),
            news: Arc::clone(&news),
            outdated: AtomicBool::new(false),
            callers,
            me: me.clone(),
            own,
        });
        inner.own.handle().spawn(survey::keep_surveying(Arc::downgrade(&inner), news));
        Self { inner }
    }

    /// Finds the nodes, and agrees on the terms where these are kept.
    async fn greet(&self) -> Result<(), Error> {
        self.inner.survey(Asked::Enough).await?;
        let items = self.inner.reception.terms().map(String::into_bytes).into();
        let script = &self.inner.manner.scripts().connect;
        let agreed = self.run_at_terms(script, items).await?;
        let server = self.inner.reception.judge_terms(agreed)?;
        self.inner.reception.check(&server)
    }

    /// Runs a script at the node that keeps the terms.
    async fn run_at_terms(
        &self,
        script: &'static Script,
        items: Vec<Vec<u8>>,
    ) -> Result<Value, Error> {
        let (top, key) = (self.inner.keys.top.clone(), self.inner.keys.terms.clone());
        let order = Order { slot: slot_of(&key), script, top, key, items, behind: false };
        self.inner.run(order).await.map_err(|trouble| to_error(trouble, Verb::Connect))
    }

    /// Sees to it that a session hears of a name before it holds it or waits for it. Whether the
    /// claim has to follow on the same connection.
    fn hear(&self, session: SessionId, name: &Name) -> bool {
        // Where nobody keeps the slot, the claim fails too.
        let Ok(node) = self.inner.node_of(self.inner.slot(name)) else { return false };
        let channel: Channel = (session, name.clone());
        let wanted = self.inner.hearing.wants(&channel, &node.peer);
        if wanted.subscribe {
            let left = wanted.again.then(|| Arc::new(AtomicUsize::new(1)));
            self.inner.subscribe(&channel, &node, left);
        }
        self.leave(wanted.leave);
        wanted.behind
    }

    fn leave(&self, channels: impl IntoIterator<Item = (Channel, Peer)>) {
        for ((session, name), peer) in channels {
            let nodes = self.inner.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let node = nodes.get(&peer).cloned();
            drop(nodes);
            if let Some(node) = node {
                let channel = self.inner.keys.channel_of(&name, session);
                let packed = pack(&[b"SUNSUBSCRIBE", channel.as_bytes()]);
                node.wires.hearing().send(&packed, Reply::Many(Box::new(drop)));
            }
        }
    }

    /// Has one script run for each claim, all under way at the same time.
    async fn run_each(
        &self,
        verb: Verb,
        orders: impl Iterator<Item = Result<Order, Error>>,
    ) -> Result<Vec<Value>, Error> {
        let orders = orders.collect::<Result<Vec<_>, _>>()?;
        let flights: Vec<_> = orders.into_iter().map(|order| self.inner.send(order)).collect();
        let mut values = Vec::with_capacity(flights.len());
        for flight in flights {
            let landed = self.inner.land(flight).await;
            values.push(landed.map_err(|trouble| to_error(trouble, verb))?);
        }
        Ok(values)
    }

    async fn claim_one(&self, claim: &Claim) -> Result<Verdict, Error> {
        let name = only(&claim.parts)?;
        let mut text = String::with_capacity(384);
        push_claim(&mut text, claim, &self.inner.keys);
        let script = &self.inner.manner.scripts().claim;
        let mut order = match plain_lease(claim).map(|keep| keep.to_string()) {
            Some(keep) => self.inner.order(name, script, &[keep.as_bytes(), text.as_bytes()]),
            None => self.inner.order(name, script, &[b"", b"", text.as_bytes()]),
        };
        if let Some(session) = claim.session {
            order.behind = self.hear(session, name);
        }
        let landed = self.inner.run(order).await.and_then(|value| single(Joint::Claim, value));
        let (now, value) = landed.map_err(|trouble| to_error(trouble, Verb::Claim))?;
        answers::verdict(&value, 1, now, &self.inner.keys)
    }

    fn release_order(&self, release: &Release) -> Result<Order, Error> {
        let mut text = String::with_capacity(56);
        push_reference(&mut text, &release.claim);
        if release.uncertain {
            text.push_str(" 1");
        }
        let script = &self.inner.manner.scripts().release;
        Ok(self.inner.order(only(&release.claim.parts)?, script, &[text.as_bytes()]))
    }

    fn renew_order(&self, claim: &ClaimRef) -> Result<Order, Error> {
        let mut text = String::with_capacity(56);
        push_reference(&mut text, claim);
        let script = &self.inner.manner.scripts().renew;
        Ok(self.inner.order(only(&claim.parts)?, script, &[text.as_bytes()]))
    }

    /// Renews where `WAIT` can follow, at the node that keeps the name now.
    async fn confirm_one(
        &self,
        claim: &ClaimRef,
        replicas: u32,
        within: Duration,
    ) -> Result<Confirmed, Trouble> {
        let slot = self.inner.slot(claim.parts.first_name());
        let mut tries = 2;
        loop {
            let node = self.inner.node_of(slot).map_err(Trouble::NotConnected)?;
            let asked = node.replicas().ok_or(Trouble::Closed)?;
            let trouble = match asked.confirm(claim, replicas, within).await {
                Ok(confirmed) => return Ok(confirmed),
                Err(trouble) => trouble,
            };
            let elsewhere = trouble.redirection().is_some_and(|to| !to.for_now);
            if tries == 0 || !(elsewhere || trouble.is_from_wrong_node()) {
                return Err(trouble);
            }
            tries -= 1;
            self.inner.survey(Asked::Enough).await.map_err(Trouble::NotConnected)?;
        }
    }
}

/// The name of a claim that is on one name.
fn only(parts: &Parts) -> Result<&Name, Error> {
    match parts.as_slice() {
        [part] => Ok(part.name()),
        _ => Err(Error::new(ErrorKind::Unsupported, "a cluster takes one name at a time")
            .with_help("claim the names one by one, sorted")),
    }
}

impl Engine for ClusterEngine {
    fn promises(&self) -> &Promises {
        &PROMISES
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        Box::pin(async move { self.claim_one(claim).await })
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(async move {
            let orders = batch.iter().map(|claim| self.renew_order(claim));
            let values = self.run_each(Verb::Renew, orders).await?;
            let one = |value: &Value| match answers::list(value) {
                Some([_, answer]) => answers::renewed(answer, 1),
                _ => Err(answers::strange(value)),
            };
            values.iter().map(one).collect()
        })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        Box::pin(async move {
            let orders = batch.iter().map(|release| self.release_order(release));
            let values = self.run_each(Verb::Release, orders).await?;
            let one = |value: Value| {
                let answer = single(Joint::Release, value);
                answers::released(&answer.map_err(|trouble| to_error(trouble, Verb::Release))?.1)
            };
            values.into_iter().map(one).collect()
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(async move { self.look(query).await })
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        Box::pin(async move {
            let (name, fence) = (&eviction.name, eviction.fence.get().to_string());
            let items: [&[u8]; 2] = [fence.as_bytes(), eviction.reason.as_bytes()];
            let order = self.inner.order(name, &self.inner.manner.scripts().evict, &items);
            let value = self.inner.run(order).await;
            let value = value.map_err(|trouble| to_error(trouble, Verb::Evict).on(name))?;
            answers::evicted(&value, &self.inner.keys.slot(name))
        })
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let gone = self.inner.reception.gone();
        self.leave(self.inner.hearing.end(&gone));
        self.inner.reception.listen(session, listener);
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn fence_floor(&self) -> Option<&dyn FenceFloor> {
        None
    }

    fn replication(&self) -> Option<&dyn Replication> {
        Some(self)
    }

    fn partitions(&self) -> Option<&dyn Partitions> {
        Some(self)
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

impl Replication for ClusterEngine {
    fn confirm<'a>(
        &'a self,
        claim: &'a ClaimRef,
        replicas: u32,
        within: Duration,
    ) -> Pending<'a, Confirmed> {
        Box::pin(async move {
            let confirmed = self.confirm_one(claim, replicas, within).await;
            confirmed.map_err(|trouble| to_error(trouble, Verb::Renew))
        })
    }
}

impl Partitions for ClusterEngine {
    fn partition_of(&self, name: &Name) -> u32 {
        let slot = self.inner.slot(name);
        let restless = self.inner.restless.lock().unwrap_or_else(PoisonError::into_inner);
        if restless.contains(&slot) {
            return u32::from(slot);
        }
        drop(restless);
        let map = self.inner.map.read().unwrap_or_else(PoisonError::into_inner);
        u32::from(SLOTS) + u32::from(map.keeper_number(slot))
    }
}

impl Diagnostics for ClusterEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async move { self.ask_all_nodes().await })
    }
}
