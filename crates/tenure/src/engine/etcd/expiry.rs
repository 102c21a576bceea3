//! Expiry.

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
    /// Takes a claim out of all its slots as an expiry does: its group keeps its name, and its lock
    /// delays stand. Returns these, to be deleted when they have passed.
    pub(super) async fn remove_claim(
        &self,
        parts: &Parts,
        id: ClaimId,
    ) -> Result<Vec<ExpiringKey>, VerbError> {
        let names: Vec<Name> = parts.names().cloned().collect();
        let found = self.read_slots(&names, &[]).await?;
        self.remove_found(found, &names, id).await
    }

    /// Does the work of [`end_claim`](Self::end_claim) with what was found in the slots.
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
                    // Only as it was seen: its keys may be those of others by the time this
                    // arrives.
                    txn.if_unwritten(seen.key.clone(), seen.written);
                    txn.delete(seen.key.clone());
                    if found.key_of(name, KeyKind::Hold, id).is_none() {
                        // The step that makes it hold may arrive first, and writes nothing at its
                        // ticket.
                        txn.if_absent(self.keys.claim(name, KeyKind::Hold, seen.tag));
                    }
                }
            }
            if txn.is_empty() {
                return Ok(delays);
            }
            let otherwise = read_ops(&self.keys, names, &[]);
            let answer = self.connection.txn(txn.compares, txn.writes, otherwise).await?;
            if answer.succeeded {
                return Ok(delays);
            }
            found = snapshot_of(&self.keys, self.epoch(), answer, names, &[])?;
            self.back_off(attempt).await;
        }
        Err(contended(&names[0]).into())
    }

    /// Ends what nobody has renewed in time.
    pub(super) async fn expire_due(self: &Arc<Self>, due: Expired) {
        let (delays, local): (Vec<_>, Vec<_>) =
            due.keys.into_iter().partition(|key| matches!(key, ExpiringKey::LockDelay(..)));
        // Each delay by itself: one that is gone already must not keep the others.
        for keys in delays.chunks(1).chain(local.chunks(KEYS_PER_READ)) {
            self.delete_due(keys).await;
        }
        for entry in due.claims {
            let claim = &entry.local.claim;
            self.waiters.end(self, claim.id);
            match self.expire_entry(&entry).await {
                Ok(delays) => {
                    // They hang on a lease that other claims of the session keep alive.
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

    /// Deletes keys in one call; once more later if there is no answer, because the lease that they
    /// hang on may be kept alive for others.
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

    /// Ends a claim whose time is up. If it never had an answer its request may still be under way,
    /// and what it would write hangs on a lease that other claims keep alive. Whether it had one is
    /// not known any more if an earlier end failed.
    async fn expire_entry(&self, entry: &ClaimEntry) -> Result<Vec<ExpiringKey>, VerbError> {
        let (claim, since) = (&entry.local.claim, self.clock.now());
        if matches!(entry.phase, ClaimPhase::Waiting | ClaimPhase::Held { .. }) {
            return self.remove_claim(&claim.parts, claim.id).await;
        }
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let all = read_ops(&self.keys, &names, &[]);
        let answer = self.write_tombstone(all, claim.id, claim.lease, since).await?;
        let found = snapshot_of(&self.keys, self.epoch(), answer, &names, &[])?;
        self.remove_found(found, &names, claim.id).await
    }
}
