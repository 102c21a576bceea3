//! The watchers of the cells of one engine: who is called when a cell changes.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::contract::{CellRange, CellWatcher, Name};

/// Watchers with their ranges. Those that were dropped are removed at the next change.
#[derive(Default)]
pub(in crate::engine) struct CellWatchers {
    all: Mutex<Vec<(CellRange, Weak<dyn CellWatcher>)>>,
}

impl CellWatchers {
    /// Adds a watcher.
    pub(in crate::engine) fn insert(&self, range: CellRange, watcher: Weak<dyn CellWatcher>) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push((range, watcher));
    }

    /// The ranges of all living watchers.
    #[allow(dead_code, reason = "for engines that a build may leave out")]
    pub(in crate::engine) fn ranges(&self) -> Vec<CellRange> {
        self.living(|_| true).into_iter().map(|(range, _)| range).collect()
    }

    /// A cell has changed. Never called under a lock of the engine.
    pub(in crate::engine) fn changed(&self, name: &Name) {
        for (_, watcher) in self.living(|range| range.contains(name)) {
            watcher.on_change(name);
        }
    }

    /// Changes may have been missed. Never called under a lock of the engine.
    #[allow(dead_code, reason = "for engines that a build may leave out")]
    pub(in crate::engine) fn gap(&self) {
        for (_, watcher) in self.living(|_| true) {
            watcher.on_gap();
        }
    }

    fn living(
        &self,
        wanted: impl Fn(&CellRange) -> bool,
    ) -> Vec<(CellRange, Arc<dyn CellWatcher>)> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, watcher)| watcher.strong_count() > 0);
        let wanted = all.iter().filter(|(range, _)| wanted(range));
        wanted.filter_map(|(range, watcher)| Some((range.clone(), watcher.upgrade()?))).collect()
    }
}
