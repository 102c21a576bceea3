//! The renew verb: one step for a whole batch.
//!
//! A renewal is also when a waiter looks up the sessions before it again, because others may have
//! taken their place since, and when a store that was removed is noticed for certain.

use super::slots::SlotRows;
use super::store::StepKind;
use super::{EmbeddedEngine, WATCHED};
use crate::contract::{ClaimRef, Error, Loss, Renewed, Verb};
use crate::ledger::Ledger;

impl EmbeddedEngine {
    pub(super) async fn renew(&self, batch: &[ClaimRef]) -> Result<Vec<Renewed>, Error> {
        self.renew_step(batch).await.map_err(|error| error.during(Verb::Renew))
    }

    async fn renew_step(&self, batch: &[ClaimRef]) -> Result<Vec<Renewed>, Error> {
        if !self.sessions.store().check_files() {
            return Ok(vec![Renewed::Gone(Loss::Forgotten); batch.len()]);
        }
        let verb = |batch: &[ClaimRef], ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
            let answers = ledger.renew(batch, now);
            let mut in_the_way = Vec::new();
            for (claim, answer) in batch.iter().zip(&answers) {
                // A waiter further back renews again before it comes to the front.
                if matches!(answer, Renewed::Waiting(queued) if queued.place <= WATCHED) {
                    in_the_way.extend(ledger.in_the_way(claim.id, &claim.parts, WATCHED));
                }
            }
            (answers, in_the_way)
        };
        let (answers, in_the_way) = self.step(StepKind::FreesSpace, batch, verb).await?;
        self.sessions.watch(&in_the_way, &self.scope);
        // A process may have lost its session and live on, after `exec`: no pidfd tells that.
        self.end_dead(in_the_way.into_iter()).await;
        Ok(answers)
    }
}
