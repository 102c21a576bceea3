//! Opening a cluster: find the nodes, then agree on the terms at the node that keeps them.
//!
//! Connections to nodes have a handshake of their own (`node.rs`), which checks what the node is
//! and counts this client, but does not read the terms: these are in one slot of one node.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock, Weak};

use redis::Value;
use tokio::sync::Notify;

use super::calls::SlotRequest;
use super::cell_watches::ClusterChanges;
use super::slots::{SlotMap, slot_of};
use super::subscriptions::{MAX_CHANNELS, Subscriptions};
use super::topology::{self, RefreshScope};
use super::{ClusterEngine, ClusterInner};
use crate::contract::{Engine, Error, Verb};
use crate::engine::Terms;
use crate::engine::common::redis::url::Location;
use crate::engine::common::runtime::{Callers, EngineThread};
use crate::engine::redis::connect::NamespaceHandshake;
use crate::engine::redis::errors::to_error;
use crate::engine::redis::keys::RedisKeys;
use crate::engine::redis::names::ScanCache;
use crate::engine::redis::scripts::{LuaScript, ScriptOptions};
use crate::engine::redis::terms;

/// Opens the cluster of which a location names some nodes.
pub(in super::super) async fn connect(
    location: Location,
    terms: &Terms,
) -> Result<Arc<dyn Engine>, Error> {
    let options = || ScriptOptions::in_cluster(terms.max_lease);
    Ok(Arc::new(ClusterEngine::connect(&location, terms, options, false).await?))
}

impl ClusterEngine {
    /// Connects, and changes the longest lease of the namespace if no client relies on it. In tests
    /// (`staged`) the engine uses no runtime but its own.
    pub(super) async fn connect(
        location: &Location,
        terms: &Terms,
        options: impl Fn() -> ScriptOptions,
        staged: bool,
    ) -> Result<Self, Error> {
        let open = async || -> Result<Self, Error> {
            let own = EngineThread::start("tenure-redis")?;
            let callers = if staged { None } else { Callers::find(&own).await };
            let unchanged = |handshake| handshake;
            Ok(Self::open(location.clone(), terms, options(), own, callers, unchanged))
        };
        let engine = open().await?;
        let refused = match engine.agree().await {
            Ok(()) => return Ok(engine),
            Err(error) => error,
        };
        let Some(agreed) = engine.inner.handshake.agreed_lease() else { return Err(refused) };
        drop(engine);
        let (own, any_terms) =
            (EngineThread::start("tenure-redis")?, NamespaceHandshake::with_any_terms);
        let observer = Self::open(location.clone(), terms, options(), own, None, any_terms);
        observer.agree().await?;
        terms::change(&observer, terms, agreed).await?;
        drop(observer);
        let engine = open().await?;
        engine.agree().await?;
        Ok(engine)
    }

    fn open(
        location: Location,
        terms: &Terms,
        options: ScriptOptions,
        own: EngineThread,
        callers: Option<Callers>,
        finish: fn(NamespaceHandshake) -> NamespaceHandshake,
    ) -> Self {
        let (location, options) = (Arc::new(location), Arc::new(options));
        let keys = Arc::new(RedisKeys::in_cluster(&terms.namespace));
        let handshake = NamespaceHandshake::new(
            Arc::clone(&keys),
            Arc::clone(&options),
            location,
            terms.max_lease,
        );
        let handshake = Arc::new(finish(handshake));
        let changed = Arc::new(Notify::new());
        let inner = Arc::new_cyclic(|me: &Weak<ClusterInner>| ClusterInner {
            keys,
            options,
            handshake,
            listeners: Arc::default(),
            clock: Arc::clone(&terms.clock),
            subscriptions: Subscriptions::new(MAX_CHANNELS),
            changes: ClusterChanges::new(),
            scans: ScanCache::default(),
            map: RwLock::new(SlotMap::empty()),
            nodes: Mutex::default(),
            unstable: Mutex::default(),
            membership: Mutex::default(),
            refreshes: AtomicU64::new(0),
            refreshing: tokio::sync::Mutex::default(),
            changed: Arc::clone(&changed),
            outdated: AtomicBool::new(false),
            callers,
            me: me.clone(),
            own,
        });
        inner.own.handle().spawn(topology::keep_current(Arc::downgrade(&inner), changed));
        Self { inner }
    }

    /// Finds the nodes, and agrees on the terms at the node that keeps them.
    async fn agree(&self) -> Result<(), Error> {
        self.inner.refresh(RefreshScope::UntilSettled).await?;
        let items = self.inner.handshake.stated_terms().map(String::into_bytes).into();
        let script = &self.inner.options.scripts().connect;
        let reply = self.run_at_terms(script, items).await?;
        let server = self.inner.handshake.check_terms(reply)?;
        self.inner.handshake.check_server(&server)
    }

    /// Runs a script at the node that keeps the terms.
    pub(super) async fn run_at_terms(
        &self,
        script: &'static LuaScript,
        items: Vec<Vec<u8>>,
    ) -> Result<Value, Error> {
        let (top, key) = (self.inner.keys.top.clone(), self.inner.keys.terms.clone());
        let slot = slot_of(&key);
        let request =
            SlotRequest { slot, script, top, keys: vec![key], items, after_subscribe: false };
        self.inner.run(request).await.map_err(|error| to_error(error, Verb::Connect))
    }
}
