//! Hooks for the conformance suite: a virtual clock, and when no call is in flight. Not in other
//! builds.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::node::Placement;
use super::round::join_all;
use super::url::Set;
use super::{Quorum, RedlockEngine};
use crate::contract::{Error, SessionId};
use crate::engine::Terms;
use crate::engine::common::runtime::EngineThread;
use crate::engine::redis::client::{PendingReply, RequestError, pack};

impl RedlockEngine {
    /// Opens a set of nodes whose scripts use the clock of the terms.
    pub(crate) fn on_stage(url: &str, terms: &Terms) -> Result<Self, Error> {
        let set = Set::parse(url)?;
        let own = EngineThread::start("tenure-stage")?;
        let connecting = Quorum::connect(&set, terms, true);
        let quorum = own.handle().block_on(connecting)?;
        Ok(Self { quorum: Arc::new(quorum) })
    }

    /// Returns how many calls were made and replies received.
    pub(crate) fn activity(&self) -> u64 {
        self.quorum.context.activity.load(Ordering::SeqCst)
    }

    /// Starts a `PING` at each node: their replies come after those of all calls in flight.
    pub(crate) fn round_trips(&self) -> Vec<PendingReply> {
        let ping = pack(&[b"PING"]);
        self.quorum.nodes.iter().map(|node| node.wire(Placement::Own).call(&ping)).collect()
    }

    /// Waits for calls on the engine's own thread.
    pub(crate) fn wait_for(&self, calls: Vec<PendingReply>) {
        drop(self.quorum.own.handle().block_on(join_all(calls)));
    }

    /// Returns a weak reference to the engine.
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.quorum))
    }

    /// Ends a session at all nodes, as if its leases had expired.
    pub(crate) fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let quorum = &self.quorum;
        let ending = async {
            let names = quorum.names(Placement::Own).await?;
            let keys = names.iter().map(|name| quorum.context.keys.lock(name)).collect();
            let context = &quorum.context;
            let call =
                context.script_call(&context.scripts().end_session, keys).with(session.to_hex());
            let packed = call.packed(true);
            let calls = quorum.nodes.iter().map(|node| node.wire(Placement::Own).call(&packed));
            for outcome in join_all(calls.collect()).await {
                outcome.map_err(RequestError::into_error)?;
            }
            Ok(())
        };
        quorum.own.handle().block_on(ending)
    }
}

/// A weak reference to an engine.
#[derive(Clone)]
pub(crate) struct WeakEngine(Weak<Quorum>);

impl WeakEngine {
    pub(crate) fn upgrade(&self) -> Option<RedlockEngine> {
        self.0.upgrade().map(|quorum| RedlockEngine { quorum })
    }
}
