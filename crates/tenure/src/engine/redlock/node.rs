//! One node: its connections, and what it says of itself. Knows how a node is called and greeted,
//! not what the calls mean.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use super::connect::{Clerk, Site};
use super::scripts::Calling;
use super::signals::Hints;
use crate::contract::Error;
use crate::engine::redis::errors::Trouble;
use crate::engine::redis::pack::pack;
use crate::engine::redis::url::Location;
use crate::engine::redis::wire::{Home, Outcome, Outgoing, Reply, Wire};
use crate::engine::runtime::Callers;
use crate::time::Tick;

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
    pub(super) fn closed_for(&self, now: Tick) -> Option<Duration> {
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
