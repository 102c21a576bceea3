//! The renew verb.
//!
//! Keep-alives for the leases and reads of the keys run concurrently, in batches:
//!
//! 1. `keep_all`: one keep-alive for each lease of the batch. A lease of a lock delay comes before
//!    the lease of its claims, because it must outlive it.
//! 2. `read_holds`: the hold keys of claims that hold, many per transaction. If a claim has all its
//!    holds, alone and on the expected lease, they are the whole result.
//! 3. `move_old`: after an election the keys are moved to new leases (`lease_moves.rs`).
//! 4. `read_queues`: one read of the slot for all claims that wait for the same name. The first in
//!    the queue takes the slow way, because its turn may have come.
//! 5. `renew_one`, the slow way, for all others: checks the turn, reads the slots, and lets the
//!    ledger decide.
//!
//! A result counts only if the lease was kept alive by a call that was sent after `since`, when the
//! session made the call. A claim whose lease is gone takes the slow way, which finds its keys
//! gone, whatever step 2 read before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::claim::MAX_ATTEMPTS;
use super::claims::{ClaimEntry, ClaimPhase};
use super::client::{RequestOp, ResponseOp};
use super::errors::{CallError, VerbError, contended};
use super::fences::settle_renewed;
use super::keys::{KeyKind, Tag};
use super::leases::{EtcdLease, LeaseOwner, LeaseSpec, Leases};
use super::snapshot::{FoundKey, SlotSnapshot};
use super::transaction::{LedgerDiff, LocalClaim, read_ops, snapshot_of};
use crate::contract::{ClaimId, ClaimRef, Error, Loss, Name, Renewed, Verb};
use crate::engine::common::paths;
use crate::time::Tick;

/// How many keys are read or deleted in one transaction. etcd's default limit is 128 operations.
pub(super) const KEYS_PER_READ: usize = 100;

impl Inner {
    /// Renews claims. `since` is when the session made the call.
    pub(super) async fn renew(
        self: &Arc<Self>,
        batch: &[ClaimRef],
        since: Tick,
    ) -> Result<Vec<Renewed>, Error> {
        let entries: HashMap<ClaimId, ClaimEntry> =
            batch.iter().filter_map(|one| Some((one.id, self.claims.get(one.id)?))).collect();
        let leases = distinct(entries.values());
        let (kept, found) =
            tokio::join!(self.keep_all(&leases, since), self.read_holds(batch, &entries));
        let failed = |error: VerbError| error.into_error(Verb::Renew);
        let gone = kept.map_err(|error| failed(error.into()))?;
        let mut found = found.map_err(failed)?;
        let ids: Vec<ClaimId> = batch.iter().map(|claim| claim.id).collect();
        self.move_old(&ids, since).await.map_err(failed)?;
        found.extend(self.read_queues(batch, &entries).await.map_err(failed)?);
        let mut results = Vec::with_capacity(batch.len());
        for claim in batch {
            let entry = entries.get(&claim.id);
            let lost = entry.is_some_and(|entry| gone.contains(&entry.local.lease.id));
            let plain = found.remove(&claim.id).filter(|_| !lost);
            paths::take(match &plain {
                Some(Renewed::Held(_)) => "etcd renew: a hold alone",
                Some(_) => "etcd renew: waiters of one name",
                None => "etcd renew: by the ledger",
            });
            let result = match plain {
                Some(held) => Ok(held),
                None => self.renew_one(claim, entry, since).await,
            };
            results.push(result.map_err(failed)?);
        }
        Ok(results)
    }

    /// Keeps all these leases alive, and returns which are gone. Any other error fails the whole
    /// batch: all of them use the same connection.
    async fn keep_all(
        &self,
        leases: &[Arc<EtcdLease>],
        since: Tick,
    ) -> Result<HashSet<i64>, CallError> {
        let mut gone = HashSet::new();
        for lease in leases {
            match self.leases.keep_alive(lease, since).await {
                Ok(()) => {}
                Err(CallError::LeaseGone) => {
                    gone.insert(lease.id);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    /// Returns the results for claims that hold, as far as this engine knows, and share no fence:
    /// their hold keys are enough.
    async fn read_holds(
        &self,
        batch: &[ClaimRef],
        entries: &HashMap<ClaimId, ClaimEntry>,
    ) -> Result<HashMap<ClaimId, Renewed>, VerbError> {
        let held = |claim: &&ClaimRef| {
            let phase = entries.get(&claim.id).map(|entry| entry.phase);
            matches!(phase, Some(ClaimPhase::Held { .. }))
        };
        let tag = |claim: &ClaimRef| entries.get(&claim.id).map_or(Tag::FIRST, |one| one.local.tag);
        let key = |claim: &ClaimRef, name: &Name| self.keys.claim(name, KeyKind::Hold, tag(claim));
        let claims: Vec<&ClaimRef> = batch.iter().filter(held).collect();
        let mut wanted: Vec<RequestOp> = Vec::new();
        for claim in &claims {
            wanted.extend(claim.parts.names().map(|name| RequestOp::get(key(claim, name))));
        }
        let mut replies = Vec::with_capacity(wanted.len());
        for some in wanted.chunks(KEYS_PER_READ) {
            replies.extend(self.connection.read(some.to_vec()).await?.replies);
        }
        let mut replies = replies.into_iter().map(ResponseOp::into_kvs);
        let mut results = HashMap::new();
        for claim in claims {
            let mut snapshot = SlotSnapshot::new(0, self.epoch());
            for name in claim.parts.names() {
                let found = replies.next().unwrap_or_default();
                snapshot.add(&self.keys, name, &found)?;
            }
            // A key on another lease than the one that is kept alive has to be moved first.
            let lease = entries.get(&claim.id).map(|entry| entry.local.lease.id);
            let alone = |seen: &FoundKey| {
                seen.record.group.is_none() && !seen.record.reserved && Some(seen.lease) == lease
            };
            let now = self.now();
            if snapshot.slots.values().all(|all| all.len() == 1 && all.iter().all(alone))
                && let Some(result) = snapshot.ledger(now, 0).stands(claim.id, &claim.parts, now)
            {
                results.insert(claim.id, result);
            }
        }
        Ok(results)
    }

    /// Returns the results for claims that wait for the same name behind others: one read for all.
    async fn read_queues(
        &self,
        batch: &[ClaimRef],
        entries: &HashMap<ClaimId, ClaimEntry>,
    ) -> Result<HashMap<ClaimId, Renewed>, VerbError> {
        let mut by_name: HashMap<&Name, Vec<&ClaimRef>> = HashMap::new();
        for claim in batch {
            let waits = entries.get(&claim.id).is_some_and(|one| one.phase == ClaimPhase::Waiting);
            if waits && claim.parts.as_slice().len() == 1 && self.waiters.contains(claim.id) {
                by_name.entry(claim.parts.first_name()).or_default().push(claim);
            }
        }
        let mut results = HashMap::new();
        for (name, claims) in by_name.into_iter().filter(|(_, claims)| claims.len() > 1) {
            let found = self.read_slots(std::slice::from_ref(name), &[]).await?;
            let now = self.now();
            let mut ledger = found.ledger(now, 0);
            for claim in claims {
                // The turn of the first may have come, and the event may be lost.
                if let Some(result @ Renewed::Waiting(_)) =
                    ledger.stands(claim.id, &claim.parts, now)
                    && matches!(&result, Renewed::Waiting(queued) if queued.place > 1)
                {
                    results.insert(claim.id, result);
                }
            }
        }
        Ok(results)
    }

    /// Renews one claim by reading all its slots and letting the ledger decide.
    async fn renew_one(
        self: &Arc<Self>,
        claim: &ClaimRef,
        entry: Option<&ClaimEntry>,
        since: Tick,
    ) -> Result<Renewed, VerbError> {
        if entry.is_some_and(|entry| entry.phase == ClaimPhase::Ended) {
            return Ok(Renewed::Gone(self.loss_of(claim.id).await?));
        }
        // It may be first in the queue by now without our knowledge: watch events can be lost.
        self.check_turn(claim.id).await;
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let mut found = self.read_slots(&names, &[claim.id]).await?;
        match entry {
            None => self.keep_alive_foreign(claim, &found, since).await?,
            Some(_) => self.move_strays(claim.id, &found, since).await?,
        }
        let was_held = matches!(entry.map(|entry| entry.phase), Some(ClaimPhase::Held { .. }));
        for attempt in 0..MAX_ATTEMPTS {
            let now = self.now();
            let holds = |name: &Name| found.key_of(name, KeyKind::Hold, claim.id).is_some();
            if was_held && !names.iter().all(holds) {
                // A hold was deleted by hand. The ticket beside it must not be granted again.
                self.remove_claim(&claim.parts, claim.id).await?;
                self.forget_claim(claim.id);
                return Ok(Renewed::Gone(self.loss_of(claim.id).await?));
            }
            let mut ledger = found.ledger(now, 0);
            let diff = LedgerDiff::new(&self.keys, &found, &mut ledger);
            let result = ledger.renew(std::slice::from_ref(claim), now).pop();
            let result = result.unwrap_or(Renewed::Gone(Loss::Forgotten));
            let txn = diff.transaction(&mut ledger, None, now.wall_micros)?;
            let mut revision = found.revision;
            if !txn.is_empty() {
                let otherwise = read_ops(&self.keys, &names, &[claim.id]);
                let done = self.txn_under_terms(found.epoch, txn, otherwise).await?;
                if !done.succeeded {
                    found = snapshot_of(&self.keys, self.epoch(), done, &names, &[claim.id])?;
                    self.back_off(attempt).await;
                    continue;
                }
                revision = done.revision;
            }
            let result = settle_renewed(result, found.epoch, revision);
            match &result {
                Renewed::Held(_) if !self.claims.holds(claim.id) => {
                    self.claims.set_phase(claim.id, ClaimPhase::Held { by: None, waited: true });
                }
                Renewed::Held(_) | Renewed::Unanswered(_) => {}
                Renewed::Waiting(queued) => {
                    self.resume_wait(claim, queued.arrival, &found, since);
                }
                Renewed::Gone(_) => self.forget_claim(claim.id),
            }
            return Ok(result);
        }
        Err(contended(claim.parts.first_name()).into())
    }

    /// Keeps the leases of a claim alive that another process made.
    async fn keep_alive_foreign(
        &self,
        claim: &ClaimRef,
        found: &SlotSnapshot,
        since: Tick,
    ) -> Result<(), VerbError> {
        let seen = found.slots.values().flatten().filter(|seen| seen.id == claim.id);
        let mut leases: Vec<(bool, i64)> =
            seen.map(|seen| (seen.kind != KeyKind::Delay, seen.lease)).collect();
        leases.sort_unstable();
        leases.dedup();
        // Leases of lock delays first: they must outlive the others.
        for (_, lease) in leases {
            match self.leases.keep_alive_by_id(lease, since).await {
                Ok(()) | Err(CallError::LeaseGone) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Adds a waiting claim that this engine does not watch yet: another process made it, or its
    /// wait ended with an error.
    fn resume_wait(
        self: &Arc<Self>,
        claim: &ClaimRef,
        arrival: crate::contract::Arrival,
        found: &SlotSnapshot,
        since: Tick,
    ) {
        if self.waiters.contains(claim.id) {
            return;
        }
        let local = if let Some(entry) = self.claims.get(claim.id) {
            entry.local
        } else {
            let mut all = found.slots.keys();
            let Some(seen) = all.find_map(|name| found.ticket(name, claim.id)) else { return };
            let (owner, extra) = (LeaseOwner::Claim(claim.id), Duration::ZERO);
            let spec = LeaseSpec { owner, length: claim.lease, extra };
            let lease = Leases::adopt(seen.lease, spec, since);
            LocalClaim { claim: Arc::clone(&seen.record.claim), lease, delay: None, tag: seen.tag }
        };
        self.begin_wait(&local, arrival, found);
    }

    /// Returns why a claim is gone, by its tombstone.
    async fn loss_of(&self, id: ClaimId) -> Result<Loss, VerbError> {
        let found = self.read_slots(&[], &[id]).await?;
        Ok(match found.tombstones.get(&id) {
            Some(Some(reason)) => Loss::of_reason(reason),
            _ => Loss::Forgotten,
        })
    }

    /// Removes the local state of a claim that is not in the store any more.
    pub(super) fn forget_claim(self: &Arc<Self>, id: ClaimId) {
        self.waiters.end(self, id);
        self.claims.remove(id);
    }
}

/// The distinct leases of these claims, those of lock delays first: they must outlive the others.
fn distinct<'a>(entries: impl Iterator<Item = &'a ClaimEntry>) -> Vec<Arc<EtcdLease>> {
    let (mut delays, mut leases): (Vec<Arc<EtcdLease>>, Vec<Arc<EtcdLease>>) =
        (Vec::new(), Vec::new());
    for entry in entries.filter(|entry| entry.phase != ClaimPhase::Ended) {
        let known =
            |all: &[Arc<EtcdLease>], one: &EtcdLease| all.iter().any(|lease| lease.id == one.id);
        if let Some(delay) = entry.local.delay.as_ref().filter(|one| !known(&delays, one)) {
            delays.push(Arc::clone(delay));
        }
        if !known(&leases, &entry.local.lease) {
            leases.push(Arc::clone(&entry.local.lease));
        }
    }
    delays.extend(leases);
    delays
}
