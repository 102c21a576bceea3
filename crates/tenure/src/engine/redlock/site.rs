//! What all nodes have in common: their names, the terms of the namespace, and who may be a node.
//! Knows rules about servers, not connections.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::keys::Keys;
use super::node::{Known, LAYOUT, State};
use super::scripts::{self, Calling, Script, Scripts};
use super::url::Set;
use crate::contract::{Error, ErrorKind, Parts};
use crate::engine::redis::client::ServerInfo as Server;
use crate::engine::redis::url::Location;
use crate::engine::{Terms, max_lease};
use crate::time::Clock;

/// How far the clocks of nodes may be apart, and clients' from theirs: a node clamps what a client
/// proposes to its own clock give or take a second, and a second is left for the nodes themselves.
pub(super) const CLOCK_BOUND: Duration = Duration::from_secs(2);
/// For how long a node keeps the counter of a name that nobody uses: two days.
const LINGER: &str = "172800000";
/// The oldest server that has what scripts use.
const OLDEST: (u32, u32) = (6, 2);

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
