//! Cells: versioned values in a table of their own.
//!
//! A write is one call of `write`, one transaction: it locks the cells of the batch, looks for its
//! id in their logs, compares conditions with what is there, and writes all parts or none. What it
//! locks and why that is enough is at the head of `sql/cells.sql`. A removed cell that was written
//! under a fence, or by a write with an id, leaves a row without a value.
//!
//! A watch is a row in the table `watches`, which tells writers to notify, and a subscription of
//! the listening connection (`listener.rs`, `cell_watches.rs`). Behind a pooler there are no
//! subscriptions, and a watcher has to look.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::PostgresEngine;
use super::errors::unexpected_reply;
use super::statements::{Function, NameBounds, Parameters, micros, names, uuid};
use crate::contract::{
    Batch, BatchVerdict, Cell, CellAction, CellPart, CellQuery, CellRange, Cells, Conflict,
    ConflictCause, Delivery, Error, Expect, Fence, Name, Pending, Verb, Version, WeakWatcher,
    write_forgotten,
};
use crate::limits;

/// Most cells in one reply.
const MAX_BATCH: usize = 256;
/// A reply with this many bytes ends, with more to follow: `cells_after` in `sql/cells.sql`.
pub(super) const MAX_REPLY: usize = 1024 * 1024;
/// How often a watcher has to look behind a pooler.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// A row of a reply from which the columns are taken by number.
struct CellRow<'a>(&'a Row);

impl Cells for PostgresEngine {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        Box::pin(async move {
            let rows = self.query(Verb::Cell, Function::Cell, |ns| {
                vec![Box::new(ns), Box::new(name.as_str().to_owned())]
            });
            let rows = rows.await.map_err(|error| error.on(name))?;
            let cell = rows.first().map_or(Ok(None), |row| CellRow(row).cell(1));
            cell.map_err(|error| error.during(Verb::Cell).on(name))
        })
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        Box::pin(async move {
            batch.check_limits()?;
            let first = batch.parts.first().map(|part| &part.name);
            let keep = self.inner.context.max_lease;
            let rows =
                self.query(Verb::Cell, Function::Write, |ns| write_parameters(batch, ns, keep));
            let verdict = match rows.await {
                Ok(rows) => self.write_verdict(batch, &rows),
                Err(error) => Err(error),
            };
            verdict.map_err(|error| match first {
                Some(name) if error.name().is_none() => error.during(Verb::Cell).on(name),
                _ => error.during(Verb::Cell),
            })
        })
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        Box::pin(async move {
            let CellQuery { pattern, after, limit } = query;
            let limit = limit.clamp(1, limits::PAGE);
            let mut bounds = NameBounds::new(pattern, after);
            let mut found: Vec<(Name, Cell)> = Vec::new();
            while found.len() < limit {
                let most = MAX_BATCH.min(limit - found.len());
                let cells = self.cells_after(&bounds, most).await?;
                let Some((last, _)) = cells.last() else { break };
                bounds.continue_after(last);
                let bytes: usize = cells.iter().map(|(_, cell)| cell.value.len()).sum();
                let is_last = cells.len() < most && bytes < MAX_REPLY;
                found.extend(cells.into_iter().filter(|(name, _)| pattern.matches(name.as_str())));
                if is_last {
                    break;
                }
            }
            Ok(found)
        })
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        Box::pin(async move {
            let Some(listener) = &self.inner.listener else {
                return Ok(Delivery::Polled(WATCH_INTERVAL));
            };
            self.inner.calls.fetch_add(1, Ordering::SeqCst);
            self.inner.context.router.watchers.insert(range.clone(), watcher);
            let watched = listener.watch_cells().await;
            watched.map(|()| Delivery::Pushed).map_err(|error| error.during(Verb::Cell))
        })
    }
}

impl PostgresEngine {
    async fn cells_after(
        &self,
        bounds: &NameBounds,
        most: usize,
    ) -> Result<Vec<(Name, Cell)>, Error> {
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let rows = self.query(Verb::Cell, Function::Cells, |ns| {
            let mut parameters: Parameters = vec![Box::new(ns)];
            bounds.push_onto(&mut parameters);
            parameters.push(Box::new(most));
            parameters
        });
        let read = |row: &Row| {
            let row = CellRow(row);
            let name = Name::from_store(row.get(0)?)?;
            Ok((name, row.cell(1)?.ok_or_else(unexpected_reply)?))
        };
        let cells: Result<_, Error> = rows.await?.iter().map(read).collect();
        cells.map_err(|error| error.during(Verb::Cell))
    }

    fn write_verdict(&self, batch: &Batch, rows: &[Row]) -> Result<BatchVerdict, Error> {
        let rows: Vec<CellRow<'_>> = rows.iter().map(CellRow).collect();
        let [first, ..] = &rows[..] else { return Err(unexpected_reply()) };
        match first.get::<&str>(0)? {
            "d" => {
                if first.get::<Option<bool>>(6)? == Some(true) {
                    // Tells the conformance suite that a notification is under way.
                    self.inner.notifies_done.fetch_add(1, Ordering::SeqCst);
                }
                let version = first.number(3)?.ok_or_else(unexpected_reply)?;
                Ok(BatchVerdict::Done(Version(version)))
            }
            "f" => Err(write_forgotten(first.part(batch)?)),
            _ => {
                let conflicts = rows.iter().map(|row| row.conflict(batch));
                Ok(BatchVerdict::Refused(conflicts.collect::<Result<_, _>>()?))
            }
        }
    }
}

impl<'a> CellRow<'a> {
    fn get<T: FromSql<'a>>(&self, column: usize) -> Result<T, Error> {
        self.0.try_get(column).map_err(|error| unexpected_reply().caused_by(error))
    }

    fn number(&self, column: usize) -> Result<Option<u64>, Error> {
        let number: Option<i64> = self.get(column)?;
        Ok(number.and_then(|number| u64::try_from(number).ok()))
    }

    /// Parses value, version, fence and remaining time, from this column on; `None` if there is no
    /// value.
    fn cell(&self, column: usize) -> Result<Option<Cell>, Error> {
        let Some(value) = self.get::<Option<Vec<u8>>>(column)? else { return Ok(None) };
        Ok(Some(Cell {
            value,
            version: Version(self.number(column + 1)?.ok_or_else(unexpected_reply)?),
            fence: self.number(column + 2)?.map(Fence::new),
            expires_in: self.number(column + 3)?.map(Duration::from_micros),
        }))
    }

    /// The name of the part of a batch that a row of `write` is about.
    fn part<'b>(&self, batch: &'b Batch) -> Result<&'b Name, Error> {
        let nth = usize::try_from(self.get::<i32>(1)?).unwrap_or_default();
        let part = batch.parts.get(nth.wrapping_sub(1)).ok_or_else(unexpected_reply)?;
        Ok(&part.name)
    }

    fn conflict(&self, batch: &Batch) -> Result<Conflict, Error> {
        let cause = match self.get::<&str>(0)? {
            "r" => ConflictCause::Changed(self.cell(2)?),
            "s" => ConflictCause::Stale(Fence::new(self.number(4)?.ok_or_else(unexpected_reply)?)),
            _ => return Err(unexpected_reply()),
        };
        Ok(Conflict { name: self.part(batch)?.clone(), cause })
    }
}

/// The parameters of `write`. Parts are parallel arrays.
fn write_parameters(batch: &Batch, ns: i32, keep: Duration) -> Parameters {
    let parts = || batch.parts.iter();
    let condition = |part: &CellPart| match part.expect {
        Expect::Anything => "any",
        Expect::Absent => "absent",
        Expect::Version(_) => "version",
        Expect::Fence(_) => "fence",
    };
    // Checked before: below 2^53.
    let given = |part: &CellPart| i64::try_from(part.expect.operand()).unwrap_or(i64::MAX);
    let value = |part: &CellPart| match &part.action {
        CellAction::Put { value, .. } => Some(value.clone()),
        CellAction::Check | CellAction::Remove => None,
    };
    vec![
        Box::new(ns),
        Box::new(micros(keep)),
        Box::new(batch.id.map(|id| uuid(id.as_u128()))),
        Box::new(micros(batch.age)),
        Box::new(names(parts().map(|part| &part.name))),
        Box::new(parts().map(condition).collect::<Vec<_>>()),
        Box::new(parts().map(given).collect::<Vec<_>>()),
        Box::new(parts().map(CellPart::writes).collect::<Vec<_>>()),
        Box::new(parts().map(value).collect::<Vec<_>>()),
        Box::new(parts().map(time_to_live).collect::<Vec<_>>()),
    ]
}

/// The time to live in microseconds. A time too long for the column is stored as no expiry.
fn time_to_live(part: &CellPart) -> Option<i64> {
    let CellAction::Put { time_to_live: Some(time), .. } = &part.action else { return None };
    let micros = i64::try_from(time.as_micros().max(1)).ok()?;
    Some(micros).filter(|micros| *micros < i64::MAX / 4)
}
