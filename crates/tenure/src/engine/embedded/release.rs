//! The release verb. A release grants to the next waiters in the same transaction.

use super::EmbeddedEngine;
use super::slots::SlotRows;
use super::store::StepKind;
use crate::contract::{Error, Release, Released, Verb};
use crate::ledger::Ledger;

/// How many claims of a batch one step releases: other processes get in between, and a full store
/// has space for it.
const PER_STEP: usize = 64;

impl EmbeddedEngine {
    pub(super) async fn release(&self, batch: &[Release]) -> Result<Vec<Released>, Error> {
        let verb = |batch: &[Release], ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
            ledger.release(batch, now)
        };
        let mut answers = Vec::with_capacity(batch.len());
        for chunk in batch.chunks(PER_STEP) {
            let released = self.step(StepKind::FreesSpace, chunk, verb).await;
            let begun = !answers.is_empty();
            answers.extend(released.map_err(|error| {
                let error = error.during(Verb::Release);
                if begun { error.effect_unknown() } else { error }
            })?);
        }
        Ok(answers)
    }
}
