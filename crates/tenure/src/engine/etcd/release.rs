//! The release verb: releases holds and withdraws claims.
//!
//! - **Fast** (`release_fast`): one transaction that deletes the keys of a hold, if the revision
//!   that wrote them is known and the claim's state is certain. A late copy of the release finds
//!   another revision, or no key, and deletes nothing of a successor.
//! - **Withdrawal** (`uncertain`: requests of the claim may still be in flight): first a
//!   transaction that writes the tombstone and reads the claim's keys, then their deletion.
//! - **By the ledger** (`release_by_ledger`), in all other cases, such as a hold that shares its
//!   fence or a withdrawn set: the ledger releases the claim on a snapshot.
//!
//! # Why a withdrawal leaves nothing behind
//!
//! Every transaction that writes keys of a claim compares that it has no tombstone. The order of
//! the two transactions of the store decides: a write before the tombstone is found by the read in
//! the tombstone's transaction; a write after it fails. In the other order, read first and then the
//! tombstone, a request that arrives in between would leave a hold that its process does not know.
//! The tombstone is deleted after the claim's lease: later nothing of the claim can be in flight
//! (`in_flight.rs`).
//!
//! The release does not grant the lock to the next waiter: that one watches the deleted key and
//! writes its own hold (`grant.rs`).

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::claim::{LEASE_ATTEMPTS, MAX_ATTEMPTS};
use super::claims::{ClaimEntry, ClaimPhase, ExpiringKey};
use super::client::{KeyValue, RequestOp, ResponseOp};
use super::connection::TxnReply;
use super::errors::{CallError, VerbError, contended};
use super::keys::{KeyKind, Tag};
use super::leases::{EtcdLease, LeaseOwner, LeaseSpec};
use super::snapshot::SlotSnapshot;
use super::transaction::{LedgerDiff, Transaction, read_ops, snapshot_of};
use crate::contract::{ClaimId, ClaimRef, Error, Name, Release, Released, Verb};
use crate::engine::common::paths;
use crate::time::Tick;

impl Inner {
    /// Releases or withdraws claims.
    pub(super) async fn release(
        self: &Arc<Self>,
        batch: &[Release],
        since: Tick,
    ) -> Result<Vec<Released>, Error> {
        if let [release] = batch {
            let result = self.release_one(release, since).await;
            return Ok(vec![result.map_err(|error| error.into_error(Verb::Release))?]);
        }
        // Concurrently: one after the other, a full batch would exceed the timeout of a call.
        let mut results = Vec::with_capacity(batch.len());
        let mut in_flight = Vec::with_capacity(batch.len());
        for (at, release) in batch.iter().enumerate() {
            // A claim that the batch names twice is released by its first occurrence.
            if batch[..at].iter().any(|earlier| earlier.claim.id == release.claim.id) {
                for one in in_flight.drain(..) {
                    results.push(one.await?);
                }
            }
            let (inner, release) = (Arc::clone(self), release.clone());
            in_flight.push(self.tasks.run(async move {
                let result = inner.release_one(&release, since).await;
                result.map_err(|error| error.into_error(Verb::Release))
            }));
        }
        for one in in_flight {
            results.push(one.await?);
        }
        Ok(results)
    }

    async fn release_one(
        self: &Arc<Self>,
        release: &Release,
        since: Tick,
    ) -> Result<Released, VerbError> {
        let claim = &release.claim;
        let unsent = release.uncertain && self.in_flight.withdraw(claim.id);
        let entry = self.claims.get(claim.id);
        if unsent && entry.is_none() {
            return Ok(Released::Gone);
        }
        self.waiters.end(self, claim.id);
        let fast = match entry.as_ref().map(|entry| entry.phase) {
            Some(ClaimPhase::Held { by: Some(by), waited }) if !release.uncertain => {
                Some((by, waited))
            }
            _ => None,
        };
        let mut released = None;
        if let (Some((by, waited)), Some(entry)) = (fast, &entry) {
            released = self.release_fast(claim, entry, by, waited).await?;
        }
        let released = if let Some(released) = released {
            released
        } else {
            let (inner, release, entry) = (Arc::clone(self), release.clone(), entry.clone());
            let judged = async move {
                if let Some(entry) = entry.as_ref().filter(|_| release.uncertain)
                    && let Some(released) = inner.withdraw_single(entry, since).await?
                {
                    return Ok(released);
                }
                inner.release_by_ledger(&release, since).await
            };
            self.tasks.run_on_engine(Box::pin(judged)).await??
        };
        if release.uncertain {
            // The reply to its request may have come since, and begun a wait.
            self.waiters.end(self, claim.id);
        }
        self.claims.remove(claim.id);
        if let Some(entry) = entry.filter(|entry| entry.local.claim.session.is_none())
            && !release.uncertain
        {
            // The lease is used by this claim alone.
            let inner = Arc::clone(self);
            self.tasks.spawn(async move {
                inner.leases.revoke(&entry.local.lease).await;
                if let Some(delay) = &entry.local.delay {
                    inner.leases.revoke(delay).await;
                }
            });
        }
        Ok(released)
    }

    /// Deletes the keys of a claim in one transaction, if its holds were last written by the
    /// revision `by`. `None` if they were not.
    async fn release_fast(
        &self,
        claim: &ClaimRef,
        entry: &ClaimEntry,
        by: u64,
        waited: bool,
    ) -> Result<Option<Released>, VerbError> {
        let (tag, mut txn) = (entry.local.tag, Transaction::default());
        for name in claim.parts.names() {
            let hold = self.keys.claim(name, KeyKind::Hold, tag);
            txn.if_unwritten(hold.clone(), by);
            txn.delete(hold);
            if waited {
                txn.delete(self.keys.claim(name, KeyKind::Wait, tag));
                txn.delete(self.keys.claim(name, KeyKind::Kin, tag));
                txn.delete(self.keys.mark(name, tag));
            }
            if entry.local.delay.is_some() {
                txn.delete(self.keys.claim(name, KeyKind::Delay, tag));
            }
        }
        let reply = self.connection.txn(txn.compares, txn.writes, Vec::new()).await?;
        paths::take(match (reply.succeeded, waited) {
            (false, _) => "etcd release: in one transaction, refused",
            (true, false) => "etcd release: of a hold that was created",
            (true, true) => "etcd release: of a hold that had waited",
        });
        Ok(reply.succeeded.then_some(Released::Done))
    }

    async fn release_by_ledger(
        self: &Arc<Self>,
        release: &Release,
        since: Tick,
    ) -> Result<Released, VerbError> {
        let claim = &release.claim;
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let mut found = if release.uncertain {
            let all = read_ops(&self.keys, &names, &[]);
            let reply = self.write_tombstone(all, claim.id, claim.lease, since).await?;
            snapshot_of(&self.keys, self.epoch(), reply, &names, &[])?
        } else {
            self.read_slots(&names, &[]).await?
        };
        for attempt in 0..MAX_ATTEMPTS {
            let now = self.now();
            let mut ledger = found.ledger(now, 0);
            let diff = LedgerDiff::new(&self.keys, &found, &mut ledger);
            paths::take("etcd release: by the ledger");
            let released = ledger.release(std::slice::from_ref(release), now).pop();
            let txn = diff.transaction(&mut ledger, None, now.wall_micros)?;
            let released = released.unwrap_or(Released::Gone);
            if txn.is_empty() {
                return Ok(released);
            }
            let reply = self.commit_end(txn, &read_ops(&self.keys, &names, &[])).await?;
            if reply.succeeded {
                return Ok(released);
            }
            found = snapshot_of(&self.keys, self.epoch(), reply, &names, &[])?;
            self.back_off(attempt).await;
        }
        Err(contended(claim.parts.first_name()).into())
    }

    /// Sends a transaction that ends claims; in two parts if a large set exceeds etcd's limit.
    pub(super) async fn commit_end(
        &self,
        mut txn: Transaction,
        otherwise: &[RequestOp],
    ) -> Result<TxnReply, CallError> {
        if let Some(first) = txn.split_excess(&self.keys) {
            let reply =
                self.connection.txn(first.compares, first.writes, otherwise.to_vec()).await?;
            if !reply.succeeded {
                return Ok(reply);
            }
        }
        self.connection.txn(txn.compares, txn.writes, otherwise.to_vec()).await
    }

    /// Withdraws a claim on one name by reading its own keys only, so that the cost does not depend
    /// on the length of the queue. `None` if the ledger has to decide.
    async fn withdraw_single(
        self: &Arc<Self>,
        entry: &ClaimEntry,
        since: Tick,
    ) -> Result<Option<Released>, VerbError> {
        let claim = &entry.local.claim;
        let [part] = claim.parts.as_slice() else { return Ok(None) };
        if claim.replaces.is_some() || !claim.lineage.ancestors().is_empty() {
            return Ok(None);
        }
        let name = part.name();
        let mut tags: Vec<Tag> = vec![Tag::FIRST];
        tags.extend(entry.tags().filter(|tag| *tag != Tag::FIRST));
        let mut keys = Vec::new();
        for tag in tags.iter().copied() {
            keys.extend(KeyKind::ALL.map(|kind| RequestOp::get(self.keys.claim(name, kind, tag))));
        }
        let reply = self.write_tombstone(keys, claim.id, claim.lease, since).await?;
        // A tag is recorded before a request with it is sent. So every request that arrived before
        // the tombstone has a tag that is known by now, though perhaps not when the keys were
        // listed.
        let noted = self.claims.get(claim.id);
        if noted.is_some_and(|noted| noted.tags().any(|tag| !tags.contains(&tag))) {
            return Ok(None);
        }
        let kvs: Vec<KeyValue> = reply.replies.into_iter().flat_map(ResponseOp::into_kvs).collect();
        let mut found = SlotSnapshot::new(reply.revision, self.epoch());
        found.add(&self.keys, name, &kvs)?;
        let mut own_keys = found.slots.remove(name).unwrap_or_default();
        own_keys.retain(|seen| seen.id == claim.id);
        if !own_keys.iter().any(|seen| seen.kind == KeyKind::Hold) {
            // The lock delay of a hold that has expired stays.
            own_keys.retain(|seen| seen.kind != KeyKind::Delay);
        }
        if own_keys.is_empty() {
            return Ok(Some(Released::Gone));
        }
        if own_keys.iter().any(|seen| seen.record.group.is_some()) {
            return Ok(None);
        }
        let mut txn = Transaction::default();
        for seen in &own_keys {
            txn.if_unwritten(seen.key.clone(), seen.written);
            txn.delete_found(&self.keys, name, seen);
        }
        let reply = self.connection.txn(txn.compares, txn.writes, Vec::new()).await?;
        paths::take("etcd release: of the keys of one claim");
        Ok(reply.succeeded.then_some(Released::Done))
    }

    /// Writes the tombstone of a claim, and makes the given reads in the same transaction. From
    /// then on no write of the claim succeeds, so the reply has everything that is left of it.
    pub(super) async fn write_tombstone(
        &self,
        reads: Vec<RequestOp>,
        id: ClaimId,
        lease: Duration,
        since: Tick,
    ) -> Result<TxnReply, VerbError> {
        let mut attempts = 0;
        let mut reply = loop {
            let mut txn = Transaction::default();
            let on = self.put_tombstone(&mut txn, id, lease, b"", since).await?;
            txn.writes.extend(reads.iter().cloned());
            match self.connection.txn(Vec::new(), txn.writes, Vec::new()).await {
                Err(CallError::LeaseGone) if attempts < LEASE_ATTEMPTS => {
                    self.leases.forget(&on);
                    attempts += 1;
                }
                reply => break reply?,
            }
        };
        // The first reply is that of the write.
        reply.replies.remove(0);
        Ok(reply)
    }

    /// Adds the write of a tombstone, which is deleted after `lease`. Returns the etcd lease it is
    /// attached to.
    pub(super) async fn put_tombstone(
        &self,
        txn: &mut Transaction,
        id: ClaimId,
        lease: Duration,
        reason: &[u8],
        since: Tick,
    ) -> Result<Arc<EtcdLease>, VerbError> {
        let spec = LeaseSpec { owner: LeaseOwner::Engine, length: lease, extra: Duration::ZERO };
        let on = self.leases.ensure(spec, since).await?;
        let key = self.keys.tombstone(id);
        txn.put(key.clone(), reason.to_vec(), on.id);
        self.claims.delete_at(since + lease, ExpiringKey::Unique(key));
        Ok(on)
    }
}
