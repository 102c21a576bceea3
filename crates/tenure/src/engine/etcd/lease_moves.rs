//! Moves the keys of claims to new leases after a change of leader.
//!
//! Leases are counted by the leader. A leader that was stuck (stopped, a slow disk) for longer than
//! a lease believes, when it goes on, that the lease has ended, though the next leader has kept it
//! alive since; it asks for a revocation, and members before 3.4.31 and 3.5.13 carry it out (etcd
//! #15247; later ones ask once more who leads). The keys on the lease are deleted, the next waiter
//! holds, and the holder would learn it at its next renewal: two holders.
//!
//! A leader knows only leases that were made before it was stuck. So a lease is used in one raft
//! term alone. Responses name the term; when a renewal or a grant finds a newer one, the claim's
//! keys are written once more, on a lease that was made in it, before the renewal or grant counts.
//! Until then the claim is as safe as it was before the election: no leader counts a lease from an
//! earlier instant than the last renewal that it has answered itself.

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

/// How many keys are moved in one call. etcd takes 128 operations at most, if it is not told more.
const KEYS_PER_TXN: usize = 96;

/// A claim whose keys are to hang on these leases.
struct KeyMove {
    entry: ClaimEntry,
    lease: Arc<EtcdLease>,
    delay: Option<Arc<EtcdLease>>,
}

impl Inner {
    /// Whether the keys of a claim have to be moved.
    pub(super) fn needs_move(&self, local: &LocalClaim) -> bool {
        !self.leases.is_current(&local.lease)
    }

    /// Moves the keys of those claims whose leases were made in an earlier raft term.
    pub(super) async fn move_old(&self, claims: &[ClaimId], since: Tick) -> Result<(), VerbError> {
        let old = |id: &ClaimId| self.claims.get(*id).filter(|entry| self.needs_move(&entry.local));
        let old: Vec<ClaimEntry> = claims.iter().filter_map(old).collect();
        self.move_keys(old, since).await
    }

    /// Moves the keys of a claim if one of them was seen on another lease than the claim's: the
    /// step that wrote it was under way when the others were moved.
    pub(super) async fn move_strays(
        &self,
        id: ClaimId,
        found: &SlotSnapshot,
        since: Tick,
    ) -> Result<(), VerbError> {
        let Some(entry) = self.claims.get(id) else { return Ok(()) };
        let seen = found.slots.values().flatten();
        let mut local = seen.filter(|seen| seen.id == id && seen.kind != KeyKind::Delay);
        if local.any(|seen| seen.lease != entry.local.lease.id) {
            self.move_keys(vec![entry], since).await?;
        }
        Ok(())
    }

    /// Moves the keys of these claims to leases that are made in the current raft term and live for
    /// the length of the claim from `since` on.
    pub(super) async fn move_keys(
        &self,
        entries: Vec<ClaimEntry>,
        since: Tick,
    ) -> Result<(), VerbError> {
        if entries.is_empty() || self.try_move(&entries, since).await? {
            return Ok(());
        }
        // Others write there too: each by itself.
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

    /// Moves keys unless one of them is written meanwhile. True if it is done.
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
            // Another election may have taken place meanwhile.
            if moves.iter().all(|one| self.leases.is_current(&one.lease)) {
                return Ok(true);
            }
        }
        Err(CallError::LeaseGone.into())
    }

    /// Writes the keys once more that hang elsewhere, a few in each call: each compares nothing but
    /// that its own key is as it was read. False if one was not.
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

    /// The leases that a claim's keys are to hang on.
    async fn plan_move(&self, entry: &ClaimEntry, since: Tick) -> Result<KeyMove, VerbError> {
        let claim = &entry.local.claim;
        let owner = claim.session.map_or(LeaseOwner::Claim(claim.id), LeaseOwner::Session);
        let spec = |extra| LeaseSpec { owner, length: claim.lease, extra };
        // The one of the lock delay first: it must outlive the other.
        let delay = match &entry.local.delay {
            Some(_) => Some(self.leases.ensure(spec(claim.lock_delay), since).await?),
            None => None,
        };
        let lease = self.leases.ensure(spec(Duration::ZERO), since).await?;
        Ok(KeyMove { entry: entry.clone(), lease, delay })
    }

    /// The keys that a claim may have.
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
