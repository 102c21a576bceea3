//! One node: its connections, and what its last handshake said.
//!
//! A node has a connection on the engine's own thread, and another on the callers' runtime if there
//! is one that can serve it (`engine/runtime.rs`). One of the two is subscribed to channels. Calls
//! on one connection are executed in order.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use super::connect::{NodeHandshake, QuorumContext};
use super::scripts::ScriptCall;
use super::signals::ProcessWaiters;
use crate::contract::Error;
use crate::engine::common::redis::url::Location;
use crate::engine::common::runtime::Callers;
use crate::engine::redis::client::{
    MultiplexedConnection, ReplyTo, RequestBatch, RequestError, RequestResult, TaskRuntimes, pack,
};
use crate::time::Tick;

/// Which of a node's connections serves a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// The one on the callers' runtime.
    Callers,
    /// The one on the engine's own thread.
    Own,
}

/// One node and its connections.
pub(super) struct QuorumNode {
    pub(super) location: Arc<Location>,
    front: Option<MultiplexedConnection>,
    back: MultiplexedConnection,
    handshake: Arc<LastHandshake>,
    context: Arc<QuorumContext>,
}

/// [`NodeState`], shared by the node and its connections.
#[derive(Debug, Default)]
pub(super) struct LastHandshake(Mutex<NodeState>);

/// What a node replied to its last handshake.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeState {
    /// The run id of the server; none before the first handshake.
    pub(super) run: Option<String>,
    /// It had no data: it was never used, or it has lost them.
    pub(super) fresh: bool,
    /// Until when it grants nothing (quarantine).
    pub(super) closed_until: Option<Tick>,
}

impl NodeState {
    /// Returns how much longer the node grants nothing.
    pub(super) fn closed_for(&self, now: Tick) -> Option<Duration> {
        let left = self.closed_until?.since(now);
        (!left.is_zero()).then_some(left)
    }
}

impl QuorumNode {
    /// Opens the connections to the node with this index.
    pub(super) fn open(
        at: usize,
        context: &Arc<QuorumContext>,
        waiters: &Arc<ProcessWaiters>,
        callers: Option<&Callers>,
        own: &Handle,
    ) -> Self {
        let location = Arc::clone(&context.nodes[at]);
        let handshake = Arc::clone(&context.handshakes[at]);
        let callers_subscribe = callers.is_some_and(Callers::has_threads);
        let wire = |placement: Placement, first: &Handle| {
            let subscribes = (placement == Placement::Callers) == callers_subscribe;
            let (context, waiters) = (Arc::clone(context), Arc::clone(waiters));
            let handshake = NodeHandshake { at, context, waiters, subscribes };
            let home = TaskRuntimes { first: first.clone(), fallback: own.clone() };
            let gather = Box::new(|_: &mut RequestBatch| {});
            MultiplexedConnection::open(Arc::clone(&location), Arc::new(handshake), gather, home)
        };
        let front = callers.map(|callers| wire(Placement::Callers, callers.handle()));
        let back = wire(Placement::Own, own);
        Self { location, front, back, handshake, context: Arc::clone(context) }
    }

    /// Returns the connection of a placement.
    pub(super) fn wire(&self, placement: Placement) -> &MultiplexedConnection {
        self.front.as_ref().filter(|_| placement == Placement::Callers).unwrap_or(&self.back)
    }

    /// Returns whether the node had no data at its last handshake.
    pub(super) fn is_fresh(&self) -> bool {
        self.handshake.0.lock().unwrap_or_else(PoisonError::into_inner).fresh
    }

    /// Returns how much longer the node grants nothing, by its last handshake.
    pub(super) fn closed_for(&self) -> Option<Duration> {
        let state = self.handshake.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed_for(self.context.clock.now())
    }

    /// Records that the node's quarantine was ended.
    pub(super) fn opened(&self) {
        let mut state = self.handshake.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.fresh, state.closed_until) = (false, None);
    }

    /// Writes the call of a script, in order with all other calls on that connection. `done` is
    /// called with the outcome. A server that does not know the script gets its text.
    pub(super) fn call(
        self: &Arc<Self>,
        placement: Placement,
        call: &Arc<ScriptCall>,
        done: impl FnOnce(RequestResult) + Send + 'static,
    ) {
        let (node, again) = (Arc::downgrade(self), Arc::clone(call));
        let replied = move |outcome: RequestResult| match (outcome, node.upgrade()) {
            // The server does not have the script, and so did not run it.
            (Err(trouble), Some(node)) if trouble.is_unknown_script() => {
                node.wire(placement).send(&again.packed(true), ReplyTo::Many(Box::new(done)));
            }
            (outcome, _) => done(outcome),
        };
        self.wire(placement).send(&call.packed(false), ReplyTo::Many(Box::new(replied)));
    }

    /// Waits until all connections have completed their handshake.
    pub(super) async fn handshake(&self) -> Result<(), Error> {
        for wire in self.front.iter().chain([&self.back]) {
            wire.call(&pack(&[b"PING"])).await.map_err(RequestError::into_error)?;
        }
        Ok(())
    }
}

impl LastHandshake {
    /// Records the state of the node.
    pub(super) fn set(&self, state: NodeState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Returns the run id of the last handshake.
    pub(super) fn run(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).run.clone()
    }
}
