//! The cells behind a [`Link`]: writes are lost, delayed or repeated like other calls, and no read
//! and no signal of a watch passes a link that is cut. When it is mended every watch is told that
//! there was a gap, as an engine does after it has reconnected.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::link::{Copied, Link, lost};
use super::world::cells_of;
use crate::contract::{
    Batch, BatchVerdict, Cell, CellQuery, CellRange, CellWatcher, Cells, Delivery, Name, Pending,
    WeakWatcher,
};

impl Cells for Link {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        self.read(move |cells| cells.get(name))
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        let cells = cells_of(self.inner());
        self.carry(|| cells.write(batch), || Copied::Write(batch.clone()))
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        self.read(move |cells| cells.list(query))
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        let filter = Arc::new(WatchFilter { watcher, link: self.weak() });
        let weak: Weak<WatchFilter> = Arc::downgrade(&filter);
        self.watches.insert(filter);
        self.read(move |cells| cells.watch(range, weak))
    }
}

impl Link {
    fn read<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a dyn Cells) -> Pending<'a, T> + Send + 'a,
    ) -> Pending<'a, T> {
        Box::pin(async move {
            if self.is_cut() {
                return Err(lost("the link is cut"));
            }
            call(cells_of(self.inner())).await
        })
    }
}

/// The filters of all watches behind a link.
#[derive(Default)]
pub(super) struct WatchFilters(Mutex<Vec<Arc<WatchFilter>>>);

impl WatchFilters {
    fn insert(&self, filter: Arc<WatchFilter>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|filter| filter.watcher.strong_count() > 0);
        all.push(filter);
    }

    /// Changes may have been missed.
    pub(super) fn gap(&self) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().filter_map(|filter| filter.watcher.upgrade()).for_each(|one| one.on_gap());
    }
}

/// Stands before a watcher.
struct WatchFilter {
    watcher: Weak<dyn CellWatcher>,
    link: Weak<Link>,
}

impl WatchFilter {
    fn pass(&self, signal: impl FnOnce(&dyn CellWatcher)) {
        let through = self.link.upgrade().is_some_and(|link| !link.is_cut());
        if let Some(watcher) = self.watcher.upgrade().filter(|_| through) {
            signal(&*watcher);
        }
    }
}

impl CellWatcher for WatchFilter {
    fn on_change(&self, name: &Name) {
        self.pass(|watcher| watcher.on_change(name));
    }

    fn on_gap(&self) {
        self.pass(|watcher| watcher.on_gap());
    }
}
