//! Raises the floor of a namespace's fences. The step writes the reserve of fences to the disk
//! before it returns, so it runs on the worker thread for the disk.

use std::sync::Arc;

use super::EmbeddedEngine;
use super::slots::SlotRows;
use super::store::{StepKind, WAIT};
use crate::contract::{Fence, FenceFloor, Pending, Raised, Verb};
use crate::ledger::Ledger;

impl FenceFloor for EmbeddedEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        let (sessions, scope) = (Arc::clone(&self.sessions), self.scope.clone());
        let raised = self.sessions.disk_worker().run(move || {
            let step = |ledger: &mut Ledger<SlotRows<'_, '_>>, _| ledger.raise_fences(to);
            let (namespace, clock) = (scope.namespace, &*scope.clock);
            let done = sessions.store().step(namespace, clock, StepKind::MayGrow, WAIT, step);
            done.map(|(raised, _)| raised)
        });
        Box::pin(async move { raised.await.map_err(|error| error.during(Verb::RaiseFences)) })
    }
}
