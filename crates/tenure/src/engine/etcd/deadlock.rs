//! The verb that refuses a deadlock's victim, by the ledger on a snapshot of all contended slots.
//!
//! The transaction that deletes the victim's ticket compares what the ledger found: each hold and
//! each ticket of the case still has the creation revision of the snapshot, so it existed all the
//! time; and by two ranged comparisons that nothing appeared since: no ticket in the namespace (the
//! marks beside tickets, `keys.rs`), so no owner has a second wait, and no marker of an owner. A
//! ticket of the case cannot have been granted meanwhile: the first of them to be granted would
//! have needed a hold or a ticket of the case to end before.
//!
//! If another claim was queued meanwhile, the comparison of the marks fails although the deadlock
//! may stand; so the facts are read again a few times.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::claims::ExpiringKey;
use super::errors::VerbError;
use super::keys::KeyKind;
use super::leases::{LeaseOwner, LeaseSpec};
use super::transaction::{LedgerDiff, OPERATIONS, Transaction};
use crate::contract::{Claim, DeadlockCase, Error, Loss, Name, Verb, VictimVerdict};
use crate::engine::common::paths;
use crate::time::Tick;

/// How often the facts are read and compared before the verdict is left to the next look.
const ATTEMPTS: usize = 8;

impl Inner {
    /// Refuses the victim of a deadlock if all facts stand.
    pub(super) async fn refuse_victim(
        self: &Arc<Self>,
        case: &DeadlockCase,
        since: Tick,
    ) -> Result<VictimVerdict, Error> {
        let verdict = self.refuse_by_ledger(case, since).await;
        verdict.map_err(|error| error.into_error(Verb::RefuseVictim).on(&case.victim.name))
    }

    async fn refuse_by_ledger(
        self: &Arc<Self>,
        case: &DeadlockCase,
        since: Tick,
    ) -> Result<VictimVerdict, VerbError> {
        for attempt in 0..ATTEMPTS {
            let mut found = self.read_contended().await?;
            let Some(victim) = found.ticket(&case.victim.name, case.victim.claim) else {
                return Ok(VictimVerdict::Changed);
            };
            let claim = Arc::clone(&victim.record.claim);
            let parts = claim.parts.names().filter(|name| !found.slots.contains_key(*name));
            let parts: Vec<Name> = parts.cloned().collect();
            if !parts.is_empty() {
                self.add_slots(&mut found, &parts).await?;
            }
            let now = self.now();
            let mut ledger = found.ledger(now, 0);
            let diff = LedgerDiff::new(&self.keys, &found, &mut ledger);
            if ledger.refuse_victim(case, now) == VictimVerdict::Changed {
                paths::take("etcd verdict: a fact does not stand");
                return Ok(VictimVerdict::Changed);
            }
            let mut txn = diff.transaction(&mut ledger, None, now.wall_micros)?;
            for (facts, held) in [(&case.holds, true), (&case.waits, false)] {
                for fact in facts {
                    let hold = || found.key_of(&fact.name, KeyKind::Hold, fact.claim);
                    let seen = if held { hold() } else { found.ticket(&fact.name, fact.claim) };
                    let Some(seen) = seen else { return Ok(VictimVerdict::Changed) };
                    txn.if_created_by(seen.key.clone(), seen.created);
                }
            }
            txn.if_quiet(self.keys.marks(""), found.revision);
            txn.if_quiet(self.keys.markers(), found.revision);
            if txn.compares.len() > OPERATIONS {
                tracing::warn!("deadlock left alone: etcd cannot compare so much in one step");
                return Ok(VictimVerdict::Changed);
            }
            self.put_reason(&mut txn, &claim, &case.words, since).await?;
            let reply = self.connection.txn(txn.compares, txn.writes, Vec::new()).await?;
            if reply.succeeded {
                paths::take("etcd verdict: refused");
                return Ok(VictimVerdict::Refused);
            }
            self.back_off(attempt).await;
        }
        Ok(VictimVerdict::Changed)
    }

    /// Writes a tombstone and a notice for the victim's session, both with the reason.
    async fn put_reason(
        &self,
        txn: &mut Transaction,
        claim: &Claim,
        words: &str,
        since: Tick,
    ) -> Result<(), VerbError> {
        let reason = Loss::deadlock_reason(words);
        self.put_tombstone(txn, claim.id, claim.lease, reason.as_bytes(), since).await?;
        let Some(session) = claim.session else { return Ok(()) };
        let (owner, extra) = (LeaseOwner::Engine, Duration::ZERO);
        let spec = LeaseSpec { owner, length: claim.lease, extra };
        let on = self.leases.ensure(spec, since).await?;
        let key = self.keys.notice(session, claim.id);
        txn.put(key.clone(), reason.as_bytes().to_vec(), on.id);
        self.claims.delete_at(since + claim.lease, ExpiringKey::Unique(key));
        Ok(())
    }
}
