//! Cells in the synced environment: versioned values with compare-and-set, which outlive a reboot.
//!
//! A read is a read transaction on the caller's thread: what it returns is synced, because LMDB
//! shows a transaction to readers after its sync. A write is queued for the thread for the disk,
//! and committed together with the writes of other tasks and processes (`commit.rs`); the rows are
//! those of `cell_rows.rs`. A watch registers a range, to which the process that commits sends
//! datagrams (`cell_watches.rs`).

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::cell_rows::{
    CellTime, WriteRequest, cell_key, cells_key, damaged, namespace_key, read_cell, read_number,
};
use super::codec::Damaged;
use super::sessions::Sessions;
use super::txn::LmdbTable;
use crate::contract::{
    Batch, BatchVerdict, Cell, CellQuery, CellRange, Cells, Delivery, Error, Name, Namespace,
    Pending, Verb, WeakWatcher,
};
use crate::limits;
use crate::time::Clock;

/// The cells of one namespace.
pub(super) struct EmbeddedCells {
    sessions: Arc<Sessions>,
    clock: Arc<dyn Clock>,
    namespace: Namespace,
    /// For how long the ids of writes are kept.
    keep: Duration,
}

impl EmbeddedCells {
    pub(super) fn new(
        sessions: Arc<Sessions>,
        clock: Arc<dyn Clock>,
        namespace: Namespace,
        keep: Duration,
    ) -> Self {
        Self { sessions, clock, namespace, keep }
    }

    fn now(&self) -> CellTime {
        CellTime::of(&*self.clock, self.sessions.boot())
    }

    fn number(
        &self,
        txn: &heed::RoTxn<'_, heed::WithoutTls>,
        table: LmdbTable,
    ) -> heed::Result<Result<Option<[u8; 4]>, Damaged>> {
        let row = table.get(txn, &namespace_key(&self.namespace))?;
        Ok(row.map(read_number).transpose())
    }

    fn read(&self, name: &Name) -> Result<Option<Cell>, Error> {
        let now = self.now();
        let read = self.sessions.store().read_durable(|txn, table| {
            let number = match self.number(txn, table)? {
                Ok(Some(number)) => number,
                Ok(None) => return Ok(Ok(None)),
                Err(Damaged) => return Ok(Err(Damaged)),
            };
            let row = table.get(txn, &cell_key(b'V', number, name))?;
            Ok(row.map_or(Ok(None), |row| read_cell(row, now)))
        });
        read?.map_err(|Damaged| damaged().on(name))
    }

    fn read_list(&self, query: CellQuery<'_>) -> Result<Vec<(Name, Cell)>, Error> {
        let CellQuery { pattern, after, limit } = query;
        let now = self.now();
        let limit = limit.clamp(1, limits::PAGE);
        let literal = pattern.literal_prefix();
        let listed = self.sessions.store().read_durable(|txn, table| {
            let number = match self.number(txn, table)? {
                Ok(Some(number)) => number,
                Ok(None) => return Ok(Ok(Vec::new())),
                Err(Damaged) => return Ok(Err(None)),
            };
            let all = cells_key(b'V', number);
            let mut prefix = all.clone();
            prefix.extend_from_slice(literal.as_bytes());
            let after = after.map(|after| cell_key(b'V', number, after));
            let from = match after.as_deref().filter(|after| **after >= *prefix) {
                Some(after) => Bound::Excluded(after),
                None => Bound::Included(&*prefix),
            };
            let mut found = Vec::new();
            for row in table.range(txn, &(from, Bound::Unbounded))? {
                let (key, value) = row?;
                if !key.starts_with(&prefix) {
                    break;
                }
                let text = std::str::from_utf8(&key[all.len()..]).ok();
                let Some(name) = text.and_then(|text| Name::from_store(text).ok()) else {
                    return Ok(Err(None));
                };
                if !pattern.matches(name.as_str()) {
                    continue;
                }
                match read_cell(value, now) {
                    Ok(Some(cell)) => found.push((name, cell)),
                    Ok(None) => continue,
                    Err(Damaged) => return Ok(Err(Some(name))),
                }
                if found.len() == limit {
                    break;
                }
            }
            Ok(Ok(found))
        });
        listed?.map_err(|name| match name {
            Some(name) => damaged().on(&name),
            None => damaged(),
        })
    }
}

impl Cells for EmbeddedCells {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        Box::pin(async move { self.read(name).map_err(|error| error.during(Verb::Cell)) })
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        Box::pin(async move {
            batch.check_limits()?;
            let request = WriteRequest {
                namespace: self.namespace.clone(),
                batch: batch.clone(),
                keep: self.keep,
                queued_at: self.clock.now(),
            };
            let written = self.sessions.commit(request, Arc::clone(&self.clock)).await;
            written.map_err(|error| error.during(Verb::Cell))
        })
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        Box::pin(async move {
            let listed = self.read_list(query);
            listed.map_err(|error| error.during(Verb::Cell))
        })
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        Box::pin(async move {
            let watched = self.sessions.watch_cells(&self.namespace, range, watcher);
            watched.map_err(|error| error.during(Verb::Cell))?;
            Ok(Delivery::Pushed)
        })
    }
}
