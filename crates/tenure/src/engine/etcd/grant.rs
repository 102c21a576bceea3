//! Grants.

use std::sync::Arc;

use super::Inner;
use super::claims::ClaimPhase;
use super::client::{Compare, CompareResult};
use super::errors::{CallError, VerbError, contended};
use super::fences::settle_grant;
use super::keys::KeyKind;
use super::record::{ClaimRecord, FenceSource};
use super::snapshot::{SlotSnapshot, SnapshotLedger};
use super::transaction::{LedgerDiff, LocalClaim, Transaction, as_i64};
use super::watches::WatchSpec;
use crate::contract::{Arrival, ClaimId, Fence, Grant, Name, Renewed, Signal};
use crate::ledger::Now;
use crate::ledger::seam::{Line, Shelf};

/// How long to wait before a turn is tried again that got no answer.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_millis(100);

/// Most tries of one turn.
const MAX_ATTEMPTS: usize = 64;

/// Whether a wait goes on.
enum TurnOutcome {
    /// It holds.
    Granted,
    /// It waits, and these decide.
    Waiters { specs: Vec<WatchSpec>, plain: bool },
    /// It is not in line any more.
    Gone,
}

impl Inner {
    /// Looks whether a claim's turn has come, and makes it hold if so.
    pub(super) async fn check_turn(self: &Arc<Self>, id: ClaimId) {
        let Some((local, plain)) = self.waiters.begin_check(id) else { return };
        let mut quick = plain.is_some();
        loop {
            match self.try_grant(&local, plain, quick).await {
                Ok(TurnOutcome::Granted) => self.waiters.end_granted(self, id),
                Ok(TurnOutcome::Gone) => self.waiters.end(self, id),
                Ok(TurnOutcome::Waiters { specs, plain }) => self.set_watches(id, specs, plain),
                Err(VerbError::Call(CallError::LeaseGone)) => {
                    // Whoever renews it is told.
                    self.leases.forget(&local.lease);
                    self.waiters.end(self, id);
                }
                Err(error) => {
                    tracing::debug!(?error, "a turn in line could not be looked at; trying again");
                    if self.connection.is_restored() {
                        return;
                    }
                    tokio::time::sleep(RETRY_AFTER).await;
                    if self.waiters.contains(id) {
                        continue;
                    }
                }
            }
            if !self.waiters.end_check(id) {
                return;
            }
            quick = false;
        }
    }

    /// Looks at a turn. If nothing but who is before it decides, the arrival is given as `plain`;
    /// then only what stands before it is read, and it may be tried without a look.
    async fn try_grant(
        self: &Arc<Self>,
        local: &LocalClaim,
        plain: Option<u64>,
        quick: bool,
    ) -> Result<TurnOutcome, VerbError> {
        let claim = &local.claim;
        if self.claims.is_expired(claim.id, self.clock.now()) {
            return Ok(TurnOutcome::Gone);
        }
        let moved = self.with_current_leases(local).await?;
        let local = &moved;
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let mut found = if let Some(arrival) = plain.filter(|_| quick) {
            match self.grant_fast(local, arrival, &names[0]).await? {
                Ok(grant) => {
                    self.notify_granted(local, grant).await?;
                    return Ok(TurnOutcome::Granted);
                }
                Err(found) => found,
            }
        } else {
            let read = self.connection.read(self.read_before(local, plain, &names)).await?;
            self.snapshot_before(local, plain, read, &names)?
        };
        for attempt in 0..MAX_ATTEMPTS {
            found = match claim.replaces {
                Some(old) => self.with_all_slots_of(found, &[old], claim.id).await?,
                None => found,
            };
            if found.tombstones.contains_key(&claim.id) {
                // It is being withdrawn.
                return Ok(TurnOutcome::Gone);
            }
            let now = self.now();
            let mut before = found.ledger(now, 0);
            match before.stands(claim.id, &claim.parts, now) {
                None => return Ok(TurnOutcome::Gone),
                Some(Renewed::Held(grant)) => {
                    self.record_held(claim, &grant, &found, &mut before);
                    return Ok(TurnOutcome::Granted);
                }
                Some(_) => {}
            }
            let Some((name, mut ledger)) = Self::ledger_if_served(local, &found, now) else {
                let (specs, plain) = self.watches_for(local, &found, &mut before);
                return Ok(TurnOutcome::Waiters { specs, plain });
            };
            let diff = LedgerDiff::new(&self.keys, &found, &mut before);
            let txn = diff.transaction(&mut ledger, Some(local), now.wall_micros)?;
            let all: Vec<Name> = found.slots.keys().cloned().collect();
            let otherwise = self.read_before(local, plain, &all);
            let answer = self.txn_under_terms(found.epoch, txn, otherwise).await?;
            if answer.succeeded {
                let stands = ledger.stands(claim.id, &claim.parts, now);
                if let Some(Renewed::Held(grant)) = stands {
                    let grant = settle_grant(&grant, found.epoch, answer.revision);
                    self.record_held(claim, &grant, &found, &mut ledger);
                    self.notify_granted(local, grant).await?;
                    return Ok(TurnOutcome::Granted);
                }
                tracing::trace!(%name, "one more part of a set is reserved");
                found = self.read_slots(&all, &[claim.id]).await?;
            } else {
                found = self.snapshot_before(local, plain, answer, &all)?;
                self.back_off(attempt).await;
            }
        }
        Err(contended(claim.parts.first_name()).into())
    }

    /// The rules after the claim was served in one of its slots; none if it is not its turn.
    fn ledger_if_served(
        local: &LocalClaim,
        found: &SlotSnapshot,
        now: Now,
    ) -> Option<(Name, SnapshotLedger)> {
        local.claim.parts.names().find_map(|name| {
            let mut ledger = found.ledger(now, 1);
            let waits = |ledger: &mut SnapshotLedger| {
                ledger
                    .shelf()
                    .peek(name)
                    .is_some_and(|slot| slot.line.get(local.claim.id).is_some())
            };
            if !waits(&mut ledger) {
                return None;
            }
            // An owner's other tickets come in with it; here each of them comes by itself.
            ledger.serve_again(name, local.claim.id, now);
            if waits(&mut ledger) {
                ledger.serve(name, now);
            }
            let holds = ledger
                .shelf()
                .peek(name)
                .is_some_and(|slot| slot.holds.iter().any(|hold| hold.claim.id == local.claim.id));
            holds.then(|| (name.clone(), ledger))
        })
    }

    /// One call: if nobody holds, nobody stands ahead, nothing keeps the slot closed and no ticket
    /// is older, the claim holds. Otherwise the same call tells what stands there.
    async fn grant_fast(
        &self,
        local: &LocalClaim,
        arrival: u64,
        name: &Name,
    ) -> Result<Result<Grant, SlotSnapshot>, VerbError> {
        let (claim, wall) = (&local.claim, self.clock.wall_micros());
        let (deciding, tickets) = (self.keys.deciding(name), self.keys.kind(name, KeyKind::Wait));
        let ticket = self.keys.claim(name, KeyKind::Wait, local.tag);
        let mut txn = Transaction::default();
        txn.if_absent(self.keys.tombstone(claim.id));
        let empty = Compare::create_revision(deciding.from, CompareResult::Equal, 0);
        let oldest =
            Compare::create_revision(tickets.from, CompareResult::Greater, as_i64(arrival - 1));
        txn.compares.push(empty.with_range(deciding.to));
        txn.compares.push(oldest.with_range(tickets.to));
        txn.if_created_by(ticket, arrival);
        let epoch = self.epoch();
        let (arrived, fence) = (Some(arrival), FenceSource::Created(epoch.raised));
        let record =
            ClaimRecord { arrival: arrived, fence, ..ClaimRecord::new(claim, wall) }.encode();
        txn.put(self.keys.claim(name, KeyKind::Hold, local.tag), record.clone(), local.lease.id);
        if let Some(delay) = &local.delay {
            txn.put(self.keys.claim(name, KeyKind::Delay, local.tag), record, delay.id);
        }
        let names = [name.clone()];
        let otherwise = self.read_before(local, Some(arrival), &names);
        let answer = self.txn_under_terms(epoch, txn, otherwise).await?;
        if !answer.succeeded {
            return Ok(Err(self.snapshot_before(local, Some(arrival), answer, &names)?));
        }
        let fence = Fence::new(epoch.fence(answer.revision));
        let grant = Grant { fences: std::iter::once(fence).collect(), arrival: Arrival(arrival) };
        self.claims
            .set_phase(claim.id, ClaimPhase::Held { by: Some(answer.revision), waited: true });
        Ok(Ok(grant))
    }

    /// The claim with leases of the current raft term, to which its ticket is moved.
    async fn with_current_leases(&self, local: &LocalClaim) -> Result<LocalClaim, VerbError> {
        let id = local.claim.id;
        if self.needs_move(local) {
            self.move_old(&[id], self.clock.now()).await?;
        }
        Ok(self.claims.get(id).map_or_else(|| local.clone(), |entry| entry.local))
    }

    /// Tells the session that its claim holds.
    async fn notify_granted(&self, local: &LocalClaim, grant: Grant) -> Result<(), VerbError> {
        let claim = local.claim.id;
        // The leader may have changed before the hold was made, and the ticket have been moved.
        let entry = self.claims.get(claim);
        if entry.as_ref().is_some_and(|entry| entry.local.lease.id != local.lease.id)
            || self.needs_move(local)
        {
            self.move_keys(entry.into_iter().collect(), self.clock.now()).await?;
        }
        if let Some(session) = local.claim.session {
            self.notify(session, Signal::Granted { claim, grant });
        }
        Ok(())
    }
}
