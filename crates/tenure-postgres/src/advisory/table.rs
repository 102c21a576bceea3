//! Which connection has which locks. Knows places, not statements.
//!
//! The server lets a session in again where it is already, so a connection is never asked for a
//! lock that it has. And what is said on a connection is answered in order, so a caller that waits
//! does it on a connection that holds nothing: no release ever stands behind a wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::key::{Mode, Number};
use super::wire::Wire;
use tenure::engine::postgres::client::ForkCheck;

/// The connections and what they have.
#[derive(Default)]
pub(super) struct LockTable {
    rows: Mutex<Vec<Row>>,
}

struct Row {
    wire: Arc<Wire>,
    /// Held, or about to be, by so many.
    has: HashMap<Number, (Mode, usize)>,
    /// A caller waits on this connection.
    busy: bool,
}

/// Where a lock may be asked for.
pub(super) enum Spot {
    /// Here, where it is not held.
    Free(Place),
    /// Here, where others share it.
    Part(Place),
    /// Each connection has it already: it is taken.
    Taken,
    /// There is no connection.
    Nowhere,
}

/// Connections on which a caller may wait.
pub(super) enum Seat {
    /// Here.
    Here(Place),
    /// On one more connection.
    Open,
    /// Nowhere: there are as many connections as there may be.
    Full,
}

impl LockTable {
    /// One more connection.
    pub(super) fn add(&self, wire: Arc<Wire>) {
        self.rows().push(Row { wire, has: HashMap::new(), busy: false });
    }

    /// Finds where a lock may be asked for. The first connections are asked first, so that others
    /// stay free for a caller that waits.
    pub(super) fn spot(self: &Arc<Self>, key: Number, mode: Mode) -> Spot {
        let mut rows = self.rows();
        rows.retain(|row| !row.wire.has_ended());
        let mut spot = Spot::Nowhere;
        for row in rows.iter_mut().filter(|row| !row.busy) {
            match row.has.get_mut(&key) {
                None => {
                    row.has.insert(key, (mode, 1));
                    return Spot::Free(self.place(&row.wire, key, mode, false));
                }
                Some((Mode::Shared, sharers)) if mode == Mode::Shared => {
                    *sharers += 1;
                    return Spot::Part(self.place(&row.wire, key, mode, false));
                }
                Some(_) => spot = Spot::Taken,
            }
        }
        spot
    }

    /// Finds where one may wait.
    pub(super) fn seat(self: &Arc<Self>, key: Number, mode: Mode, most: usize) -> Seat {
        let mut rows = self.rows();
        rows.retain(|row| !row.wire.has_ended());
        let full = rows.len() >= most;
        let empty = rows.iter_mut().rev().find(|row| !row.busy && row.has.is_empty());
        match empty {
            Some(row) => {
                row.busy = true;
                row.has.insert(key, (mode, 1));
                Seat::Here(self.place(&row.wire, key, mode, true))
            }
            None if full => Seat::Full,
            None => Seat::Open,
        }
    }

    /// Drops connections beyond the first two that no caller uses, which closes them.
    pub(super) fn shrink(&self) {
        let mut seen = 0;
        self.rows().retain(|row| {
            seen += 1;
            seen <= 2 || row.busy || !row.has.is_empty()
        });
    }

    fn place(self: &Arc<Self>, wire: &Arc<Wire>, key: Number, mode: Mode, waits: bool) -> Place {
        let (table, wire, birth) = (Arc::clone(self), Arc::clone(wire), ForkCheck::here());
        Place { table, wire, key, mode, waits, birth }
    }

    fn rows(&self) -> MutexGuard<'_, Vec<Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry in the table: dropped when the server is known not to have it.
pub(super) struct Place {
    table: Arc<LockTable>,
    pub(super) wire: Arc<Wire>,
    pub(super) key: Number,
    pub(super) mode: Mode,
    waits: bool,
    birth: ForkCheck,
}

impl Place {
    /// Whether it is the place of a process from which this one was forked: then neither its
    /// connection nor its lock may be touched.
    pub(super) fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// The wait is over: others may use the connection too.
    pub(super) fn stops_waiting(&mut self) {
        self.waits = false;
        let mut rows = self.table.rows();
        if let Some(row) = rows.iter_mut().find(|row| Arc::ptr_eq(&row.wire, &self.wire)) {
            row.busy = false;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        let mut rows = self.table.rows();
        let Some(row) = rows.iter_mut().find(|row| Arc::ptr_eq(&row.wire, &self.wire)) else {
            return;
        };
        if self.waits {
            row.busy = false;
        }
        if let Some((_, sharers)) = row.has.get_mut(&self.key) {
            *sharers -= 1;
            if *sharers == 0 {
                row.has.remove(&self.key);
            }
        }
    }
}
