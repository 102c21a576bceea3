//! One node: its connections, and what it says of itself. Knows how a node is called and greeted,
//! not what the calls mean.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;

use super::hints::Hints;
use super::scripts::Calling;
use super::site::Site;
use crate::contract::{Error, ErrorKind, Verb};
use crate::engine::redis::client::{
    ConnectionHandler as Greeter, MultiplexedConnection as Wire, ReplyTo as Reply,
    RequestBatch as Outgoing, RequestError as Trouble, RequestResult as Outcome,
    ServerInfo as Server, TaskRuntimes as Home, into_result as judged, list, pack, strange, text,
};
use crate::engine::redis::errors::script_error as said;
use crate::engine::redis::url::Location;
use crate::engine::runtime::Callers;
use crate::time::Tick;

/// The version of what scripts keep at a node. A plain client knows none like it, and refuses.
pub(super) const LAYOUT: &str = "quorum-1";

/// Which connection is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The one on the runtime of the callers.
    Front,
    /// The one on the engine's own thread.
    Back,
}

/// One node.
pub(super) struct Node {
    pub(super) location: Arc<Location>,
    front: Option<Wire>,
    back: Wire,
    known: Arc<Known>,
    site: Arc<Site>,
}

/// What is known of a node.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<State>);

/// What a node said when it was greeted last.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Which run of the server it is; none if it was never greeted.
    pub(super) run: Option<String>,
    /// It had no past: nobody has used it, or it has lost its memory.
    pub(super) fresh: bool,
    /// Until when it grants nothing.
    pub(super) closed_until: Option<Tick>,
}

impl State {
    /// How much longer the node grants nothing.
    fn closed_for(&self, now: Tick) -> Option<Duration> {
        let left = self.closed_until?.since(now);
        (!left.is_zero()).then_some(left)
    }
}

impl Node {
    /// Opens the connections to the node with this number.
    pub(super) fn open(
        at: usize,
        site: &Arc<Site>,
        hints: &Arc<Hints>,
        callers: Option<&Callers>,
        own: &Handle,
    ) -> Self {
        let location = Arc::clone(&site.nodes[at]);
        let known = Arc::clone(&site.known[at]);
        let hears_in_front = callers.is_some_and(Callers::has_threads);
        let wire = |lane: Lane, first: &Handle| {
            let hears = (lane == Lane::Front) == hears_in_front;
            let (site, hints) = (Arc::clone(site), Arc::clone(hints));
            let clerk = Clerk { at, site, hints, hears };
            let home = Home { first: first.clone(), fallback: own.clone() };
            let gather = Box::new(|_: &mut Outgoing| {});
            Wire::open(Arc::clone(&location), Arc::new(clerk), gather, home)
        };
        let front = callers.map(|callers| wire(Lane::Front, callers.handle()));
        let back = wire(Lane::Back, own);
        Self { location, front, back, known, site: Arc::clone(site) }
    }

    /// The connection of a lane.
    pub(super) fn wire(&self, lane: Lane) -> &Wire {
        self.front.as_ref().filter(|_| lane == Lane::Front).unwrap_or(&self.back)
    }

    /// Whether the node had no past when it was greeted last.
    pub(super) fn is_fresh(&self) -> bool {
        self.known.0.lock().unwrap_or_else(PoisonError::into_inner).fresh
    }

    /// How much longer the node grants nothing, if it was so when it was greeted last.
    pub(super) fn closed_for(&self) -> Option<Duration> {
        let state = self.known.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed_for(self.site.clock.now())
    }

    /// The node is open from now on.
    pub(super) fn opened(&self) {
        let mut state = self.known.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.fresh, state.closed_until) = (false, None);
    }

    /// Calls a script, now and in order with all other calls of the lane, and has somebody told.
    pub(super) fn call(
        self: &Arc<Self>,
        lane: Lane,
        calling: &Arc<Calling>,
        tell: impl FnOnce(Outcome) + Send + 'static,
    ) {
        let (node, again) = (Arc::downgrade(self), Arc::clone(calling));
        let told = move |outcome: Outcome| match (outcome, node.upgrade()) {
            // The server has forgotten the script, and so did not run it.
            (Err(trouble), Some(node)) if trouble.is_unknown_script() => {
                node.wire(lane).send(&again.packed(true), Reply::Many(Box::new(tell)));
            }
            (outcome, _) => tell(outcome),
        };
        self.wire(lane).send(&calling.packed(false), Reply::Many(Box::new(told)));
    }

    /// Waits until the node has been greeted on all its connections.
    pub(super) async fn greet(&self) -> Result<(), Error> {
        for wire in self.front.iter().chain([&self.back]) {
            wire.call(&pack(&[b"PING"])).await.map_err(Trouble::into_error)?;
        }
        Ok(())
    }
}

/// What one connection to a node says first and hears.
struct Clerk {
    at: usize,
    site: Arc<Site>,
    hints: Arc<Hints>,
    /// Only one connection to a node hears what is published.
    hears: bool,
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

impl Known {
    /// Keeps what a node said.
    pub(super) fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// The run of the server that was greeted last.
    pub(super) fn run(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).run.clone()
    }
}
