//! Ends what dead processes have left behind: sessions whose liveness file is unlocked, and expired
//! claims in slots that no caller asks for any more.

use std::sync::Arc;

use super::slots::SlotRows;
use super::store::{StepKind, WAIT};
use super::{EmbeddedEngine, lock};
use crate::contract::{Error, SessionId};
use crate::ledger::Ledger;

/// How many slots one sweep checks.
const SWEPT: usize = 256;

impl EmbeddedEngine {
    /// Ends everything a session holds or waits for, as if its process had died.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let (namespace, clock) = (self.scope.namespace, &*self.scope.clock);
        let step = |ledger: &mut Ledger<SlotRows<'_, '_>>, now| ledger.end_session(session, now);
        let done = self.sessions.store().step(namespace, clock, StepKind::FreesSpace, WAIT, step);
        done.map(|((), signals)| self.sessions.deliver(signals, &self.scope))
    }

    /// Ends the dead ones among these sessions. Returns whether there were any.
    pub(super) async fn end_dead(&self, sessions: impl Iterator<Item = SessionId>) -> bool {
        let dead: Vec<_> = sessions.filter(|session| self.sessions.is_dead(*session)).collect();
        if dead.is_empty() {
            return false;
        }
        let (sessions, scope) = (Arc::clone(&self.sessions), self.scope.clone());
        let ended = self.sessions.worker().run(move || {
            for session in dead {
                sessions.end_dead(session, &scope);
            }
            Ok(())
        });
        ended.await.is_ok()
    }

    /// Ends every dead session of the store. Returns whether there were any.
    pub(super) async fn free_space(&self) -> bool {
        self.sweep();
        self.end_dead(self.sessions.others().unwrap_or_default().into_iter()).await
    }

    /// Removes expired claims from the next few slots, on the worker thread: no caller may ever
    /// ask for their names again.
    pub(super) fn sweep(&self) {
        let (sessions, scope) = (Arc::clone(&self.sessions), self.scope.clone());
        let swept = Arc::clone(&self.swept);
        self.sessions.worker().spawn(move || {
            let mut after = lock(&swept);
            let clock = &*scope.clock;
            let step = |ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
                let names = ledger.shelf().names_after(after.as_ref(), SWEPT);
                ledger.sweep_these(&names, now);
                names.last().cloned()
            };
            let store = sessions.store();
            if let Ok((last, signals)) =
                store.step(scope.namespace, clock, StepKind::FreesSpace, WAIT, step)
            {
                *after = last;
                drop(after);
                sessions.deliver(signals, &scope);
            }
        });
    }
}
