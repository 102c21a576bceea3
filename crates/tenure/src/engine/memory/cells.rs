//! Cells in memory: versioned bytes behind a mutex. The rules are those of `ledger::cells`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::contract::{
    Batch, BatchVerdict, Cell, CellAction, CellQuery, CellRange, Cells, Delivery, Error, Fence,
    Name, Pending, Version, WeakWatcher, write_forgotten,
};
use crate::engine::common::cell_watches::CellWatchers;
use crate::ledger::cells::{CellState, Judgement, LogEntry, WriteLog, judge};
use crate::limits;
use crate::time::{Clock, Tick};

/// How many rows a write checks for being needed no more.
const SWEPT: usize = 4;

/// The cells of one store.
pub(super) struct MemoryCells {
    clock: Arc<dyn Clock>,
    /// For how long the ids of writes are kept.
    keep: Duration,
    table: Mutex<CellTable>,
    watchers: CellWatchers,
}

#[derive(Default)]
struct CellTable {
    rows: BTreeMap<Name, CellRow>,
    /// Versions come from one counter for all cells, so that they grow across removal.
    last_version: u64,
}

struct CellRow {
    value: Option<Vec<u8>>,
    version: Version,
    /// Outlives the value: a stale writer must be refused after a removal too.
    fence: Option<Fence>,
    log: WriteLog,
    expires: Tick,
}

impl MemoryCells {
    pub(super) fn new(clock: Arc<dyn Clock>, keep: Duration) -> Self {
        Self { clock, keep, table: Mutex::default(), watchers: CellWatchers::default() }
    }

    fn lock(&self) -> (MutexGuard<'_, CellTable>, Tick) {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        (table, self.clock.now())
    }

    fn write_now(&self, batch: &Batch) -> Result<BatchVerdict, Error> {
        let (mut table, now) = self.lock();
        let states: Vec<CellState> =
            batch.parts.iter().map(|part| table.state(&part.name, now)).collect();
        let verdict = match judge(batch, &states, micros(now), self.keep) {
            Judgement::Repeat(version) => BatchVerdict::Done(version),
            Judgement::Refused(conflicts) => BatchVerdict::Refused(conflicts),
            Judgement::Forgotten(name) => return Err(write_forgotten(&name)),
            Judgement::Write(fences) => {
                let version = table.write(batch, states, &fences, now, self.keep);
                drop(table);
                for part in batch.parts.iter().filter(|part| part.writes()) {
                    self.watchers.changed(&part.name);
                }
                BatchVerdict::Done(version)
            }
        };
        Ok(verdict)
    }
}

impl Cells for MemoryCells {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        Box::pin(async move {
            let (table, now) = self.lock();
            Ok(table.rows.get(name).and_then(|row| row.cell(now)))
        })
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        Box::pin(async move {
            batch.check_limits()?;
            self.write_now(batch)
        })
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        Box::pin(async move {
            let CellQuery { pattern, after, limit } = query;
            let (table, now) = self.lock();
            let prefix = pattern.literal_prefix();
            let first = Name::bound(&prefix);
            let from = match after.filter(|after| **after >= first) {
                Some(after) => Bound::Excluded(after),
                None => Bound::Included(&first),
            };
            let rows = table.rows.range((from, Bound::Unbounded));
            let rows = rows.take_while(|(name, _)| name.as_str().starts_with(&*prefix));
            let matching = rows.filter(|(name, _)| pattern.matches(name.as_str()));
            let living = matching.filter_map(|(name, row)| Some((name.clone(), row.cell(now)?)));
            Ok(living.take(limit.clamp(1, limits::PAGE)).collect())
        })
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        Box::pin(async move {
            self.watchers.insert(range.clone(), watcher);
            Ok(Delivery::Pushed)
        })
    }
}

impl CellTable {
    fn state(&self, name: &Name, now: Tick) -> CellState {
        let row = self.rows.get(name);
        CellState {
            present: row.and_then(|row| row.cell(now)),
            fence: row.and_then(|row| row.fence),
            log: row.map(|row| row.log.clone()).unwrap_or_default(),
        }
    }

    fn write(
        &mut self,
        batch: &Batch,
        states: Vec<CellState>,
        fences: &[Option<Fence>],
        now: Tick,
        keep: Duration,
    ) -> Version {
        self.last_version += 1;
        let version = Version(self.last_version);
        for ((part, state), fence) in batch.parts.iter().zip(states).zip(fences) {
            let mut log = state.log;
            if let Some(id) = batch.id {
                let entry = LogEntry { id: id.as_u128(), version, at_micros: micros(now) };
                log.record(entry, keep);
            }
            let (value, expires) = match &part.action {
                CellAction::Check => continue,
                CellAction::Remove => (None, Tick::NEVER),
                CellAction::Put { value, time_to_live } => {
                    (Some(value.clone()), time_to_live.map_or(Tick::NEVER, |time| now + time))
                }
            };
            let row = CellRow { value, version, fence: *fence, log, expires };
            if row.is_needed(now, keep) {
                self.rows.insert(part.name.clone(), row);
            } else {
                self.rows.remove(&part.name);
            }
            self.sweep_after(&part.name, now, keep);
        }
        version
    }

    /// Removes rows that are needed no more, among the next few after a name.
    fn sweep_after(&mut self, name: &Name, now: Tick, keep: Duration) {
        let after = (Bound::Excluded(name), Bound::Unbounded);
        let next = self.rows.range::<Name, _>(after).take(SWEPT);
        let ended = next.filter(|(_, row)| !row.is_needed(now, keep));
        let ended: Vec<Name> = ended.map(|(name, _)| name.clone()).collect();
        for name in ended {
            self.rows.remove(&name);
        }
    }
}

impl CellRow {
    fn cell(&self, now: Tick) -> Option<Cell> {
        let value = self.value.as_ref().filter(|_| now < self.expires)?;
        let expires_in = (self.expires != Tick::NEVER).then(|| self.expires.since(now));
        Some(Cell { value: value.clone(), version: self.version, fence: self.fence, expires_in })
    }

    fn is_needed(&self, now: Tick, keep: Duration) -> bool {
        let lives = self.value.is_some() && now < self.expires;
        lives || self.fence.is_some() || self.log.is_needed(micros(now), keep)
    }
}

fn micros(now: Tick) -> u64 {
    now.as_nanos() / 1_000
}
