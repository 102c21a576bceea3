//! The inspect verb: one slot, pages of slots, and what an owner can reach. Changes nothing.
//!
//! All reads of one call are made at the revision of the first one, so the result is consistent. A
//! page of keys may end in the middle of a slot: the last slot is left for the next read, or read
//! as a whole if it is larger than a page. Slots with a queue are found by the marks beside tickets
//! (`keys.rs`), without a look at the others. Keys do not say when their leases end; that is read
//! from etcd for a limited number of leases, the others are shown as just renewed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::Inner;
use super::client::{KeyValue, RangeRequest, ResponseOp};
use super::errors::VerbError;
use super::keys::{KeyKind, Range};
use super::snapshot::{FoundKey, SlotSnapshot};
use crate::contract::{Error, Name, Page, Query, Snapshot, Verb};
use crate::limits;

/// How many keys are read in one call.
const KEYS_PER_READ: i64 = 2_000;

/// How many contended slots are read in one call.
const SLOTS_PER_READ: usize = 32;

/// For how many leases the remaining time is read.
const MAX_LEASES_READ: usize = 64;

impl Inner {
    pub(super) async fn inspect(self: &Arc<Self>, query: &Query) -> Result<Snapshot, Error> {
        let seen = match query {
            Query::Slot(name) => self.inspect_slot(query, name).await,
            Query::Page(page) if page.contended => self.inspect_contended(page).await,
            Query::Page(page) => self.inspect_page(page).await,
            Query::Reach(_) => self.inspect_reach(query).await,
        };
        seen.map_err(|error| error.into_error(Verb::Inspect))
    }

    async fn inspect_slot(&self, query: &Query, name: &Name) -> Result<Snapshot, VerbError> {
        let mut found = self.read_slots(std::slice::from_ref(name), &[]).await?;
        self.read_lease_times(&mut found).await;
        let now = self.now();
        Ok(found.ledger(now, 0).inspect(query, now))
    }

    /// Reads the slots that have a mark, and those alone.
    async fn inspect_contended(&self, page: &Page) -> Result<Snapshot, VerbError> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let mut range = self.keys.marks(&page.pattern.literal_prefix());
        if let Some(after) = &page.after {
            range.from = range.from.max(self.keys.behind_marks(after));
        }
        let mut found: Option<SlotSnapshot> = None;
        let mut more = range.from < range.to;
        while more && found.as_ref().is_none_or(|found| found.slots.len() <= limit) {
            let revision = found.as_ref().map_or(0, |found| found.revision);
            let (at, names);
            (at, names, more) = self.read_marks(&range, revision).await?;
            if let Some(last) = names.last() {
                range.from = self.keys.behind_marks(last);
            }
            let found = found.get_or_insert_with(|| SlotSnapshot::new(at, self.epoch()));
            let matching = names.into_iter().filter(|name| page.pattern.matches(name.as_str()));
            let matching: Vec<Name> = matching.collect();
            for names in matching.chunks(SLOTS_PER_READ) {
                if found.slots.len() > limit {
                    more = true;
                    break;
                }
                self.add_contended(found, names).await?;
            }
        }
        let mut found = found.unwrap_or_else(|| SlotSnapshot::new(0, self.epoch()));
        while found.slots.len() > limit + 1 {
            found.slots.pop_last();
            more = true;
        }
        self.read_lease_times(&mut found).await;
        let now = self.now();
        let query = Query::Page(Page { after: None, ..page.clone() });
        let mut seen = found.ledger(now, 0).inspect(&query, now);
        if more && seen.more_after.is_none() {
            // Queues that ended by time are left out, so the page is not full; there is more.
            seen.more_after = found.slots.last_key_value().map(|(name, _)| name.clone());
        }
        Ok(seen)
    }

    /// Reads the first marks of a range, at a revision if it is not 0. Returns the revision, the
    /// slots that have them, in order, and whether there is more.
    async fn read_marks(
        &self,
        range: &Range,
        revision: u64,
    ) -> Result<(u64, Vec<Name>, bool), VerbError> {
        let wanted = RangeRequest {
            key: range.from.clone(),
            range_end: range.to.clone(),
            limit: KEYS_PER_READ,
            revision: super::transaction::as_i64(revision),
            keys_only: true,
            ..RangeRequest::default()
        };
        let read = self.connection.read(vec![wanted.into()]).await?;
        let at = if revision == 0 { read.revision } else { revision };
        let keys = read.replies.into_iter().next().map(ResponseOp::into_kvs).unwrap_or_default();
        let more = keys.len() as u64 >= KEYS_PER_READ.unsigned_abs();
        let mut names: Vec<Name> =
            keys.iter().filter_map(|key| self.keys.marked_slot(&key.key)).collect();
        names.dedup();
        Ok((at, names, more))
    }

    /// Adds slots to a snapshot, as they were at its revision, if a claim waits there. A claim that
    /// holds keeps its ticket, and the mark with it.
    async fn add_contended(
        &self,
        found: &mut SlotSnapshot,
        names: &[Name],
    ) -> Result<(), VerbError> {
        for (name, keys) in self.read_slot_keys(found.revision, names).await? {
            // A damaged slot is reported when that slot is inspected; the others are shown.
            let _ = found.add(&self.keys, name, &keys);
            let all = found.slots.get(name).map_or(&[][..], Vec::as_slice);
            let holds = |id| all.iter().any(|seen| seen.kind == KeyKind::Hold && seen.id == id);
            let waits = |seen: &FoundKey| {
                matches!(seen.kind, KeyKind::Kin | KeyKind::Wait) && !holds(seen.id)
            };
            if !all.iter().any(waits) {
                found.slots.remove(name);
            }
        }
        Ok(())
    }

    async fn inspect_page(&self, page: &Page) -> Result<Snapshot, VerbError> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let mut range = self.keys.slots(&page.pattern.literal_prefix());
        if let Some(after) = &page.after {
            range.from = range.from.max(self.keys.slot(after).to);
        }
        let mut found: Option<SlotSnapshot> = None;
        loop {
            let revision = found.as_ref().map_or(0, |found| found.revision);
            let (at, keys, more) = self.read_page(&range, revision).await?;
            let found = found.get_or_insert_with(|| SlotSnapshot::new(at, self.epoch()));
            let (slots, rest) = self.whole_slots(keys, more, &range).await?;
            for (name, keys) in slots {
                if page.pattern.matches(name.as_str()) {
                    // A damaged slot is reported when that slot is inspected; the others are shown.
                    let _ = found.add(&self.keys, &name, &keys);
                }
            }
            match rest {
                Some(rest) if found.slots.len() <= limit => range = rest,
                _ => break,
            }
        }
        let mut found = found.unwrap_or_else(|| SlotSnapshot::new(0, self.epoch()));
        // One more than is shown, so that it is known whether there is a next page.
        while found.slots.len() > limit + 1 {
            found.slots.pop_last();
        }
        self.read_lease_times(&mut found).await;
        let now = self.now();
        let query = Query::Page(Page { after: None, ..page.clone() });
        Ok(found.ledger(now, 0).inspect(&query, now))
    }

    async fn inspect_reach(&self, query: &Query) -> Result<Snapshot, VerbError> {
        let mut found = self.read_contended().await?;
        self.read_lease_times(&mut found).await;
        let now = self.now();
        Ok(found.ledger(now, 0).inspect(query, now))
    }

    /// Reads all slots that have a queue, and the markers of owners with another flow of control,
    /// at
    /// one revision: everything that can be part of a deadlock.
    pub(super) async fn read_contended(&self) -> Result<SlotSnapshot, VerbError> {
        let mut markers = self.keys.markers();
        let (at, mut keys, mut more) = self.read_page(&markers, 0).await?;
        let mut found = SlotSnapshot::new(at, self.epoch());
        loop {
            let (slots, rest) = self.whole_slots(keys, more, &markers).await?;
            for (name, keys) in slots {
                found.add(&self.keys, &name, &keys)?;
            }
            let Some(rest) = rest else { break };
            markers = rest;
            (_, keys, more) = self.read_page(&markers, at).await?;
        }
        let mut range = self.keys.marks("");
        let mut more = true;
        while more {
            let names;
            (_, names, more) = self.read_marks(&range, at).await?;
            let Some(last) = names.last() else { break };
            range.from = self.keys.behind_marks(last);
            for names in names.chunks(SLOTS_PER_READ) {
                self.add_contended(&mut found, names).await?;
            }
        }
        Ok(found)
    }

    /// Reads all keys of some slots, as they were at a revision.
    async fn read_slot_keys<'a>(
        &self,
        revision: u64,
        names: &'a [Name],
    ) -> Result<impl Iterator<Item = (&'a Name, Vec<KeyValue>)> + use<'a>, VerbError> {
        let revision = super::transaction::as_i64(revision);
        let read = |name: &Name| {
            let Range { from: key, to: range_end } = self.keys.slot(name);
            RangeRequest { key, range_end, revision, ..RangeRequest::default() }.into()
        };
        let reply = self.connection.read(names.iter().map(read).collect()).await?;
        Ok(names.iter().zip(reply.replies.into_iter().map(ResponseOp::into_kvs)))
    }

    /// Adds slots to a snapshot, as they were at its revision.
    pub(super) async fn add_slots(
        &self,
        found: &mut SlotSnapshot,
        names: &[Name],
    ) -> Result<(), VerbError> {
        for (name, keys) in self.read_slot_keys(found.revision, names).await? {
            found.add(&self.keys, name, &keys)?;
        }
        Ok(())
    }

    /// Reads the first keys of a range, at a revision if it is not 0. Returns the revision, the
    /// keys and whether there are more.
    async fn read_page(
        &self,
        range: &Range,
        revision: u64,
    ) -> Result<(u64, Vec<KeyValue>, bool), VerbError> {
        let wanted = RangeRequest {
            key: range.from.clone(),
            range_end: range.to.clone(),
            limit: KEYS_PER_READ,
            revision: super::transaction::as_i64(revision),
            ..RangeRequest::default()
        };
        let read = self.connection.read(vec![wanted.into()]).await?;
        let at = if revision == 0 { read.revision } else { revision };
        let keys = read.replies.into_iter().next().map(ResponseOp::into_kvs).unwrap_or_default();
        let more = keys.len() as u64 >= KEYS_PER_READ.unsigned_abs();
        Ok((at, keys, more))
    }

    /// Groups keys by slot, and returns the range that is still to be read. The last slot may be
    /// incomplete: it is left for the next read, or read as a whole if it is the only one.
    async fn whole_slots(
        &self,
        keys: Vec<KeyValue>,
        more: bool,
        range: &Range,
    ) -> Result<(BTreeMap<Name, Vec<KeyValue>>, Option<Range>), VerbError> {
        let mut slots: BTreeMap<Name, Vec<KeyValue>> = BTreeMap::new();
        for key in keys {
            if let Some(name) = self.keys.slot_of(&key.key) {
                slots.entry(name).or_default().push(key);
            }
        }
        if !more {
            return Ok((slots, None));
        }
        let Some((last, _)) = slots.pop_last() else { return Ok((slots, None)) };
        let slot = self.keys.slot(&last);
        if !slots.is_empty() {
            return Ok((slots, Some(Range { from: slot.from, to: range.to.clone() })));
        }
        let read = self.connection.read(vec![super::transaction::read_range(slot.clone())]).await?;
        let whole = read.replies.into_iter().next().map(ResponseOp::into_kvs).unwrap_or_default();
        slots.insert(last, whole);
        Ok((slots, Some(Range { from: slot.to, to: range.to.clone() })))
    }

    /// Reads how long the leases in a snapshot have left, to show it.
    pub(super) async fn read_lease_times(&self, found: &mut SlotSnapshot) {
        let all = found.slots.values().flatten().map(|seen| seen.lease);
        let leases: HashSet<i64> = all.take(limits::PAGE).collect();
        for lease in leases.into_iter().take(MAX_LEASES_READ) {
            if let Ok(Some(left)) = self.leases.remaining(lease).await {
                found.remaining.insert(lease, left);
            }
        }
    }
}
