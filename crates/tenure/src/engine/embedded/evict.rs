//! The evict verb.

use super::EmbeddedEngine;
use super::slots::SlotRows;
use super::store::StepKind;
use crate::contract::{Error, Evicted, Eviction, Verb};
use crate::ledger::Ledger;

impl EmbeddedEngine {
    pub(super) async fn evict_grant(&self, eviction: &Eviction) -> Result<Evicted, Error> {
        let verb = |eviction: &Eviction, ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
            ledger.evict(eviction, now)
        };
        let answer = self.step(StepKind::FreesSpace, eviction, verb).await;
        answer.map_err(|error| error.during(Verb::Evict).on(&eviction.name))
    }
}
