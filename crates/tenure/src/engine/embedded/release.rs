//! The release verb.

use super::EmbeddedEngine;
use super::slots::SlotRows;
use super::store::StepKind;
use crate::contract::{Error, Release, Released, Verb};
use crate::ledger::Ledger;

/// How many claims of a batch one step takes: the others get in between, and a full store has room
/// for it.
const AT_ONCE: usize = 64;

impl EmbeddedEngine {
    pub(super) async fn release_batch(&self, batch: &[Release]) -> Result<Vec<Released>, Error> {
        let verb = |batch: &[Release], ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
            ledger.release(batch, now)
        };
        let mut answers = Vec::with_capacity(batch.len());
        for some in batch.chunks(AT_ONCE) {
            let released = self.step(StepKind::FreesSpace, some, verb).await;
            let begun = !answers.is_empty();
            answers.extend(released.map_err(|error| {
                let error = error.during(Verb::Release);
                if begun { error.effect_unknown() } else { error }
            })?);
        }
        Ok(answers)
    }
}
