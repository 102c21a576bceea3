//! What is said on each new connection, what the server says of itself, and who hears its pushes.
//! Knows terms and sessions, not claims.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::Value;

use super::answers::{list, number, said, signal, strange, text};
use super::errors::judged;
use super::keys::Keys;
use super::manner::Manner;
use super::pack::pack;
use super::url::Location;
use super::wire::Greeter;
use crate::contract::{Error, ErrorKind, IdMap, SessionId, Signal, SignalListener, Verb};
use crate::engine::max_lease;

/// The version of what scripts keep in the store.
const LAYOUT: &str = "1";
/// The oldest server that has what scripts use.
const OLDEST: (u32, u32) = (6, 2);
/// The same in a cluster, where a script tells sessions by `SPUBLISH`.
const OLDEST_NODE: (u32, u32) = (7, 0);

/// What all connections of an engine say and hear.
pub(super) struct Reception {
    pub(super) keys: Arc<Keys>,
    pub(super) manner: Arc<Manner>,
    pub(super) location: Arc<Location>,
    pub(super) max_lease: Duration,
    listeners: RwLock<IdMap<SessionId, Weak<dyn SignalListener>>>,
    server: Mutex<Option<Server>>,
    /// It makes no claims, and agrees to any terms.
    looks: bool,
    /// The longest lease that stands, where another one is stated.
    stands: Mutex<Option<Duration>>,
    /// Somebody was let in: from then on the namespace is not new, whatever the URL says.
    known: AtomicBool,
}

/// What the server says of itself.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Server {
    info: Arc<str>,
}

impl Reception {
    pub(super) fn new(
        keys: Arc<Keys>,
        manner: Arc<Manner>,
        location: Arc<Location>,
        max_lease: Duration,
    ) -> Self {
        let (listeners, server) = (RwLock::default(), Mutex::default());
        let (known, looks, stands) = (AtomicBool::new(false), false, Mutex::default());
        Self { keys, manner, location, max_lease, listeners, server, looks, stands, known }
    }

    /// The same for a client that makes no claims and agrees to any terms.
    pub(super) fn only_looks(self) -> Self {
        Self { looks: true, ..self }
    }

    /// The longest lease of the namespace, if we were refused because we state another one.
    pub(super) fn stands(&self) -> Option<Duration> {
        *self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a session's signals to this listener.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let mut listeners = self.listeners.write().unwrap_or_else(PoisonError::into_inner);
        listeners.insert(session, listener);
    }

    /// Forgets the sessions that are gone, and says which.
    pub(super) fn gone(&self) -> Vec<SessionId> {
        let mut listeners = self.listeners.write().unwrap_or_else(PoisonError::into_inner);
        let gone = |(id, listener): (&SessionId, &Weak<dyn SignalListener>)| {
            (listener.strong_count() == 0).then_some(*id)
        };
        let gone: Vec<SessionId> = listeners.iter().filter_map(gone).collect();
        for session in &gone {
            listeners.remove(session);
        }
        gone
    }

    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        listeners.keys().copied().collect()
    }

    pub(super) fn listener(&self, session: SessionId) -> Option<Arc<dyn SignalListener>> {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        listeners.get(&session)?.upgrade()
    }

    /// What the server said of itself when it was greeted last.
    pub(super) fn server(&self) -> Option<Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first words on each connection.
    fn connect(&self) -> Vec<u8> {
        let script = &self.manner.scripts().connect;
        let [layout, lease, new] = self.terms();
        let options = self.manner.options(false);
        // By its text: it is short, and a new connection may be to a store that forgot all scripts.
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

    /// What `connect.lua` is told.
    pub(super) fn terms(&self) -> [String; 3] {
        // New only once: after a restart that lost everything, others may still hold from before.
        let new = self.location.is_new() && !self.known.load(Ordering::SeqCst);
        let new = if new { "1" } else { "0" };
        let lease = if self.looks { 0 } else { self.max_lease.as_micros() };
        [LAYOUT.to_owned(), lease.to_string(), new.to_owned()]
    }

    fn judge_connect(&self, reply: Value) -> Result<(), Error> {
        let server = self.judge_terms(reply)?;
        self.check(&server)?;
        self.known.store(true, Ordering::SeqCst);
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(())
    }

    /// Whether the namespace has our terms; and the server that keeps them.
    pub(super) fn judge_terms(&self, reply: Value) -> Result<Server, Error> {
        let reply = judged(reply).map_err(|trouble| match trouble.script_message() {
            Some(message) => said(message),
            None => trouble.into_error(),
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
                let stands = Duration::from_micros(word(1)?.parse().unwrap_or_default());
                *self.stands.lock().unwrap_or_else(PoisonError::into_inner) = Some(stands);
                let because = "a client has changed it since";
                return Err(max_lease::refused(stands, self.max_lease, because));
            }
            _ => return Err(strange(&reply)),
        }
        let closed = words.get(1).and_then(number).unwrap_or_default();
        if closed > 0 {
            let left = Duration::from_micros(closed);
            tracing::warn!("the store may have lost its memory; no grants for {left:?}");
        }
        Ok(Server::new(word(2)?))
    }

    /// Refuses a server that cannot keep what it is told.
    pub(super) fn check(&self, server: &Server) -> Result<(), Error> {
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
        self.manner.version_is(major);
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

/// Worth trying again: sentinels, or a name that is being moved, may be a moment behind.
fn replica() -> Error {
    Error::new(ErrorKind::Unavailable, "the server is a replica, which takes no locks")
        .with_help("name the primary, or wait until this one is")
}

impl Server {
    pub(in crate::engine) fn new(info: &str) -> Self {
        Self { info: info.into() }
    }

    /// What stands behind a name in the server's own report.
    pub(in crate::engine) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    pub(in crate::engine) fn version(&self) -> (u32, u32) {
        let version = self.field("redis_version").unwrap_or_default();
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// The policy by which the server throws keys away, if it may.
    pub(in crate::engine) fn evicts(&self) -> Option<&str> {
        let limited = self.field("maxmemory").is_some_and(|most| most != "0");
        let policy = self.field("maxmemory_policy").unwrap_or("noeviction");
        (limited && policy != "noeviction").then_some(policy)
    }
}

/// One connection's part in it: only one of an engine's connections hears pushes.
pub(super) struct Clerk {
    pub(super) reception: Arc<Reception>,
    pub(super) hears: bool,
}

impl Greeter for Clerk {
    fn greeting(&self) -> Vec<Vec<u8>> {
        let Reception { keys, max_lease, .. } = &*self.reception;
        // First of all, so that whoever would change the terms after us knows that we are there.
        // Nobody publishes on this one. It also shows whether we may listen at all.
        let mut channels = vec![keys.client(*max_lease)];
        if self.hears {
            let sessions = self.reception.sessions();
            channels.extend(sessions.into_iter().map(|session| keys.channel(session)));
        }
        let mut words: Vec<&[u8]> = vec![b"SUBSCRIBE"];
        words.extend(channels.iter().map(String::as_bytes));
        vec![pack(&words), self.reception.connect()]
    }

    fn judge(&self, replies: Vec<Value>) -> Result<(), Error> {
        let mut replies = replies.into_iter();
        let subscribed = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        let connect = replies.next().ok_or_else(|| strange(&Value::Nil))?;
        self.reception.judge_connect(connect).map_err(|error| error.during(Verb::Connect))?;
        judged(subscribed).map(drop).map_err(|trouble| {
            let next = "allow the channels too: ACL SETUSER ... resetchannels &tenure:*";
            trouble.into_error().during(Verb::Connect).with_help(next)
        })
    }

    fn ready(&self, first: bool) {
        if first || !self.hears {
            return;
        }
        // What was published meanwhile is lost, so everybody who waits asks again.
        for session in self.reception.sessions() {
            if let Some(listener) = self.reception.listener(session) {
                listener.on_signal(Signal::Resync);
            }
        }
    }

    fn lost(&self) {}

    fn message(&self, channel: &[u8], payload: &[u8]) {
        let listener = self.reception.keys.session_of(channel);
        let listener = listener.and_then(|session| self.reception.listener(session));
        self.reception.manner.active();
        let (Some(listener), Some(signal)) = (listener, signal(payload)) else { return };
        listener.on_signal(signal);
    }
}
