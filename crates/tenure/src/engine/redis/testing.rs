//! Hooks for the conformance suite: an engine on the suite's clock, and a way to wait until nothing
//! is in flight. Only in builds of the suite.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;
use tokio::sync::oneshot;

use super::RedisEngine;
use super::client::{ReplyTo, RequestResult, pack};
use super::cluster::ClusterEngine;
use super::errors::to_error;
use super::inspect::StoreAccess;
use super::names::NameSet;
use super::scripts::{COUNTERS, ScriptOptions};
use crate::contract::{Engine, Error, ErrorKind, SessionId, Verb};
use crate::engine::Terms;
use crate::engine::common::redis::url::Location;
use crate::engine::common::runtime::EngineThread;
use crate::time::Clock;

/// An engine under the control of the suite.
pub(crate) trait Staged: Engine {
    /// Returns how many calls were made and pushes received.
    fn activity(&self) -> u64;

    /// Sends a ping on each connection; its reply follows everything that is in flight there.
    fn round_trips(&self) -> Vec<oneshot::Receiver<RequestResult>>;

    /// Returns how often the scripts took each path that is marked, in all namespaces.
    fn paths(&self) -> Result<Vec<(String, u64)>, Error> {
        Ok(Vec::new())
    }

    /// Ends a session in the store, as if its leases had expired.
    fn end_session(&self, session: SessionId) -> Result<(), Error>;
}

/// Opens a store whose scripts use this clock.
pub(crate) fn on_stage(
    url: &str,
    terms: &Terms,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Staged>, Error> {
    let location = Location::parse(url)?;
    if !location.seeds().is_empty() {
        return Ok(Arc::new(ClusterEngine::on_stage(&location, terms, clock)?));
    }
    let options = |grace| ScriptOptions::new(grace).with_clock(Arc::clone(clock));
    let own = EngineThread::start("tenure-stage")?;
    Ok(Arc::new(own.handle().block_on(RedisEngine::connect(&location, terms, options, true))?))
}

impl Staged for RedisEngine {
    fn activity(&self) -> u64 {
        self.inner.options.activity.load(Ordering::SeqCst)
    }

    fn round_trips(&self) -> Vec<oneshot::Receiver<RequestResult>> {
        let (caller, reply) = oneshot::channel();
        self.inner.batchers.back().connection().send(&pack(&[b"PING"]), ReplyTo::One(caller));
        vec![reply]
    }

    fn paths(&self) -> Result<Vec<(String, u64)>, Error> {
        let (caller, reply) = oneshot::channel();
        let all = pack(&[b"HGETALL", COUNTERS.as_bytes()]);
        self.inner.batchers.back().connection().send(&all, ReplyTo::One(caller));
        let unknown = |_| Error::new(ErrorKind::Unavailable, "the counters of paths are unknown");
        let reply = reply.blocking_recv().map_err(unknown)?;
        let reply = reply.map_err(|error| to_error(error, Verb::Inspect))?;
        let Value::Map(pairs) = reply else {
            return Err(Error::new(ErrorKind::Corrupt, format!("counters of paths: {reply:?}")));
        };
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
            _ => None,
        };
        Ok(pairs.iter().filter_map(|(k, v)| Some((text(k)?, text(v)?.parse().ok()?))).collect())
    }

    fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let ending = async {
            let names = self.names(NameSet::Locks, "", None).await?;
            let names = names.after(None);
            let slots: Vec<String> = names.iter().map(|name| self.inner.keys.slot(name)).collect();
            let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
            let script = &self.inner.options.scripts().end_session;
            let session = session.to_hex();
            let ended = self.inner.batchers.back().run(script, &slots, &[session.as_bytes()]).await;
            ended.map_err(|error| to_error(error, Verb::Release))
        };
        self.inner.own.handle().block_on(ending).map(drop)
    }
}
