//! What an engine needs that keeps the state elsewhere: the parts of the state, and how a ledger is
//! laid over them for one step. Knows the seam, not what is on the other side.
#![allow(dead_code, unused_imports, reason = "for engines that a build may leave out")]

use super::Ledger;
pub(crate) use super::holds::{Hold, Holds};
pub(crate) use super::line::{Line, Ticket};
pub(crate) use super::mint::Mint;
pub(crate) use super::shelf::{Shelf, Tomb};
pub(crate) use super::slot::{Group, Slot};
use crate::contract::{ClaimId, Parts, SessionId, Signal};

/// How many holders are looked at for the sessions in the way.
const HOLDERS: usize = 64;

#[allow(private_bounds, reason = "see `Ledger`")]
impl<S: Shelf> Ledger<S> {
    /// A ledger over what a store keeps.
    pub(crate) fn over(shelf: S, mint: Mint) -> Self {
        Self { shelf, mint, signals: Vec::new() }
    }

    /// What was kept, to be put back.
    pub(crate) fn into_parts(self) -> (S, Mint, Vec<(SessionId, Signal)>) {
        (self.shelf, self.mint, self.signals)
    }

    /// Where the state is kept.
    pub(crate) fn shelf(&mut self) -> &mut S {
        &mut self.shelf
    }

    /// The sessions whose end would bring a waiting claim nearer, in each slot: those of the first
    /// [`HOLDERS`] holders, and of the `nearest` before it in line.
    pub(crate) fn in_the_way(
        &mut self,
        id: ClaimId,
        parts: &Parts,
        nearest: usize,
    ) -> Vec<SessionId> {
        let mut sessions = Vec::new();
        for name in parts.names() {
            let Some(slot) = self.shelf.peek(name) else { continue };
            if slot.line.get(id).is_none() {
                continue;
            }
            let mut add = |session: Option<SessionId>| {
                if let Some(session) = session.filter(|session| !sessions.contains(session)) {
                    sessions.push(session);
                }
            };
            slot.holds.iter().take(HOLDERS).for_each(|hold| add(hold.claim.session));
            slot.line.sessions_before(id, nearest).into_iter().for_each(add);
        }
        sessions
    }
}
