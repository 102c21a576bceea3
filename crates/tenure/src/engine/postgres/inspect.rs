//! The inspect verb: one slot, a page of slots, or the slots that can be reached from an owner by
//! the relation "waits for".
//!
//! One slot and the reachable slots are one call each, and one snapshot. A page is read in several
//! calls: names in their order, from the first that can match the pattern, and the slots of those
//! that do, a few at a time. A slot may change between two calls. No call of a page holds up others
//! for long: it reads a snapshot, and locks only slots among its few in which a claim has expired.
//!
//! The names of contended slots are read from the index of the queues.

use uuid::Uuid;

use super::PostgresEngine;
use super::errors::unexpected_reply;
use super::replies::snapshot;
use super::statements::{Function, NameBounds, Parameters, names};
use crate::contract::{Error, Name, Page, Query, Snapshot, Verb};
use crate::limits;

/// Most names that one call returns.
const MAX_NAMES: usize = 256;
/// Most slots that one call inspects: those with expired claims among them stay locked until the
/// call ends.
const MAX_SLOTS: usize = 32;

impl PostgresEngine {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        match query {
            Query::Slot(name) => {
                let slots = self.inspect_slots(std::slice::from_ref(name)).await;
                slots.map_err(|error| error.on(name))
            }
            Query::Page(page) => self.inspect_page(page).await,
            Query::Reach(owner) => {
                let (is_async, owner) = (self.inner.context.is_async(), owner.as_u128());
                let most = i32::try_from(limits::REACH_SLOTS).unwrap_or(i32::MAX);
                let replies = self.call(Verb::Inspect, Function::Reach, |ns| {
                    vec![
                        Box::new(ns),
                        Box::new(is_async),
                        Box::new(Uuid::from_u128(owner)),
                        Box::new(most),
                    ]
                });
                snapshot(replies.await?).map_err(|error| error.during(Verb::Inspect))
            }
        }
    }

    async fn inspect_slots(&self, slots: &[Name]) -> Result<Snapshot, Error> {
        let is_async = self.inner.context.is_async();
        let replies = self.call(Verb::Inspect, Function::Inspect, |ns| {
            vec![Box::new(ns), Box::new(is_async), Box::new(names(slots.iter()))]
        });
        snapshot(replies.await?).map_err(|error| error.during(Verb::Inspect))
    }

    async fn inspect_page(&self, page: &Page) -> Result<Snapshot, Error> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let mut snapshot = Snapshot::default();
        let mut bounds = NameBounds::new(&page.pattern, page.after.as_ref());
        loop {
            let names = self.names(&bounds, page.contended).await?;
            let Some(last) = names.last() else { return Ok(snapshot) };
            bounds.continue_after(last);
            let is_last = names.len() < MAX_NAMES;
            let matching: Vec<Name> =
                names.into_iter().filter(|name| page.pattern.matches(name.as_str())).collect();
            for some in matching.chunks(MAX_SLOTS) {
                let mut slots = self.inspect_slots(some).await?.slots;
                // Its last ticket may have expired, or may have been granted since.
                slots.retain(|slot| !page.contended || !slot.queue.is_empty());
                snapshot.slots.extend(slots);
                if snapshot.slots.len() > limit {
                    snapshot.slots.truncate(limit);
                    snapshot.more_after = snapshot.slots.last().map(|last| last.name.clone());
                    return Ok(snapshot);
                }
            }
            if is_last {
                return Ok(snapshot);
            }
        }
    }

    async fn names(&self, bounds: &NameBounds, contended: bool) -> Result<Vec<Name>, Error> {
        let most = i32::try_from(MAX_NAMES).unwrap_or(i32::MAX);
        let rows = self.query(Verb::Inspect, Function::Names, |ns| {
            let mut parameters: Parameters = vec![Box::new(ns)];
            bounds.push_onto(&mut parameters);
            parameters.push(Box::new(contended));
            parameters.push(Box::new(most));
            parameters
        });
        let rows = rows.await?;
        let name = |row: &tokio_postgres::Row| {
            let text: &str = row.try_get(0).map_err(|error| unexpected_reply().caused_by(error))?;
            Name::from_store(text)
        };
        rows.iter().map(name).collect()
    }
}
