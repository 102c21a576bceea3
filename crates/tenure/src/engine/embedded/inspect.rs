//! The inspect verb. Sessions that turn out to be dead are ended first, so that they are not shown
//! as holders.

use super::EmbeddedEngine;
use super::slots::SlotRows;
use super::store::{StepKind, WAIT};
use crate::contract::{Error, Query, Snapshot, Verb};
use crate::ledger::{Census, Ledger};

/// How many sessions of a snapshot are checked for being alive.
const MAX_CHECKED: usize = 64;

impl EmbeddedEngine {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        self.inspect_past_dead(query).await.map_err(|error| error.during(Verb::Inspect))
    }

    async fn inspect_past_dead(&self, query: &Query) -> Result<Snapshot, Error> {
        let verb =
            |query: &Query, ledger: &mut Ledger<SlotRows<'_, '_>>, now| ledger.inspect(query, now);
        let seen = self.step(StepKind::FreesSpace, query, verb).await?;
        let sessions = seen.sessions().into_iter().filter_map(|view| view.session);
        if self.end_dead(sessions.take(MAX_CHECKED)).await {
            return self.step(StepKind::FreesSpace, query, verb).await;
        }
        Ok(seen)
    }

    /// Counts what the namespace holds: for leak checks in tests.
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
