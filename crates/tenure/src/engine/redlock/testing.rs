//! What the conformance suite needs of the engine: its own clock, and to know when nothing is under
//! way. Knows the engine from inside, and is in no build but the suite's.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::node::Lane;
use super::round::together;
use super::url::Set;
use super::{Quorum, RedlockEngine};
use crate::contract::{Error, SessionId};
use crate::engine::Terms;
use crate::engine::redis::client::{PendingReply as Call, RequestError as Trouble, pack};
use crate::engine::runtime::Own;

impl RedlockEngine {
    /// Opens a set of nodes whose scripts go by the clock of the terms.
    pub(crate) fn on_stage(url: &str, terms: &Terms) -> Result<Self, Error> {
        let set = Set::parse(url)?;
        let own = Own::start("tenure-stage")?;
        let connecting = Quorum::connect(&set, terms, true);
        let quorum = own.handle().block_on(connecting)?;
        Ok(Self { quorum: Arc::new(quorum) })
    }

    /// How many calls were made and answers heard.
    pub(crate) fn activity(&self) -> u64 {
        self.quorum.site.activity.load(Ordering::SeqCst)
    }

    /// Answers behind everything that is on its way.
    pub(crate) fn round_trips(&self) -> Vec<Call> {
        let ping = pack(&[b"PING"]);
        self.quorum.nodes.iter().map(|node| node.wire(Lane::Back).call(&ping)).collect()
    }

    /// Waits on the engine's own thread.
    pub(crate) fn wait_for(&self, calls: Vec<Call>) {
        drop(self.quorum.own.handle().block_on(together(calls)));
    }

    /// The engine, as long as somebody else has it.
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.quorum))
    }

    /// Ends a session at all nodes, as if its leases had run out.
    pub(crate) fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let quorum = &self.quorum;
        let ending = async {
            let names = quorum.names(Lane::Back).await?;
            let keys = names.iter().map(|name| quorum.site.keys.lock(name)).collect();
            let site = &quorum.site;
            let calling = site.calling(&site.scripts().end_session, keys).with(session.to_hex());
            let packed = calling.packed(true);
            let calls = quorum.nodes.iter().map(|node| node.wire(Lane::Back).call(&packed));
            for outcome in together(calls.collect()).await {
                outcome.map_err(Trouble::into_error)?;
            }
            Ok(())
        };
        quorum.own.handle().block_on(ending)
    }
}

/// An engine that may be gone.
#[derive(Clone)]
pub(crate) struct WeakEngine(Weak<Quorum>);

impl WeakEngine {
    pub(crate) fn upgrade(&self) -> Option<RedlockEngine> {
        self.0.upgrade().map(|quorum| RedlockEngine { quorum })
    }
}
