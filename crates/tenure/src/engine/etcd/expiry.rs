//! Removes claims, tombstones, eviction notices and lock delays when their own time has passed.
//!
//! The etcd lease that they are attached to is shared, and lives as long as any claim on it is
//! renewed. `claims.rs` says when something is due; this file deletes it.
//!
//! A claim is removed as an expiry would: its name stays in the group of holds that share its
//! fence, so that the group counts as spent, and its lock delays stay until they have passed. If a
//! verdict of the claim was never received, a request may still be in flight, which would write
//! keys on a lease that other claims keep alive: then a tombstone is written first, as in a
//! withdrawal.
//!
//! Deletions compare that the keys are as they were read, because their tags are used again by
//! other claims; a ticket is deleted only if its claim has no hold, because the transaction that
//! grants it does not write the ticket. A call that fails is repeated after [`RETRY_AFTER`].

use std::sync::Arc;

use super::Inner;
use super::claim::MAX_ATTEMPTS;
use super::claims::{ClaimEntry, ClaimPhase, Expired, ExpiringKey, RETRY_AFTER};
use super::errors::{VerbError, contended};
use super::keys::KeyKind;
use super::renew::KEYS_PER_READ;
use super::snapshot::SlotSnapshot;
use super::transaction::{Transaction, read_ops, snapshot_of};
use crate::contract::{ClaimId, Name, Parts};

impl Inner {
    /// Removes a claim from all its slots. Returns its lock delays, which are left and have to be
    /// deleted when they have passed.
    pub(super) async fn remove_claim(
        &self,
        parts: &Parts,
        id: ClaimId,
    ) -> Result<Vec<ExpiringKey>, VerbError> {
        let names: Vec<Name> = parts.names().cloned().collect();
        let found = self.read_slots(&names, &[]).await?;
        self.remove_found(found, &names, id).await
    }

    /// Removes a claim like [`remove_claim`](Self::remove_claim), from a snapshot of its slots.
    async fn remove_found(
        &self,
        mut found: SlotSnapshot,
        names: &[Name],
        id: ClaimId,
    ) -> Result<Vec<ExpiringKey>, VerbError> {
        for attempt in 0..MAX_ATTEMPTS {
            let (mut txn, mut delays) = (Transaction::default(), Vec::new());
            for (name, all) in &found.slots {
                for seen in all.iter().filter(|seen| seen.id == id) {
                    if seen.kind == KeyKind::Delay {
                        delays.push(ExpiringKey::LockDelay(seen.key.clone(), seen.written));
                        continue;
                    }
                    // By the time this arrives, another claim may use the same keys.
                    txn.if_unwritten(seen.key.clone(), seen.written);
                    txn.delete_found(&self.keys, name, seen);
                    if found.key_of(name, KeyKind::Hold, id).is_none() {
                        // The transaction that grants it may arrive first, and does not write the
                        // ticket.
                        txn.if_absent(self.keys.claim(name, KeyKind::Hold, seen.tag));
                    }
                }
            }
            if txn.is_empty() {
                return Ok(delays);
            }
            let otherwise = read_ops(&self.keys, names, &[]);
            let reply = self.commit_end(txn, &otherwise).await?;
            if reply.succeeded {
                return Ok(delays);
            }
            found = snapshot_of(&self.keys, self.epoch(), reply, names, &[])?;
            self.back_off(attempt).await;
        }
        Err(contended(&names[0]).into())
    }

    /// Removes everything that is due.
    pub(super) async fn expire_due(self: &Arc<Self>, due: Expired) {
        let (delays, unique): (Vec<_>, Vec<_>) =
            due.keys.into_iter().partition(|key| matches!(key, ExpiringKey::LockDelay(..)));
        // Each lock delay by itself: a comparison that fails must not keep the others.
        for keys in delays.chunks(1).chain(unique.chunks(KEYS_PER_READ)) {
            self.delete_due(keys).await;
        }
        for entry in due.claims {
            let claim = &entry.local.claim;
            self.waiters.end(self, claim.id);
            match self.expire_entry(&entry).await {
                Ok(delays) => {
                    // They are on a lease that other claims of the session keep alive.
                    let at = entry.expires() + claim.lock_delay;
                    for delay in delays {
                        self.claims.delete_at(at, delay);
                    }
                    self.claims.remove(claim.id);
                }
                Err(_) => self.claims.retry_expiry(claim.id, self.clock.now()),
            }
        }
    }

    /// Deletes keys in one transaction, and schedules another attempt if the call fails.
    async fn delete_due(&self, keys: &[ExpiringKey]) {
        let mut txn = Transaction::default();
        for key in keys {
            match key {
                ExpiringKey::Unique(key) => txn.delete(key.clone()),
                ExpiringKey::LockDelay(key, written) => {
                    txn.if_unwritten(key.clone(), *written);
                    txn.delete(key.clone());
                }
            }
        }
        if self.connection.txn(txn.compares, txn.writes, Vec::new()).await.is_err() {
            let at = self.clock.now() + RETRY_AFTER;
            for key in keys {
                self.claims.delete_at(at, key.clone());
            }
        }
    }

    /// Removes a claim that has expired. Without a tombstone only if it is known to wait or hold:
    /// in phase `Sent` a request may be in flight, and after a failed attempt the phase is `Ended`.
    async fn expire_entry(&self, entry: &ClaimEntry) -> Result<Vec<ExpiringKey>, VerbError> {
        let (claim, since) = (&entry.local.claim, self.clock.now());
        if matches!(entry.phase, ClaimPhase::Waiting | ClaimPhase::Held { .. }) {
            return self.remove_claim(&claim.parts, claim.id).await;
        }
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let all = read_ops(&self.keys, &names, &[]);
        let reply = self.write_tombstone(all, claim.id, claim.lease, since).await?;
        let found = snapshot_of(&self.keys, self.epoch(), reply, &names, &[])?;
        self.remove_found(found, &names, claim.id).await
    }
}
