//! The evict verb: ends the grant with one fence, and grants to the next waiters in the same
//! transaction.

use super::EmbeddedEngine;
use super::slots::SlotRows;
use super::store::StepKind;
use crate::contract::{Error, Evicted, Eviction, Verb};
use crate::ledger::Ledger;

impl EmbeddedEngine {
    pub(super) async fn evict(&self, eviction: &Eviction) -> Result<Evicted, Error> {
        let verb = |eviction: &Eviction, ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
            ledger.evict(eviction, now)
        };
        let answer = self.step(StepKind::FreesSpace, eviction, verb).await;
        answer.map_err(|error| error.during(Verb::Evict).on(&eviction.name))
    }
}
