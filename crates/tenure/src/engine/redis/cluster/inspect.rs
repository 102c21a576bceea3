//! Looking at a cluster: at one slot, at a page of slots from all nodes, at what an owner can
//! reach. Knows how views are put together, not what scripts see.
//!
//! A page, and what an owner can reach, are read in two passes, first the names and then each of
//! them at its own node: no one instant in which all of it was so.

use std::collections::{BTreeSet, HashMap, HashSet};

use redis::Value;

use super::ClusterEngine;
use crate::contract::{Cell, Error, Name, OwnerId, Page, Pending, Query, SlotView, Snapshot, Verb};
use crate::engine::redis::answers;
use crate::engine::redis::cells::CellRead;
use crate::engine::redis::inspect::{Store, page, scan, slot};
use crate::engine::redis::keys::Keys;
use crate::engine::redis::to_error;
use crate::limits;

impl ClusterEngine {
    pub(super) async fn look(&self, query: &Query) -> Result<Snapshot, Error> {
        match query {
            Query::Slot(name) => slot(self, name).await,
            Query::Page(wanted) => page(self, wanted).await,
            Query::Reach(owner) => Ok(reach(*owner, self.lines().await?)),
        }
    }

    /// All slots in which somebody waits.
    async fn lines(&self) -> Result<Vec<SlotView>, Error> {
        let mut lines = Vec::new();
        let mut after = None;
        loop {
            let seen = page(self, &Page { after, ..Page::default() }).await?;
            lines.extend(seen.slots.into_iter().filter(|slot| !slot.queue.is_empty()));
            after = seen.more_after;
            if after.is_none() {
                return Ok(lines);
            }
        }
    }
}

/// Everything that can be reached from an owner: the slots it waits for, who holds them and waits
/// there, what those wait for, and so on.
fn reach(owner: OwnerId, lines: Vec<SlotView>) -> Snapshot {
    let mut waits: HashMap<OwnerId, Vec<usize>> = HashMap::new();
    for (at, slot) in lines.iter().enumerate() {
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
                let slot = &lines[*at];
                let owners = slot.holders.iter().map(|holder| holder.lineage.owner());
                let owners = owners.chain(slot.queue.iter().map(|one| one.lineage.owner()));
                next.extend(owners.filter(|other| known.insert(*other)));
            }
        }
    }
    let slots = lines.into_iter().enumerate().filter(|(at, _)| found.contains(at));
    let slots = slots.map(|(_, slot)| slot).collect();
    Snapshot { slots, more_after: None, truncated }
}

impl Store for ClusterEngine {
    fn keys(&self) -> &Keys {
        &self.inner.keys
    }

    fn look_at<'a>(&'a self, names: &'a [Name]) -> Pending<'a, (Snapshot, Vec<Error>)> {
        Box::pin(async move {
            let script = &self.inner.manner.scripts().inspect;
            let orders = names.iter().map(|name| Ok(self.inner.order(name, script, &[b""])));
            let mut all = (Snapshot::default(), Vec::new());
            for value in self.run_each(Verb::Inspect, orders).await? {
                let (seen, bad) = answers::snapshot(&value, &self.inner.keys)?;
                all.0.slots.extend(seen.slots);
                all.1.extend(bad);
            }
            Ok(all)
        })
    }

    fn read_cells<'a>(&'a self, names: &'a [Name]) -> Pending<'a, Vec<CellRead>> {
        Box::pin(async move {
            let script = &self.inner.manner.scripts().get;
            let order = |name: &Name| {
                let key = self.inner.keys.cell(name);
                Ok(super::Order { key, ..self.inner.order(name, script, &[]) })
            };
            let values = self.run_each(Verb::Cell, names.iter().map(order)).await?;
            let one = |value: &Value| -> Result<Result<Option<Cell>, Error>, Error> {
                answers::cells(value)?.pop().ok_or_else(|| answers::strange(value))
            };
            values.iter().map(one).collect()
        })
    }

    fn write_cell<'a>(&'a self, name: &'a Name, items: [&'a [u8]; 6]) -> Pending<'a, Value> {
        Box::pin(async move {
            let key = self.inner.keys.cell(name);
            let order = self.inner.order(name, &self.inner.manner.scripts().put, &items);
            let value = self.inner.run(super::Order { key, ..order }).await;
            value.map_err(|trouble| to_error(trouble, Verb::Cell))
        })
    }

    fn ask_to_change<'a>(&'a self, items: [&'a [u8]; 3]) -> Pending<'a, Value> {
        Box::pin(async move {
            let script = &self.inner.manner.scripts().change_terms;
            self.run_at_terms(script, items.map(<[u8]>::to_vec).into()).await
        })
    }

    fn scan<'a>(&'a self, pattern: &'a str) -> Pending<'a, Vec<Vec<u8>>> {
        Box::pin(async move {
            let mut found = Vec::new();
            for node in self.inner.keepers()? {
                let keys = scan(node.wires.here(), pattern).await;
                found.extend(keys.map_err(|trouble| to_error(trouble, Verb::Inspect))?);
            }
            Ok(found)
        })
    }
}
