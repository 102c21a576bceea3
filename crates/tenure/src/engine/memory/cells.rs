//! Cells in memory: versioned bytes behind a mutex. Knows values, not locks.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::contract::{
    Cell, Cells, Expect, Fence, Name, Pattern, Pending, Put, PutVerdict, Version,
};
use crate::limits;
use crate::time::{Clock, Tick};

/// The cells of one store.
pub(super) struct MemoryCells {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rows: BTreeMap<Name, Row>,
    /// Versions come from one counter for all cells, so that they grow across removal.
    last_version: u64,
}

struct Row {
    value: Option<Vec<u8>>,
    version: Version,
    /// Outlives the value: a stale writer must be refused after a removal too.
    fence: Option<Fence>,
    expires: Tick,
}

impl MemoryCells {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    fn lock(&self) -> (MutexGuard<'_, State>, Tick) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state, self.clock.now())
    }
}

impl Cells for MemoryCells {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        Box::pin(async move {
            let (state, now) = self.lock();
            Ok(state.rows.get(name).and_then(|row| row.cell(now)))
        })
    }

    fn put<'a>(&'a self, put: &'a Put) -> Pending<'a, PutVerdict> {
        Box::pin(async move {
            put.check()?;
            let (mut state, now) = self.lock();
            let expires = put.time_to_live.map_or(Tick::NEVER, |time| now + time);
            Ok(state.write(&put.name, Some(put.value.clone()), put.expect, expires, now))
        })
    }

    fn remove<'a>(&'a self, name: &'a Name, expect: Expect) -> Pending<'a, PutVerdict> {
        Box::pin(async move {
            let (mut state, now) = self.lock();
            Ok(state.write(name, None, expect, Tick::NEVER, now))
        })
    }

    fn list<'a>(
        &'a self,
        pattern: &'a Pattern,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Pending<'a, Vec<(Name, Cell)>> {
        Box::pin(async move {
            let (state, now) = self.lock();
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let rows = state.rows.range::<Name, _>((from, Bound::Unbounded));
            let matching = rows.filter(|(name, _)| pattern.matches(name.as_str()));
            let living = matching.filter_map(|(name, row)| Some((name.clone(), row.cell(now)?)));
            Ok(living.take(limit.clamp(1, limits::PAGE)).collect())
        })
    }
}

impl State {
    fn write(
        &mut self,
        name: &Name,
        value: Option<Vec<u8>>,
        expect: Expect,
        expires: Tick,
        now: Tick,
    ) -> PutVerdict {
        let row = self.rows.get(name);
        let present = row.and_then(|row| row.cell(now));
        let fence = match expect.judge(present, row.and_then(|row| row.fence)) {
            Ok(fence) => fence,
            Err(refused) => return refused,
        };
        self.last_version += 1;
        let version = Version(self.last_version);
        if value.is_none() && fence.is_none() {
            self.rows.remove(name);
        } else {
            self.rows.insert(name.clone(), Row { value, version, fence, expires });
        }
        PutVerdict::Done(version)
    }
}

impl Row {
    fn cell(&self, now: Tick) -> Option<Cell> {
        let value = self.value.as_ref().filter(|_| now < self.expires)?;
        let expires_in = (self.expires != Tick::NEVER).then(|| self.expires.since(now));
        Some(Cell { value: value.clone(), version: self.version, fence: self.fence, expires_in })
    }
}
