//! The inspect verb: one slot, a page of slots, or what can be reached from an owner; and what a
//! store offers for it, one server or many. Knows how keys are found, not what scripts see there.

use redis::Value;

use super::RedisEngine;
use super::answers::{self, text};
use super::cells::CellRead;
use super::errors::Trouble;
use super::keys::Keys;
use super::pack::pack;
use super::wire::Wire;
use crate::contract::{Error, Name, Page, Pending, Query, Snapshot, Verb};
use crate::limits;

/// Most slots that one call looks at: nobody else waits longer for the store than for so many.
const TOGETHER: usize = 128;
/// How many keys the store looks at in one step of a scan.
const SCAN: &[u8] = b"1000";

/// A store that can be looked through: one server, or the nodes of a cluster.
pub(super) trait Store: Send + Sync {
    /// How things are called there.
    fn keys(&self) -> &Keys;

    /// What is seen of these slots, and what is wrong with those that cannot be read.
    fn look_at<'a>(&'a self, names: &'a [Name]) -> Pending<'a, (Snapshot, Vec<Error>)>;

    /// What stands in these cells, one for each.
    fn read_cells<'a>(&'a self, names: &'a [Name]) -> Pending<'a, Vec<CellRead>>;

    /// Has a cell written; the items are those of `put.lua`.
    fn write_cell<'a>(&'a self, name: &'a Name, items: [&'a [u8]; 6]) -> Pending<'a, Value>;

    /// Has the terms of the namespace changed; the items are those of `change_terms.lua`.
    fn ask_to_change<'a>(&'a self, items: [&'a [u8]; 3]) -> Pending<'a, Value>;

    /// All keys that match a pattern.
    fn scan<'a>(&'a self, pattern: &'a str) -> Pending<'a, Vec<Vec<u8>>>;
}

impl RedisEngine {
    pub(super) async fn look(&self, query: &Query) -> Result<Snapshot, Error> {
        match query {
            Query::Slot(name) => slot(self, name).await,
            Query::Page(wanted) => page(self, wanted).await,
            Query::Reach(owner) => {
                let most = limits::REACH_SLOTS.to_string();
                let owner = owner.to_hex();
                let (seen, _) =
                    self.inspect_script(&[], &[owner.as_bytes(), most.as_bytes()]).await?;
                Ok(seen)
            }
        }
    }

    pub(super) async fn inspect_script(
        &self,
        keys: &[&str],
        items: &[&[u8]],
    ) -> Result<(Snapshot, Vec<Error>), Error> {
        let script = &self.inner.manner.scripts().inspect;
        let value = self.run(Verb::Inspect, script, keys, items).await?;
        answers::snapshot(&value, &self.inner.keys)
    }
}

/// One slot.
pub(super) async fn slot(store: &impl Store, name: &Name) -> Result<Snapshot, Error> {
    let (seen, bad) = store.look_at(std::slice::from_ref(name)).await?;
    bad.into_iter().next().map_or(Ok(seen), |error| Err(error.on(name)))
}

/// A page. The store keeps no list of names (the path of a lock would pay for it), so all keys
/// are looked through; slots are then read a number at a time.
pub(super) async fn page(store: &impl Store, page: &Page) -> Result<Snapshot, Error> {
    let limit = page.limit.clamp(1, limits::PAGE);
    let keys = store.scan(&store.keys().all_locks()).await?;
    let mut chosen = store.keys().names_of(&keys);
    chosen.retain(|name| {
        page.after.as_ref().is_none_or(|after| name > after) && page.pattern.matches(name.as_str())
    });
    let mut snapshot = Snapshot::default();
    for names in chosen.chunks(TOGETHER) {
        let (seen, bad) = store.look_at(names).await?;
        snapshot.slots.extend(seen.slots);
        for error in bad {
            // One key that is not ours must not hide all others.
            tracing::warn!(%error, "a lock cannot be shown");
        }
        if snapshot.slots.len() > limit {
            snapshot.slots.truncate(limit);
            snapshot.more_after = snapshot.slots.last().map(|last| last.name.clone());
            break;
        }
    }
    Ok(snapshot)
}

/// All keys of one server that match a pattern.
pub(super) async fn scan(wire: &Wire, pattern: &str) -> Result<Vec<Vec<u8>>, Trouble> {
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let words: [&[u8]; 6] =
            [b"SCAN", cursor.as_bytes(), b"MATCH", pattern.as_bytes(), b"COUNT", SCAN];
        let value = wire.call(&pack(&words)).await?;
        let Some([next, keys]) = answers::list(&value) else {
            return Err(Trouble::strange(&value));
        };
        for key in answers::list(keys).unwrap_or_default() {
            if let Value::BulkString(key) = key {
                found.push(key.clone());
            }
        }
        text(next).ok_or_else(|| Trouble::strange(&value))?.clone_into(&mut cursor);
        if cursor == "0" {
            return Ok(found);
        }
    }
}
