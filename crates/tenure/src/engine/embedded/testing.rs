//! Hooks for tests of the embedded engine.

use super::cell_rows::{cell_key, namespace_key, read_number};
use super::commit_queue::CommitHook;
use super::sizes::Sizes;
use super::slots::SlotRows;
use super::store::{StepKind, WAIT};
use super::{EmbeddedEngine, Location};
use crate::contract::{Error, Name};
use crate::engine::Terms;
use crate::ledger::Ledger;
use crate::ledger::seam::Shelf as _;

impl EmbeddedEngine {
    /// Opens a store in which a few waiters are a long queue and a few holders are many: for tests
    /// of both layouts. All users of the store must open it like this.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_small(location: &Location, terms: Terms) -> Result<Self, Error> {
        Self::open_sized(location, terms, Sizes::SMALL)
    }

    /// Waits until the worker threads have done all their jobs: for tests.
    pub fn settle(&self) {
        self.sessions.worker().settle();
        self.sessions.disk_worker().settle();
    }

    /// Kills this process inside its next commit of cells, when so many requests of other processes
    /// are part of it: for tests. `committed` says whether before or after the transaction.
    pub fn die_in_commit(&self, handed_over: usize, committed: bool) {
        let hook = if committed {
            CommitHook::DieAfterCommit(handed_over)
        } else {
            CommitHook::DieBeforeCommit(handed_over)
        };
        *super::lock(&self.sessions.commits().hook) = Some(hook);
    }

    /// Stops this process inside a transaction, as a SIGSTOP at that moment would: for tests.
    ///
    /// # Errors
    /// If the store cannot be entered.
    pub fn stop_inside(&self) -> Result<(), Error> {
        self.sessions.store().stop_inside()
    }

    /// Stops this process at the beginning of a read of the synced environment: for tests.
    ///
    /// # Errors
    /// If the store cannot be entered.
    pub fn stop_in_read(&self) -> Result<(), Error> {
        self.sessions.store().stop_in_read()
    }

    /// Returns the process inside the durable mutex: for tests.
    #[must_use]
    pub fn committer(&self) -> Option<u32> {
        self.sessions.store().gate().durable_holder().pid
    }

    /// Returns the index of slots with a queue as it is: for tests.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn queued_names(&self) -> Result<Vec<Name>, Error> {
        let (namespace, clock) = (self.scope.namespace, &*self.scope.clock);
        let step = |ledger: &mut Ledger<SlotRows<'_, '_>>, _| ledger.shelf().queued_names();
        let done = self.sessions.store().step(namespace, clock, StepKind::FreesSpace, WAIT, step);
        done.map(|(names, _)| names)
    }

    /// Replaces the row of a cell, or that of the ids of its writes, by other bytes: for tests.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn spoil_cell(&self, name: &Name, ids: bool) -> Result<(), Error> {
        let store = self.sessions.store();
        let kind = if ids { b'I' } else { b'V' };
        store.durable()?.write(store.gate(), |txn| {
            let namespace = namespace_key(&self.terms.namespace);
            if let Some(number) = txn.get(&namespace, "a namespace", read_number) {
                txn.put(&cell_key(kind, number, name), &[0xa5; 7]);
            }
        })
    }
}
