//! The queue of the updates of one process for a cell, first come, first served.
//!
//! Updates of one session on one cell would only conflict with each other. So they take turns, and
//! each leaves behind what it wrote: the next one needs no read. An update that finds no other one
//! pays nothing for this but a lock of this process.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::Mutex as AsyncMutex;

use super::Core;
use crate::contract::{Cell, Name};
use crate::sync::{Mutex, PoisonError};

/// What the last update of this process left in a cell: `None` if that is not known.
pub(crate) type KnownCell = Option<Option<Cell>>;

/// The queue for one cell.
pub(crate) type UpdateLine = Arc<AsyncMutex<KnownCell>>;

/// The queues of a session. A queue is forgotten with its last user.
#[derive(Debug, Default)]
pub(super) struct UpdateLines(Mutex<HashMap<Name, Weak<AsyncMutex<KnownCell>>>>);

impl Core {
    /// Returns the queue of updates of a cell.
    pub(crate) fn update_line(&self, name: &Name) -> UpdateLine {
        let mut lines = self.update_lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(name).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = UpdateLine::default();
        lines.insert(name.clone(), Arc::downgrade(&line));
        line
    }
}
