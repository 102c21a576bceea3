//! The evict verb: ends the hold that has a given fence, with a reason that its holder receives.

use super::RedisEngine;
use super::replies;
use crate::contract::{Error, Evicted, Eviction, Verb};

impl RedisEngine {
    /// Ends a hold by force.
    pub(super) async fn evict(&self, eviction: &Eviction) -> Result<Evicted, Error> {
        let key = self.inner.keys.slot(&eviction.name);
        let fence = eviction.fence.get().to_string();
        let items: [&[u8]; 2] = [fence.as_bytes(), eviction.reason.as_bytes()];
        let script = &self.inner.options.scripts().evict;
        let value = self.run(Verb::Evict, script, &[&key], &items).await;
        replies::evicted(&value.map_err(|error| error.on(&eviction.name))?, &key)
    }
}
