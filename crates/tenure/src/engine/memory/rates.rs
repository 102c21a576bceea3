//! Rates in memory: the rule of `ledger::rates` behind a mutex.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::contract::{Name, Pending, Rates, Settle, Settled, Take, TakeVerdict};
use crate::ledger::rates::{RateEntry, RateState};
use crate::time::Clock;

/// How many rates a new one checks for being needed no more.
const SWEPT: usize = 4;

type Table = BTreeMap<Name, RateState<VecDeque<RateEntry>>>;

/// The rates of one store.
pub(super) struct MemoryRates {
    clock: Arc<dyn Clock>,
    table: Mutex<Table>,
}

impl MemoryRates {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, table: Mutex::default() }
    }

    /// The table, and the time in microseconds, which is read under the lock.
    fn lock(&self) -> (MutexGuard<'_, Table>, u64) {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now().as_nanos() / 1_000;
        (table, now)
    }

    fn take_now(&self, take: &Take) -> TakeVerdict {
        let (mut table, now) = self.lock();
        if let Some(state) = table.get_mut(&take.name).filter(|state| !state.is_past(now)) {
            let mut stored = Some(std::mem::replace(state, RateState::EMPTY));
            let (verdict, _) = RateState::take(&mut stored, take, now, |_| VecDeque::new());
            *state = stored.unwrap_or(RateState::EMPTY);
            return verdict;
        }
        let mut state = None;
        let (verdict, changed) = RateState::take(&mut state, take, now, |_| VecDeque::new());
        if let Some(state) = state.filter(|_| changed) {
            table.insert(take.name.clone(), state);
            sweep_after(&mut table, &take.name, now);
        }
        verdict
    }
}

/// Removes rates of which nothing counts any more, among the next few after a name.
fn sweep_after(table: &mut Table, name: &Name, now: u64) {
    let after = (Bound::Excluded(name), Bound::Unbounded);
    let next = table.range::<Name, _>(after).take(SWEPT);
    let past: Vec<Name> =
        next.filter(|(_, state)| state.is_past(now)).map(|(name, _)| name.clone()).collect();
    for name in past {
        table.remove(&name);
    }
}

impl Rates for MemoryRates {
    fn take<'a>(&'a self, take: &'a Take) -> Pending<'a, TakeVerdict> {
        Box::pin(async move {
            take.check()?;
            Ok(self.take_now(take))
        })
    }

    fn take_at_once(&self, take: &Take) -> Option<TakeVerdict> {
        Some(self.take_now(take))
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Settled> {
        Box::pin(async move {
            settle.check()?;
            let (mut table, now) = self.lock();
            let state = table.get_mut(&settle.name);
            Ok(state.map_or(Settled::Past, |state| state.settle(settle, now)))
        })
    }

    fn reset<'a>(&'a self, name: &'a Name) -> Pending<'a, ()> {
        Box::pin(async move {
            self.lock().0.remove(name);
            Ok(())
        })
    }
}
