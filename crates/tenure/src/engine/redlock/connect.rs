//! Opens a set of nodes: the connections, the handshake on each, and what all clients agree on.
//!
//! The handshake is sent on every connection, first and after each reconnection: `SUBSCRIBE`, then
//! `INFO`, then the script `connect`. Subscribing comes first, so that a client that would change
//! the longest lease sees this one. `INFO` comes before the script, so that a server that is
//! refused gets no keys. The script agrees on the layout and the longest lease, and returns which
//! run of the server it is: another run than before may have lost its data, and the node then
//! grants nothing until every lease from before has ended (*quarantine*).
//!
//! `connect` succeeds when a majority of nodes has completed the handshake. What no node may be (a
//! replica, a node of a cluster, a server that evicts keys, the same server twice) is an error even
//! if a majority is fine. If the clients of the namespace have another longest lease, it is changed
//! if that is allowed (`terms.rs`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;

use super::claims::Claims;
use super::deadlines::Deadlines;
use super::keys::NodeKeys;
use super::node::{LastHandshake, NodeState, Placement, QuorumNode};
use super::protocol::quorum;
use super::round::join_all;
use super::scripts::{self, LuaScript, NodeScripts, ScriptCall};
use super::signals::ProcessWaiters;
use super::url::Set;
use super::{PROMISES, Quorum, RedlockEngine};
use crate::contract::{Engine, Error, ErrorKind, Parts, Verb};
use crate::engine::Terms;
use crate::engine::common::max_lease;
use crate::engine::common::redis::errors::script_error;
use crate::engine::common::redis::url::Location;
use crate::engine::common::runtime::{Callers, EngineThread};
use crate::engine::redis::client::{
    ConnectionHandler, RequestError, ServerInfo, into_result, list, pack, strange, text,
};
use crate::time::Clock;

/// The layout of the keys at a node. A `redis://` client has another one, and refuses.
const LAYOUT: &str = "quorum-1";
/// The bound on differences between clocks: a node clamps the number that a client proposes to its
/// own clock plus or minus a second, and a second is left for differences between nodes.
pub(super) const CLOCK_BOUND: Duration = Duration::from_secs(2);
/// The time to live of the counter of an unused name: two days.
const COUNTER_TTL_MILLIS: &str = "172800000";
/// The oldest server that has the commands of the scripts.
const OLDEST: (u32, u32) = (6, 2);

/// Connects to the nodes that a URL names.
pub(in crate::engine) async fn connect(url: &str, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let during = |error: Error| error.during(Verb::Connect);
    let set = Set::parse(url).map_err(during)?;
    let quorum = Quorum::connect(&set, terms, false).await.map_err(during)?;
    Ok(Arc::new(RedlockEngine { quorum: Arc::new(quorum) }))
}

impl Quorum {
    /// Connects, and changes the longest lease of the namespace if that is needed and allowed.
    pub(super) async fn connect(
        set: &Set,
        terms: &Terms,
        virtual_clock: bool,
    ) -> Result<Self, Error> {
        let context = || QuorumContext::new(set, terms, virtual_clock);
        let own = EngineThread::start("tenure-redlock")?;
        let found = if virtual_clock { None } else { Callers::find(&own).await };
        let connected = Self::open(set, context(), own, found);
        let refused = match connected.handshake(set.new).await {
            Ok(()) => return Ok(connected),
            Err(error) => error,
        };
        let Some(current) = connected.context.other_max_lease() else { return Err(refused) };
        drop(connected);
        let own = EngineThread::start("tenure-redlock")?;
        let inspector = Self::open(set, context().inspect_only(current), own, None);
        inspector.change_terms(terms, current).await?;
        let own = EngineThread::start("tenure-redlock")?;
        let found = if virtual_clock { None } else { Callers::find(&own).await };
        let connected = Self::open(set, context(), own, found);
        connected.handshake(set.new).await?;
        Ok(connected)
    }

    fn open(
        set: &Set,
        context: QuorumContext,
        own: EngineThread,
        callers: Option<Callers>,
    ) -> Self {
        let context = Arc::new(context);
        let waiters = Arc::new(ProcessWaiters::new(quorum(set.nodes.len()), &context.clock));
        let open =
            |at| Arc::new(QuorumNode::open(at, &context, &waiters, callers.as_ref(), own.handle()));
        let nodes = (0..set.nodes.len()).map(open).collect();
        let mut promises = PROMISES;
        promises.drift_percent = set.drift.unwrap_or(promises.drift_percent);
        let deadlines = Deadlines::start(own.handle());
        let claims = Claims::default();
        Self { context, nodes, promises, waiters, claims, deadlines, callers, own }
    }

    /// Waits until a majority of nodes has completed the handshake. `new` says that the caller
    /// declares the set unused.
    pub(super) async fn handshake(&self, new: bool) -> Result<(), Error> {
        let outcomes = join_all(self.nodes.iter().map(|node| node.handshake()).collect()).await;
        let mut away = Vec::new();
        for (at, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(()) => {}
                Err(error) if error.is_transient() => {
                    tracing::warn!("{} is away: {error}", self.nodes[at].location);
                    away.push((at, RequestError::NotConnected(error)));
                }
                Err(error) => return Err(error),
            }
        }
        let nodes = self.nodes.len();
        if nodes - away.len() < quorum(nodes) {
            return Err(self.too_few_replies(nodes - away.len(), away.into_iter()));
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

    /// Ends the quarantine of a set that the caller declares unused. If any node has data or grants
    /// already, that is not so, and the nodes without data have lost them.
    async fn open_new_set(&self) -> Result<(), Error> {
        if !self.nodes.iter().all(|node| node.is_fresh() && node.closed_for().is_some()) {
            return Ok(());
        }
        let context = &self.context;
        let call =
            Arc::new(context.script_call(&context.scripts().open, vec![context.keys.node.clone()]));
        let packed = call.packed(true);
        let calls = self.nodes.iter().map(|node| node.wire(Placement::Own).call(&packed)).collect();
        for (node, outcome) in self.nodes.iter().zip(join_all(calls).await) {
            outcome.map_err(RequestError::into_error)?;
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
                "{} of {} nodes have no data: nothing is granted for {longest:?}; if this set of \
                 nodes was never used, connect with ?new=yes",
                closed.len(),
                self.nodes.len()
            );
        }
    }
}

/// What all connections of this client share: keys, terms, scripts, and the last handshake of each
/// node.
pub(super) struct QuorumContext {
    pub(super) nodes: Vec<Arc<Location>>,
    pub(super) handshakes: Vec<Arc<LastHandshake>>,
    pub(super) keys: NodeKeys,
    pub(super) max_lease: Duration,
    /// The longest lease that this client states; all nodes have to agree.
    stated: Duration,
    /// This client makes no claims, and agrees to any terms.
    inspects: bool,
    /// The longest lease of a node that has another one than this client states.
    other_max_lease: Mutex<Option<Duration>>,
    pub(super) clock: Arc<dyn Clock>,
    /// Scripts use the clock of the conformance suite.
    #[cfg(feature = "conformance")]
    virtual_clock: bool,
    #[cfg(feature = "conformance")]
    pub(super) activity: std::sync::atomic::AtomicU64,
}

impl QuorumContext {
    pub(super) fn new(set: &Set, terms: &Terms, virtual_clock: bool) -> Self {
        #[cfg(not(feature = "conformance"))]
        let _ = virtual_clock;
        Self {
            nodes: set.nodes.clone(),
            handshakes: set.nodes.iter().map(|_| Arc::default()).collect(),
            keys: NodeKeys::new(&terms.namespace),
            max_lease: terms.max_lease,
            stated: terms.max_lease,
            inspects: false,
            other_max_lease: Mutex::default(),
            clock: Arc::clone(&terms.clock),
            #[cfg(feature = "conformance")]
            virtual_clock,
            #[cfg(feature = "conformance")]
            activity: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// Makes a client that only inspects, in a namespace with this longest lease.
    pub(super) fn inspect_only(self, current: Duration) -> Self {
        Self { inspects: true, max_lease: self.stated.max(current), ..self }
    }

    /// Returns the longest lease of the namespace, if a node refused this client because of it.
    pub(super) fn other_max_lease(&self) -> Option<Duration> {
        *self.other_max_lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a node has another longest lease, and builds the error.
    pub(super) fn refuse_max_lease(&self, current: Duration) -> Error {
        *self.other_max_lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(current);
        max_lease::refused(current, self.stated, "a client has changed it since")
    }

    /// Returns the channel whose subscription shows that this client is connected.
    pub(super) fn client_channel(&self) -> String {
        self.keys.shared().client(self.stated)
    }

    /// Returns for how long a node that may have lost its data grants nothing: until every lease
    /// from before has ended, and clocks within their bound are past every fence from before.
    pub(super) fn quarantine(&self) -> Duration {
        self.max_lease + self.max_lease / 10 + 2 * CLOCK_BOUND
    }

    /// Returns for how many microseconds nodes keep the reason of an eviction.
    pub(super) fn tombstone_micros(&self) -> String {
        self.quarantine().as_micros().to_string()
    }

    /// Returns for how many milliseconds nodes keep the counter of an unused name.
    pub(super) fn counter_ttl_millis() -> &'static str {
        COUNTER_TTL_MILLIS
    }

    pub(super) fn scripts(&self) -> &'static NodeScripts {
        #[cfg(feature = "conformance")]
        if self.virtual_clock {
            return scripts::on_given_clock();
        }
        scripts::on_node_clock()
    }

    /// Returns the timeout of a round: two rounds fit into the timeout of the session for a
    /// renewal, a sixth of the lease.
    pub(super) fn round_limit(&self, lease: Duration) -> Duration {
        #[cfg(feature = "conformance")]
        if self.virtual_clock {
            // Virtual leases pass in no time, and the machine may be busy.
            return Duration::from_secs(10);
        }
        (lease / 14).min(Duration::from_millis(500))
    }

    /// Counts a call or a reply, for the conformance suite.
    #[cfg_attr(not(feature = "conformance"), allow(clippy::unused_self, reason = "counts there"))]
    pub(super) fn count_activity(&self) {
        #[cfg(feature = "conformance")]
        self.activity.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    /// Builds the call of a script with these keys.
    pub(super) fn script_call(&self, script: &'static LuaScript, keys: Vec<String>) -> ScriptCall {
        self.count_activity();
        ScriptCall::new(script, keys, self.clock.wall_micros().to_string())
    }

    /// Returns the key of a claim. Sets are claimed one name at a time.
    pub(super) fn lock_key(&self, parts: &Parts) -> String {
        self.keys.lock(parts.first_name())
    }

    /// Builds the call of the script `connect`.
    pub(super) fn connect_call(&self) -> ScriptCall {
        let keys = vec![self.keys.node.clone(), self.keys.terms().to_owned()];
        self.script_call(&self.scripts().connect, keys)
            .with(LAYOUT)
            .with(if self.inspects { 0 } else { self.stated.as_micros() }.to_string())
            .with(self.quarantine().as_micros().to_string())
    }

    /// Refuses a server that cannot be a node.
    pub(super) fn check_server(&self, at: usize, server: &ServerInfo) -> Result<(), Error> {
        let node = &self.nodes[at];
        let refuse = |what: String, next: &'static str| {
            Err(Error::new(ErrorKind::Unsupported, format!("{node} {what}")).with_help(next))
        };
        let (major, minor) = server.version();
        if (major, minor) < OLDEST {
            let what = format!("is version {major}.{minor}; 6.2 is the oldest that does");
            return refuse(what, "use a newer Redis or Valkey");
        }
        if server.field("cluster_enabled") == Some("1") {
            return refuse(
                "is a node of a cluster".to_owned(),
                "name standalone servers: nodes of a cluster fail together",
            );
        }
        if server.field("role") == Some("slave") {
            return refuse(
                "is a replica of another server".to_owned(),
                "name independent servers: a replica has no vote of its own",
            );
        }
        match server.evicts() {
            Some(policy) if node.eviction_allowed() => {
                tracing::warn!("{node} evicts keys ({policy}): locks may be lost at any time");
                Ok(())
            }
            Some(policy) => refuse(
                format!("evicts keys when memory is short ({policy})"),
                "set maxmemory-policy to noeviction, use another server, or say ?eviction=allow \
                 to take the risk that held locks vanish",
            ),
            None => Ok(()),
        }
    }

    /// Records the state of a node, unless another address is the same run of a server.
    pub(super) fn record_state(&self, at: usize, state: NodeState) -> Result<(), Error> {
        let same = |other: &usize| *other != at && self.handshakes[*other].run() == state.run;
        if let Some(other) = (0..self.handshakes.len()).find(same).filter(|_| state.run.is_some()) {
            let (one, other) = (&self.nodes[other], &self.nodes[at]);
            let what = format!("{one} and {other} are the same server");
            return Err(Error::new(ErrorKind::InvalidOption, what)
                .with_help("name each server once: two votes of one server are one failure"));
        }
        self.handshakes[at].set(state);
        Ok(())
    }
}

/// The handshake and the messages of one connection to a node.
pub(super) struct NodeHandshake {
    pub(super) at: usize,
    pub(super) context: Arc<QuorumContext>,
    pub(super) waiters: Arc<ProcessWaiters>,
    /// Whether this connection receives published messages: one of a node's connections does.
    pub(super) subscribes: bool,
}

impl NodeHandshake {
    fn read_connect(&self, reply: Value) -> Result<NodeState, Error> {
        let reply = into_result(reply).map_err(|trouble| match trouble.script_message() {
            Some(message) => script_error(message),
            None => trouble.into_error(),
        })?;
        let fields = list(&reply).ok_or_else(|| strange(&reply))?;
        let field = |at: usize| fields.get(at).and_then(text).ok_or_else(|| strange(&reply));
        match field(0)? {
            "ok" => {}
            "version" => {
                let what = format!(
                    "the namespace has layout {} at {}, this engine knows {LAYOUT}",
                    field(1)?,
                    self.context.nodes[self.at]
                );
                return Err(Error::new(ErrorKind::Unsupported, what).with_help(
                    "a server is either a store of its own (redis://) or a node of a quorum; use \
                     another namespace, or one version of Tenure everywhere",
                ));
            }
            "lease" => {
                let current = Duration::from_micros(field(1)?.parse().unwrap_or_default());
                return Err(self.context.refuse_max_lease(current));
            }
            _ => return Err(strange(&reply)),
        }
        let closed = Duration::from_micros(field(1)?.parse().unwrap_or_default());
        let closed_until = (!closed.is_zero()).then(|| self.context.clock.now() + closed);
        let (fresh, run) = (field(2)? == "1", Some(field(3)?.to_owned()));
        Ok(NodeState { run, fresh, closed_until })
    }

    fn read_replies(&self, replies: Vec<Value>) -> Result<(), Error> {
        let mut replies = replies.into_iter();
        let subscribed = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        let report = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        let report = into_result(report).map_err(RequestError::into_error)?;
        let server = ServerInfo::new(info_text(&report).ok_or_else(|| strange(&report))?);
        self.context.check_server(self.at, &server)?;
        let connect = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        let state = self.read_connect(connect)?;
        let closed = state.closed_for(self.context.clock.now());
        if let Some(closed) = closed.filter(|_| self.subscribes) {
            let node = &self.context.nodes[self.at];
            tracing::warn!("{node} may have lost its memory; it grants nothing for {closed:?}");
        }
        self.context.record_state(self.at, state)?;
        into_result(subscribed).map(drop).map_err(|trouble| {
            let next = "allow the channels too: ACL SETUSER ... resetchannels &tenure:*";
            trouble.into_error().with_help(next)
        })
    }
}

impl ConnectionHandler for NodeHandshake {
    fn greeting(&self) -> Vec<Vec<u8>> {
        // First, so that a client that would change the terms after us sees this one.
        let mut channels = vec![self.context.client_channel()];
        if self.subscribes {
            channels.extend(self.waiters.channels(&self.context.keys));
        }
        let mut words: Vec<&[u8]> = vec![b"SUBSCRIBE"];
        words.extend(channels.iter().map(String::as_bytes));
        // `INFO` before the script, so that a server that is refused gets no keys.
        vec![pack(&words), pack(&[b"INFO"]), self.context.connect_call().packed(true)]
    }

    fn judge(&self, replies: Vec<Value>) -> Result<(), Error> {
        self.read_replies(replies).map_err(|error| error.during(Verb::Connect))
    }

    fn ready(&self, first: bool) {
        if !first && self.subscribes {
            // Messages that were published meanwhile are lost: waiters try again.
            self.waiters.reconnected();
        }
    }

    fn lost(&self) {}

    fn message(&self, channel: &[u8], payload: &[u8]) {
        self.context.count_activity();
        self.waiters.on_message(&self.context.keys, channel, payload);
    }
}

/// Returns the text of an `INFO` reply, in either type that servers use.
pub(super) fn info_text(value: &Value) -> Option<&str> {
    match value {
        Value::VerbatimString { text, .. } => Some(text),
        other => text(other),
    }
}
