//! The inspect verb: one slot, a page of slots, or the slots that can be reached from an owner by
//! the relation "waits for".
//!
//! One slot and the reachable slots are one call each, and one snapshot. A page is read in several
//! calls: names in their order, those that match the pattern, and their slots, a batch at a time. A
//! slot may change between two calls.

use uuid::Uuid;

use super::PostgresEngine;
use super::errors::unexpected_reply;
use super::replies::snapshot;
use super::statements::{Function, names};
use crate::contract::{Error, Name, Page, Query, Snapshot, Verb};
use crate::limits;

/// Most slots that one call inspects.
const MAX_BATCH: usize = 256;

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
        let mut after = page.after.as_ref().map_or(String::new(), |name| name.as_str().to_owned());
        loop {
            let names = self.names_after(&after).await?;
            let Some(last) = names.last() else { break };
            last.as_str().clone_into(&mut after);
            let is_last = names.len() < MAX_BATCH;
            let matching: Vec<Name> =
                names.into_iter().filter(|name| page.pattern.matches(name.as_str())).collect();
            if !matching.is_empty() {
                snapshot.slots.extend(self.inspect_slots(&matching).await?.slots);
            }
            if snapshot.slots.len() > limit {
                snapshot.slots.truncate(limit);
                snapshot.more_after = snapshot.slots.last().map(|last| last.name.clone());
                break;
            }
            if is_last {
                break;
            }
        }
        Ok(snapshot)
    }

    async fn names_after(&self, after: &str) -> Result<Vec<Name>, Error> {
        let most = i32::try_from(MAX_BATCH).unwrap_or(i32::MAX);
        let rows = self.query(Verb::Inspect, Function::Names, |ns| {
            vec![Box::new(ns), Box::new(after.to_owned()), Box::new(most)]
        });
        let rows = rows.await?;
        let name = |row: &tokio_postgres::Row| {
            let text: &str = row.try_get(0).map_err(|error| unexpected_reply().caused_by(error))?;
            Name::try_from(text)
        };
        rows.iter().map(name).collect()
    }
}
