//! The verbs that end claims: release, forced release, and the end of those that nobody renews.
//! Knows tombstones and letters.

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
use crate::time::Tick;

impl Inner {
    /// Gives claims back or withdraws them.
    pub(super) async fn release(
        self: &Arc<Self>,
        batch: &[Release],
        since: Tick,
    ) -> Result<Vec<Released>, Error> {
        if let [release] = batch {
            let answer = self.release_one(release, since).await;
            return Ok(vec![answer.map_err(|error| error.into_error(Verb::Release))?]);
        }
        // Beside each other: one after the other a full batch would take longer than a call may.
        let mut answers = Vec::with_capacity(batch.len());
        let mut in_flight = Vec::with_capacity(batch.len());
        for (at, release) in batch.iter().enumerate() {
            // A claim that the batch names twice is released by the first of the two.
            if batch[..at].iter().any(|earlier| earlier.claim.id == release.claim.id) {
                for one in in_flight.drain(..) {
                    answers.push(one.await?);
                }
            }
            let (inner, release) = (Arc::clone(self), release.clone());
            in_flight.push(self.tasks.run(async move {
                let answer = inner.release_one(&release, since).await;
                answer.map_err(|error| error.into_error(Verb::Release))
            }));
        }
        for one in in_flight {
            answers.push(one.await?);
        }
        Ok(answers)
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
        let quick = match entry.as_ref().map(|entry| entry.phase) {
            Some(ClaimPhase::Held { by: Some(by), waited }) if !release.uncertain => {
                Some((by, waited))
            }
            _ => None,
        };
        let mut released = None;
        if let (Some((by, waited)), Some(entry)) = (quick, &entry) {
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
            // The answer to its request may have come since, and begun a wait.
            self.waiters.end(self, claim.id);
        }
        self.claims.remove(claim.id);
        if let Some(entry) = entry.filter(|entry| entry.local.claim.session.is_none())
            && !release.uncertain
        {
            // The lease was there for this claim alone.
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

    /// One call: if nobody has touched the holds since this revision made them, they are deleted.
    /// A release that comes late meets another revision, or nothing.
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
            }
            if entry.local.delay.is_some() {
                txn.delete(self.keys.claim(name, KeyKind::Delay, tag));
            }
        }
        let answer = self.connection.txn(txn.compares, txn.writes, Vec::new()).await?;
        Ok(answer.succeeded.then_some(Released::Done))
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
            let answer = self.write_tombstone(all, claim.id, claim.lease, since).await?;
            snapshot_of(&self.keys, self.epoch(), answer, &names, &[])?
        } else {
            self.read_slots(&names, &[]).await?
        };
        for attempt in 0..MAX_ATTEMPTS {
            let now = self.now();
            let mut ledger = found.ledger(now, 0);
            let diff = LedgerDiff::new(&self.keys, &found, &mut ledger);
            let released = ledger.release(std::slice::from_ref(release), now).pop();
            let txn = diff.transaction(&mut ledger, None, now.wall_micros)?;
            let released = released.unwrap_or(Released::Gone);
            if txn.is_empty() {
                return Ok(released);
            }
            let answer = self.commit_end(txn, &read_ops(&self.keys, &names, &[])).await?;
            if answer.succeeded {
                return Ok(released);
            }
            found = snapshot_of(&self.keys, self.epoch(), answer, &names, &[])?;
            self.back_off(attempt).await;
        }
        Err(contended(claim.parts.first_name()).into())
    }

    /// Makes a change that ends claims: in one transaction, or in two if it is that of a large set.
    pub(super) async fn commit_end(
        &self,
        mut txn: Transaction,
        otherwise: &[RequestOp],
    ) -> Result<TxnReply, CallError> {
        if let Some(first) = txn.split_excess(&self.keys) {
            let answer =
                self.connection.txn(first.compares, first.writes, otherwise.to_vec()).await?;
            if !answer.succeeded {
                return Ok(answer);
            }
        }
        self.connection.txn(txn.compares, txn.writes, otherwise.to_vec()).await
    }

    /// Withdraws a claim on one name whose keys are known, without reading those of others: how
    /// long the queue is does not matter. None if there is more to it.
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
        let answer = self.write_tombstone(keys, claim.id, claim.lease, since).await?;
        // The tag is noted before a request is sent. What has arrived before the tombstone was sent
        // before its answer came, perhaps with a tag that was not known above.
        let noted = self.claims.get(claim.id);
        if noted.is_some_and(|noted| noted.tags().any(|tag| !tags.contains(&tag))) {
            return Ok(None);
        }
        let kvs: Vec<KeyValue> =
            answer.replies.into_iter().flat_map(ResponseOp::into_kvs).collect();
        let mut found = SlotSnapshot::new(answer.revision, self.epoch());
        found.add(&self.keys, name, &kvs)?;
        let mut local = found.slots.remove(name).unwrap_or_default();
        local.retain(|seen| seen.id == claim.id);
        if !local.iter().any(|seen| seen.kind == KeyKind::Hold) {
            // The lock delay of a hold that has expired stands.
            local.retain(|seen| seen.kind != KeyKind::Delay);
        }
        if local.is_empty() {
            return Ok(Some(Released::Gone));
        }
        if local.iter().any(|seen| seen.record.group.is_some()) {
            return Ok(None);
        }
        let mut txn = Transaction::default();
        for seen in &local {
            txn.if_unwritten(seen.key.clone(), seen.written);
            txn.delete(seen.key.clone());
        }
        let answer = self.connection.txn(txn.compares, txn.writes, Vec::new()).await?;
        Ok(answer.succeeded.then_some(Released::Done))
    }

    /// Writes the tombstone of a claim, and reads what stands of it in the same transaction.
    ///
    /// A request of the claim may still be under way. Every write of a claim compares that it has
    /// no tombstone, so from here on none of them can succeed: all that stands of the claim is in
    /// the answer. In the other order, a look and then the tombstone, a request that arrives in
    /// between would leave a hold that its own process does not know of.
    pub(super) async fn write_tombstone(
        &self,
        reads: Vec<RequestOp>,
        id: ClaimId,
        lease: Duration,
        since: Tick,
    ) -> Result<TxnReply, VerbError> {
        let mut attempts = 0;
        let mut answer = loop {
            let mut txn = Transaction::default();
            let on = self.put_tombstone(&mut txn, id, lease, b"", since).await?;
            txn.writes.extend(reads.iter().cloned());
            match self.connection.txn(Vec::new(), txn.writes, Vec::new()).await {
                Err(CallError::LeaseGone) if attempts < LEASE_ATTEMPTS => {
                    self.leases.forget(&on);
                    attempts += 1;
                }
                answer => break answer?,
            }
        };
        // The reply to the write comes first.
        answer.replies.remove(0);
        Ok(answer)
    }

    /// Adds a tombstone, which stands for a lease. Returns the lease that it hangs on.
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
