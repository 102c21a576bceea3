//! One write transaction, shared by everything that reads and writes in it. Knows rows of bytes,
//! not what they mean.
//!
//! The rules cannot fail half-way, so trouble is kept here until the step is over; then the whole
//! transaction is dropped.

use std::cell::{Cell, RefCell};

use heed::types::Bytes;
use heed::{Database, RwTxn};
use smallvec::SmallVec;

use super::codec::Damaged;

/// The one table of an environment: rows of bytes under keys of bytes.
pub(super) type Table = Database<Bytes, Bytes>;

/// A key, on the stack where it is short.
pub(super) type Key = SmallVec<[u8; 64]>;

/// What a step ran into.
#[derive(Debug)]
pub(super) enum TxnError {
    /// A row that is not ours.
    Damaged(&'static str),
    /// LMDB's own trouble, a full map among it.
    Store(heed::Error),
}

/// One write transaction.
pub(super) struct Txn<'e> {
    rows: RefCell<RwTxn<'e>>,
    table: Table,
    trouble: Cell<Option<TxnError>>,
}

impl<'e> Txn<'e> {
    pub(super) fn new(txn: RwTxn<'e>, table: Table) -> Self {
        Self { rows: RefCell::new(txn), table, trouble: Cell::new(None) }
    }

    /// Makes it so, unless the step ran into trouble: then nothing happened.
    pub(super) fn commit(self) -> Result<(), TxnError> {
        match self.trouble.into_inner() {
            Some(trouble) => Err(trouble),
            None => self.rows.into_inner().commit().map_err(TxnError::Store),
        }
    }

    /// Reads a row; `what` says what it should be.
    pub(super) fn get<T>(
        &self,
        key: &[u8],
        what: &'static str,
        read: impl FnOnce(&[u8]) -> Result<T, Damaged>,
    ) -> Option<T> {
        if self.troubled() {
            return None;
        }
        let txn = self.rows.borrow();
        match self.table.get(&txn, key) {
            Ok(bytes) => bytes.and_then(|bytes| self.checked(what, read(bytes))),
            Err(error) => self.failed(error),
        }
    }

    /// The row under this key, or the first one after it, if its key begins with `prefix`.
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

    /// The first row after this key, if its key begins with `prefix`.
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

    /// The last row before this key, if its key begins with `prefix`.
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

    /// How many keys there are from `from` up to, and without, `to`.
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
        let put = self.table.put(&mut self.rows.borrow_mut(), key, value);
        if let Err(error) = put {
            self.failed::<()>(error);
        }
    }

    /// Writes a row unless it stands there already.
    pub(super) fn put_if_new(&self, key: &[u8], value: &[u8]) {
        let stands = {
            let txn = self.rows.borrow();
            matches!(self.table.get(&txn, key), Ok(Some(old)) if old == value)
        };
        if !stands {
            self.put(key, value);
        }
    }

    pub(super) fn delete(&self, key: &[u8]) {
        let deleted = self.table.delete(&mut self.rows.borrow_mut(), key);
        if let Err(error) = deleted {
            self.failed::<()>(error);
        }
    }

    /// Keeps the trouble, and gives nothing.
    pub(super) fn checked<T>(&self, what: &'static str, read: Result<T, Damaged>) -> Option<T> {
        if read.is_err() {
            self.keep(TxnError::Damaged(what));
        }
        read.ok()
    }

    /// Whether the step cannot be finished: then nothing more is found, so that every loop ends.
    pub(super) fn troubled(&self) -> bool {
        let trouble = self.trouble.take();
        let troubled = trouble.is_some();
        self.trouble.set(trouble);
        troubled
    }

    fn within<T>(
        &self,
        found: heed::Result<Option<(&[u8], &[u8])>>,
        prefix: &[u8],
        read: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<T> {
        match found {
            _ if self.troubled() => None,
            Ok(Some((key, value))) if key.starts_with(prefix) => Some(read(key, value)),
            Ok(_) => None,
            Err(error) => self.failed(error),
        }
    }

    fn failed<T>(&self, error: heed::Error) -> Option<T> {
        self.keep(TxnError::Store(error));
        None
    }

    /// The first trouble is what counts; the rest follows from it.
    fn keep(&self, trouble: TxnError) {
        let first = self.trouble.take();
        self.trouble.set(Some(first.unwrap_or(trouble)));
    }
}
