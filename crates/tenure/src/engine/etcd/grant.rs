//! Grants waiting claims: the check of a claim's turn, and the transaction that writes its hold.
//!
//! [`Inner::check_turn`] runs when a key changed that the waiter watches, when a watch was created,
//! after a reconnect and at every renewal. It has two ways:
//!
//! - **Fast** (`grant_fast`), for plain waiters: one transaction without a read. It succeeds if the
//!   slot has no hold, no lock delay and no ticket with precedence, no plain ticket is older, and
//!   the claim's own ticket is the one it was queued with. Otherwise the same call reads what is
//!   needed for the other way.
//! - **By the ledger** (`try_grant`): the ledger serves the slot on a snapshot; if it admits this
//!   claim, the difference is written. If a comparison fails, the check goes on with the keys that
//!   the failed call returned.
//!
//! # Why a grant is safe
//!
//! - Both ways compare, at the revision of the write, everything that could refuse the grant: that
//!   no hold, lock delay or ticket with precedence was written; the claim's own ticket, which may
//!   have been withdrawn or have expired; and the absence of its tombstone. Plain tickets that are
//!   written later stand behind this one, so only older ones count: the fast way compares that
//!   there is none, and a snapshot has all that matter. Deletions only free, so they are not
//!   compared.
//! - A claim whose lease has passed by this engine's clock is not granted, although its ticket may
//!   still exist because other claims keep the shared lease alive.
//! - The keys are on leases of the current raft term before the session is notified.
//! - The ledger may admit one claim only (`SlotSnapshot::ledger(now, 1)`), so it never writes a
//!   hold for a claim of another process.
//!
//! The ticket stays beside the hold until the release: it has the arrival, and the next waiter
//! watches it. Of a set one part is reserved per transaction, until all parts hold.

use std::sync::Arc;

use super::Inner;
use super::claim::MAX_ATTEMPTS;
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

/// How long to back off after a check whose call failed.
const CHECK_BACKOFF: std::time::Duration = std::time::Duration::from_millis(100);

/// The result of a check.
enum TurnOutcome {
    /// The claim holds.
    Granted,
    /// The claim waits, and has to watch these.
    Waiting { specs: Vec<WatchSpec>, plain: bool },
    /// The claim has no ticket any more, or must not be granted.
    Gone,
}

impl Inner {
    /// Checks whether a claim's turn has come, and grants it if so. Retries until the store answers
    /// or the claim waits no more.
    pub(super) async fn check_turn(self: &Arc<Self>, id: ClaimId) {
        let Some((local, plain)) = self.waiters.begin_check(id) else { return };
        let mut quick = plain.is_some();
        loop {
            match self.try_grant(&local, plain, quick).await {
                Ok(TurnOutcome::Granted) => self.waiters.end_granted(self, id),
                Ok(TurnOutcome::Gone) => self.waiters.end(self, id),
                Ok(TurnOutcome::Waiting { specs, plain }) => self.set_watches(id, specs, plain),
                Err(VerbError::Call(CallError::LeaseGone)) => {
                    // The next renewal of the claim reports that it is gone.
                    self.leases.forget(&local.lease);
                    self.waiters.end(self, id);
                }
                Err(error) => {
                    tracing::debug!(?error, "checking the turn of a waiter failed; retrying");
                    if self.connection.is_restored() {
                        return;
                    }
                    tokio::time::sleep(CHECK_BACKOFF).await;
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

    /// Makes one check. `plain` is the arrival of a plain claim, for which only the keys before it
    /// are read; with `quick` the hold is tried without a read first.
    ///
    /// The rules decide on a copy. The transaction writes only if nothing that they have read has
    /// changed, so a stale decision fails instead of granting; then the keys are read again. The
    /// fence is the revision of that transaction, so it is known only after it succeeded.
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
                // The claim is being withdrawn.
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
                return Ok(TurnOutcome::Waiting { specs, plain });
            };
            let diff = LedgerDiff::new(&self.keys, &found, &mut before);
            let txn = diff.transaction(&mut ledger, Some(local), now.wall_micros)?;
            let all: Vec<Name> = found.slots.keys().cloned().collect();
            let otherwise = self.read_before(local, plain, &all);
            let reply = self.txn_under_terms(found.epoch, txn, otherwise).await?;
            if reply.succeeded {
                let stands = ledger.stands(claim.id, &claim.parts, now);
                if let Some(Renewed::Held(grant)) = stands {
                    let grant = settle_grant(&grant, found.epoch, reply.revision);
                    self.record_held(claim, &grant, &found, &mut ledger);
                    self.notify_granted(local, grant).await?;
                    return Ok(TurnOutcome::Granted);
                }
                tracing::trace!(%name, "reserved one more part of a set");
                found = self.read_slots(&all, &[claim.id]).await?;
            } else {
                found = self.snapshot_before(local, plain, reply, &all)?;
                self.back_off(attempt).await;
            }
        }
        Err(contended(claim.parts.first_name()).into())
    }

    /// Returns the ledger after it admitted the claim to one of its slots, and that slot. `None` if
    /// it is not the claim's turn.
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
            // The ledger would admit the owner's other tickets as well; here each checks for
            // itself.
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

    /// Sends one transaction that grants a plain claim if the slot has no hold, no lock delay, no
    /// ticket with precedence and no older ticket. Otherwise the same transaction reads the slot.
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
        let reply = self.txn_under_terms(epoch, txn, otherwise).await?;
        if !reply.succeeded {
            return Ok(Err(self.snapshot_before(local, Some(arrival), reply, &names)?));
        }
        let fence = Fence::new(epoch.fence(reply.revision));
        let grant = Grant { fences: std::iter::once(fence).collect(), arrival: Arrival(arrival) };
        self.claims
            .set_phase(claim.id, ClaimPhase::Held { by: Some(reply.revision), waited: true });
        Ok(Ok(grant))
    }

    /// Moves the ticket to leases of the current raft term, if it is on older ones.
    async fn with_current_leases(&self, local: &LocalClaim) -> Result<LocalClaim, VerbError> {
        let id = local.claim.id;
        if self.needs_move(local) {
            self.move_old(&[id], self.clock.now()).await?;
        }
        Ok(self.claims.get(id).map_or_else(|| local.clone(), |entry| entry.local))
    }

    /// Notifies the session that its claim is granted.
    async fn notify_granted(&self, local: &LocalClaim, grant: Grant) -> Result<(), VerbError> {
        let claim = local.claim.id;
        // After an election the ticket was moved, but this hold is on the old lease.
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
