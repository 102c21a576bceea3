//! The inspect verb: one slot, a page of slots, or what can be reached from an owner. Knows how
//! names are found, not what is seen there.

use uuid::Uuid;

use super::PostgresEngine;
use super::replies::{self, strange};
use super::statements::Call;
use crate::contract::{Error, Name, Page, Query, Snapshot, Verb};
use crate::limits;

/// Most slots that one call looks at.
const TOGETHER: usize = 256;

impl PostgresEngine {
    pub(super) async fn look(&self, query: &Query) -> Result<Snapshot, Error> {
        match query {
            Query::Slot(name) => {
                let seen = self.look_at(std::slice::from_ref(name)).await;
                seen.map_err(|error| error.on(name))
            }
            Query::Page(page) => self.page(page).await,
            Query::Reach(owner) => {
                let (is_async, owner) = (self.inner.setup.is_async(), owner.as_u128());
                let most = i32::try_from(limits::REACH_SLOTS).unwrap_or(i32::MAX);
                let answers = self.ask(Verb::Inspect, Call::Reach, |ns| {
                    vec![
                        Box::new(ns),
                        Box::new(is_async),
                        Box::new(Uuid::from_u128(owner)),
                        Box::new(most),
                    ]
                });
                replies::snapshot(answers.await?).map_err(|error| error.during(Verb::Inspect))
            }
        }
    }

    async fn look_at(&self, names: &[Name]) -> Result<Snapshot, Error> {
        let is_async = self.inner.setup.is_async();
        let answers = self.ask(Verb::Inspect, Call::Inspect, |ns| {
            let names: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
            vec![Box::new(ns), Box::new(is_async), Box::new(names)]
        });
        replies::snapshot(answers.await?).map_err(|error| error.during(Verb::Inspect))
    }

    /// A page: names are looked through in their order, and slots that match are read a number at a
    /// time.
    async fn page(&self, page: &Page) -> Result<Snapshot, Error> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let mut snapshot = Snapshot::default();
        let mut after = page.after.as_ref().map_or(String::new(), |name| name.as_str().to_owned());
        loop {
            let names = self.names_after(&after).await?;
            let Some(last) = names.last() else { break };
            last.as_str().clone_into(&mut after);
            let all = names.len() < TOGETHER;
            let chosen: Vec<Name> =
                names.into_iter().filter(|name| page.pattern.matches(name.as_str())).collect();
            if !chosen.is_empty() {
                snapshot.slots.extend(self.look_at(&chosen).await?.slots);
            }
            if snapshot.slots.len() > limit {
                snapshot.slots.truncate(limit);
                snapshot.more_after = snapshot.slots.last().map(|last| last.name.clone());
                break;
            }
            if all {
                break;
            }
        }
        Ok(snapshot)
    }

    async fn names_after(&self, after: &str) -> Result<Vec<Name>, Error> {
        let most = i32::try_from(TOGETHER).unwrap_or(i32::MAX);
        let rows = self.call(Verb::Inspect, Call::Names, |ns| {
            vec![Box::new(ns), Box::new(after.to_owned()), Box::new(most)]
        });
        let rows = rows.await?;
        let name = |row: &tokio_postgres::Row| {
            let text: &str = row.try_get(0).map_err(|error| strange().caused_by(error))?;
            Name::try_from(text)
        };
        rows.iter().map(name).collect()
    }
}
