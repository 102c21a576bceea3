//! Hooks for tests of the embedded engine.

use super::EmbeddedEngine;
use crate::contract::Error;

impl EmbeddedEngine {
    /// Waits until what this process has begun in the store is done: for tests.
    pub fn settle(&self) {
        self.sessions.worker().settle();
        self.sessions.disk_worker().settle();
    }

    /// Stops this process inside a transaction, as a SIGSTOP at a bad moment would: for tests.
    ///
    /// # Errors
    /// If the store cannot be entered.
    pub fn stop_inside(&self) -> Result<(), Error> {
        self.sessions.store().stop_inside()
    }
}
