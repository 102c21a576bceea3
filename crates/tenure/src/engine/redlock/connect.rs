//! What all nodes have in common: their names, the terms of the namespace, and who may be a node.
//! Knows rules about servers, not connections.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;

use super::claims::Claims;
use super::deadlines::Deadlines;
use super::keys::Keys;
use super::node::{Known, Lane, Node, State};
use super::protocol::quorum;
use super::round::together;
use super::scripts::{self, Calling, Script, Scripts};
use super::signals::Hints;
use super::url::Set;
use super::{PROMISES, Quorum, RedlockEngine};
use crate::contract::{Engine, Error, ErrorKind, Parts, Verb};
use crate::engine::redis::answers::{list, said, strange, text};
use crate::engine::redis::errors::{Trouble, judged};
use crate::engine::redis::pack::pack;
use crate::engine::redis::reception::Server;
use crate::engine::redis::url::Location;
use crate::engine::redis::wire::Greeter;
use crate::engine::runtime::{Callers, Own};
use crate::engine::{Terms, max_lease};
use crate::time::Clock;

/// The version of what scripts keep at a node. A plain client knows none like it, and refuses.
const LAYOUT: &str = "quorum-1";
/// How far the clocks of nodes may be apart, and clients' from theirs: a node clamps what a client
/// proposes to its own clock give or take a second, and a second is left for the nodes themselves.
pub(super) const CLOCK_BOUND: Duration = Duration::from_secs(2);
/// For how long a node keeps the counter of a name that nobody uses: two days.
const LINGER: &str = "172800000";
/// The oldest server that has what scripts use.
const OLDEST: (u32, u32) = (6, 2);

/// Opens the set of nodes that a URL names.
pub(in crate::engine) async fn connect(url: &str, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let during = |error: Error| error.during(Verb::Connect);
    let set = Set::parse(url).map_err(during)?;
    let quorum = Quorum::connect(&set, terms, false).await.map_err(during)?;
    Ok(Arc::new(RedlockEngine { quorum: Arc::new(quorum) }))
}

impl Quorum {
    /// Connects, and changes the longest lease of the namespace where it may.
    pub(super) async fn connect(set: &Set, terms: &Terms, staged: bool) -> Result<Self, Error> {
        let site = || Site::new(set, terms, staged);
        let own = Own::start("tenure-redlock")?;
        let found = if staged { None } else { Callers::find(&own).await };
        let connected = Self::open(set, site(), own, found);
        let refused = match connected.greet(set.new).await {
            Ok(()) => return Ok(connected),
            Err(error) => error,
        };
        let Some(stands) = connected.site.stands() else { return Err(refused) };
        drop(connected);
        let own = Own::start("tenure-redlock")?;
        let looks = Self::open(set, site().only_looks(stands), own, None);
        looks.change_terms(terms, stands).await?;
        let own = Own::start("tenure-redlock")?;
        let found = if staged { None } else { Callers::find(&own).await };
        let connected = Self::open(set, site(), own, found);
        connected.greet(set.new).await?;
        Ok(connected)
    }

    fn open(set: &Set, site: Site, own: Own, callers: Option<Callers>) -> Self {
        let site = Arc::new(site);
        let hints = Arc::new(Hints::new(quorum(set.nodes.len()), &site.clock));
        let open = |at| Arc::new(Node::open(at, &site, &hints, callers.as_ref(), own.handle()));
        let nodes = (0..set.nodes.len()).map(open).collect();
        let mut promises = PROMISES;
        promises.drift_percent = set.drift.unwrap_or(promises.drift_percent);
        let deadlines = Deadlines::start(own.handle());
        let claims = Claims::default();
        Self { site, nodes, promises, hints, claims, deadlines, callers, own }
    }

    /// Waits until a majority of nodes has been greeted. What no node may be is refused at once.
    pub(super) async fn greet(&self, new: bool) -> Result<(), Error> {
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
}

/// What all nodes have in common.
pub(super) struct Site {
    pub(super) nodes: Vec<Arc<Location>>,
    pub(super) known: Vec<Arc<Known>>,
    pub(super) keys: Keys,
    pub(super) max_lease: Duration,
    /// What this client states; all nodes have to agree.
    stated: Duration,
    /// It makes no claims, and agrees to any terms.
    looks: bool,
    /// The longest lease that stands at a node, where another one is stated.
    stands: Mutex<Option<Duration>>,
    pub(super) clock: Arc<dyn Clock>,
    /// The suite plays: scripts go by the clock of the suite.
    #[cfg(feature = "conformance")]
    staged: bool,
    #[cfg(feature = "conformance")]
    pub(super) activity: std::sync::atomic::AtomicU64,
}

impl Site {
    pub(super) fn new(set: &Set, terms: &Terms, staged: bool) -> Self {
        #[cfg(not(feature = "conformance"))]
        let _ = staged;
        Self {
            nodes: set.nodes.clone(),
            known: set.nodes.iter().map(|_| Arc::default()).collect(),
            keys: Keys::new(&terms.namespace),
            max_lease: terms.max_lease,
            stated: terms.max_lease,
            looks: false,
            stands: Mutex::default(),
            clock: Arc::clone(&terms.clock),
            #[cfg(feature = "conformance")]
            staged,
            #[cfg(feature = "conformance")]
            activity: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// The same for a client that makes no claims where this longest lease stands.
    pub(super) fn only_looks(self, stands: Duration) -> Self {
        Self { looks: true, max_lease: self.stated.max(stands), ..self }
    }

    /// The longest lease of the namespace, if a node refused us because we state another one.
    pub(super) fn stands(&self) -> Option<Duration> {
        *self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node has another longest lease than we state.
    pub(super) fn other_lease(&self, stands: Duration) -> Error {
        *self.stands.lock().unwrap_or_else(PoisonError::into_inner) = Some(stands);
        max_lease::refused(stands, self.stated, "a client has changed it since")
    }

    /// The channel that says that this client is connected.
    pub(super) fn client(&self) -> String {
        self.keys.plain().client(self.stated)
    }

    /// For how long a node that may have lost its memory grants nothing: until every lease from
    /// before has ended, and clocks that agree within their bound are past every fence from before.
    pub(super) fn quarantine(&self) -> Duration {
        self.max_lease + self.max_lease / 10 + 2 * CLOCK_BOUND
    }

    /// For how many microseconds nodes remember why somebody ended a hold.
    pub(super) fn remembered(&self) -> String {
        self.quarantine().as_micros().to_string()
    }

    /// For how many milliseconds nodes remember the counter of a name.
    pub(super) fn linger() -> &'static str {
        LINGER
    }

    pub(super) fn scripts(&self) -> &'static Scripts {
        #[cfg(feature = "conformance")]
        if self.staged {
            return scripts::on_given_clock();
        }
        scripts::on_node_clock()
    }

    /// How long a node may take, far below the lease: two rounds fit into what the session gives
    /// a renewal, a sixth of the lease.
    pub(super) fn node_limit(&self, lease: Duration) -> Duration {
        #[cfg(feature = "conformance")]
        if self.staged {
            // Leases pass in no time there, and the machine may be busy.
            return Duration::from_secs(10);
        }
        (lease / 14).min(Duration::from_millis(500))
    }

    /// Something was sent or heard.
    #[cfg_attr(not(feature = "conformance"), allow(clippy::unused_self, reason = "counts there"))]
    pub(super) fn active(&self) {
        #[cfg(feature = "conformance")]
        self.activity.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    /// A call of a script with these keys.
    pub(super) fn calling(&self, script: &'static Script, keys: Vec<String>) -> Calling {
        self.active();
        Calling::new(script, keys, self.clock.wall_micros().to_string())
    }

    /// The only key of a claim: sets come here one by one.
    pub(super) fn lock(&self, parts: &Parts) -> String {
        self.keys.lock(parts.first_name())
    }

    /// The first words on each connection.
    pub(super) fn connect(&self) -> Calling {
        let keys = vec![self.keys.node.clone(), self.keys.terms().to_owned()];
        self.calling(&self.scripts().connect, keys)
            .with(LAYOUT)
            .with(if self.looks { 0 } else { self.stated.as_micros() }.to_string())
            .with(self.quarantine().as_micros().to_string())
    }

    /// Refuses a server that cannot be a node.
    pub(super) fn check_server(&self, at: usize, server: &Server) -> Result<(), Error> {
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
                "name servers that stand alone: nodes of a cluster fail together",
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

    /// Keeps what a node said of itself, unless another address has said the same.
    pub(super) fn learn(&self, at: usize, state: State) -> Result<(), Error> {
        let same = |other: &usize| *other != at && self.known[*other].run() == state.run;
        if let Some(other) = (0..self.known.len()).find(same).filter(|_| state.run.is_some()) {
            let (one, other) = (&self.nodes[other], &self.nodes[at]);
            let what = format!("{one} and {other} are the same server");
            return Err(Error::new(ErrorKind::InvalidOption, what)
                .with_help("name each server once: two votes of one server are one failure"));
        }
        self.known[at].set(state);
        Ok(())
    }
}

/// What one connection to a node says first and hears.
pub(super) struct Clerk {
    pub(super) at: usize,
    pub(super) site: Arc<Site>,
    pub(super) hints: Arc<Hints>,
    /// Only one connection to a node hears what is published.
    pub(super) hears: bool,
}

impl Clerk {
    fn judge_connect(&self, reply: Value) -> Result<State, Error> {
        let reply = judged(reply).map_err(|trouble| match trouble.script_message() {
            Some(message) => said(message),
            None => trouble.into_error(),
        })?;
        let words = list(&reply).ok_or_else(|| strange(&reply))?;
        let word = |at: usize| words.get(at).and_then(text).ok_or_else(|| strange(&reply));
        match word(0)? {
            "ok" => {}
            "version" => {
                let what = format!(
                    "the namespace has layout {} at {}, this engine knows {LAYOUT}",
                    word(1)?,
                    self.site.nodes[self.at]
                );
                return Err(Error::new(ErrorKind::Unsupported, what).with_help(
                    "a server is either a store of its own (redis://) or a node of a quorum; use \
                     another namespace, or one version of Tenure everywhere",
                ));
            }
            "lease" => {
                let stands = Duration::from_micros(word(1)?.parse().unwrap_or_default());
                return Err(self.site.other_lease(stands));
            }
            _ => return Err(strange(&reply)),
        }
        let closed = Duration::from_micros(word(1)?.parse().unwrap_or_default());
        let closed_until = (!closed.is_zero()).then(|| self.site.clock.now() + closed);
        let (fresh, run) = (word(2)? == "1", Some(word(3)?.to_owned()));
        Ok(State { run, fresh, closed_until })
    }

    fn judge_all(&self, replies: Vec<Value>) -> Result<(), Error> {
        let mut replies = replies.into_iter();
        let subscribed = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        let report = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        let report = judged(report).map_err(Trouble::into_error)?;
        let server = Server::new(info_text(&report).ok_or_else(|| strange(&report))?);
        self.site.check_server(self.at, &server)?;
        let connect = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        let state = self.judge_connect(connect)?;
        let closed = state.closed_for(self.site.clock.now());
        if let Some(closed) = closed.filter(|_| self.hears) {
            let node = &self.site.nodes[self.at];
            tracing::warn!("{node} may have lost its memory; it grants nothing for {closed:?}");
        }
        self.site.learn(self.at, state)?;
        judged(subscribed).map(drop).map_err(|trouble| {
            let next = "allow the channels too: ACL SETUSER ... resetchannels &tenure:*";
            trouble.into_error().with_help(next)
        })
    }
}

impl Greeter for Clerk {
    fn greeting(&self) -> Vec<Vec<u8>> {
        // First of all, so that whoever would change the terms after us knows that we are there.
        let mut channels = vec![self.site.client()];
        if self.hears {
            channels.extend(self.hints.channels(&self.site.keys));
        }
        let mut words: Vec<&[u8]> = vec![b"SUBSCRIBE"];
        words.extend(channels.iter().map(String::as_bytes));
        // The report before the marks: a server that is refused shall have none.
        vec![pack(&words), pack(&[b"INFO"]), self.site.connect().packed(true)]
    }

    fn judge(&self, replies: Vec<Value>) -> Result<(), Error> {
        self.judge_all(replies).map_err(|error| error.during(Verb::Connect))
    }

    fn ready(&self, first: bool) {
        if !first && self.hears {
            // What was published meanwhile is lost, so everybody who waits asks again.
            self.hints.missed();
        }
    }

    fn lost(&self) {}

    fn message(&self, channel: &[u8], payload: &[u8]) {
        self.site.active();
        self.hints.message(&self.site.keys, channel, payload);
    }
}

/// A server's report, in either shape that servers give it.
pub(super) fn info_text(value: &Value) -> Option<&str> {
    match value {
        Value::VerbatimString { text, .. } => Some(text),
        other => text(other),
    }
}
