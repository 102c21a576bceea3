//! Transactions: conditions and writes. [`LedgerDiff`] turns what the ledger changed in a snapshot
//! into one transaction, which succeeds only if the change is still right when it is written.
//!
//! What is compared, and why it is enough:
//!
//! - **A new hold** must have seen every hold, every lock delay and every ticket that may have
//!   precedence: one comparison over a range of keys, none of which was written since the snapshot.
//!   A hold of a claim that did not wait must have seen every ticket as well, or it would jump the
//!   queue; of a claim that waited its own ticket is compared instead. Deletions are not compared:
//!   they only free.
//! - **A new ticket** compares the key that it is queued behind, because that is what it will
//!   watch. A ticket with precedence also compares that no hold, delay or ticket with precedence
//!   was written.
//! - **What is rewritten or deleted** must be as it was read. To delete a ticket, the hold of its
//!   claim must be absent: the transaction that grants it does not write the ticket.
//! - **The tag** of a new claim must be free: its keys are compared to be absent. In a set these
//!   would be too many comparisons; there, nothing may have been written to the slots.
//! - **A change of a claim of this engine** compares that the claim has no tombstone.
//!
//! The ledger never changes a claim of another process except to remove it or to rewrite its hold:
//! a new hold or ticket of a foreign claim is an error.

use std::collections::HashMap;
use std::sync::Arc;

use super::client::{
    Compare, CompareResult, PutRequest, RangeRequest, Request, RequestOp, ResponseOp, SortOrder,
    SortTarget,
};
use super::connection::TxnReply;
use super::fences::Epoch;
use super::keys::{KeyKind, Keys, Range, Tag};
use super::leases::EtcdLease;
use super::record::ClaimRecord;
use super::snapshot::{FoundKey, HoldState, SlotSnapshot, SnapshotLedger, hold_states};
use crate::contract::{Claim, ClaimId, Error, ErrorKind, Name};
use crate::ledger::seam::{Line, Shelf};

/// Most operations of one transaction, etcd's default for `--max-txn-ops`.
pub(super) const OPERATIONS: usize = 128;

/// A claim of this engine, with the leases that its keys are attached to.
#[derive(Clone, Debug)]
pub(super) struct LocalClaim {
    pub(super) claim: Arc<Claim>,
    pub(super) lease: Arc<EtcdLease>,
    /// The lease of its lock delay, if it has one.
    pub(super) delay: Option<Arc<EtcdLease>>,
    /// The suffix of its keys.
    pub(super) tag: Tag,
}

/// The conditions and writes of one transaction.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) compares: Vec<Compare>,
    pub(super) writes: Vec<RequestOp>,
}

impl Transaction {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Compares that a key was last written by this revision; 0: that it is absent.
    pub(super) fn if_unwritten(&mut self, key: Vec<u8>, written: u64) {
        self.compares.push(Compare::mod_revision(key, CompareResult::Equal, as_i64(written)));
    }

    /// Compares that a key was created by this revision. It may have been rewritten since.
    pub(super) fn if_created_by(&mut self, key: Vec<u8>, by: u64) {
        self.compares.push(Compare::create_revision(key, CompareResult::Equal, as_i64(by)));
    }

    /// Compares that a key is absent.
    pub(super) fn if_absent(&mut self, key: Vec<u8>) {
        self.compares.push(Compare::create_revision(key, CompareResult::Equal, 0));
    }

    /// Compares that no key of a range was written after a revision.
    pub(super) fn if_quiet(&mut self, range: Range, revision: u64) {
        let compare = Compare::mod_revision(range.from, CompareResult::Less, as_i64(revision + 1));
        self.compares.push(compare.with_range(range.to));
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>, lease: i64) {
        self.writes.push(RequestOp::put(key, value, lease));
    }

    /// Rewrites a key without changing its lease.
    fn rewrite(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let put = PutRequest { key, value, lease: 0, ignore_lease: true };
        self.writes.push(put.into());
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.writes.push(RequestOp::delete(key));
    }

    /// Writes a ticket and its mark.
    pub(super) fn put_ticket(
        &mut self,
        keys: &Keys,
        name: &Name,
        kind: KeyKind,
        local: &LocalClaim,
        record: Vec<u8>,
    ) {
        self.put(keys.claim(name, kind, local.tag), record, local.lease.id);
        self.put(keys.mark(name, local.tag), Vec::new(), local.lease.id);
    }

    /// Deletes a key that was found in a slot; with a ticket its mark.
    pub(super) fn delete_found(&mut self, keys: &Keys, name: &Name, seen: &FoundKey) {
        self.delete(seen.key.clone());
        if matches!(seen.kind, KeyKind::Kin | KeyKind::Wait) {
            self.delete(keys.mark(name, seen.tag));
        }
    }

    /// Splits off the deletions of tickets and their marks if there are more writes than etcd takes
    /// in one transaction. They have to be sent first: the holds that are left still hold.
    pub(super) fn split_excess(&mut self, keys: &Keys) -> Option<Self> {
        if self.writes.len() <= OPERATIONS {
            return None;
        }
        let beside = |op: &RequestOp| {
            let Some(Request::RequestDeleteRange(delete)) = &op.request else { return false };
            let of_ticket = |kind| matches!(kind, KeyKind::Kin | KeyKind::Wait);
            keys.marked_slot(&delete.key).is_some()
                || keys.parse(&delete.key).is_some_and(|(_, kind, _)| of_ticket(kind))
        };
        let (first, rest) = std::mem::take(&mut self.writes).into_iter().partition(beside);
        self.writes = rest;
        Some(Self { compares: self.compares.clone(), writes: first })
    }
}

/// Computes what the ledger changes in a snapshot: created before the change, it remembers the
/// state of all holds.
pub(super) struct LedgerDiff<'a> {
    pub(super) keys: &'a Keys,
    pub(super) snapshot: &'a SlotSnapshot,
    before: HashMap<Name, HashMap<ClaimId, HoldState>>,
}

impl<'a> LedgerDiff<'a> {
    pub(super) fn new(
        keys: &'a Keys,
        snapshot: &'a SlotSnapshot,
        ledger: &mut SnapshotLedger,
    ) -> Self {
        let names = snapshot.slots.keys();
        let before = names.map(|name| (name.clone(), hold_states(ledger, name))).collect();
        Self { keys, snapshot, before }
    }

    /// Returns the transaction for everything that the ledger has changed since `new`. `local` is
    /// the claim of this engine that may get new keys.
    pub(super) fn transaction(
        &self,
        ledger: &mut SnapshotLedger,
        local: Option<&LocalClaim>,
        wall: u64,
    ) -> Result<Transaction, Error> {
        let mut txn = Transaction::default();
        for name in self.snapshot.slots.keys() {
            self.diff_slot(&mut txn, name, ledger, local, wall)?;
        }
        if let Some(local) = local.filter(|_| !txn.is_empty()) {
            let id = local.claim.id;
            txn.if_absent(self.keys.tombstone(id));
            // A copy of this claim may arrive at the same time, or another claim that chose the
            // same tag. A copy writes to all its slots at once, so one slot is enough.
            let name = local.claim.parts.first_name();
            let exists = |kind: KeyKind| self.snapshot.key_of(name, kind, id).is_some();
            if ![KeyKind::Hold, KeyKind::Kin, KeyKind::Wait].into_iter().any(exists) {
                // Its own lock delay may be left from before it expired.
                for kind in KeyKind::ALL.into_iter().filter(|kind| !exists(*kind)) {
                    txn.if_absent(self.keys.claim(name, kind, local.tag));
                }
            }
        }
        Ok(txn)
    }

    fn diff_slot(
        &self,
        txn: &mut Transaction,
        name: &Name,
        ledger: &mut SnapshotLedger,
        local: Option<&LocalClaim>,
        wall: u64,
    ) -> Result<(), Error> {
        let after = hold_states(ledger, name);
        self.diff_removed(txn, name, ledger);
        let Some(slot) = ledger.shelf().peek(name) else { return Ok(()) };
        let before = &self.before[name];
        for hold in slot.holds.iter() {
            let id = hold.claim.id;
            let record = || self.snapshot.record_of(name, slot, hold, wall).encode();
            match self.snapshot.key_of(name, KeyKind::Hold, id) {
                Some(seen) if before.get(&id) != after.get(&id) => {
                    txn.if_unwritten(seen.key.clone(), seen.written);
                    txn.rewrite(seen.key.clone(), record());
                }
                Some(_) => {}
                None => {
                    let local =
                        local.filter(|local| local.claim.id == id).ok_or_else(foreign_claim)?;
                    let key = self.keys.claim(name, KeyKind::Hold, local.tag);
                    txn.put(key, record(), local.lease.id);
                    self.compare_all_seen(txn, name, id);
                }
            }
            let was = before.get(&id).is_some_and(|state| !state.is_reserved());
            if !hold.reserved && !was {
                self.put_delay(txn, name, local.filter(|local| local.claim.id == id), wall);
            }
        }
        let tickets = slot.line.iter().filter(|t| self.snapshot.ticket(name, t.claim.id).is_none());
        for ticket in tickets {
            let id = ticket.claim.id;
            let local = local.filter(|local| local.claim.id == id).ok_or_else(foreign_claim)?;
            let lineage = &ticket.claim.lineage;
            let kin = ticket.ahead()
                || !lineage.ancestors().is_empty()
                || ticket.claim.replaces.is_some();
            let kind = if kin { KeyKind::Kin } else { KeyKind::Wait };
            let mut record = ClaimRecord::new(&ticket.claim, wall);
            let old = ticket.claim.replaces;
            record.reserved = slot.holds.iter().any(|hold| Some(hold.claim.id) == old);
            txn.put_ticket(self.keys, name, kind, local, record.encode());
            if ticket.claim.parts.as_slice().len() > 1 && matches!(local.tag, Tag::Number(_)) {
                // Another claim may have chosen the same tag.
                txn.if_quiet(self.keys.slot(name), self.snapshot.revision);
            } else if kin {
                txn.if_quiet(self.keys.deciding(name), self.snapshot.revision);
            }
            if let Some(blocker) = self.blocker(name, slot.line.iter().map(|t| t.claim.id), id) {
                txn.if_unwritten(blocker.0, blocker.1);
            }
        }
        Ok(())
    }

    /// Deletes the keys of claims that the ledger has removed.
    fn diff_removed(&self, txn: &mut Transaction, name: &Name, ledger: &mut SnapshotLedger) {
        let slot = ledger.shelf().peek(name);
        let exists = |id: ClaimId| {
            slot.is_some_and(|slot| {
                slot.line.get(id).is_some() || slot.holds.iter().any(|hold| hold.claim.id == id)
            })
        };
        let all = &self.snapshot.slots[name];
        for seen in all.iter().filter(|seen| seen.kind != KeyKind::Delay && !exists(seen.id)) {
            txn.delete_found(self.keys, name, seen);
            match self.snapshot.key_of(name, KeyKind::Hold, seen.id) {
                None => {
                    txn.if_unwritten(seen.key.clone(), seen.written);
                    // The claim may be granted meanwhile, which writes its hold and not its ticket:
                    // so there must be no hold.
                    txn.if_absent(self.keys.claim(name, KeyKind::Hold, seen.tag));
                }
                Some(hold) if hold.key == seen.key => {
                    txn.if_unwritten(seen.key.clone(), seen.written);
                    if let Some(delay) = self.snapshot.key_of(name, KeyKind::Delay, seen.id) {
                        txn.delete(delay.key.clone());
                    }
                }
                // The comparison of its hold covers its ticket too.
                Some(_) => {}
            }
        }
    }

    /// Compares that the snapshot has everything that could refuse a new hold.
    fn compare_all_seen(&self, txn: &mut Transaction, name: &Name, id: ClaimId) {
        let waited = self.snapshot.ticket(name, id);
        let range = if waited.is_some() { self.keys.deciding(name) } else { self.keys.slot(name) };
        txn.if_quiet(range, self.snapshot.revision);
        if let Some(ticket) = waited {
            txn.if_unwritten(ticket.key.clone(), ticket.written);
        }
    }

    /// Writes the key of a lock delay beside a hold that has just become whole.
    fn put_delay(&self, txn: &mut Transaction, name: &Name, local: Option<&LocalClaim>, wall: u64) {
        let Some(local) = local else { return };
        if let Some(lease) = local.delay.as_ref() {
            let key = self.keys.claim(name, KeyKind::Delay, local.tag);
            txn.put(key, ClaimRecord::new(&local.claim, wall).encode(), lease.id);
        }
    }

    /// Returns the key that a new ticket waits for, with its revision: the ticket before it, else a
    /// hold, else a lock delay.
    fn blocker(
        &self,
        name: &Name,
        line: impl Iterator<Item = ClaimId>,
        id: ClaimId,
    ) -> Option<(Vec<u8>, u64)> {
        let before = line.take_while(|other| *other != id).last();
        let ticket = before.and_then(|before| self.snapshot.ticket(name, before));
        let all = &self.snapshot.slots[name];
        let holds = || all.iter().find(|seen| seen.kind == KeyKind::Hold);
        let seen = ticket.or_else(holds).or_else(|| all.first())?;
        Some((seen.key.clone(), seen.written))
    }
}

/// Builds the reads of slots and tombstones.
pub(super) fn read_ops(keys: &Keys, names: &[Name], claims: &[ClaimId]) -> Vec<RequestOp> {
    read_ops_limited(keys, names, claims, 0)
}

/// Builds the reads of slots and tombstones, with at most `limit` keys of each slot; 0: all.
pub(super) fn read_ops_limited(
    keys: &Keys,
    names: &[Name],
    claims: &[ClaimId],
    limit: i64,
) -> Vec<RequestOp> {
    let slots = names.iter().map(|name| {
        let Range { from: key, to: range_end } = keys.slot(name);
        RangeRequest { key, range_end, limit, ..RangeRequest::default() }.into()
    });
    let tombstones = claims.iter().map(|id| RequestOp::get(keys.tombstone(*id)));
    slots.chain(tombstones).collect()
}

/// Builds the snapshot from a reply to [`read_ops`].
pub(super) fn snapshot_of(
    keys: &Keys,
    epoch: Epoch,
    reply: TxnReply,
    names: &[Name],
    claims: &[ClaimId],
) -> Result<SlotSnapshot, Error> {
    let mut snapshot = SlotSnapshot::new(reply.revision, epoch);
    let mut found = reply.replies.into_iter().map(ResponseOp::into_kvs);
    for name in names {
        snapshot.add(keys, name, &found.next().unwrap_or_default())?;
    }
    for (id, tomb) in claims.iter().zip(found) {
        if let Some(tomb) = tomb.first() {
            let reason = String::from_utf8_lossy(&tomb.value);
            let reason = (!reason.is_empty()).then(|| Arc::from(&*reason));
            snapshot.tombstones.insert(*id, reason);
        }
    }
    Ok(snapshot)
}

/// Reads the two newest tickets: the one that the same transaction writes, and the one before it.
pub(super) fn read_last_two(range: Range) -> RequestOp {
    let newest = RangeRequest {
        key: range.from,
        range_end: range.to,
        limit: 2,
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    };
    newest.into()
}

pub(super) fn read_range(range: Range) -> RequestOp {
    RequestOp::range(range.from, range.to)
}

/// A revision as etcd's API has it.
pub(super) fn as_i64(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

fn foreign_claim() -> Error {
    Error::new(ErrorKind::Corrupt, "the ledger would write keys for a claim of another process")
}
