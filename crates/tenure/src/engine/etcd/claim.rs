//! The claim verb.
//!
//! A claim takes one of three ways, the cheapest that is possible:
//!
//! 1. **Fast** (`claim_fast`): one transaction that succeeds if no slot of the claim has any key,
//!    and writes one hold per slot. Otherwise the same call returns the keys that are there.
//! 2. **Append** (`queue.rs`): a claim of this engine waits for the name already. The ticket is
//!    written behind that claim, without reading the slot.
//! 3. **By the ledger** (`claim_by_ledger`): the ledger decides on a snapshot of the slots, and the
//!    difference is written. If a comparison fails, the failed call has returned the current keys,
//!    and the decision is made again on these.
//!
//! # Why this is correct
//!
//! - A decision is made on a snapshot at one revision and written only if everything it depends on
//!   is unchanged (`transaction.rs`), so it holds at the revision of the write as well.
//! - A repeated claim finds its own keys: the fast way fails because the slot is not empty, and the
//!   ledger returns the same answer again. Copies that are in flight at the same time share one
//!   run (`in_flight.rs`).
//! - Every transaction that writes keys of a claim compares that the claim has no tombstone, so a
//!   copy that arrives after the withdrawal writes nothing.
//! - A verdict is returned only if the leases of the claim live for its length, counted from
//!   `since`, when the caller made the call: they had that much left, or a keep-alive that was sent
//!   after `since` has been answered. So the keys outlive the safe-until of the session.
//! - If an election took place meanwhile, the keys are moved to leases of the new raft term before
//!   the verdict counts (`lease_moves.rs`).
//!
//! # What can interleave
//!
//! A release or the expiry of the same claim. The entry in `claims` is written before the first
//! request, so both find it. An entry that has expired ([`ClaimPhase::Ended`]) takes no new claim
//! until its keys are removed. A claim that was withdrawn sends no further request
//! ([`Inner::check_wanted`]), because its tombstone is deleted after the length of a lease.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::claims::ClaimPhase;
use super::client::{Compare, CompareResult, ResponseOp};
use super::errors::{CallError, VerbError, contended, expired_unsent};
use super::fences::{Epoch, settle_arrival, settle_grant};
use super::keys::{KeyKind, Tag};
use super::leases::{EtcdLease, LeaseOwner, LeaseSpec, LeaseStatus};
use super::record::{ClaimRecord, FenceSource};
use super::snapshot::{SlotSnapshot, SnapshotLedger};
use super::transaction::{
    LedgerDiff, LocalClaim, Transaction, read_last_two, read_ops, read_ops_limited, snapshot_of,
};
use crate::contract::{
    Claim, ClaimId, Error, ErrorKind, Fence, Grant, Name, Renewed, Verb, Verdict,
};
use crate::engine::common::paths;
use crate::ledger::seam::Shelf;
use crate::time::Tick;

/// How many times a transaction is tried whose comparisons fail because other clients write first.
pub(super) const MAX_ATTEMPTS: usize = 64;

/// How many keys of a slot the fast way reads when it fails. A longer queue is read only if the
/// ledger has to decide.
const FIRST_READ_LIMIT: i64 = 64;

/// How many times a new lease is granted in place of one that ended while it was used.
pub(super) const LEASE_ATTEMPTS: usize = 3;

impl Inner {
    /// Sends a claim that the caller made at `since`. A copy of a claim that is in flight shares
    /// its result: a store that is slow under load must not get the same load twice.
    pub(super) async fn claim(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        since: Tick,
    ) -> Result<Verdict, Error> {
        let guard = match self.in_flight.begin(claim.id) {
            Ok(guard) => guard,
            Err(shared) => {
                return shared.await.unwrap_or_else(|_| {
                    let what = "the runtime that sent the claim has shut down";
                    let error = Error::new(ErrorKind::Unavailable, what).effect_unknown();
                    Err(error.during(Verb::Claim).with_help("call again"))
                });
            }
        };
        let result = match guard.acquire_permit().await {
            Ok(_) if self.clock.now() >= since + claim.lease => {
                Err(expired_unsent(claim.lease).during(Verb::Claim))
            }
            // The permit is held until the verdict is known.
            Ok(_permit) => self.claim_with_leases(claim, since).await,
            Err(withdrawn) => Err(withdrawn.during(Verb::Claim)),
        };
        guard.complete(&result);
        result
    }

    /// Gets the leases of a claim and sends it. Repeats both if a lease ends meanwhile.
    async fn claim_with_leases(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        since: Tick,
    ) -> Result<Verdict, Error> {
        for _ in 0..LEASE_ATTEMPTS {
            let result = match self.local_claim(claim, since).await {
                Ok((local, stale)) => {
                    // Concurrently: the verdict counts when the keep-alive is answered too.
                    let (kept, result) = tokio::join!(
                        self.keep_alive_beside(stale, since),
                        self.claim_on(&local, since)
                    );
                    let result = result.and_then(|verdict| kept.map(|()| verdict));
                    if matches!(result, Err(VerbError::Call(CallError::LeaseGone))) {
                        self.leases.forget(&local.lease);
                        local.delay.iter().for_each(|lease| self.leases.forget(lease));
                    }
                    result
                }
                Err(error) => Err(error),
            };
            match result {
                Err(VerbError::Call(CallError::LeaseGone)) => {}
                result => return result.map_err(|error| error.into_error(Verb::Claim)),
            }
        }
        Err(CallError::LeaseGone.into_error().during(Verb::Claim))
    }

    /// Returns the claim with its leases, and those leases that need a keep-alive with it.
    async fn local_claim(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        since: Tick,
    ) -> Result<(LocalClaim, Vec<Arc<EtcdLease>>), VerbError> {
        let owner = claim.session.map_or(LeaseOwner::Claim(claim.id), LeaseOwner::Session);
        let spec = |extra| LeaseSpec { owner, length: claim.lease, extra };
        let mut stale = Vec::new();
        let mut lease = async |spec| {
            Ok::<_, VerbError>(match self.leases.status(spec, since) {
                LeaseStatus::Fresh(lease) => lease,
                LeaseStatus::Stale(lease) => {
                    stale.push(Arc::clone(&lease));
                    lease
                }
                LeaseStatus::Missing => {
                    let inner = Arc::clone(self);
                    let made = async move { inner.leases.ensure(spec, since).await };
                    self.tasks.run_on_engine(Box::pin(made)).await??
                }
            })
        };
        // The lease of the lock delay first, here and in keep-alives: it must outlive the other.
        let delay = if claim.lock_delay.is_zero() {
            None
        } else {
            Some(lease(spec(claim.lock_delay)).await?)
        };
        let lease = lease(spec(Duration::ZERO)).await?;
        let tag = self.claims.get(claim.id).map_or(Tag::FIRST, |entry| entry.local.tag);
        Ok((LocalClaim { claim: Arc::clone(claim), lease, delay, tag }, stale))
    }

    /// Keeps leases alive while the claim is sent. On the engine's thread: other claims use the
    /// same leases, and the caller's runtime may end.
    async fn keep_alive_beside(
        self: &Arc<Self>,
        leases: Vec<Arc<EtcdLease>>,
        since: Tick,
    ) -> Result<(), VerbError> {
        if leases.is_empty() {
            return Ok(());
        }
        let inner = Arc::clone(self);
        let kept = async move { inner.keep_leases(&leases, since).await };
        Ok(self.tasks.run_on_engine(Box::pin(kept)).await??)
    }

    /// Sends keep-alives, one after the other.
    pub(super) async fn keep_leases(
        &self,
        leases: &[Arc<EtcdLease>],
        since: Tick,
    ) -> Result<(), CallError> {
        for lease in leases {
            self.leases.keep_alive(lease, since).await?;
        }
        Ok(())
    }

    /// Sends a claim whose leases are known, in the cheapest way that is possible.
    async fn claim_on(
        self: &Arc<Self>,
        local: &LocalClaim,
        since: Tick,
    ) -> Result<Verdict, VerbError> {
        self.in_flight.check_wanted(local.claim.id)?;
        let before = self.claims.get(local.claim.id);
        let repeated = before.is_some();
        if !self.claims.insert(local, since) {
            // The earlier copy has expired and its keys may stand: remove them before claiming
            // again.
            let (inner, claim) = (Arc::clone(self), Arc::clone(&local.claim));
            let ended = async move { inner.remove_claim(&claim.parts, claim.id).await };
            self.tasks.run_on_engine(Box::pin(ended)).await??;
            self.claims.remove(local.claim.id);
            self.claims.insert(local, since);
        }
        let result = if !repeated && self.has_local_queue(&local.claim) {
            Ok(FastClaim::Contended(None))
        } else {
            self.claim_fast(local).await
        };
        let verdict = match result {
            Ok(FastClaim::Granted(grant)) => Ok(Verdict::Granted(grant)),
            Ok(FastClaim::Contended(found)) => {
                let (inner, local) = (Arc::clone(self), local.clone());
                let judged = async move { inner.claim_contended(local, found, repeated).await };
                self.tasks.run_on_engine(Box::pin(judged)).await.map_err(VerbError::from).flatten()
            }
            Err(error) => Err(error),
        };
        match &verdict {
            Ok(Verdict::Refused(_)) => {
                // If the claim waits or holds, a refused copy changes nothing about that.
                let entry = self.claims.get(local.claim.id);
                if entry.is_some_and(|entry| entry.phase == ClaimPhase::Sent) {
                    self.claims.remove(local.claim.id);
                }
            }
            // The claim expired and its entry was removed before the reply came.
            Ok(_) if self.claims.get(local.claim.id).is_none() => {
                self.claims.insert(local, since);
            }
            Ok(_) | Err(_) => {}
        }
        // After an election the keys must be attached to leases of the new raft term.
        let elsewhere = before.is_some_and(|before| before.local.lease.id != local.lease.id);
        if matches!(verdict, Ok(Verdict::Granted(_) | Verdict::Queued(_)))
            && (elsewhere || self.needs_move(local))
        {
            let entries: Vec<_> = self.claims.get(local.claim.id).into_iter().collect();
            let inner = Arc::clone(self);
            let moved = async move { inner.move_keys(entries, since).await };
            self.tasks.run_on_engine(Box::pin(moved)).await??;
        }
        verdict
    }

    /// Sends one transaction that grants the claim if its slots have no keys: no holder, no waiter,
    /// no lock delay. Otherwise the same transaction reads the slots.
    async fn claim_fast(&self, local: &LocalClaim) -> Result<FastClaim, VerbError> {
        let (claim, wall) = (&local.claim, self.clock.wall_micros());
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        if claim.replaces.is_some() {
            // The claim that it replaces holds, so the slots are not empty.
            return Ok(FastClaim::Contended(Some(self.read_slots(&names, &[claim.id]).await?)));
        }
        let otherwise = read_ops_limited(&self.keys, &names, &[claim.id], FIRST_READ_LIMIT);
        let mut txn = Transaction::default();
        txn.if_absent(self.keys.tombstone(claim.id));
        let epoch = self.epoch();
        let fence = FenceSource::Created(epoch.raised);
        let value = ClaimRecord { fence, ..ClaimRecord::new(claim, wall) }.encode();
        for name in &names {
            let slot = self.keys.slot(name);
            let empty = Compare::create_revision(slot.from, CompareResult::Equal, 0);
            txn.compares.push(empty.with_range(slot.to));
            txn.put(self.keys.claim(name, KeyKind::Hold, local.tag), value.clone(), local.lease.id);
            if let Some(delay) = &local.delay {
                let key = self.keys.claim(name, KeyKind::Delay, local.tag);
                txn.put(key, value.clone(), delay.id);
            }
        }
        let reply = self.txn_under_terms(epoch, txn, otherwise).await?;
        if reply.succeeded {
            let grant = grant_at(&names, epoch, reply.revision);
            let by = Some(reply.revision);
            self.claims.set_phase(claim.id, ClaimPhase::Held { by, waited: false });
            paths::take("etcd claim: free slots");
            return Ok(FastClaim::Granted(grant));
        }
        if reply.replies.iter().any(ResponseOp::is_cut) {
            // The queue is long, and is read only if the ledger has to decide.
            return Ok(FastClaim::Contended(None));
        }
        let found = snapshot_of(&self.keys, self.epoch(), reply, &names, &[claim.id])?;
        Ok(FastClaim::Contended(Some(found)))
    }

    /// Lets the ledger decide on a snapshot of the slots, and writes its decision. `found` is a
    /// snapshot that was read already, if there is one.
    pub(super) async fn claim_by_ledger(
        self: &Arc<Self>,
        mut local: LocalClaim,
        found: Option<SlotSnapshot>,
    ) -> Result<Verdict, VerbError> {
        let claim = &Arc::clone(&local.claim);
        let mut found = self.found_or_read(found, claim).await?;
        for attempt in 0..MAX_ATTEMPTS {
            self.check_wanted(claim)?;
            found = self.with_replaced(found, claim).await?;
            local.tag = found.tag_for(claim, local.tag, attempt);
            self.claims.set_tag(claim.id, local.tag);
            let now = self.now();
            let mut ledger = found.ledger(now, 0);
            let diff = LedgerDiff::new(&self.keys, &found, &mut ledger);
            paths::take("etcd claim: by the ledger");
            let verdict = ledger.claim(claim, now);
            let mut txn = diff.transaction(&mut ledger, Some(&local), now.wall_micros)?;
            let mut revision = found.revision;
            if !txn.is_empty() {
                if let (Verdict::Queued(_), [part]) = (&verdict, claim.parts.as_slice()) {
                    txn.writes.push(read_last_two(self.keys.kind(part.name(), KeyKind::Wait)));
                }
                let names: Vec<Name> = found.slots.keys().cloned().collect();
                let otherwise = read_ops(&self.keys, &names, &[claim.id]);
                let reply = self.txn_under_terms(found.epoch, txn, otherwise).await?;
                if !reply.succeeded {
                    found = snapshot_of(&self.keys, self.epoch(), reply, &names, &[claim.id])?;
                    self.back_off(attempt).await;
                    continue;
                }
                revision = reply.revision;
                // Tickets may have been written since the snapshot, which a new ticket allows. If
                // they were ignored, many waiters would watch the same ticket.
                for key in reply.replies.into_iter().flat_map(ResponseOp::into_kvs) {
                    found.add_ticket(&self.keys, claim.parts.first_name(), &key, claim.id);
                }
            }
            return Ok(match verdict {
                Verdict::Granted(grant) => {
                    let grant = settle_grant(&grant, found.epoch, revision);
                    self.record_held(claim, &grant, &found, &mut ledger);
                    self.waiters.end_granted(self, claim.id);
                    Verdict::Granted(grant)
                }
                Verdict::Queued(mut queued) => {
                    queued.arrival = settle_arrival(queued.arrival, revision);
                    self.claims.set_phase(claim.id, ClaimPhase::Waiting);
                    // A new ticket may give its kin, and itself, precedence in the queue.
                    ledger.admit_at_most(1);
                    let id = claim.id;
                    claim.parts.names().for_each(|name| ledger.serve(name, now));
                    let moved_ahead = match ledger.stands(id, &claim.parts, now) {
                        Some(Renewed::Waiting(after)) => after.place != queued.place,
                        _ => true,
                    };
                    self.begin_wait(&local, queued.arrival, &found);
                    if moved_ahead {
                        self.check_turn(id).await;
                        return self.verdict_after_check(&local, Verdict::Queued(queued)).await;
                    }
                    Verdict::Queued(queued)
                }
                refused @ Verdict::Refused(_) => refused,
            });
        }
        Err(contended(claim.parts.first_name()).into())
    }

    async fn found_or_read(
        &self,
        found: Option<SlotSnapshot>,
        claim: &Claim,
    ) -> Result<SlotSnapshot, VerbError> {
        if let Some(found) = found {
            return Ok(found);
        }
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        self.read_slots(&names, &[claim.id]).await
    }

    /// Returns the verdict of a claim whose turn was checked right after it was queued.
    pub(super) async fn verdict_after_check(
        &self,
        local: &LocalClaim,
        otherwise: Verdict,
    ) -> Result<Verdict, VerbError> {
        let claim = &local.claim;
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let found = self.read_slots(&names, &[claim.id]).await?;
        let now = self.now();
        Ok(match found.ledger(now, 0).stands(claim.id, &claim.parts, now) {
            Some(Renewed::Held(grant)) => Verdict::Granted(grant),
            Some(Renewed::Waiting(queued)) => Verdict::Queued(queued),
            _ => otherwise,
        })
    }

    /// Extends a snapshot by the other slots of the claim that is to be replaced.
    async fn with_replaced(
        &self,
        found: SlotSnapshot,
        claim: &Claim,
    ) -> Result<SlotSnapshot, VerbError> {
        let Some(old) = claim.replaces else { return Ok(found) };
        self.with_all_slots_of(found, &[old], claim.id).await
    }

    /// Extends a snapshot by all slots of these claims, as far as it has keys of them: reads again
    /// until the set of names does not grow. `tomb` is the claim whose tombstone is read as well.
    pub(super) async fn with_all_slots_of(
        &self,
        found: SlotSnapshot,
        claims: &[ClaimId],
        tomb: ClaimId,
    ) -> Result<SlotSnapshot, VerbError> {
        let mut found = found;
        loop {
            let seen = found.slots.values().flatten();
            let concerned = seen.filter(|seen| claims.contains(&seen.id));
            let all = concerned.flat_map(|seen| seen.record.claim.parts.names());
            let mut names: Vec<Name> = all.chain(found.slots.keys()).cloned().collect();
            names.sort();
            names.dedup();
            if names.len() == found.slots.len() {
                return Ok(found);
            }
            found = self.read_slots(&names, &[tomb]).await?;
        }
    }

    /// Reads slots and tombstones at one revision.
    pub(super) async fn read_slots(
        &self,
        names: &[Name],
        tombstones: &[ClaimId],
    ) -> Result<SlotSnapshot, VerbError> {
        let reply = self.connection.read(read_ops(&self.keys, names, tombstones)).await?;
        Ok(snapshot_of(&self.keys, self.epoch(), reply, names, tombstones)?)
    }

    /// Fails if no more requests of a claim may be sent: it was withdrawn, or its lease has passed.
    pub(super) fn check_wanted(&self, claim: &Claim) -> Result<(), Error> {
        self.in_flight.check_wanted(claim.id)?;
        let expired = self.claims.expires(claim.id).is_none_or(|at| at <= self.clock.now());
        if expired { Err(expired_unsent(claim.lease)) } else { Ok(()) }
    }

    /// Backs off with jitter, from the fifth attempt on, so that other clients finish their writes.
    pub(super) async fn back_off(&self, attempt: usize) {
        if attempt >= 4 {
            let millis = u64::from(crate::sync::random_bytes()[0]) % (attempt as u64);
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }

    /// Records that a claim holds, and by which revision, which the fast release compares. Only for
    /// holds that one revision wrote and that share no fence.
    pub(super) fn record_held(
        &self,
        claim: &Claim,
        grant: &Grant,
        found: &SlotSnapshot,
        ledger: &mut SnapshotLedger,
    ) {
        let id = claim.id;
        let mut fences = grant.fences.as_slice().iter();
        let first = fences.next().copied();
        let same = fences.all(|fence| Some(*fence) == first);
        let fresh =
            first.map(|fence| found.epoch.revision(fence)).filter(|by| *by > found.revision);
        if fresh.is_none() && self.claims.holds(id) {
            return;
        }
        // The release of a hold that shares its fence has to rewrite the other members.
        let alone = claim.parts.names().all(|name| {
            let slot = ledger.shelf().peek(name);
            let hold = slot.and_then(|slot| slot.holds.iter().find(|hold| hold.claim.id == id));
            hold.is_some_and(|hold| hold.group.is_none())
        });
        let waited = found.slots.keys().any(|name| found.ticket(name, id).is_some());
        self.claims.set_phase(id, ClaimPhase::Held { by: fresh.filter(|_| same && alone), waited });
    }
}

/// The grant of a transaction that wrote all holds at one revision.
fn grant_at(names: &[Name], epoch: Epoch, revision: u64) -> Grant {
    let fence = Fence::new(epoch.fence(revision));
    let fences = names.iter().map(|_| fence).collect();
    Grant { fences, arrival: crate::contract::Arrival(revision) }
}

/// The result of the fast way.
enum FastClaim {
    Granted(Grant),
    /// A slot has keys. The snapshot is `None` if there were more than [`FIRST_READ_LIMIT`].
    Contended(Option<SlotSnapshot>),
}
