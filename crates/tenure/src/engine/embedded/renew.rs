//! The renew verb.

use super::slots::SlotRows;
use super::store::StepKind;
use super::{EmbeddedEngine, WATCHED};
use crate::contract::{ClaimRef, Error, Loss, Renewed, Verb};
use crate::ledger::Ledger;

impl EmbeddedEngine {
    pub(super) async fn renew_batch(&self, batch: &[ClaimRef]) -> Result<Vec<Renewed>, Error> {
        self.renew_now(batch).await.map_err(|error| error.during(Verb::Renew))
    }

    async fn renew_now(&self, batch: &[ClaimRef]) -> Result<Vec<Renewed>, Error> {
        if !self.sessions.store().check_files() {
            return Ok(vec![Renewed::Gone(Loss::Forgotten); batch.len()]);
        }
        let verb = |batch: &[ClaimRef], ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
            let answers = ledger.renew(batch, now);
            let mut in_the_way = Vec::new();
            for (claim, answer) in batch.iter().zip(&answers) {
                // Whoever stands further back is told again before it comes to the front.
                if matches!(answer, Renewed::Waiting(queued) if queued.place <= WATCHED) {
                    in_the_way.extend(ledger.in_the_way(claim.id, &claim.parts, WATCHED));
                }
            }
            (answers, in_the_way)
        };
        let (answers, in_the_way) = self.step(StepKind::FreesSpace, batch, verb).await?;
        self.sessions.watch(&in_the_way, &self.scope);
        // A process may have let go of its session and live on: after `exec` nobody is told.
        self.end_dead(in_the_way.into_iter()).await;
        Ok(answers)
    }
}
