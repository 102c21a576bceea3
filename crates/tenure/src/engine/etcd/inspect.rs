//! The inspect verb: one slot, pages of slots, and what an owner can reach, each at one revision.
//! Changes nothing; knows what is not told in keys: how long leases have left.

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

/// For how many leases etcd is asked how long they have left. The rest counts as just renewed.
const MAX_LEASES_READ: usize = 64;

impl Inner {
    pub(super) async fn inspect(self: &Arc<Self>, query: &Query) -> Result<Snapshot, Error> {
        let seen = match query {
            Query::Slot(name) => self.one(query, name).await,
            Query::Page(page) => self.page(page).await,
            Query::Reach(_) => self.reach(query).await,
        };
        seen.map_err(|error| error.into_error(Verb::Inspect))
    }

    async fn one(&self, query: &Query, name: &Name) -> Result<Snapshot, VerbError> {
        let mut found = self.read_slots(std::slice::from_ref(name), &[]).await?;
        self.read_lease_times(&mut found).await;
        let now = self.now();
        Ok(found.ledger(now, 0).inspect(query, now))
    }

    async fn page(&self, page: &Page) -> Result<Snapshot, VerbError> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let mut range = match &page.after {
            Some(after) => self.keys.slots_after(after),
            None => self.keys.all_slots(),
        };
        let mut found: Option<SlotSnapshot> = None;
        loop {
            let revision = found.as_ref().map_or(0, |found| found.revision);
            let (at, keys, more) = self.some(&range, revision).await?;
            let found = found.get_or_insert_with(|| SlotSnapshot::new(at, self.epoch()));
            let (slots, rest) = self.whole_slots(keys, more, &range).await?;
            for (name, keys) in slots {
                if page.pattern.matches(name.as_str()) {
                    // What is damaged is told when that slot is asked for; the others can be seen.
                    let _ = found.add(&self.keys, &name, &keys);
                }
            }
            match rest {
                Some(rest) if found.slots.len() <= limit => range = rest,
                _ => break,
            }
        }
        let mut found = found.unwrap_or_else(|| SlotSnapshot::new(0, self.epoch()));
        // One more than is shown, so that the next page is known to have something.
        while found.slots.len() > limit + 1 {
            found.slots.pop_last();
        }
        self.read_lease_times(&mut found).await;
        let now = self.now();
        let query = Query::Page(Page { after: None, ..page.clone() });
        Ok(found.ledger(now, 0).inspect(&query, now))
    }

    async fn reach(&self, query: &Query) -> Result<Snapshot, VerbError> {
        let mut found: Option<SlotSnapshot> = None;
        let mut range = self.keys.all_slots();
        loop {
            let revision = found.as_ref().map_or(0, |found| found.revision);
            let (at, keys, more) = self.some(&range, revision).await?;
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

    /// Some keys of a range, at a revision if one is given: the revision, and whether there is
    /// more.
    async fn some(
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

    /// The keys by slot, and the range that is still to be read. The last slot may be cut in two:
    /// it is read with the rest, or whole if it is so large that there is nothing before it.
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

    /// Asks how long the leases in a picture have left, for people to see.
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
