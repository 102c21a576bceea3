//! The release verb in a cluster, one call per claim.

use redis::Value;

use super::calls::SlotRequest;
use super::{ClusterEngine, only};
use crate::contract::{Error, Release, Released, Verb};
use crate::engine::redis::batch::{BatchVerb, single_reply};
use crate::engine::redis::errors::to_error;
use crate::engine::redis::release::push_release;
use crate::engine::redis::replies;

impl ClusterEngine {
    /// Releases or withdraws claims.
    pub(super) async fn release(&self, batch: &[Release]) -> Result<Vec<Released>, Error> {
        let requests = batch.iter().map(|release| self.release_request(release));
        let values = self.run_each(Verb::Release, requests).await?;
        let one = |value: Value| {
            let reply = single_reply(BatchVerb::Release, value);
            replies::released(&reply.map_err(|error| to_error(error, Verb::Release))?.1)
        };
        values.into_iter().map(one).collect()
    }

    fn release_request(&self, release: &Release) -> Result<SlotRequest, Error> {
        let mut text = String::with_capacity(56);
        push_release(&mut text, release);
        let script = &self.inner.options.scripts().release;
        Ok(self.inner.request(only(&release.claim.parts)?, script, &[text.as_bytes()]))
    }
}
