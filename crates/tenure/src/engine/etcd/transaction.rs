//! One step: what the rules changed in a picture, as one transaction that holds only if nothing
//! else has changed there that matters. Knows conditions and writes, makes the calls of a step.
//!
//! What matters: a new hold must have seen every hold, every lock delay and every ticket that may
//! stand ahead (one comparison over a range of keys: none was written since); one that did not wait
//! must have seen every ticket as well, or it would jump the line. Deletions only free, so they do
//! not matter to a hold. They matter to a ticket: what it waits behind must still be there, for
//! that is what it will watch. What is rewritten or deleted must be as it was read. The number that
//! tags the keys of a new claim must be free: its keys are compared, or in a set, where these would
//! be too many, that nothing was written to the slots.

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
use super::snapshot::{HoldState, SlotSnapshot, SnapshotLedger, hold_states};
use crate::contract::{Claim, ClaimId, Error, ErrorKind, Name};
use crate::ledger::seam::{Line, Shelf};

/// Most operations of one transaction, if etcd is not told more.
const OPERATIONS: usize = 128;

/// A claim that this engine makes or serves, and what its keys hang on.
#[derive(Clone, Debug)]
pub(super) struct LocalClaim {
    pub(super) claim: Arc<Claim>,
    pub(super) lease: Arc<EtcdLease>,
    /// For its lock delay.
    pub(super) delay: Option<Arc<EtcdLease>>,
    /// How its keys end.
    pub(super) tag: Tag,
}

/// Conditions and writes.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) compares: Vec<Compare>,
    pub(super) writes: Vec<RequestOp>,
}

impl Transaction {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Only if a key has not been written since it was read, or is still absent.
    pub(super) fn if_unwritten(&mut self, key: Vec<u8>, written: u64) {
        self.compares.push(Compare::mod_revision(key, CompareResult::Equal, as_i64(written)));
    }

    /// Only if what stands at a key was created by this revision, whatever was written there since.
    pub(super) fn if_created_by(&mut self, key: Vec<u8>, by: u64) {
        self.compares.push(Compare::create_revision(key, CompareResult::Equal, as_i64(by)));
    }

    /// Only if there is nothing at a key.
    pub(super) fn if_absent(&mut self, key: Vec<u8>) {
        self.compares.push(Compare::create_revision(key, CompareResult::Equal, 0));
    }

    /// Only if nothing in a range was written after a revision.
    pub(super) fn if_quiet(&mut self, range: Range, revision: u64) {
        let compare = Compare::mod_revision(range.from, CompareResult::Less, as_i64(revision + 1));
        self.compares.push(compare.with_range(range.to));
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>, lease: i64) {
        self.writes.push(RequestOp::put(key, value, lease));
    }

    /// Writes a key anew that stays on its lease.
    fn rewrite(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let put = PutRequest { key, value, lease: 0, ignore_lease: true };
        self.writes.push(put.into());
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.writes.push(RequestOp::delete(key));
    }

    /// Takes the deletions of tickets and lock delays out, if the change has more writes than etcd
    /// takes in one transaction. They are to be made first: what is left of a claim still holds.
    pub(super) fn split_excess(&mut self, keys: &Keys) -> Option<Self> {
        if self.writes.len() <= OPERATIONS {
            return None;
        }
        let beside = |op: &RequestOp| {
            let Some(Request::RequestDeleteRange(delete)) = &op.request else { return false };
            keys.parse(&delete.key).is_some_and(|(_, kind, _)| kind != KeyKind::Hold)
        };
        let (first, rest) = std::mem::take(&mut self.writes).into_iter().partition(beside);
        self.writes = rest;
        Some(Self { compares: self.compares.clone(), writes: first })
    }
}

/// What a step is made of: the picture, the rules over it, and how they stood before.
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

    /// What the rules have changed since.
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
            // A copy of this claim may arrive at the same time, and writes to all its slots at
            // once; or another claim that chose the same tag.
            let name = local.claim.parts.first_name();
            let stands = |kind: KeyKind| self.snapshot.key_of(name, kind, id).is_some();
            if ![KeyKind::Hold, KeyKind::Kin, KeyKind::Wait].into_iter().any(stands) {
                // Its own lock delay may stand from before it ended.
                for kind in KeyKind::ALL.into_iter().filter(|kind| !stands(*kind)) {
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
            let was = before.get(&id).is_some_and(|mark| !mark.is_reserved());
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
            let key = self.keys.claim(name, kind, local.tag);
            let mut record = ClaimRecord::new(&ticket.claim, wall);
            let old = ticket.claim.replaces;
            record.reserved = slot.holds.iter().any(|hold| Some(hold.claim.id) == old);
            txn.put(key, record.encode(), local.lease.id);
            if ticket.claim.parts.as_slice().len() > 1 && matches!(local.tag, Tag::Number(_)) {
                // Another claim may have chosen the same number.
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

    /// Deletes what was there and is gone by the rules.
    fn diff_removed(&self, txn: &mut Transaction, name: &Name, ledger: &mut SnapshotLedger) {
        let slot = ledger.shelf().peek(name);
        let stands = |id: ClaimId| {
            slot.is_some_and(|slot| {
                slot.line.get(id).is_some() || slot.holds.iter().any(|hold| hold.claim.id == id)
            })
        };
        let all = &self.snapshot.slots[name];
        for seen in all.iter().filter(|seen| seen.kind != KeyKind::Delay && !stands(seen.id)) {
            txn.delete(seen.key.clone());
            match self.snapshot.key_of(name, KeyKind::Hold, seen.id) {
                None => {
                    txn.if_unwritten(seen.key.clone(), seen.written);
                    // It may come to hold at the same time, which writes nothing at its ticket.
                    txn.if_absent(self.keys.claim(name, KeyKind::Hold, seen.tag));
                }
                Some(hold) if hold.key == seen.key => {
                    txn.if_unwritten(seen.key.clone(), seen.written);
                    if let Some(delay) = self.snapshot.key_of(name, KeyKind::Delay, seen.id) {
                        txn.delete(delay.key.clone());
                    }
                }
                // The comparison at its hold speaks for its ticket too.
                Some(_) => {}
            }
        }
    }

    /// A new hold has seen everything that could stand in its way.
    fn compare_all_seen(&self, txn: &mut Transaction, name: &Name, id: ClaimId) {
        let waited = self.snapshot.ticket(name, id);
        let range = if waited.is_some() { self.keys.deciding(name) } else { self.keys.slot(name) };
        txn.if_quiet(range, self.snapshot.revision);
        if let Some(ticket) = waited {
            txn.if_unwritten(ticket.key.clone(), ticket.written);
        }
    }

    fn put_delay(&self, txn: &mut Transaction, name: &Name, local: Option<&LocalClaim>, wall: u64) {
        let Some(local) = local else { return };
        if let Some(lease) = local.delay.as_ref() {
            let key = self.keys.claim(name, KeyKind::Delay, local.tag);
            txn.put(key, ClaimRecord::new(&local.claim, wall).encode(), lease.id);
        }
    }

    /// What a new ticket waits behind, which must still be there: the one before it in line, or
    /// whoever holds, or what keeps the slot closed.
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

/// What to read of slots and tombstones.
pub(super) fn read_ops(keys: &Keys, names: &[Name], claims: &[ClaimId]) -> Vec<RequestOp> {
    read_ops_limited(keys, names, claims, 0)
}

/// The same with at most so many keys of each slot; 0 stands for all.
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

/// The picture that an answer to [`reads`] gives.
pub(super) fn snapshot_of(
    keys: &Keys,
    epoch: Epoch,
    answer: TxnReply,
    names: &[Name],
    claims: &[ClaimId],
) -> Result<SlotSnapshot, Error> {
    let mut snapshot = SlotSnapshot::new(answer.revision, epoch);
    let mut found = answer.replies.into_iter().map(ResponseOp::into_kvs);
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

/// The two tickets that came last: one's own, if it has just been written, and who is before it.
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

pub(super) fn as_i64(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

fn foreign_claim() -> Error {
    Error::new(ErrorKind::Corrupt, "the ledger would serve a claim of another process")
}
