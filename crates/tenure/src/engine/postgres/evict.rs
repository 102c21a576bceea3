//! The evict verb: ends the grants of one slot that have a given fence. One call.

use super::PostgresEngine;
use super::errors::unexpected_reply;
use super::statements::Function;
use crate::contract::{Error, Evicted, Eviction, Verb};

impl PostgresEngine {
    pub(super) async fn evict(&self, eviction: &Eviction) -> Result<Evicted, Error> {
        let is_async = self.inner.context.is_async();
        let fence = i64::try_from(eviction.fence.get()).unwrap_or(i64::MAX);
        let replies = self.call(Verb::Evict, Function::Evict, |ns| {
            vec![
                Box::new(ns),
                Box::new(is_async),
                Box::new(eviction.name.as_str().to_owned()),
                Box::new(fence),
                Box::new(eviction.reason.to_string()),
            ]
        });
        let evicted = replies.await.and_then(|mut replies| {
            let reply = replies.pop().ok_or_else(unexpected_reply)?;
            reply.evicted().map_err(|error| error.during(Verb::Evict))
        });
        evicted.map_err(|error| error.on(&eviction.name))
    }
}
