//! What the conformance suite needs of the engines: their own clock, and to know when nothing is
//! under way. Knows them from inside, and is in no build but the suite's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::cluster::ClusterEngine;
use super::inspect::Store;
use super::manner::Manner;
use super::pack::pack;
use super::url::Location;
use super::wire::{Outcome, Reply};
use super::{RedisEngine, to_error};
use crate::contract::{Engine, Error, SessionId, Verb};
use crate::engine::Terms;
use crate::engine::runtime::Own;
use crate::time::Clock;

/// An engine on stage.
pub(crate) trait Staged: Engine {
    /// How many calls were made and pushes heard.
    fn activity(&self) -> u64;

    /// Answers behind everything that is on its way, one for each connection.
    fn round_trips(&self) -> Vec<oneshot::Receiver<Outcome>>;

    /// Ends a session in the store, as if its leases had run out.
    fn end_session(&self, session: SessionId) -> Result<(), Error>;
}

/// Opens a store whose scripts go by this clock.
pub(crate) fn on_stage(
    url: &str,
    terms: &Terms,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Staged>, Error> {
    let location = Location::parse(url)?;
    if !location.seeds().is_empty() {
        return Ok(Arc::new(ClusterEngine::on_stage(&location, terms, clock)?));
    }
    let manner = |grace| Manner::new(grace).with_clock(Arc::clone(clock));
    let own = Own::start("tenure-stage")?;
    Ok(Arc::new(own.handle().block_on(RedisEngine::connect(&location, terms, manner, true))?))
}

impl Staged for RedisEngine {
    fn activity(&self) -> u64 {
        self.inner.manner.activity.load(Ordering::SeqCst)
    }

    fn round_trips(&self) -> Vec<oneshot::Receiver<Outcome>> {
        let (caller, answer) = oneshot::channel();
        self.inner.lanes.back().wire().send(&pack(&[b"PING"]), Reply::One(caller));
        vec![answer]
    }

    fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let ending = async {
            let keys = self.scan(&self.inner.keys.all_locks()).await?;
            let names = self.inner.keys.names_of(&keys);
            let slots: Vec<String> = names.iter().map(|name| self.inner.keys.slot(name)).collect();
            let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
            let script = &self.inner.manner.scripts().end_session;
            let session = session.to_hex();
            let ended = self.inner.lanes.back().run(script, &slots, &[session.as_bytes()]).await;
            ended.map_err(|trouble| to_error(trouble, Verb::Release))
        };
        self.inner.own.handle().block_on(ending).map(drop)
    }
}
