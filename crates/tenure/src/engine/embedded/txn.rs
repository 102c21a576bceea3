//! One write transaction, shared by everything that reads and writes rows in a step.
//!
//! The ledger's rules cannot fail half-way. So the first error is kept here, later reads find
//! nothing (which ends every loop), and `commit` returns the error and drops the transaction.

use std::cell::{Cell, RefCell};

use heed::types::Bytes;
use heed::{Database, RwTxn};
use smallvec::SmallVec;

use super::codec::Damaged;

/// The one table of an environment: rows of bytes under keys of bytes.
pub(super) type LmdbTable = Database<Bytes, Bytes>;

/// A key, on the stack where it is short.
pub(super) type Key = SmallVec<[u8; 64]>;

/// The error that a step ran into.
#[derive(Debug)]
pub(super) enum TxnError {
    /// A row that cannot be decoded; what it should be.
    Damaged(&'static str),
    /// An error of LMDB, a full map among them.
    Store(heed::Error),
}

/// One write transaction.
pub(super) struct Txn<'e> {
    rows: RefCell<RwTxn<'e>>,
    table: LmdbTable,
    error: Cell<Option<TxnError>>,
}

impl<'e> Txn<'e> {
    pub(super) fn new(txn: RwTxn<'e>, table: LmdbTable) -> Self {
        Self { rows: RefCell::new(txn), table, error: Cell::new(None) }
    }

    /// Commits, unless the step ran into an error: then nothing is written.
    pub(super) fn commit(self) -> Result<(), TxnError> {
        match self.error.into_inner() {
            Some(error) => Err(error),
            None => self.rows.into_inner().commit().map_err(TxnError::Store),
        }
    }

    /// Reads the row under this key; `what` names it in an error.
    pub(super) fn get<T>(
        &self,
        key: &[u8],
        what: &'static str,
        read: impl FnOnce(&[u8]) -> Result<T, Damaged>,
    ) -> Option<T> {
        #[cfg(test)]
        rows::count();
        if self.has_failed() {
            return None;
        }
        let txn = self.rows.borrow();
        match self.table.get(&txn, key) {
            Ok(bytes) => bytes.and_then(|bytes| self.checked(what, read(bytes))),
            Err(error) => self.failed(error),
        }
    }

    /// Reads the row under this key or the first one after it, if its key begins with `prefix`.
    pub(super) fn from<T>(
        &self,
        key: &[u8],
        prefix: &[u8],
        read: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<T> {
        let txn = self.rows.borrow();
        let found = self.table.get_greater_than_or_equal_to(&txn, key);
        self.within(found, prefix, read)
    }

    /// Reads the first row after this key, if its key begins with `prefix`.
    pub(super) fn after<T>(
        &self,
        key: &[u8],
        prefix: &[u8],
        read: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<T> {
        let txn = self.rows.borrow();
        let found = self.table.get_greater_than(&txn, key);
        self.within(found, prefix, read)
    }

    /// Reads the last row before this key, if its key begins with `prefix`.
    pub(super) fn before<T>(
        &self,
        key: &[u8],
        prefix: &[u8],
        read: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<T> {
        let txn = self.rows.borrow();
        let found = self.table.get_lower_than(&txn, key);
        self.within(found, prefix, read)
    }

    /// Counts the keys from `from` up to, and without, `to`.
    pub(super) fn count(&self, from: &[u8], to: &[u8]) -> usize {
        use std::ops::Bound;
        let txn = self.rows.borrow();
        let range = (Bound::Included(from), Bound::Excluded(to));
        match self.table.range(&txn, &range) {
            Ok(rows) => rows.count(),
            Err(error) => self.failed(error).unwrap_or(0),
        }
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8]) {
        #[cfg(test)]
        rows::count();
        let put = self.table.put(&mut self.rows.borrow_mut(), key, value);
        if let Err(error) = put {
            self.failed::<()>(error);
        }
    }

    /// Writes a row unless it has this value already.
    pub(super) fn put_if_changed(&self, key: &[u8], value: &[u8]) {
        let same = {
            let txn = self.rows.borrow();
            matches!(self.table.get(&txn, key), Ok(Some(old)) if old == value)
        };
        if !same {
            self.put(key, value);
        }
    }

    pub(super) fn delete(&self, key: &[u8]) {
        #[cfg(test)]
        rows::count();
        let deleted = self.table.delete(&mut self.rows.borrow_mut(), key);
        if let Err(error) = deleted {
            self.failed::<()>(error);
        }
    }

    /// Records damage, and returns `None` for it.
    pub(super) fn checked<T>(&self, what: &'static str, read: Result<T, Damaged>) -> Option<T> {
        if read.is_err() {
            self.record(TxnError::Damaged(what));
        }
        read.ok()
    }

    /// Returns whether the step ran into an error: then nothing more is found.
    pub(super) fn has_failed(&self) -> bool {
        let error = self.error.take();
        let failed = error.is_some();
        self.error.set(error);
        failed
    }

    fn within<T>(
        &self,
        found: heed::Result<Option<(&[u8], &[u8])>>,
        prefix: &[u8],
        read: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<T> {
        #[cfg(test)]
        rows::count();
        match found {
            _ if self.has_failed() => None,
            Ok(Some((key, value))) if key.starts_with(prefix) => Some(read(key, value)),
            Ok(_) => None,
            Err(error) => self.failed(error),
        }
    }

    fn failed<T>(&self, error: heed::Error) -> Option<T> {
        self.record(TxnError::Store(error));
        None
    }

    /// Records the first error; later ones follow from it.
    fn record(&self, error: TxnError) {
        let first = self.error.take();
        self.error.set(Some(first.unwrap_or(error)));
    }
}

/// How many rows this thread has read, written or deleted, for tests of what a step costs.
#[cfg(test)]
pub(crate) mod rows {
    use std::cell::Cell;

    thread_local! {
        static TOUCHED: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        TOUCHED.set(TOUCHED.get() + 1);
    }

    /// The rows so far.
    #[cfg(feature = "conformance")]
    pub(crate) fn touched() -> u64 {
        TOUCHED.get()
    }
}
