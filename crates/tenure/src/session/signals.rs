//! Signals pushed by the engine: grants, forced ends, and hints to ask the store again.
//!
//! A signal may arrive at any time: before the reply to the claim that it belongs to, while a
//! renewal of that claim is in flight, or after the claim has left the table. So each is handled by
//! the phase of its entry:
//!
//! - `Sent`: a grant or an end is kept until the reply to the claim names its arrival; a hint makes
//!   the session ask once more after the reply.
//! - `Waiting`: a grant counts if its arrival is that of the latest reply, an end ends the wait, a
//!   hint makes the session ask now or after the given time.
//! - `Granted`, `Held`: an end is a loss; a grant is known already; a hint matters only while a
//!   renewal is in flight, whose reply may be older than the hint.
//! - `Ended`, or no entry: ignored.
//!
//! A lost signal costs nothing but time: the next renewal returns the same news (promise 8).

use super::Core;
use super::effects::Effects;
use super::entry::{EarlyEnd, EndReason, Phase};
use super::table::Table;
use crate::contract::{ClaimId, Grant, Loss, Signal, SignalListener};
use crate::time::Tick;

impl SignalListener for Core {
    fn on_signal(&self, signal: Signal) {
        match &signal {
            Signal::Jobs { queue } => return self.job_alarms.ring(Some(queue)),
            // A worker may have died, and its jobs may be there for others.
            Signal::Resync => self.job_alarms.ring(None),
            _ => {}
        }
        let now = self.clock.now();
        let mut effects = Effects::default();
        let mut table = self.lock();
        match signal {
            Signal::Granted { claim, grant } => {
                self.on_granted(&mut table, claim, grant, &mut effects);
            }
            Signal::Ended { claim, loss } => revoke(&mut table, claim, loss, now, &mut effects),
            Signal::AllEnded { loss } => {
                for id in table.ids() {
                    revoke(&mut table, id, loss.clone(), now, &mut effects);
                    table.update(id, |entry| {
                        if matches!(entry.phase, Phase::Sent) {
                            entry.extras_mut().early_end = Some(EarlyEnd::All);
                        }
                    });
                }
            }
            Signal::Again { claim, after } => {
                table.update(claim, |entry| {
                    entry.missed |= entry.renewing || matches!(entry.phase, Phase::Sent);
                    if matches!(entry.phase, Phase::Waiting { .. }) {
                        entry.ask_at = entry.ask_at.min(now + after);
                    }
                });
            }
            Signal::Jobs { .. } => {}
            Signal::Resync => {
                for id in table.ids() {
                    table.update(id, |entry| {
                        entry.missed = entry.renewing || matches!(entry.phase, Phase::Sent);
                        if matches!(entry.phase, Phase::Waiting { .. }) {
                            entry.renew_at = now;
                        }
                    });
                }
            }
        }
        drop(table);
        self.apply(effects);
    }
}

/// Ends a claim because the store said so: a grant is lost, a wait is over.
pub(super) fn revoke(
    table: &mut Table,
    claim: ClaimId,
    loss: Loss,
    now: Tick,
    effects: &mut Effects,
) {
    match table.get(claim).map(|entry| &entry.phase) {
        Some(Phase::Held { .. } | Phase::Granted { .. }) => table.lose(claim, loss, now, effects),
        Some(Phase::Waiting { .. }) => {
            table.end_wait(claim, EndReason::Revoked(loss), now, effects);
        }
        // The push overtook the claim's reply: keep it until the reply comes.
        Some(Phase::Sent) => {
            table.update(claim, |entry| entry.extras_mut().early_end = Some(EarlyEnd::This(loss)));
        }
        Some(Phase::Ended(_)) | None => {}
    }
}

impl Core {
    /// Turns a pushed grant into the hold of the waiting claim that it names.
    fn on_granted(&self, table: &mut Table, claim: ClaimId, grant: Grant, effects: &mut Effects) {
        let now = self.clock.now();
        let granted = table.update(claim, |entry| match entry.phase {
            // The push overtook the claim's reply: keep it until the reply names the arrival.
            Phase::Sent => {
                entry.early = Some(Box::new(grant));
                false
            }
            // A push for an earlier arrival of the claim must not become a grant (promise 5).
            Phase::Waiting { .. } if entry.arrival == Some(grant.arrival) => {
                self.record_grant(entry, grant, now, effects);
                true
            }
            _ => false,
        });
        if granted == Some(true) {
            table.retire_replaced(claim, effects);
        }
    }
}
