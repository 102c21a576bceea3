//! What the conformance suite needs of the engine. Knows it from inside, and is in no build but the
//! suite's.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

use super::ClusterEngine;
use crate::contract::{Error, SessionId, Verb};
use crate::engine::Terms;
use crate::engine::redis::inspect::Store;
use crate::engine::redis::manner::Manner;
use crate::engine::redis::pack::pack;
use crate::engine::redis::testing::Staged;
use crate::engine::redis::url::Location;
use crate::engine::redis::wire::{Outcome, Reply};
use crate::engine::runtime::Own;
use crate::time::Clock;

impl ClusterEngine {
    /// Opens a cluster whose scripts go by this clock.
    pub(in super::super) fn on_stage(
        location: &Location,
        terms: &Terms,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let manner = || Manner::in_cluster(terms.max_lease).with_clock(Arc::clone(clock));
        let own = Own::start("tenure-stage")?;
        own.handle().block_on(Self::connect(location, terms, manner, true))
    }
}

impl Staged for ClusterEngine {
    fn activity(&self) -> u64 {
        self.inner.manner.activity.load(Ordering::SeqCst)
    }

    fn round_trips(&self) -> Vec<oneshot::Receiver<Outcome>> {
        let nodes = self.inner.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes: Vec<_> = nodes.values().cloned().collect();
        let one = |node: &Arc<super::Node>| {
            let (caller, answer) = oneshot::channel();
            node.wires.back().send(&pack(&[b"PING"]), Reply::One(caller));
            answer
        };
        nodes.iter().map(one).collect()
    }

    fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let ending = async {
            let keys = self.scan(&self.inner.keys.all_locks()).await?;
            let names = self.inner.keys.names_of(&keys);
            let session = session.to_hex();
            let script = &self.inner.manner.scripts().end_session;
            let order = |name| Ok(self.inner.order(name, script, &[session.as_bytes()]));
            self.run_each(Verb::Release, names.iter().map(order)).await
        };
        self.inner.own.handle().block_on(ending).map(drop)
    }
}
