//! The release verb. A single release is batched with those of other callers (`batch.rs`); the
//! keeper's batch is one call of `release.lua`.

use redis::Value;

use super::RedisEngine;
use super::batch::{BatchItem, BatchVerb};
use super::client::{list, strange};
use super::codec::push_reference;
use super::errors::to_error;
use super::keys::RedisKeys;
use super::replies;
use crate::contract::{Error, Release, Released, Verb};

/// Follows the reference of a claim whose release has to leave a tombstone.
const UNCERTAIN: &str = " 1";

impl RedisEngine {
    /// Releases or withdraws claims.
    pub(super) async fn release(&self, batch: &[Release]) -> Result<Vec<Released>, Error> {
        if let [release] = batch {
            return Ok(vec![self.release_one(release).await?]);
        }
        let script = &self.inner.options.scripts().release;
        let mark = |release: &Release| if release.uncertain { UNCERTAIN } else { "" };
        let claims: Vec<_> = batch.iter().map(|release| (&release.claim, mark(release))).collect();
        let value = self.run_batch(Verb::Release, script, &claims).await?;
        match list(&value) {
            None if value == Value::Int(1) => Ok(vec![Released::Done; batch.len()]),
            Some(all) if all.len() == batch.len() => all.iter().map(replies::released).collect(),
            _ => Err(strange(&value)),
        }
    }

    async fn release_one(&self, release: &Release) -> Result<Released, Error> {
        let keys = &self.inner.keys;
        let reply = self.batcher().submit(BatchVerb::Release, || release_item(release, keys)).await;
        let (_, value) = reply.map_err(|error| to_error(error, Verb::Release))?;
        replies::released(&value)
    }
}

fn release_item(release: &Release, keys: &RedisKeys) -> BatchItem {
    BatchItem::new(&release.claim.parts, keys, !release.uncertain)
        .with_text(|text| push_release(text, release))
}

/// Appends what `release.lua` reads of one release.
pub(super) fn push_release(text: &mut String, release: &Release) {
    push_reference(text, &release.claim);
    if release.uncertain {
        text.push_str(UNCERTAIN);
    }
}
