//! What an engine needs that keeps the state elsewhere: the parts of the state, and how a ledger is
//! laid over them for one step. Knows the seam, not what is on the other side.
#![allow(dead_code, unused_imports, reason = "for engines that a build may leave out")]

pub(crate) use super::holds::{Hold, Holders, Holds};
pub(crate) use super::line::{Line, Ticket};
pub(crate) use super::mint::Mint;
pub(crate) use super::shelf::{Shelf, Tomb};
pub(crate) use super::slot::{Group, Slot};
use super::{Ledger, Now};
use crate::contract::{ClaimId, Name, Parts, Renewed, SessionId, Signal};

impl<L: Line, H: Holders> Slot<L, H> {
    /// Puts a ticket back where it stood. All holds must be there already: they say who stands
    /// ahead of the line.
    pub(crate) fn put_back(&mut self, ticket: Ticket) {
        let kin = self.kin(&ticket.claim.lineage);
        self.line.push(ticket, kin);
    }
}

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

    /// Lets at most this many come in from the line from here on.
    pub(crate) fn admit_at_most(&mut self, admissions: usize) {
        self.mint.admissions = Some(admissions);
    }

    /// Serves the line of one slot, as every verb does first.
    pub(crate) fn serve(&mut self, name: &Name, now: Now) {
        self.touch(name, now);
    }

    /// Serves one ticket of a slot whose owner came in by another one meanwhile.
    pub(crate) fn serve_again(&mut self, name: &Name, id: ClaimId, now: Now) {
        self.mint.wall_micros = now.wall_micros;
        let Some(slot) = self.shelf.slot(name) else { return };
        if let Some(claim) = slot.promote_again(id, now.tick, &mut self.mint) {
            self.settle(&claim, now, true);
        }
    }

    /// How a claim stands that holds or waits for all its parts; none if it does not.
    pub(crate) fn stands(&mut self, id: ClaimId, parts: &Parts, now: Now) -> Option<Renewed> {
        match self.queued(id, parts, now) {
            Some(queued) => Some(Renewed::Waiting(queued)),
            None => self.grant_of(id, parts).map(Renewed::Held),
        }
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
