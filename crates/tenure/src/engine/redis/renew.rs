//! The renew verb: one call of `renew.lua` for the whole batch of a session.

use redis::Value;

use super::RedisEngine;
use super::client::{list, strange};
use super::replies;
use crate::contract::{ClaimRef, Error, Renewed, Verb};

impl RedisEngine {
    /// Renews claims, all in one atomic step.
    pub(super) async fn renew(&self, batch: &[ClaimRef]) -> Result<Vec<Renewed>, Error> {
        let script = &self.inner.options.scripts().renew;
        let claims: Vec<_> = batch.iter().map(|claim| (claim, "")).collect();
        let value = self.run_batch(Verb::Renew, script, &claims).await?;
        // The store's time, then one reply for each claim.
        let all = list(&value).unwrap_or_default();
        if all.len() != batch.len() + 1 {
            return Err(strange(&value));
        }
        let one = |(claim, reply): (&ClaimRef, &Value)| {
            replies::renewed(reply, claim.parts.as_slice().len())
        };
        batch.iter().zip(&all[1..]).map(one).collect()
    }
}
