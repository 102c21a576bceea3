//! Upgrades: a reader that becomes the writer waits for the other readers of its lock.
//!
//! So an upgrade is one more request of its flow, and what else the flow holds is held meanwhile:
//! two flows that each read A, then lock B, then upgrade A can wait for each other for ever. Left
//! out is what the flow holds of that name alone: the store refuses two upgrades of one lock.

use std::sync::Arc;

use super::checker::{OrderChecker, OrderRequest};
use super::holds::{FlowKey, HoldMark, held_by};
use crate::contract::{Error, Part};
use crate::time::Clock;

impl HoldMark {
    /// The checker that keeps the mark, the level that the lock named, and whether the guard is
    /// still in its flow.
    pub(crate) fn checker(&self) -> Option<(OrderChecker, Option<Arc<str>>, bool)> {
        let (held, in_flow) = self.held()?;
        Some((OrderChecker::by_id(held.checker)?, held.level, in_flow))
    }
}

impl OrderChecker {
    /// Checks an upgrade before it is waited for. Returns whether there is something to share.
    pub(crate) fn check_upgrade(
        &self,
        request: &OrderRequest<'_>,
        task: Option<FlowKey>,
        clock: &dyn Clock,
    ) -> Result<bool, Error> {
        let name = request.parts.first_name();
        let lineage = request.scoped.then_some(request.lineage);
        let mut held = held_by(lineage, task, Some(self.id()));
        let writes = |part: &Part| part.name() == name && !part.is_shared();
        if held.iter().any(|one| one.claim.parts.as_slice().iter().any(writes)) {
            // The flow has the writer already, and waits for nothing.
            return Ok(false);
        }
        held.retain(|one| !one.claim.parts.names().all(|other| other == name));
        if held.is_empty() {
            return Ok(false);
        }
        self.check_against(request, &held, clock)
    }
}
