//! The inspect verb.

use super::EmbeddedEngine;
use super::slots::SlotRows;
use super::store::{StepKind, WAIT};
use crate::contract::{Error, Query, Snapshot, Verb};
use crate::ledger::{Census, Ledger};

/// How many sessions an inspection looks at, whether they live.
const LOOKED_AT: usize = 64;

impl EmbeddedEngine {
    pub(super) async fn inspect_slots(&self, query: &Query) -> Result<Snapshot, Error> {
        self.inspect_now(query).await.map_err(|error| error.during(Verb::Inspect))
    }

    async fn inspect_now(&self, query: &Query) -> Result<Snapshot, Error> {
        let verb =
            |query: &Query, ledger: &mut Ledger<SlotRows<'_, '_>>, now| ledger.inspect(query, now);
        let seen = self.step(StepKind::FreesSpace, query, verb).await?;
        // The dead are not shown as holders if that can be helped.
        let sessions = seen.sessions().into_iter().filter_map(|view| view.session);
        if self.end_dead(sessions.take(LOOKED_AT)).await {
            return self.step(StepKind::FreesSpace, query, verb).await;
        }
        Ok(seen)
    }

    /// How much the namespace holds: for leak checks in tests.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn census(&self) -> Result<Census, Error> {
        let (namespace, clock) = (self.scope.namespace, &*self.scope.clock);
        let step = |ledger: &mut Ledger<SlotRows<'_, '_>>, now| ledger.census(now);
        let done = self.sessions.store().step(namespace, clock, StepKind::FreesSpace, WAIT, step);
        done.map(|(census, _)| census)
    }
}
