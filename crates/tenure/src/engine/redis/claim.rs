//! The claim verb. One claim is one call of `claim.lua`, or a part of one: claims that are made
//! while others are in flight are batched (`batch.rs`).

use super::RedisEngine;
use super::batch::{BatchItem, BatchVerb};
use super::codec::{plain_lease, push_claim};
use super::errors::to_error;
use super::keys::RedisKeys;
use super::replies;
use crate::contract::{Claim, Error, Verb, Verdict};

impl RedisEngine {
    /// Makes a claim.
    pub(super) async fn claim(&self, claim: &Claim) -> Result<Verdict, Error> {
        let keys = &self.inner.keys;
        let reply = self.batcher().submit(BatchVerb::Claim, || claim_item(claim, keys)).await;
        let (now, value) = reply.map_err(|error| to_error(error, Verb::Claim))?;
        replies::verdict(&value, claim.parts.as_slice().len(), now, keys)
    }
}

fn claim_item(claim: &Claim, keys: &RedisKeys) -> BatchItem {
    let ttl = plain_lease(claim).unwrap_or(0);
    BatchItem::new(&claim.parts, keys, ttl > 0)
        .with_ttl(ttl)
        .with_text(|text| push_claim(text, claim, keys))
}
