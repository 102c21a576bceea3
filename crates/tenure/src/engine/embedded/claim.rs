//! The claim verb: one step, repeated once where dead processes may have changed its answer.
//!
//! A try that finds the lock held ends the holders whose process is dead and tries again. A claim
//! that finds the store full ends every dead session and tries again. A claim that waits has the
//! sessions before it watched.

use std::sync::Arc;

use super::slots::SlotRows;
use super::store::StepKind;
use super::{EmbeddedEngine, WATCHED, lock};
use crate::contract::{Claim, Error, Refusal, Verb, Verdict};
use crate::ledger::Ledger;

impl EmbeddedEngine {
    pub(super) async fn claim(&self, claim: &Arc<Claim>) -> Result<Verdict, Error> {
        let verdict = self.claim_past_dead(claim).await;
        verdict.map_err(|error| error.during(Verb::Claim).on(claim.parts.first_name()))
    }

    /// Claims, and once more if holders or the contents of a full store turn out to be dead.
    async fn claim_past_dead(&self, claim: &Arc<Claim>) -> Result<Verdict, Error> {
        if let Some(session) = claim.session
            && let Some(error) = lock(&self.failed).get(&session)
        {
            return Err(error.clone());
        }
        let verdict = match self.claim_once(claim).await {
            // The store may be full of what dead processes have left behind.
            Err(_) if self.sessions.store().was_full() && self.free_space().await => {
                self.claim_once(claim).await?
            }
            answer => answer?,
        };
        let Verdict::Refused(Refusal::Held { by, .. }) = &verdict else { return Ok(verdict) };
        if self.end_dead(by.iter().filter_map(|holder| holder.session)).await {
            return self.claim_once(claim).await;
        }
        Ok(verdict)
    }

    async fn claim_once(&self, claim: &Arc<Claim>) -> Result<Verdict, Error> {
        let verb = |claim: &Arc<Claim>, ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
            let verdict = ledger.claim(claim, now);
            let in_the_way = match verdict {
                Verdict::Queued(_) => ledger.in_the_way(claim.id, &claim.parts, WATCHED),
                _ => Vec::new(),
            };
            (verdict, in_the_way)
        };
        let (verdict, in_the_way) = self.step(StepKind::MayGrow, claim, verb).await?;
        self.sessions.watch(&in_the_way, &self.scope);
        if self.sessions.store().counts_to_sweep() {
            self.sweep();
        }
        Ok(verdict)
    }
}
