//! The inspect verb. Sessions that turn out to be dead are ended first, so that they are not shown
//! as holders.
//!
//! A page is read in several steps of a few slots each, so that other processes get in between: it
//! is in the order of names, and each part of it is what the store was at one instant. Every step
//! goes on after the last name of the one before. One slot, and what can be reached from an owner,
//! are one step; the latter reads only slots that have a queue.

use super::EmbeddedEngine;
use super::slots::{NameRange, SlotRows};
use super::store::{StepKind, WAIT};
use crate::contract::{Error, Name, Page, Query, SlotView, Snapshot, Verb};
use crate::ledger::{Census, Ledger, Now};
use crate::limits;

/// How many sessions of a snapshot are checked for being alive.
const MAX_CHECKED: usize = 64;
/// How many slots one step reads, and how many names that do not match it passes over.
const SLOTS_PER_STEP: usize = 128;
const PASSED_PER_STEP: usize = 1_024;

impl EmbeddedEngine {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        self.inspect_past_dead(query).await.map_err(|error| error.during(Verb::Inspect))
    }

    async fn inspect_past_dead(&self, query: &Query) -> Result<Snapshot, Error> {
        let seen = self.look(query).await?;
        let sessions = seen.sessions().into_iter().filter_map(|view| view.session);
        if self.end_dead(sessions.take(MAX_CHECKED)).await {
            return self.look(query).await;
        }
        Ok(seen)
    }

    async fn look(&self, query: &Query) -> Result<Snapshot, Error> {
        match query {
            Query::Page(page) => self.look_at_page(page).await,
            Query::Slot(_) | Query::Reach(_) => {
                let verb = |query: &Query, ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
                    ledger.inspect(query, now)
                };
                self.step(StepKind::FreesSpace, query, verb).await
            }
        }
    }

    async fn look_at_page(&self, page: &Page) -> Result<Snapshot, Error> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let (pattern, after) = (page.pattern.clone(), page.after.clone());
        let mut range = NameRange { pattern, after, contended: page.contended, most: 0 };
        let mut slots = Vec::new();
        // One more than asked for shows whether there is more.
        while slots.len() <= limit {
            range.most = (limit + 1 - slots.len()).min(SLOTS_PER_STEP);
            let (views, last) = self.step(StepKind::FreesSpace, &range, look_at_some).await?;
            slots.extend(views);
            if last.is_none() {
                break;
            }
            range.after = last;
        }
        let more = slots.len() > limit;
        slots.truncate(limit);
        let more_after = slots.last().filter(|_| more).map(|last| last.name.clone());
        Ok(Snapshot { slots, more_after, ..Snapshot::default() })
    }

    /// Counts what the namespace holds: for leak checks in tests.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn census(&self) -> Result<Census, Error> {
        let (namespace, clock) = (self.scope.namespace, &*self.scope.clock);
        let step = |ledger: &mut Ledger<SlotRows<'_, '_>>, now| ledger.census(now);
        let done = self.sessions.store().step(namespace, clock, StepKind::FreesSpace, WAIT, step);
        done.map(|(census, _)| census)
    }
}

/// Looks at the first few slots of a range. Also returns after which name to go on.
fn look_at_some(
    range: &NameRange,
    ledger: &mut Ledger<SlotRows<'_, '_>>,
    now: Now,
) -> (Vec<SlotView>, Option<Name>) {
    let (names, last) = ledger.shelf().matching_names(range, PASSED_PER_STEP);
    (ledger.look_at(&names, range.contended, now), last)
}
