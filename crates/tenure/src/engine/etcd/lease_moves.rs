//! Moves the keys of claims to new leases after a change of leader.
//!
//! Leases are counted by the leader. A leader that was stuck (stopped, a slow disk) for longer than
//! a lease believes, when it goes on, that the lease has ended, though the next leader has kept it
//! alive since. It requests a revocation, and members before 3.4.31 and 3.5.13 carry it out (etcd
//! #15247; later ones check first who leads). The keys on the lease are deleted, the next waiter is
//! granted, and the holder would learn of it at its next renewal: two holders.
//!
//! The stuck leader knows only leases that were granted before. So a lease is used in one raft term
//! alone. Responses name the term. When a renewal or a grant finds a newer one, the claim's keys
//! are rewritten, on a lease that was granted in it, before the renewal or grant counts. Until then
//! the claim is as safe as before the election: no leader counts a lease from an earlier instant
//! than the last renewal that it has answered itself.
//!
//! A move compares only that each key is unchanged since it was read, and rewrites it with the same
//! value. If other writers interfere with a batch, its claims are moved one by one, with retries.
//! If another election takes place during a move, the move is repeated. A grant whose transaction
//! was in flight during the move may leave its hold on the old lease: `move_strays` and
//! `notify_granted` find that by the lease id.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::claim::{LEASE_ATTEMPTS, MAX_ATTEMPTS};
use super::claims::{ClaimEntry, ClaimPhase};
use super::client::RequestOp;
use super::errors::{CallError, VerbError, contended};
use super::keys::KeyKind;
use super::leases::{EtcdLease, LeaseOwner, LeaseSpec};
use super::snapshot::{SlotSnapshot, decode_key};
use super::transaction::{LocalClaim, Transaction};
use crate::contract::ClaimId;
use crate::time::Tick;

/// How many keys are moved in one transaction. etcd's default limit is 128 operations.
const KEYS_PER_TXN: usize = 96;

/// A claim whose keys are moved to these leases.
struct KeyMove {
    entry: ClaimEntry,
    lease: Arc<EtcdLease>,
    delay: Option<Arc<EtcdLease>>,
}

impl Inner {
    /// Whether the lease of a claim is of an earlier raft term.
    pub(super) fn needs_move(&self, local: &LocalClaim) -> bool {
        !self.leases.is_current(&local.lease)
    }

    /// Moves the keys of those claims whose leases are of an earlier raft term.
    pub(super) async fn move_old(&self, claims: &[ClaimId], since: Tick) -> Result<(), VerbError> {
        let old = |id: &ClaimId| self.claims.get(*id).filter(|entry| self.needs_move(&entry.local));
        let old: Vec<ClaimEntry> = claims.iter().filter_map(old).collect();
        self.move_keys(old, since).await
    }

    /// Moves the keys of a claim if one of them was found on another lease than the claim's: its
    /// transaction was in flight when the other keys were moved.
    pub(super) async fn move_strays(
        &self,
        id: ClaimId,
        found: &SlotSnapshot,
        since: Tick,
    ) -> Result<(), VerbError> {
        let Some(entry) = self.claims.get(id) else { return Ok(()) };
        let seen = found.slots.values().flatten();
        let mut own_keys = seen.filter(|seen| seen.id == id && seen.kind != KeyKind::Delay);
        if own_keys.any(|seen| seen.lease != entry.local.lease.id) {
            self.move_keys(vec![entry], since).await?;
        }
        Ok(())
    }

    /// Moves the keys of these claims to leases of the current raft term that have the claim's
    /// length left, counted from `since`.
    pub(super) async fn move_keys(
        &self,
        entries: Vec<ClaimEntry>,
        since: Tick,
    ) -> Result<(), VerbError> {
        if entries.is_empty() || self.try_move(&entries, since).await? {
            return Ok(());
        }
        // Other clients write these keys too: move each claim by itself.
        for entry in entries {
            let mut attempt = 0;
            while !self.try_move(std::slice::from_ref(&entry), since).await? {
                if attempt == MAX_ATTEMPTS {
                    return Err(contended(entry.local.claim.parts.first_name()).into());
                }
                self.back_off(attempt).await;
                attempt += 1;
            }
        }
        Ok(())
    }

    /// Moves keys. Returns false if one of them was written meanwhile.
    async fn try_move(&self, entries: &[ClaimEntry], since: Tick) -> Result<bool, VerbError> {
        for _ in 0..LEASE_ATTEMPTS {
            let mut moves = Vec::with_capacity(entries.len());
            for entry in entries {
                moves.push(self.plan_move(entry, since).await?);
            }
            match self.write_moves(&moves).await {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(VerbError::Call(CallError::LeaseGone)) => {
                    for one in &moves {
                        self.leases.forget(&one.lease);
                        one.delay.iter().for_each(|lease| self.leases.forget(lease));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            // If another election took place, these leases are old already: repeat.
            if moves.iter().all(|one| self.leases.is_current(&one.lease)) {
                return Ok(true);
            }
        }
        Err(CallError::LeaseGone.into())
    }

    /// Rewrites the keys that are on other leases, in batches. Returns false if one of them was
    /// written since it was read.
    async fn write_moves(&self, moves: &[KeyMove]) -> Result<bool, VerbError> {
        let all: Vec<(&KeyMove, Vec<u8>)> = moves
            .iter()
            .flat_map(|one| self.keys_of(&one.entry).into_iter().map(move |key| (one, key)))
            .collect();
        for some in all.chunks(KEYS_PER_TXN) {
            let keys = some.iter().map(|(_, key)| RequestOp::get(key.clone()));
            let read = self.connection.read(keys.collect()).await?;
            let found = SlotSnapshot::new(read.revision, self.epoch());
            let mut txn = Transaction::default();
            let mut holds = Vec::new();
            for ((one, _), reply) in some.iter().zip(read.replies) {
                let id = one.entry.local.claim.id;
                let seen = reply.into_kvs().first().and_then(|key| decode_key(&self.keys, key));
                let Some(seen) = seen.filter(|seen| seen.id == id) else { continue };
                let on = match (seen.kind, &one.delay) {
                    (KeyKind::Delay, Some(delay)) => delay.id,
                    _ => one.lease.id,
                };
                if seen.lease != on {
                    txn.if_unwritten(seen.key.clone(), seen.written);
                    txn.put(seen.key.clone(), found.record_to_rewrite(&seen).encode(), on);
                    if matches!(seen.kind, KeyKind::Kin | KeyKind::Wait)
                        && let Some((name, ..)) = self.keys.parse(&seen.key)
                    {
                        txn.put(self.keys.mark(&name, seen.tag), Vec::new(), on);
                    }
                    holds.extend((seen.kind == KeyKind::Hold).then_some(id));
                }
            }
            if !txn.is_empty() {
                let done = self.connection.txn(txn.compares, txn.writes, Vec::new()).await?;
                if !done.succeeded {
                    return Ok(false);
                }
                for id in holds {
                    self.claims.hold_rewritten(id, done.revision);
                }
            }
        }
        for one in moves {
            let id = one.entry.local.claim.id;
            self.claims.set_leases(id, &one.lease, one.delay.as_ref());
            self.waiters.set_leases(id, &one.lease, one.delay.as_ref());
        }
        Ok(true)
    }

    /// Gets the leases that a claim's keys are moved to.
    async fn plan_move(&self, entry: &ClaimEntry, since: Tick) -> Result<KeyMove, VerbError> {
        let claim = &entry.local.claim;
        let owner = claim.session.map_or(LeaseOwner::Claim(claim.id), LeaseOwner::Session);
        let spec = |extra| LeaseSpec { owner, length: claim.lease, extra };
        // The lease of the lock delay first: it must outlive the other.
        let delay = match &entry.local.delay {
            Some(_) => Some(self.leases.ensure(spec(claim.lock_delay), since).await?),
            None => None,
        };
        let lease = self.leases.ensure(spec(Duration::ZERO), since).await?;
        Ok(KeyMove { entry: entry.clone(), lease, delay })
    }

    /// The keys that a claim may have in the store.
    fn keys_of(&self, entry: &ClaimEntry) -> Vec<Vec<u8>> {
        let (claim, tag) = (&entry.local.claim, entry.local.tag);
        let kinds: &[KeyKind] = match entry.phase {
            ClaimPhase::Held { waited: false, .. } => &[KeyKind::Hold],
            _ => &[KeyKind::Hold, KeyKind::Kin, KeyKind::Wait],
        };
        let mut keys = Vec::new();
        for name in claim.parts.names() {
            keys.extend(kinds.iter().map(|kind| self.keys.claim(name, *kind, tag)));
            keys.extend(
                entry.local.delay.iter().map(|_| self.keys.claim(name, KeyKind::Delay, tag)),
            );
        }
        keys
    }
}
