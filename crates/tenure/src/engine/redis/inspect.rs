//! The inspect verb: one slot, a page of slots, or the slots that can be reached from an owner.
//! Also [`StoreAccess`], what inspect, cells and a change of terms need of a store, be it one
//! server or the nodes of a cluster.

use redis::Value;

use super::cells::CellRead;
use super::client::{MultiplexedConnection, RequestError, list, pack, strange, text};
use super::errors::to_error;
use super::keys::RedisKeys;
use super::{RedisEngine, replies};
use crate::contract::{Error, Name, Page, Pending, Query, Snapshot, Verb};
use crate::limits;

/// Most slots in one call: no other client waits for the store longer than for so many.
const MAX_BATCH: usize = 128;
/// How many keys the server visits in one step of a scan.
const SCAN_COUNT: &[u8] = b"1000";

/// Scripts and scans over a whole store: one server, or the nodes of a cluster.
pub(super) trait StoreAccess: Send + Sync {
    fn keys(&self) -> &RedisKeys;

    /// Reads slots. Slots that cannot be read are errors of their own.
    fn inspect_slots<'a>(&'a self, names: &'a [Name]) -> Pending<'a, (Snapshot, Vec<Error>)>;

    /// Reads cells; one result for each.
    fn read_cells<'a>(&'a self, names: &'a [Name]) -> Pending<'a, Vec<CellRead>>;

    /// Writes a cell. The items are those of `put.lua`.
    fn write_cell<'a>(&'a self, name: &'a Name, items: [&'a [u8]; 6]) -> Pending<'a, Value>;

    /// Runs `change_terms.lua` with these items.
    fn change_terms<'a>(&'a self, items: [&'a [u8]; 3]) -> Pending<'a, Value>;

    /// Returns all keys that match a pattern.
    fn scan<'a>(&'a self, pattern: &'a str) -> Pending<'a, Vec<Vec<u8>>>;
}

impl RedisEngine {
    /// Answers a query.
    pub(super) async fn inspect(&self, query: &Query) -> Result<Snapshot, Error> {
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
        let script = &self.inner.options.scripts().inspect;
        let value = self.run(Verb::Inspect, script, keys, items).await?;
        replies::snapshot(&value, &self.inner.keys)
    }
}

impl StoreAccess for RedisEngine {
    fn keys(&self) -> &RedisKeys {
        &self.inner.keys
    }

    fn read_cells<'a>(&'a self, names: &'a [Name]) -> Pending<'a, Vec<CellRead>> {
        Box::pin(async move {
            let keys: Vec<String> = names.iter().map(|name| self.inner.keys.cell(name)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let script = &self.inner.options.scripts().get;
            let value = self.run(Verb::Cell, script, &keys, &[]).await?;
            let cells = replies::cells(&value)?;
            if cells.len() == names.len() { Ok(cells) } else { Err(strange(&value)) }
        })
    }

    fn write_cell<'a>(&'a self, name: &'a Name, items: [&'a [u8]; 6]) -> Pending<'a, Value> {
        Box::pin(async move {
            let script = &self.inner.options.scripts().put;
            self.run(Verb::Cell, script, &[&self.inner.keys.cell(name)], &items).await
        })
    }

    fn change_terms<'a>(&'a self, items: [&'a [u8]; 3]) -> Pending<'a, Value> {
        Box::pin(async move {
            let script = &self.inner.options.scripts().change_terms;
            self.run(Verb::Connect, script, &[&self.inner.keys.terms], &items).await
        })
    }

    fn inspect_slots<'a>(&'a self, names: &'a [Name]) -> Pending<'a, (Snapshot, Vec<Error>)> {
        Box::pin(async move {
            let keys: Vec<String> = names.iter().map(|name| self.inner.keys.slot(name)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            self.inspect_script(&keys, &[b""]).await
        })
    }

    fn scan<'a>(&'a self, pattern: &'a str) -> Pending<'a, Vec<Vec<u8>>> {
        Box::pin(async move {
            let found = scan(self.batcher().connection(), pattern).await;
            found.map_err(|error| to_error(error, Verb::Inspect))
        })
    }
}

/// Reads one slot.
pub(super) async fn slot(store: &impl StoreAccess, name: &Name) -> Result<Snapshot, Error> {
    let (seen, bad) = store.inspect_slots(std::slice::from_ref(name)).await?;
    bad.into_iter().next().map_or(Ok(seen), |error| Err(error.on(name)))
}

/// Reads a page. There is no index of names, which every claim would have to update: all keys are
/// scanned, and the slots of the page are read in batches.
pub(super) async fn page(store: &impl StoreAccess, page: &Page) -> Result<Snapshot, Error> {
    let limit = page.limit.clamp(1, limits::PAGE);
    let keys = store.scan(&store.keys().all_locks()).await?;
    let mut chosen = store.keys().names_of(&keys);
    chosen.retain(|name| {
        page.after.as_ref().is_none_or(|after| name > after) && page.pattern.matches(name.as_str())
    });
    let mut snapshot = Snapshot::default();
    for names in chosen.chunks(MAX_BATCH) {
        let (seen, bad) = store.inspect_slots(names).await?;
        snapshot.slots.extend(seen.slots);
        for error in bad {
            // One foreign key must not hide all others.
            tracing::warn!(%error, "slot left out: it cannot be read");
        }
        if snapshot.slots.len() > limit {
            snapshot.slots.truncate(limit);
            snapshot.more_after = snapshot.slots.last().map(|last| last.name.clone());
            break;
        }
    }
    Ok(snapshot)
}

/// Returns all keys of one server that match a pattern.
pub(super) async fn scan(
    connection: &MultiplexedConnection,
    pattern: &str,
) -> Result<Vec<Vec<u8>>, RequestError> {
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let words: [&[u8]; 6] =
            [b"SCAN", cursor.as_bytes(), b"MATCH", pattern.as_bytes(), b"COUNT", SCAN_COUNT];
        let value = connection.call(&pack(&words)).await?;
        let Some([next, keys]) = list(&value) else {
            return Err(RequestError::strange(&value));
        };
        for key in list(keys).unwrap_or_default() {
            if let Value::BulkString(key) = key {
                found.push(key.clone());
            }
        }
        text(next).ok_or_else(|| RequestError::strange(&value))?.clone_into(&mut cursor);
        if cursor == "0" {
            return Ok(found);
        }
    }
}
