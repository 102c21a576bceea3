//! Hooks for the conformance suite, see `redis/testing.rs`. Only in builds of the suite.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

use super::ClusterEngine;
use crate::contract::{Error, SessionId, Verb};
use crate::engine::Terms;
use crate::engine::common::redis::url::Location;
use crate::engine::common::runtime::EngineThread;
use crate::engine::redis::client::{ReplyTo, RequestResult, pack};
use crate::engine::redis::inspect::StoreAccess;
use crate::engine::redis::names::NameSet;
use crate::engine::redis::scripts::ScriptOptions;
use crate::engine::redis::testing::Staged;
use crate::time::Clock;

impl ClusterEngine {
    /// Opens a cluster whose scripts use this clock.
    pub(in super::super) fn on_stage(
        location: &Location,
        terms: &Terms,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let options = || ScriptOptions::in_cluster(terms.max_lease).with_clock(Arc::clone(clock));
        let own = EngineThread::start("tenure-stage")?;
        own.handle().block_on(Self::connect(location, terms, options, true))
    }
}

impl Staged for ClusterEngine {
    fn activity(&self) -> u64 {
        self.inner.options.activity.load(Ordering::SeqCst)
    }

    fn round_trips(&self) -> Vec<oneshot::Receiver<RequestResult>> {
        let nodes = self.inner.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes: Vec<_> = nodes.values().cloned().collect();
        let one = |node: &Arc<super::ClusterNode>| {
            let (caller, reply) = oneshot::channel();
            node.connections.back().send(&pack(&[b"PING"]), ReplyTo::One(caller));
            reply
        };
        nodes.iter().map(one).collect()
    }

    fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let ending = async {
            let names = self.names(NameSet::Locks, "", None).await?;
            let names = names.after(None);
            let session = session.to_hex();
            let script = &self.inner.options.scripts().end_session;
            let request = |name| Ok(self.inner.request(name, script, &[session.as_bytes()]));
            self.run_each(Verb::Release, names.iter().map(request)).await
        };
        self.inner.own.handle().block_on(ending).map(drop)
    }
}
