//! Hooks for tests of the embedded engine.

use super::sizes::Sizes;
use super::{EmbeddedEngine, Location};
use crate::contract::Error;
use crate::engine::Terms;

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

    /// Stops this process inside a transaction, as a SIGSTOP at that moment would: for tests.
    ///
    /// # Errors
    /// If the store cannot be entered.
    pub fn stop_inside(&self) -> Result<(), Error> {
        self.sessions.store().stop_inside()
    }
}
