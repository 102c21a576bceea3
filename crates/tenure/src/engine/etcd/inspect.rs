//! The inspect verb: one slot, pages of slots, and what an owner can reach. Changes nothing.
//!
//! All reads of one call are made at the revision of the first one, so the result is consistent. A
//! page of keys may end in the middle of a slot: the last slot is left for the next read, or read
//! as a whole if it is larger than a page. Keys do not say when their leases end; that is read from
//! etcd for a limited number of leases, the others are shown as just renewed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::Inner;
use super::client::{KeyValue, RangeRequest, ResponseOp};
use super::errors::VerbError;
use super::keys::Range;
use super::snapshot::SlotSnapshot;
use crate::contract::{Error, Name, Page, Query, Snapshot, Verb};
use crate::limits;

/// How many keys are read in one call.
const KEYS_PER_READ: i64 = 2_000;

/// For how many leases the remaining time is read.
const MAX_LEASES_READ: usize = 64;

impl Inner {
    pub(super) async fn inspect(self: &Arc<Self>, query: &Query) -> Result<Snapshot, Error> {
        let seen = match query {
            Query::Slot(name) => self.inspect_slot(query, name).await,
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

    async fn inspect_page(&self, page: &Page) -> Result<Snapshot, VerbError> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let mut range = match &page.after {
            Some(after) => self.keys.slots_after(after),
            None => self.keys.all_slots(),
        };
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
        let mut found: Option<SlotSnapshot> = None;
        let mut range = self.keys.all_slots();
        loop {
            let revision = found.as_ref().map_or(0, |found| found.revision);
            let (at, keys, more) = self.read_page(&range, revision).await?;
            let found = found.get_or_insert_with(|| SlotSnapshot::new(at, self.epoch()));
            let (slots, rest) = self.whole_slots(keys, more, &range).await?;
            for (name, keys) in slots {
                found.add(&self.keys, &name, &keys)?;
            }
            match rest {
                Some(rest) => range = rest,
                None => break,
            }
        }
        let mut found = found.unwrap_or_else(|| SlotSnapshot::new(0, self.epoch()));
        self.read_lease_times(&mut found).await;
        let now = self.now();
        Ok(found.ledger(now, 0).inspect(query, now))
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
