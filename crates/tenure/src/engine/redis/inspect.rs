//! The inspect verb: one slot, a page of slots, or the slots that can be reached from an owner.
//! Also [`StoreAccess`], what inspect, cells and a change of terms need of a store, be it one
//! server or the nodes of a cluster.

use std::time::Duration;

use redis::Value;

use super::cells::CellRead;
use super::client::{ServerInfo, scan, strange};
use super::errors::to_error;
use super::keys::RedisKeys;
use super::names::{NameList, NameSet, ScanCache, indexed, scanned};
use super::scripts::{LuaScript, ScriptSet};
use super::{RedisEngine, replies};
use crate::contract::{
    Batch, CellRange, Delivery, Error, Name, Page, Pending, Query, Snapshot, Verb, WeakWatcher,
};
use crate::limits;
use crate::time::Tick;

/// Most slots in one call: no other client waits for the store longer than for so many.
const MAX_BATCH: usize = 24;

/// Scripts and scans over a whole store: one server, or the nodes of a cluster.
pub(super) trait StoreAccess: Send + Sync {
    fn keys(&self) -> &RedisKeys;

    /// Returns the longest lease of the namespace.
    fn max_lease(&self) -> Duration;

    fn now(&self) -> Tick;

    /// Returns the scans whose looks have further pages.
    fn scans(&self) -> &ScanCache;

    /// Reads slots, found in this set. Slots that cannot be read are errors of their own.
    fn inspect_slots<'a>(
        &'a self,
        names: &'a [Name],
        set: NameSet,
    ) -> Pending<'a, (Snapshot, Vec<Error>)>;

    /// Reads cells; one result for each, but at least one and not all if they are large. If a list
    /// named them, those without a value are removed from its index.
    fn read_cells<'a>(&'a self, names: &'a [Name], listed: bool) -> Pending<'a, Vec<CellRead>>;

    /// Runs `write.lua` with these items.
    fn write_cells<'a>(&'a self, batch: &'a Batch, items: &'a [&'a [u8]]) -> Pending<'a, Value>;

    /// Runs a script over the keys of a rate.
    fn run_rate<'a>(
        &'a self,
        script: &'static LuaScript,
        name: &'a Name,
        items: &'a [&'a [u8]],
    ) -> Pending<'a, Value>;

    /// Runs a script over the keys whose prefix is the slot of a name.
    fn run_at_slot<'a>(
        &'a self,
        verb: Verb,
        script: &'static LuaScript,
        name: &'a Name,
        items: &'a [&'a [u8]],
    ) -> Pending<'a, Value>;

    /// Returns what the server reported of itself when it was connected; of a cluster, one node.
    fn server(&self) -> Option<ServerInfo>;

    /// Returns the scripts to call.
    fn scripts(&self) -> &'static ScriptSet;

    /// Calls the watcher when cells in the range change.
    fn watch_cells<'a>(
        &'a self,
        range: &'a CellRange,
        watcher: WeakWatcher,
    ) -> Pending<'a, Delivery>;

    /// Runs `change_terms.lua` with these items.
    fn change_terms<'a>(&'a self, items: [&'a [u8]; 3]) -> Pending<'a, Value>;

    /// Returns all keys that match a pattern.
    fn scan<'a>(&'a self, pattern: &'a str) -> Pending<'a, Vec<Vec<u8>>>;

    /// Returns names of a set that begin with `prefix`, in order, from `after` on. If they are not
    /// the last ones, the next are those after the last name.
    fn names<'a>(
        &'a self,
        set: NameSet,
        prefix: &'a str,
        after: Option<&'a Name>,
    ) -> Pending<'a, NameList>;
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

    fn max_lease(&self) -> Duration {
        self.inner.handshake.max_lease
    }

    fn now(&self) -> Tick {
        self.inner.clock.now()
    }

    fn scans(&self) -> &ScanCache {
        &self.inner.scans
    }

    fn read_cells<'a>(&'a self, names: &'a [Name], listed: bool) -> Pending<'a, Vec<CellRead>> {
        Box::pin(async move {
            let keys: Vec<String> = names.iter().map(|name| self.inner.keys.cell(name)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let items = names.iter().filter(|_| listed).map(|name| name.as_str().as_bytes());
            let items: Vec<&[u8]> = items.collect();
            let script = &self.inner.options.scripts().get;
            let value = self.run(Verb::Cell, script, &keys, &items).await?;
            let cells = replies::cells(&value)?;
            let fits = cells.len() <= names.len() && (names.is_empty() || !cells.is_empty());
            if fits { Ok(cells) } else { Err(strange(&value)) }
        })
    }

    fn write_cells<'a>(&'a self, batch: &'a Batch, items: &'a [&'a [u8]]) -> Pending<'a, Value> {
        Box::pin(async move {
            let keys = batch.parts.iter().map(|part| self.inner.keys.cell(&part.name));
            let keys: Vec<String> = keys.collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            self.run(Verb::Cell, &self.inner.options.scripts().write, &keys, items).await
        })
    }

    fn run_rate<'a>(
        &'a self,
        script: &'static LuaScript,
        name: &'a Name,
        items: &'a [&'a [u8]],
    ) -> Pending<'a, Value> {
        Box::pin(async move {
            self.run(Verb::Rate, script, &[&self.inner.keys.rate(name)], items).await
        })
    }

    fn run_at_slot<'a>(
        &'a self,
        verb: Verb,
        script: &'static LuaScript,
        name: &'a Name,
        items: &'a [&'a [u8]],
    ) -> Pending<'a, Value> {
        Box::pin(async move { self.run(verb, script, &[&self.inner.keys.slot(name)], items).await })
    }

    fn server(&self) -> Option<ServerInfo> {
        self.inner.handshake.server()
    }

    fn scripts(&self) -> &'static ScriptSet {
        self.inner.options.scripts()
    }

    fn watch_cells<'a>(
        &'a self,
        range: &'a CellRange,
        watcher: WeakWatcher,
    ) -> Pending<'a, Delivery> {
        Box::pin(async move {
            let subscribed = self.inner.changes.watch(&self.inner, range, watcher).await;
            subscribed.map_err(|error| to_error(error, Verb::Cell))?;
            Ok(Delivery::Pushed)
        })
    }

    fn change_terms<'a>(&'a self, items: [&'a [u8]; 3]) -> Pending<'a, Value> {
        Box::pin(async move {
            let script = &self.inner.options.scripts().change_terms;
            self.run(Verb::Connect, script, &[&self.inner.keys.terms], &items).await
        })
    }

    fn inspect_slots<'a>(
        &'a self,
        names: &'a [Name],
        set: NameSet,
    ) -> Pending<'a, (Snapshot, Vec<Error>)> {
        Box::pin(async move {
            let keys: Vec<String> = names.iter().map(|name| self.inner.keys.slot(name)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let from: &[u8] = if set == NameSet::Contended { b"q" } else { b"" };
            self.inspect_script(&keys, &[from]).await
        })
    }

    fn scan<'a>(&'a self, pattern: &'a str) -> Pending<'a, Vec<Vec<u8>>> {
        Box::pin(async move {
            let found = scan(self.batcher().connection(), pattern).await;
            found.map_err(|error| to_error(error, Verb::Inspect))
        })
    }

    fn names<'a>(
        &'a self,
        set: NameSet,
        prefix: &'a str,
        after: Option<&'a Name>,
    ) -> Pending<'a, NameList> {
        Box::pin(async move {
            let keys = &self.inner.keys;
            let (index, verb) = match set {
                NameSet::Locks => return scanned(self, set, prefix, after).await,
                NameSet::Contended => (&keys.contended_index, Verb::Inspect),
                NameSet::Cells => (&keys.cell_index, Verb::Cell),
                NameSet::Queues => (&keys.queue_index, Verb::Job),
            };
            let names = indexed(self.batcher().connection(), index, prefix, after).await;
            names.map_err(|error| to_error(error, verb))
        })
    }
}

/// Reads one slot.
pub(super) async fn slot(store: &impl StoreAccess, name: &Name) -> Result<Snapshot, Error> {
    let (seen, bad) = store.inspect_slots(std::slice::from_ref(name), NameSet::Locks).await?;
    bad.into_iter().next().map_or(Ok(seen), |error| Err(error.on(name)))
}

/// Reads a page: first names (`names.rs`), then their slots in batches, up to one more than fits.
pub(super) async fn page(store: &impl StoreAccess, page: &Page) -> Result<Snapshot, Error> {
    let limit = page.limit.clamp(1, limits::PAGE);
    let set = if page.contended { NameSet::Contended } else { NameSet::Locks };
    let (prefix, mut after) = (page.pattern.literal_prefix(), page.after.clone());
    let mut snapshot = Snapshot::default();
    loop {
        let names = store.names(set, &prefix, after.as_ref()).await?;
        let chosen = names.after(after.as_ref()).iter();
        let chosen = chosen.filter(|name| page.pattern.matches(name.as_str())).cloned();
        let chosen: Vec<Name> = chosen.collect();
        for batch in chosen.chunks(MAX_BATCH) {
            let (mut seen, bad) = store.inspect_slots(batch, set).await?;
            seen.slots.retain(|slot| !page.contended || !slot.queue.is_empty());
            snapshot.slots.extend(seen.slots);
            for error in bad {
                // One foreign key must not hide all others.
                tracing::warn!(%error, "slot left out: it cannot be read");
            }
            if snapshot.slots.len() > limit {
                snapshot.slots.truncate(limit);
                let last = snapshot.slots[limit - 1].name.clone();
                names.keep(store, set, &prefix, &last);
                snapshot.more_after = Some(last);
                return Ok(snapshot);
            }
        }
        if names.is_last {
            return Ok(snapshot);
        }
        after = names.last().cloned();
    }
}
