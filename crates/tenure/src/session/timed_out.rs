//! A wait that timed out. Before the error is built, the slot is inspected, so that the error can
//! name the holders and the place in the queue.

use std::time::Duration;

use super::Core;
use super::attempt::Attempt;
use super::errors::{WaitTimeout, timed_out_error};
use super::park::{WaitOutcome, wait_for_grant, within};
use super::request::Outcome;
use crate::contract::{Error, Name, Query, SlotView, Verb};
use crate::time::Tick;

impl Core {
    /// Inspects one slot to describe its holders in a timeout error. Best effort: returns `None` if
    /// the store does not respond before `until`. `Some(None)` means that the slot is empty.
    pub(super) async fn inspect_for_error(
        &self,
        name: &Name,
        until: Tick,
    ) -> Option<Option<SlotView>> {
        let query = Query::Slot(name.clone());
        let snapshot = within(self, until, self.engine.inspect(&query)).await?.ok()?;
        Some(snapshot.slots.into_iter().find(|slot| slot.name == *name))
    }

    /// Returns until when [`inspect_for_error`](Self::inspect_for_error) may take.
    pub(super) fn inspect_deadline(&self) -> Tick {
        self.clock.now() + self.settings.call.min(Duration::from_millis(250))
    }
}

impl Attempt<'_> {
    /// Inspects the slot in whose queue the claim waits; for a set, the first such slot.
    async fn inspect_awaited(&self) -> Option<SlotView> {
        let until = self.core.inspect_deadline();
        for name in self.claim.parts.names() {
            let slot = self.core.inspect_for_error(name, until).await?;
            // Where the engine has no queue, a held slot is what is waited for.
            let waits = |slot: &SlotView| {
                let queued = slot.queue.iter().any(|one| one.claim == self.id());
                queued || !self.core.engine.promises().queue && !slot.holders.is_empty()
            };
            if slot.as_ref().is_some_and(waits) {
                return slot;
            }
        }
        None
    }

    /// Builds the error for a wait that timed out, with the holders and the place in the queue. A
    /// grant that arrives while the slot is inspected is returned all the same.
    pub(super) async fn timed_out(self, place: usize) -> Result<Outcome, Error> {
        let core = self.core;
        if self.wait.may_refuse() {
            return Ok(Outcome::No);
        }
        let slot = self.inspect_awaited().await;
        core.check_process(Verb::Claim)?;
        if let WaitOutcome::Granted(hold) = wait_for_grant(core, self.id(), Tick::ZERO).await {
            return Ok(Outcome::Held(self.into_share(hold)));
        }
        let name = slot.as_ref().map_or(self.claim.parts.first_name(), |slot| &slot.name).clone();
        // Waiters ahead may have left since the last renewal returned the place.
        let queue = slot.as_ref().map(|slot| &slot.queue);
        let at = queue.and_then(|queue| queue.iter().position(|one| one.claim == self.claim.id));
        let place = at.map_or(place, |at| at + 1);
        let trouble = core.lock().get(self.id()).and_then(|entry| entry.trouble().map(Box::from));
        Err(timed_out_error(WaitTimeout {
            wait: self.wait,
            name: &name,
            in_set: self.claim.parts.as_slice().len() > 1,
            holders: slot.map(|slot| slot.holders).unwrap_or_default(),
            place: (place > 0).then_some(place),
            own_hold: self.own_hold.as_deref(),
            trouble,
            deadlock: self.suspected.clone(),
        }))
    }
}
