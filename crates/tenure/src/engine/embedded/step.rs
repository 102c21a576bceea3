//! Runs a verb as one step of the store: on the caller's thread if the gate is free, otherwise on
//! the worker thread.
//!
//! Signals are delivered after the commit, on the thread that made the step: also if the caller's
//! future was dropped meanwhile, because the step has been made all the same.

use std::sync::Arc;

use super::EmbeddedEngine;
use super::slots::SlotRows;
use super::store::{StepKind, StepOutcome, WAIT};
use crate::contract::Error;
use crate::ledger::{Ledger, Now};
use crate::time::{Clock, SystemClock};

impl EmbeddedEngine {
    /// Runs a verb, on this thread if the gate is free.
    pub(super) async fn step<A, T>(
        &self,
        kind: StepKind,
        given: &A,
        verb: fn(&A, &mut Ledger<SlotRows<'_, '_>>, Now) -> T,
    ) -> Result<T, Error>
    where
        A: ToOwned + ?Sized + 'static,
        A::Owned: Send + 'static,
        T: Send + 'static,
    {
        let (namespace, clock) = (self.scope.namespace, &*self.scope.clock);
        let store = self.sessions.store();
        let done =
            store.try_step(namespace, clock, kind, |ledger, now| verb(given, ledger, now))?;
        let answer = match done {
            Some((answer, signals)) => {
                if !signals.is_empty() {
                    self.sessions.deliver(signals, &self.scope);
                }
                answer
            }
            None => self.step_on_worker(kind, given.to_owned(), verb).await?,
        };
        if store.wants_reserve() {
            let sessions = Arc::clone(&self.sessions);
            self.sessions.disk_worker().spawn(move || {
                if let Err(error) = sessions.store().reserve_ahead() {
                    tracing::warn!(%error, "cannot reserve fences ahead");
                }
            });
        }
        Ok(answer)
    }

    /// Runs a verb on the worker thread, which waits for the gate.
    async fn step_on_worker<A, O, T>(
        &self,
        kind: StepKind,
        given: O,
        verb: fn(&A, &mut Ledger<SlotRows<'_, '_>>, Now) -> T,
    ) -> Result<T, Error>
    where
        A: ?Sized + 'static,
        O: std::borrow::Borrow<A> + Send + 'static,
        T: Send + 'static,
    {
        let (sessions, scope) = (Arc::clone(&self.sessions), self.scope.clone());
        let queued_at = SystemClock.now();
        let job = move || {
            // The time in the worker's queue counts: behind a stuck gate all jobs time out
            // together, not one after the other.
            let left = WAIT.saturating_sub(SystemClock.now().since(queued_at));
            let step =
                |ledger: &mut Ledger<SlotRows<'_, '_>>, now| verb(given.borrow(), ledger, now);
            let clock = &*scope.clock;
            let done: Result<StepOutcome<T>, Error> =
                sessions.store().step(scope.namespace, clock, kind, left, step);
            let (answer, signals) = done?;
            sessions.deliver(signals, &scope);
            Ok(answer)
        };
        self.sessions.worker().run(job).await
    }
}
