//! The inspect verb in a cluster.
//!
//! A page, and the slots reachable from an owner, are read in two passes, first the names and then
//! each of them at its own node: the result is not one instant of the whole cluster. Names come
//! from one scan of every node, also those of contended slots and of cells: an index would have to
//! be in the hash slot of each name.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use redis::Value;

use super::ClusterEngine;
use super::calls::SlotRequest;
use super::only_part;
use crate::contract::{
    Batch, Cell, CellRange, Delivery, Error, Name, OwnerId, Page, Pending, Query, SlotView,
    Snapshot, Verb, WeakWatcher,
};
use crate::engine::redis::cells::CellRead;
use crate::engine::redis::client::{ServerInfo, scan, strange};
use crate::engine::redis::errors::to_error;
use crate::engine::redis::inspect::{StoreAccess, page, slot};
use crate::engine::redis::keys::RedisKeys;
use crate::engine::redis::names::{NameList, NameSet, ScanCache, scanned};
use crate::engine::redis::replies;
use crate::engine::redis::scripts::{LuaScript, ScriptSet};
use crate::limits;
use crate::time::Tick;

impl ClusterEngine {
    /// Answers a query.
    pub(super) async fn inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        match query {
            Query::Slot(name) => slot(self, name).await,
            Query::Page(wanted) => page(self, wanted).await,
            Query::Reach(owner) => Ok(reach(*owner, self.contended().await?)),
        }
    }

    /// Returns all slots that have waiters.
    async fn contended(&self) -> Result<Vec<SlotView>, Error> {
        let mut slots = Vec::new();
        let mut after = None;
        loop {
            let seen = page(self, &Page { after, contended: true, ..Page::default() }).await?;
            slots.extend(seen.slots);
            after = seen.more_after;
            if after.is_none() {
                return Ok(slots);
            }
        }
    }
}

/// Returns the slots that can be reached from an owner: those it waits for, those that their
/// holders and waiters wait for, and so on.
fn reach(owner: OwnerId, contended: Vec<SlotView>) -> Snapshot {
    let mut waits: HashMap<OwnerId, Vec<usize>> = HashMap::new();
    for (at, slot) in contended.iter().enumerate() {
        for waiter in &slot.queue {
            waits.entry(waiter.lineage.owner()).or_default().push(at);
        }
    }
    let (mut known, mut next) = (HashSet::from([owner]), vec![owner]);
    let (mut found, mut truncated) = (BTreeSet::new(), false);
    while let Some(owner) = next.pop() {
        for at in waits.get(&owner).into_iter().flatten() {
            if found.len() == limits::REACH_SLOTS && !found.contains(at) {
                truncated = true;
            } else if found.insert(*at) {
                let slot = &contended[*at];
                let owners = slot.holders.iter().map(|holder| holder.lineage.owner());
                let owners = owners.chain(slot.queue.iter().map(|one| one.lineage.owner()));
                next.extend(owners.filter(|other| known.insert(*other)));
            }
        }
    }
    let slots = contended.into_iter().enumerate().filter(|(at, _)| found.contains(at));
    let slots = slots.map(|(_, slot)| slot).collect();
    Snapshot { slots, truncated, ..Snapshot::default() }
}

impl StoreAccess for ClusterEngine {
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

    fn inspect_slots<'a>(
        &'a self,
        names: &'a [Name],
        _: NameSet,
    ) -> Pending<'a, (Snapshot, Vec<Error>)> {
        Box::pin(async move {
            let script = &self.inner.options.scripts().inspect;
            let requests = names.iter().map(|name| Ok(self.inner.request(name, script, &[b""])));
            let mut all = (Snapshot::default(), Vec::new());
            for value in self.run_each(Verb::Inspect, requests).await? {
                let (seen, bad) = replies::snapshot(&value, &self.inner.keys)?;
                all.0.slots.extend(seen.slots);
                all.1.extend(bad);
            }
            Ok(all)
        })
    }

    fn read_cells<'a>(&'a self, names: &'a [Name], _: bool) -> Pending<'a, Vec<CellRead>> {
        Box::pin(async move {
            let script = &self.inner.options.scripts().get;
            let request = |name: &Name| {
                let (keys, home) = (vec![self.inner.keys.cell(name)], name.marked_cell());
                let home = home.as_ref().unwrap_or(name);
                Ok(SlotRequest { keys, ..self.inner.request(home, script, &[]) })
            };
            let values = self.run_each(Verb::Cell, names.iter().map(request)).await?;
            let one = |value: &Value| -> Result<Result<Option<Cell>, Error>, Error> {
                replies::cells(value)?.pop().ok_or_else(|| strange(value))
            };
            values.iter().map(one).collect()
        })
    }

    fn write_cells<'a>(&'a self, batch: &'a Batch, items: &'a [&'a [u8]]) -> Pending<'a, Value> {
        Box::pin(async move {
            let home = match batch.only_cell() {
                Some(cell) => cell,
                None => only_part(&batch.parts)?.name.clone(),
            };
            let keys = batch.parts.iter().map(|part| self.inner.keys.cell(&part.name)).collect();
            let request = self.inner.request(&home, &self.inner.options.scripts().write, items);
            let value = self.inner.run(SlotRequest { keys, ..request }).await;
            value.map_err(|error| to_error(error, Verb::Cell))
        })
    }

    fn run_rate<'a>(
        &'a self,
        script: &'static LuaScript,
        name: &'a Name,
        items: &'a [&'a [u8]],
    ) -> Pending<'a, Value> {
        Box::pin(async move {
            let keys = vec![self.inner.keys.rate(name)];
            let request = self.inner.request(name, script, items);
            let value = self.inner.run(SlotRequest { keys, ..request }).await;
            value.map_err(|error| to_error(error, Verb::Rate))
        })
    }

    fn run_at_slot<'a>(
        &'a self,
        verb: Verb,
        script: &'static LuaScript,
        name: &'a Name,
        items: &'a [&'a [u8]],
    ) -> Pending<'a, Value> {
        Box::pin(async move {
            let value = self.inner.run(self.inner.request(name, script, items)).await;
            value.map_err(|error| to_error(error, verb))
        })
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
            let watched = self.inner.watch(range, watcher).await;
            watched.map_err(|error| to_error(error, Verb::Cell))
        })
    }

    fn names<'a>(
        &'a self,
        set: NameSet,
        prefix: &'a str,
        after: Option<&'a Name>,
    ) -> Pending<'a, NameList> {
        Box::pin(scanned(self, set, prefix, after))
    }

    fn change_terms<'a>(&'a self, items: [&'a [u8]; 3]) -> Pending<'a, Value> {
        Box::pin(async move {
            let script = &self.inner.options.scripts().change_terms;
            self.run_at_terms(script, items.map(<[u8]>::to_vec).into()).await
        })
    }

    fn scan<'a>(&'a self, pattern: &'a str) -> Pending<'a, Vec<Vec<u8>>> {
        Box::pin(async move {
            let mut found = Vec::new();
            for node in self.inner.keepers()? {
                let keys = scan(node.connections.for_caller(), pattern).await;
                found.extend(keys.map_err(|error| to_error(error, Verb::Inspect))?);
            }
            Ok(found)
        })
    }
}
