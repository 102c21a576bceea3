//! The evict verb: ends exactly the grant with a given fence, by the ledger on a snapshot.
//!
//! The same transaction deletes the holds, writes a tombstone with the reason for each ended claim,
//! so that it is not claimed again and its next renewal learns why it is gone, and writes an
//! eviction notice for its session, which the session's engine watches (`signals.rs`). The deleted
//! keys are compared by revision: a successor that uses the same keys is not ended.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::claim::MAX_ATTEMPTS;
use super::claims::ExpiringKey;
use super::errors::{VerbError, contended};
use super::keys::KeyKind;
use super::leases::{LeaseOwner, LeaseSpec};
use super::transaction::{LedgerDiff, read_ops, snapshot_of};
use crate::contract::{ClaimId, Error, Evicted, Eviction, Name, Verb};
use crate::time::Tick;

impl Inner {
    /// Ends the grant with this fence.
    pub(super) async fn evict(
        self: &Arc<Self>,
        eviction: &Eviction,
        since: Tick,
    ) -> Result<Evicted, Error> {
        let ended = self.evict_by_ledger(eviction, since).await;
        ended.map_err(|error| error.into_error(Verb::Evict).on(&eviction.name))
    }

    async fn evict_by_ledger(
        self: &Arc<Self>,
        eviction: &Eviction,
        since: Tick,
    ) -> Result<Evicted, VerbError> {
        let no_claim = ClaimId::from_u128(0);
        let mut found = self.read_slots(std::slice::from_ref(&eviction.name), &[no_claim]).await?;
        for attempt in 0..MAX_ATTEMPTS {
            let seen = found.slots.get(&eviction.name).into_iter().flatten();
            let claims: Vec<ClaimId> = seen.map(|seen| seen.id).collect();
            found = self.with_all_slots_of(found, &claims, no_claim).await?;
            self.read_lease_times(&mut found).await;
            let now = self.now();
            let mut ledger = found.ledger(now, 0);
            let diff = LedgerDiff::new(&self.keys, &found, &mut ledger);
            let evicted = ledger.evict(eviction, now);
            let Evicted::Done(ended) = &evicted else { return Ok(evicted) };
            let mut txn = diff.transaction(&mut ledger, None, now.wall_micros)?;
            for view in ended {
                let seen = found.key_of(&eviction.name, KeyKind::Hold, view.claim);
                let lease = seen.map(|seen| seen.record.claim.lease).unwrap_or_default();
                let reason = eviction.reason.as_bytes();
                self.put_tombstone(&mut txn, view.claim, lease, reason, since).await?;
                if let Some(session) = view.session {
                    let spec = LeaseSpec {
                        owner: LeaseOwner::Engine,
                        length: lease,
                        extra: Duration::ZERO,
                    };
                    let on = self.leases.ensure(spec, since).await?;
                    let key = self.keys.notice(session, view.claim);
                    txn.put(key.clone(), reason.to_vec(), on.id);
                    self.claims.delete_at(since + lease, ExpiringKey::Unique(key));
                }
            }
            let names: Vec<Name> = found.slots.keys().cloned().collect();
            let reply = self.commit_end(txn, &read_ops(&self.keys, &names, &[no_claim])).await?;
            if reply.succeeded {
                return Ok(evicted);
            }
            found = snapshot_of(&self.keys, self.epoch(), reply, &names, &[no_claim])?;
            self.back_off(attempt).await;
        }
        Err(contended(&eviction.name).into())
    }
}
