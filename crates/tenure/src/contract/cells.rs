//! The second, small contract: versioned bytes for what is not a lock. Data and conditions; the
//! rules over them are in `ledger::cells`.

use std::time::Duration;

use super::batch::{Batch, BatchVerdict};
use super::name::Name;
use super::verdict::Fence;
use super::watch::{CellRange, Delivery, WeakWatcher};
use super::{Pattern, Pending};

/// Versioned bytes with compare-and-set, time to live, fenced writes, and a watch.
///
/// Cells live in a name space of their own: a cell and a lock of one name never meet.
pub trait Cells: Send + Sync {
    /// Returns the cell's value, if it has one.
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>>;

    /// Writes all parts of a batch, or none if a condition does not hold. One atomic step. A batch
    /// that is refused writes nothing to the store.
    ///
    /// An engine without [`atomic_sets`](super::Promises::atomic_sets) may refuse a batch of
    /// several cells, except a cell beside its own mark ([`Name::update_mark`]): with it an update
    /// reserves the cell, and every plain write checks it.
    ///
    /// A batch with an id that was written already is not written again: the reply is that of the
    /// first time. See [`WriteId`](super::WriteId) for how long that is known.
    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict>;

    /// Returns the cells that match the query, in the order of names.
    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>>;

    /// Calls the watcher for every change of a cell in the range, until the watcher is dropped.
    /// Changes from before the reply are not signalled.
    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery>;
}

/// Which cells [`Cells::list`] returns.
#[derive(Clone, Copy, Debug)]
pub struct CellQuery<'a> {
    /// Which names.
    pub pattern: &'a Pattern,
    /// Only names behind this one.
    pub after: Option<&'a Name>,
    /// How many cells at most; never more than [`limits::PAGE`](crate::limits::PAGE).
    pub limit: usize,
}

/// The value of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The bytes.
    pub value: Vec<u8>,
    /// Grows with every write, also across removal.
    pub version: Version,
    /// The largest fence that wrote it, if any did.
    pub fence: Option<Fence>,
    /// How long it still lives, if it has a time to live.
    pub expires_in: Option<Duration>,
}

/// The version of a cell. Strictly grows, also across removal and expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// On what condition a cell is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Whatever is there.
    Anything,
    /// Nothing is there.
    Absent,
    /// Exactly this version is there.
    Version(Version),
    /// No larger fence has written it.
    Fence(Fence),
}

impl Expect {
    /// The version or fence of the condition; 0 if it has none.
    #[allow(dead_code, reason = "for engines that a build may leave out")]
    pub(crate) fn operand(self) -> u64 {
        match self {
            Self::Anything | Self::Absent => 0,
            Self::Version(version) => version.0,
            Self::Fence(fence) => fence.get(),
        }
    }
}
