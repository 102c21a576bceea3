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
use super::keys::{Keys, Kind, Range, Tag};
use super::leases::Lease;
use super::link::Answer;
use super::picture::{Epoch, Mark, Picture, Rules, marks};
use super::record::Record;
use crate::contract::{Claim, ClaimId, Error, ErrorKind, Name};
use crate::ledger::seam::{Line, Shelf};

/// Most operations of one transaction, if etcd is not told more.
const OPERATIONS: usize = 128;

/// A claim that this engine makes or serves, and what its keys hang on.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) claim: Arc<Claim>,
    pub(super) lease: Arc<Lease>,
    /// For its lock delay.
    pub(super) delay: Option<Arc<Lease>>,
    /// How its keys end.
    pub(super) tag: Tag,
}

/// Conditions and writes.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) compares: Vec<Compare>,
    pub(super) writes: Vec<RequestOp>,
}

impl Change {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Only if a key has not been written since it was read, or is still absent.
    pub(super) fn unwritten(&mut self, key: Vec<u8>, written: u64) {
        self.compares.push(Compare::mod_revision(key, CompareResult::Equal, number(written)));
    }

    /// Only if what stands at a key was created by this revision, whatever was written there since.
    pub(super) fn created(&mut self, key: Vec<u8>, by: u64) {
        self.compares.push(Compare::create_revision(key, CompareResult::Equal, number(by)));
    }

    /// Only if there is nothing at a key.
    pub(super) fn absent(&mut self, key: Vec<u8>) {
        self.compares.push(Compare::create_revision(key, CompareResult::Equal, 0));
    }

    /// Only if nothing in a range was written after a revision.
    pub(super) fn quiet(&mut self, range: Range, revision: u64) {
        let compare = Compare::mod_revision(range.from, CompareResult::Less, number(revision + 1));
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
    pub(super) fn take_excess(&mut self, keys: &Keys) -> Option<Self> {
        if self.writes.len() <= OPERATIONS {
            return None;
        }
        let beside = |op: &RequestOp| {
            let Some(Request::RequestDeleteRange(delete)) = &op.request else { return false };
            keys.read(&delete.key).is_some_and(|(_, kind, _)| kind != Kind::Hold)
        };
        let (first, rest) = std::mem::take(&mut self.writes).into_iter().partition(beside);
        self.writes = rest;
        Some(Self { compares: self.compares.clone(), writes: first })
    }
}

/// What a step is made of: the picture, the rules over it, and how they stood before.
pub(super) struct Step<'a> {
    pub(super) keys: &'a Keys,
    pub(super) picture: &'a Picture,
    before: HashMap<Name, HashMap<ClaimId, Mark>>,
}

impl<'a> Step<'a> {
    pub(super) fn new(keys: &'a Keys, picture: &'a Picture, rules: &mut Rules) -> Self {
        let names = picture.slots.keys();
        let before = names.map(|name| (name.clone(), marks(rules, name))).collect();
        Self { keys, picture, before }
    }

    /// What the rules have changed since.
    pub(super) fn change(
        &self,
        rules: &mut Rules,
        own: Option<&Own>,
        wall: u64,
    ) -> Result<Change, Error> {
        let mut change = Change::default();
        for name in self.picture.slots.keys() {
            self.change_slot(&mut change, name, rules, own, wall)?;
        }
        if let Some(own) = own.filter(|_| !change.is_empty()) {
            let id = own.claim.id;
            change.absent(self.keys.tomb(id));
            // A copy of this claim may arrive at the same time, and writes to all its slots at
            // once; or another claim that chose the same tag.
            let name = own.claim.parts.first_name();
            let stands = |kind: Kind| self.picture.seen(name, kind, id).is_some();
            if ![Kind::Hold, Kind::Kin, Kind::Wait].into_iter().any(stands) {
                // Its own lock delay may stand from before it ended.
                for kind in Kind::ALL.into_iter().filter(|kind| !stands(*kind)) {
                    change.absent(self.keys.claim(name, kind, own.tag));
                }
            }
        }
        Ok(change)
    }

    fn change_slot(
        &self,
        change: &mut Change,
        name: &Name,
        rules: &mut Rules,
        own: Option<&Own>,
        wall: u64,
    ) -> Result<(), Error> {
        let after = marks(rules, name);
        self.removed(change, name, rules);
        let Some(slot) = rules.shelf().peek(name) else { return Ok(()) };
        let before = &self.before[name];
        for hold in slot.holds.iter() {
            let id = hold.claim.id;
            let record = || self.picture.record_of(name, slot, hold, wall).write();
            match self.picture.seen(name, Kind::Hold, id) {
                Some(seen) if before.get(&id) != after.get(&id) => {
                    change.unwritten(seen.key.clone(), seen.written);
                    change.rewrite(seen.key.clone(), record());
                }
                Some(_) => {}
                None => {
                    let own = own.filter(|own| own.claim.id == id).ok_or_else(not_ours)?;
                    let key = self.keys.claim(name, Kind::Hold, own.tag);
                    change.put(key, record(), own.lease.id);
                    self.seen_all(change, name, id);
                }
            }
            let was = before.get(&id).is_some_and(|mark| !mark.is_reserved());
            if !hold.reserved && !was {
                self.mark_delay(change, name, own.filter(|own| own.claim.id == id), wall);
            }
        }
        let tickets = slot.line.iter().filter(|t| self.picture.ticket(name, t.claim.id).is_none());
        for ticket in tickets {
            let id = ticket.claim.id;
            let own = own.filter(|own| own.claim.id == id).ok_or_else(not_ours)?;
            let lineage = &ticket.claim.lineage;
            let kin = ticket.ahead()
                || !lineage.ancestors().is_empty()
                || ticket.claim.replaces.is_some();
            let kind = if kin { Kind::Kin } else { Kind::Wait };
            let key = self.keys.claim(name, kind, own.tag);
            let mut record = Record::new(&ticket.claim, wall);
            let old = ticket.claim.replaces;
            record.reserved = slot.holds.iter().any(|hold| Some(hold.claim.id) == old);
            change.put(key, record.write(), own.lease.id);
            if ticket.claim.parts.as_slice().len() > 1 && matches!(own.tag, Tag::Seat(_)) {
                // Another claim may have chosen the same number.
                change.quiet(self.keys.slot(name), self.picture.revision);
            } else if kin {
                change.quiet(self.keys.deciding(name), self.picture.revision);
            }
            if let Some(witness) = self.witness(name, slot.line.iter().map(|t| t.claim.id), id) {
                change.unwritten(witness.0, witness.1);
            }
        }
        Ok(())
    }

    /// Deletes what was there and is gone by the rules.
    fn removed(&self, change: &mut Change, name: &Name, rules: &mut Rules) {
        let slot = rules.shelf().peek(name);
        let stands = |id: ClaimId| {
            slot.is_some_and(|slot| {
                slot.line.get(id).is_some() || slot.holds.iter().any(|hold| hold.claim.id == id)
            })
        };
        let all = &self.picture.slots[name];
        for seen in all.iter().filter(|seen| seen.kind != Kind::Delay && !stands(seen.id)) {
            change.delete(seen.key.clone());
            match self.picture.seen(name, Kind::Hold, seen.id) {
                None => {
                    change.unwritten(seen.key.clone(), seen.written);
                    // It may come to hold at the same time, which writes nothing at its ticket.
                    change.absent(self.keys.claim(name, Kind::Hold, seen.tag));
                }
                Some(hold) if hold.key == seen.key => {
                    change.unwritten(seen.key.clone(), seen.written);
                    if let Some(delay) = self.picture.seen(name, Kind::Delay, seen.id) {
                        change.delete(delay.key.clone());
                    }
                }
                // The comparison at its hold speaks for its ticket too.
                Some(_) => {}
            }
        }
    }

    /// A new hold has seen everything that could stand in its way.
    fn seen_all(&self, change: &mut Change, name: &Name, id: ClaimId) {
        let waited = self.picture.ticket(name, id);
        let range = if waited.is_some() { self.keys.deciding(name) } else { self.keys.slot(name) };
        change.quiet(range, self.picture.revision);
        if let Some(ticket) = waited {
            change.unwritten(ticket.key.clone(), ticket.written);
        }
    }

    fn mark_delay(&self, change: &mut Change, name: &Name, own: Option<&Own>, wall: u64) {
        let Some(own) = own else { return };
        if let Some(lease) = own.delay.as_ref() {
            let key = self.keys.claim(name, Kind::Delay, own.tag);
            change.put(key, Record::new(&own.claim, wall).write(), lease.id);
        }
    }

    /// What a new ticket waits behind, which must still be there: the one before it in line, or
    /// whoever holds, or what keeps the slot closed.
    fn witness(
        &self,
        name: &Name,
        line: impl Iterator<Item = ClaimId>,
        id: ClaimId,
    ) -> Option<(Vec<u8>, u64)> {
        let before = line.take_while(|other| *other != id).last();
        let ticket = before.and_then(|before| self.picture.ticket(name, before));
        let all = &self.picture.slots[name];
        let holds = || all.iter().find(|seen| seen.kind == Kind::Hold);
        let seen = ticket.or_else(holds).or_else(|| all.first())?;
        Some((seen.key.clone(), seen.written))
    }
}

/// What to read of slots and tombstones.
pub(super) fn reads(keys: &Keys, names: &[Name], claims: &[ClaimId]) -> Vec<RequestOp> {
    reads_some(keys, names, claims, 0)
}

/// The same with at most so many keys of each slot; 0 stands for all.
pub(super) fn reads_some(
    keys: &Keys,
    names: &[Name],
    claims: &[ClaimId],
    limit: i64,
) -> Vec<RequestOp> {
    let slots = names.iter().map(|name| {
        let Range { from: key, to: range_end } = keys.slot(name);
        RangeRequest { key, range_end, limit, ..RangeRequest::default() }.into()
    });
    let tombs = claims.iter().map(|id| RequestOp::get(keys.tomb(*id)));
    slots.chain(tombs).collect()
}

/// The picture that an answer to [`reads`] gives.
pub(super) fn picture(
    keys: &Keys,
    epoch: Epoch,
    answer: Answer,
    names: &[Name],
    claims: &[ClaimId],
) -> Result<Picture, Error> {
    let mut picture = Picture::new(answer.revision, epoch);
    let mut found = answer.replies.into_iter().map(ResponseOp::into_kvs);
    for name in names {
        picture.add(keys, name, &found.next().unwrap_or_default())?;
    }
    for (id, tomb) in claims.iter().zip(found) {
        if let Some(tomb) = tomb.first() {
            let reason = String::from_utf8_lossy(&tomb.value);
            let reason = (!reason.is_empty()).then(|| Arc::from(&*reason));
            picture.tombs.insert(*id, reason);
        }
    }
    Ok(picture)
}

/// The two tickets that came last: one's own, if it has just been written, and who is before it.
pub(super) fn last_two(range: Range) -> RequestOp {
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

pub(super) fn get_range(range: Range) -> RequestOp {
    RequestOp::range(range.from, range.to)
}

pub(super) fn number(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

fn not_ours() -> Error {
    Error::new(ErrorKind::Corrupt, "the rules would serve a claim of another process")
}
