//! Watches of cells: one watch of etcd for each range that is watched, shared by all watchers of
//! that range.
//!
//! ```text
//! watch_cells ──add──> etcd ──created──> the call returns; later events are signalled
//!                             ──created again──> gap: the stream was opened again
//! ```
//!
//! A watch begins when etcd confirms that it was created, so a call returns only then. If the
//! stream breaks, events are missed until the watch was created again on the next one
//! (`watches.rs`), and whatever changes later is an event. So the gap is signalled at that moment
//! and not before: no change is between what the watcher reads then and the first event. A watch
//! that etcd cancels, because it fell behind a compaction, breaks the stream as well.
//!
//! Watchers are weak references, of which no drop is noticed. A range without a living watcher is
//! removed, and its watch canceled, at its next event and whenever another watch begins.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Inner;
use super::errors::{CallError, VerbError};
use super::keys::Range;
use super::watches::{WatchNotice, WatchSpec, Watches};
use crate::contract::{CellRange, CellWatcher, Name};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The watched ranges of cells.
#[derive(Default)]
pub(super) struct CellWatches {
    state: Mutex<WatchedRanges>,
}

#[derive(Default)]
struct WatchedRanges {
    ranges: HashMap<i64, WatchedRange>,
    by_range: HashMap<Range, i64>,
}

struct WatchedRange {
    range: Range,
    watchers: Vec<Weak<dyn CellWatcher>>,
    /// Whether etcd has ever confirmed the watch.
    created: bool,
    /// The calls that wait for this.
    waiting: Vec<oneshot::Sender<()>>,
}

impl CellWatches {
    /// Adds a watcher. Returns what resolves when the watch is created, unless it already is.
    fn add(
        &self,
        watches: &Watches,
        range: Range,
        watcher: Weak<dyn CellWatcher>,
    ) -> Option<oneshot::Receiver<()>> {
        let mut state = self.lock();
        state.sweep(watches);
        let WatchedRanges { ranges, by_range } = &mut *state;
        // Under the mutex: the notification of the new watch waits until it is known here.
        let watch = *by_range
            .entry(range.clone())
            .or_insert_with(|| watches.add(WatchSpec::AnyIn(range.clone())));
        let (watchers, waiting) = (Vec::new(), Vec::new());
        let fresh = || WatchedRange { range, watchers, created: false, waiting };
        let watched = ranges.entry(watch).or_insert_with(fresh);
        watched.watchers.push(watcher);
        if watched.created {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        watched.waiting.push(sender);
        Some(receiver)
    }

    /// Notes that a watch was created. Returns the watchers that may have missed something.
    fn on_created(&self, watch: i64) -> Vec<Arc<dyn CellWatcher>> {
        let mut state = self.lock();
        let Some(watched) = state.ranges.get_mut(&watch) else { return Vec::new() };
        let missed = std::mem::replace(&mut watched.created, true);
        for waiting in watched.waiting.drain(..) {
            // The call may have timed out.
            let _ = waiting.send(());
        }
        if missed { watched.living() } else { Vec::new() }
    }

    /// Returns the living watchers of a watch, which is removed if there is none.
    fn watchers(&self, watches: &Watches, watch: i64) -> Vec<Arc<dyn CellWatcher>> {
        let mut state = self.lock();
        let Some(watched) = state.ranges.get_mut(&watch) else { return Vec::new() };
        let living = watched.living();
        if living.is_empty() {
            state.remove(watches, watch);
        }
        living
    }

    fn contains(&self, watch: i64) -> bool {
        self.lock().ranges.contains_key(&watch)
    }

    fn lock(&self) -> MutexGuard<'_, WatchedRanges> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchedRanges {
    /// Removes the ranges that have no watcher any more.
    fn sweep(&mut self, watches: &Watches) {
        let is_watched = |watcher: &Weak<dyn CellWatcher>| watcher.strong_count() > 0;
        let gone = self.ranges.iter().filter(|(_, range)| !range.watchers.iter().any(is_watched));
        let gone: Vec<i64> = gone.map(|(watch, _)| *watch).collect();
        for watch in gone {
            self.remove(watches, watch);
        }
    }

    fn remove(&mut self, watches: &Watches, watch: i64) {
        if let Some(watched) = self.ranges.remove(&watch) {
            self.by_range.remove(&watched.range);
            watches.remove(watch);
        }
    }
}

impl WatchedRange {
    fn living(&mut self) -> Vec<Arc<dyn CellWatcher>> {
        self.watchers.retain(|watcher| watcher.strong_count() > 0);
        self.watchers.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Inner {
    /// Begins to watch a range. Returns when every later change is certain to be signalled.
    pub(super) async fn watch_cells(
        &self,
        range: &CellRange,
        watcher: Weak<dyn CellWatcher>,
    ) -> Result<(), VerbError> {
        let range = match range {
            CellRange::One(name) => self.keys.one_cell(name),
            CellRange::Prefix(prefix) => self.keys.cells(prefix),
        };
        let Some(created) = self.cell_watches.add(&self.watches, range, watcher) else {
            return Ok(());
        };
        let limit = self.connection.limit();
        // The sender is dropped only if the watcher was.
        timeout(limit, created).await.map_err(|_| CallError::Timeout(limit))?.unwrap_or_default();
        Ok(())
    }

    /// Signals a notification to the watchers of cells. Returns false if it is about no cell.
    pub(super) fn on_cell_notice(&self, watch: i64, notice: &WatchNotice) -> bool {
        if !self.cell_watches.contains(watch) {
            return false;
        }
        match notice {
            WatchNotice::Created => {
                for watcher in self.cell_watches.on_created(watch) {
                    watcher.on_gap();
                }
            }
            WatchNotice::Events(events) => {
                let watchers = self.cell_watches.watchers(&self.watches, watch);
                let keys = events.iter().filter_map(|event| event.kv.as_ref());
                let names: Vec<Name> =
                    keys.filter_map(|key| self.keys.cell_name(&key.key)).collect();
                for (watcher, name) in
                    watchers.iter().flat_map(|w| names.iter().map(move |n| (w, n)))
                {
                    watcher.on_change(name);
                }
            }
        }
        true
    }
}
