//! The evict verb in a cluster.

use super::ClusterEngine;
use crate::contract::{Error, Evicted, Eviction, Verb};
use crate::engine::redis::errors::to_error;
use crate::engine::redis::replies;

impl ClusterEngine {
    /// Ends a hold by force.
    pub(super) async fn evict(&self, eviction: &Eviction) -> Result<Evicted, Error> {
        let (name, fence) = (&eviction.name, eviction.fence.get().to_string());
        let items: [&[u8]; 2] = [fence.as_bytes(), eviction.reason.as_bytes()];
        let request = self.inner.request(name, &self.inner.options.scripts().evict, &items);
        let value = self.inner.run(request).await;
        let value = value.map_err(|error| to_error(error, Verb::Evict).on(name))?;
        replies::evicted(&value, &self.inner.keys.slot(name))
    }
}
