//! Opening the engine, and the handshake on each new connection: what all clients of a namespace
//! have to agree on (layout, longest lease), and which servers are refused.
//!
//! Each connection first subscribes to a channel that names the longest lease its client states,
//! then runs `connect.lua`, which compares layout and lease with the terms of the namespace. In
//! this order, because a client that changes the terms (`terms.rs`) asks the server for the
//! subscribed channels: it either sees this client there, or this client sees the new terms. The
//! handshake is repeated after every reconnection, so that a client that was away cannot go on with
//! old terms.
//!
//! A namespace that has no terms yet is new, or its server lost its memory. Unless the URL says
//! that it is new, no lock is granted for one lease (`grace`), because clients from before may
//! hold. The URL is believed only until the first handshake succeeds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use redis::Value;

use super::batch::Batcher;
use super::cell_watches::CellChanges;
use super::client::{
    ConnectionHandler, RequestError, ServerInfo, into_result, list, number, pack, sentinel,
    strange, text,
};
use super::connection_pair::ConnectionPair;
use super::keys::RedisKeys;
use super::names::ScanCache;
use super::scripts::ScriptOptions;
use super::{RedisEngine, RedisInner, cluster, terms as namespace_terms};
use crate::contract::{Engine, Error, ErrorKind, Verb};
use crate::engine::Terms;
use crate::engine::common::listeners::Listeners;
use crate::engine::common::max_lease;
use crate::engine::common::redis::errors::script_error;
use crate::engine::common::redis::signals;
use crate::engine::common::redis::url::{Address, Location};
use crate::engine::common::runtime::{Callers, EngineThread};

/// The version of what scripts keep in the store.
const LAYOUT: &str = "1";
/// The oldest server that has what scripts use.
const OLDEST: (u32, u32) = (6, 2);
/// The oldest node of a cluster, where scripts notify sessions by `SPUBLISH`.
const OLDEST_NODE: (u32, u32) = (7, 0);

/// Opens the store that a URL names.
pub(in crate::engine) async fn connect(url: &str, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let during = |error: Error| error.during(Verb::Connect);
    let location = Location::parse(url).map_err(during)?;
    if !location.seeds().is_empty() {
        return cluster::connect(location, terms).await.map_err(during);
    }
    let engine = RedisEngine::connect(&location, terms, ScriptOptions::new, false).await;
    let engine = engine.map_err(during)?;
    Ok(Arc::new(engine))
}

impl RedisEngine {
    /// Connects, and changes the longest lease of the namespace if no client relies on it.
    /// `options` receives for how long nothing is granted after a loss of memory. In tests
    /// (`staged`) the engine uses no runtime but its own.
    pub(super) async fn connect(
        location: &Location,
        terms: &Terms,
        options: impl Fn(Duration) -> ScriptOptions,
        staged: bool,
    ) -> Result<Self, Error> {
        let grace = |lease: Duration| if location.grace() { lease } else { Duration::ZERO };
        let open = async || -> Result<Self, Error> {
            let own = EngineThread::start("tenure-redis")?;
            let callers = if staged { None } else { Callers::find(&own).await };
            let options = options(grace(terms.max_lease));
            let unchanged = |handshake| handshake;
            Ok(Self::open(location.clone(), terms, options, own, callers.as_ref(), unchanged))
        };
        let engine = open().await?;
        let refused = match engine.wait_until_ready().await {
            Ok(()) => return Ok(engine),
            Err(error) => error,
        };
        let Some(agreed) = engine.inner.handshake.agreed_lease() else { return Err(refused) };
        drop(engine);
        // If memory was lost, locks may be held for as long as the agreed lease.
        let options = options(grace(agreed.max(terms.max_lease)));
        let (own, any_terms) =
            (EngineThread::start("tenure-redis")?, NamespaceHandshake::with_any_terms);
        let observer = Self::open(location.clone(), terms, options, own, None, any_terms);
        observer.wait_until_ready().await?;
        namespace_terms::change(&observer, terms, agreed).await?;
        drop(observer);
        let engine = open().await?;
        engine.wait_until_ready().await?;
        Ok(engine)
    }

    fn open(
        location: Location,
        terms: &Terms,
        options: ScriptOptions,
        own: EngineThread,
        callers: Option<&Callers>,
        finish: fn(NamespaceHandshake) -> NamespaceHandshake,
    ) -> Self {
        let (location, options) = (Arc::new(location), Arc::new(options));
        let keys = Arc::new(RedisKeys::new(&terms.namespace));
        let handshake = NamespaceHandshake::new(
            Arc::clone(&keys),
            Arc::clone(&options),
            Arc::clone(&location),
            terms.max_lease,
        );
        let handshake = Arc::new(finish(handshake));
        let listeners = Arc::<Listeners>::default();
        let changes = Arc::<CellChanges>::default();
        let batchers = ConnectionPair::open(callers, own.handle(), |subscribes, runtimes| {
            let handler = ServerHandler::new(&handshake, &listeners, &changes, subscribes);
            Batcher::open(Arc::clone(&location), Arc::new(handler), &keys, &options, runtimes)
        });
        let (clock, confirmations) = (Arc::clone(&terms.clock), OnceLock::new());
        let inner = Arc::new(RedisInner {
            keys,
            options,
            handshake,
            listeners,
            changes,
            scans: ScanCache::default(),
            clock,
            batchers,
            confirmations,
            own,
        });
        inner.changes.attach(&inner);
        if location.primary().is_some() {
            let (watched, moving) = (Arc::downgrade(&inner), Arc::downgrade(&inner));
            let elsewhere = move |address: &Address| {
                let inner = watched.upgrade();
                inner.is_some_and(|inner| inner.connections().any(|one| one.is_elsewhere(address)))
            };
            let moved = move |address: &Address| {
                if let Some(inner) = moving.upgrade() {
                    inner.connections().for_each(|one| one.relocate(address));
                }
            };
            inner.own.handle().spawn(sentinel::follow(location, elsewhere, moved));
        }
        Self { inner }
    }

    /// Waits until the handshake is done on all connections.
    async fn wait_until_ready(&self) -> Result<(), Error> {
        for batcher in self.inner.batchers.all() {
            let ping = batcher.connection().call(&pack(&[b"PING"]));
            ping.await.map_err(RequestError::into_error)?;
        }
        Ok(())
    }
}

/// What all connections of an engine send and check in their handshakes.
pub(super) struct NamespaceHandshake {
    pub(super) keys: Arc<RedisKeys>,
    pub(super) options: Arc<ScriptOptions>,
    pub(super) location: Arc<Location>,
    pub(super) max_lease: Duration,
    /// From the latest handshake.
    server: Mutex<Option<ServerInfo>>,
    /// The client makes no claims, and accepts any terms.
    any_terms: bool,
    /// The longest lease of the namespace, if this client was refused because it states another.
    agreed_lease: Mutex<Option<Duration>>,
    /// A handshake succeeded: from now on the namespace is not new, whatever the URL says.
    known: AtomicBool,
}

impl NamespaceHandshake {
    pub(super) fn new(
        keys: Arc<RedisKeys>,
        options: Arc<ScriptOptions>,
        location: Arc<Location>,
        max_lease: Duration,
    ) -> Self {
        let (server, agreed_lease) = (Mutex::default(), Mutex::default());
        let (known, any_terms) = (AtomicBool::new(false), false);
        Self { keys, options, location, max_lease, server, any_terms, agreed_lease, known }
    }

    /// For a client that makes no claims and accepts any terms.
    pub(super) fn with_any_terms(self) -> Self {
        Self { any_terms: true, ..self }
    }

    /// Returns the longest lease of the namespace, if this client was refused because it states
    /// another one.
    pub(super) fn agreed_lease(&self) -> Option<Duration> {
        *self.agreed_lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the server reported in the latest handshake.
    pub(super) fn server(&self) -> Option<ServerInfo> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn connect_command(&self) -> Vec<u8> {
        let script = &self.options.scripts().connect;
        let [layout, lease, new] = self.stated_terms();
        let options = self.options.argument(false);
        // By its text: it is short, and the server may have no script cached.
        pack(&[
            b"EVAL",
            script.text.as_bytes(),
            b"2",
            self.keys.top.as_bytes(),
            self.keys.terms.as_bytes(),
            options.as_bytes(),
            layout.as_bytes(),
            lease.as_bytes(),
            new.as_bytes(),
        ])
    }

    /// Returns the arguments of `connect.lua`.
    pub(super) fn stated_terms(&self) -> [String; 3] {
        // New only once: after a restart that lost everything, clients from before may still hold.
        let new = self.location.is_new() && !self.known.load(Ordering::SeqCst);
        let new = if new { "1" } else { "0" };
        let lease = if self.any_terms { 0 } else { self.max_lease.as_micros() };
        [LAYOUT.to_owned(), lease.to_string(), new.to_owned()]
    }

    fn check_connect(&self, reply: Value) -> Result<(), Error> {
        let server = self.check_terms(reply)?;
        self.check_server(&server)?;
        self.known.store(true, Ordering::SeqCst);
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(())
    }

    /// Checks the reply of `connect.lua`: that the namespace has the terms that this client states.
    /// Returns what the server reports of itself.
    pub(super) fn check_terms(&self, reply: Value) -> Result<ServerInfo, Error> {
        let reply = into_result(reply).map_err(|error| match error.script_message() {
            Some(message) => script_error(message),
            None => error.into_error(),
        })?;
        let words = list(&reply).ok_or_else(|| strange(&reply))?;
        let word = |at: usize| words.get(at).and_then(text).ok_or_else(|| strange(&reply));
        match word(0)? {
            "ok" => {}
            "version" => {
                let theirs = word(1)?;
                let what = format!("the namespace has layout {theirs}, this Tenure knows {LAYOUT}");
                return Err(Error::new(ErrorKind::Unsupported, what)
                    .with_help("use one version of Tenure, or another namespace"));
            }
            "lease" => {
                let agreed = Duration::from_micros(word(1)?.parse().unwrap_or_default());
                *self.agreed_lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(agreed);
                let because = "a client has changed it since";
                return Err(max_lease::refused(agreed, self.max_lease, because));
            }
            _ => return Err(strange(&reply)),
        }
        let closed = words.get(1).and_then(number).unwrap_or_default();
        if closed > 0 {
            let left = Duration::from_micros(closed);
            tracing::warn!("possible data loss in the store: no locks are granted for {left:?}");
        }
        Ok(ServerInfo::new(word(2)?))
    }

    /// Refuses a server that is too old, is a replica, is not what the URL says, or evicts keys.
    pub(super) fn check_server(&self, server: &ServerInfo) -> Result<(), Error> {
        let cluster = !self.location.seeds().is_empty();
        let (major, minor) = server.version();
        let oldest = if cluster { OLDEST_NODE } else { OLDEST };
        if (major, minor) < oldest {
            let (least, part) = oldest;
            let what = format!(
                "the server is version {major}.{minor}; {least}.{part} is the oldest that does"
            );
            return Err(
                Error::new(ErrorKind::Unsupported, what).with_help("use a newer Redis or Valkey")
            );
        }
        self.options.set_server_version(major);
        if server.field("role") == Some("slave") {
            return Err(replica());
        }
        if (server.field("cluster_enabled") == Some("1")) != cluster {
            let (what, next) = if cluster {
                ("the server is not a node of a cluster", "use redis://")
            } else {
                ("the server is a node of a cluster", "use redis+cluster://")
            };
            return Err(Error::new(ErrorKind::Unsupported, what).with_help(next));
        }
        if let Some(policy) = server.evicts() {
            if self.location.eviction_allowed() {
                tracing::warn!("the server evicts keys ({policy}): locks may be lost at any time");
                return Ok(());
            }
            let what = format!("the server evicts keys when memory is short ({policy})");
            return Err(Error::new(ErrorKind::Unsupported, what).with_help(
                "set maxmemory-policy to noeviction, use another server, or say ?eviction=allow \
                 to take the risk that held locks vanish",
            ));
        }
        Ok(())
    }
}

/// Transient: sentinels, or a host name that is being changed, may be a moment behind.
fn replica() -> Error {
    Error::new(ErrorKind::Unavailable, "the server is a replica, which takes no locks")
        .with_help("name the primary, or wait until this one is")
}

/// The handler of one connection to a server that is not a node of a cluster.
pub(super) struct ServerHandler {
    handshake: Arc<NamespaceHandshake>,
    listeners: Arc<Listeners>,
    changes: Arc<CellChanges>,
    /// Exactly one connection of an engine subscribes to the channels of its sessions.
    subscribes: bool,
}

impl ServerHandler {
    pub(super) fn new(
        handshake: &Arc<NamespaceHandshake>,
        listeners: &Arc<Listeners>,
        changes: &Arc<CellChanges>,
        subscribes: bool,
    ) -> Self {
        let (handshake, listeners) = (Arc::clone(handshake), Arc::clone(listeners));
        Self { handshake, listeners, changes: Arc::clone(changes), subscribes }
    }
}

impl ConnectionHandler for ServerHandler {
    fn greeting(&self) -> Vec<Vec<u8>> {
        let NamespaceHandshake { keys, max_lease, .. } = &*self.handshake;
        // Nothing is published on the channel of a client; it is there to be counted. The
        // subscription also shows whether the access list allows any.
        let mut channels = vec![keys.client(*max_lease)];
        if self.subscribes {
            let sessions = self.listeners.sessions();
            channels.extend(sessions.into_iter().map(|session| keys.channel(session)));
            channels.extend(self.changes.is_watched().then(|| keys.changes.clone()));
        }
        let mut words: Vec<&[u8]> = vec![b"SUBSCRIBE"];
        words.extend(channels.iter().map(String::as_bytes));
        vec![pack(&words), self.handshake.connect_command()]
    }

    fn judge(&self, replies: Vec<Value>) -> Result<(), Error> {
        let mut replies = replies.into_iter();
        let subscribed = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        let connect = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        self.handshake.check_connect(connect).map_err(|error| error.during(Verb::Connect))?;
        into_result(subscribed).map(drop).map_err(|error| {
            let next = "allow the channels too: ACL SETUSER ... resetchannels &tenure:*";
            error.into_error().during(Verb::Connect).with_help(next)
        })
    }

    fn ready(&self, first: bool) {
        if !first && self.subscribes {
            self.listeners.resync();
            self.changes.reconnected();
        }
    }

    fn lost(&self) {}

    fn message(&self, channel: &[u8], payload: &[u8]) {
        self.handshake.options.count_activity();
        if channel == self.handshake.keys.changes.as_bytes() {
            return self.changes.message(payload);
        }
        signals::dispatch(&self.listeners, self.handshake.keys.session_of(channel), payload);
    }
}
