//! The verbs that end claims: release, forced release, the end of a session. Knows tombstones.

use std::sync::Arc;

use smallvec::SmallVec;

use super::inspect::holder_view;
use super::shelf::Tomb;
use super::slot::End;
use super::{Holders, Ledger, Line, Now, Shelf};
use crate::contract::{
    Claim, ClaimId, Evicted, Eviction, Loss, Name, Release, Released, SessionId, Signal,
};
use crate::seeded::{self, Bug};

#[allow(private_bounds, reason = "see `Ledger`")]
impl<S: Shelf> Ledger<S> {
    /// Gives claims back or withdraws them. One answer for each, in their order.
    pub(crate) fn release(&mut self, batch: &[Release], now: Now) -> Vec<Released> {
        batch.iter().map(|release| self.release_one(release, now)).collect()
    }

    fn release_one(&mut self, release: &Release, now: Now) -> Released {
        let claim = &release.claim;
        self.mint.wall_micros = now.wall_micros;
        for name in claim.parts.names() {
            if let Some(slot) = self.shelf.slot(name) {
                slot.expire(now.tick);
            }
        }
        if release.uncertain {
            let tomb = Tomb { until: now.tick + claim.lease, reason: None };
            self.bury(claim.id, tomb, now);
        }
        if self.remove(claim.id, &claim.parts, now) { Released::Done } else { Released::Gone }
    }

    pub(super) fn bury(&mut self, id: ClaimId, tomb: Tomb, now: Now) {
        if !seeded::on(Bug::NoTombstone) {
            self.shelf.bury(id, tomb, now.tick);
        }
    }

    /// Ends exactly the grant with this fence; its holders are told the reason.
    pub(crate) fn evict(&mut self, eviction: &Eviction, now: Now) -> Evicted {
        self.touch(&eviction.name, now);
        let Some(slot) = self.shelf.peek(&eviction.name) else {
            return Evicted::NoSuchGrant(Vec::new());
        };
        let views = |exact: bool| -> Vec<_> {
            let chosen = slot.holds.iter().filter(|hold| !exact || hold.fence == eviction.fence);
            chosen.map(|hold| holder_view(&hold, now)).collect()
        };
        let ended = views(true);
        if ended.is_empty() {
            return Evicted::NoSuchGrant(views(false));
        }
        let claims: SmallVec<[Arc<Claim>; 1]> = slot
            .holds
            .iter()
            .filter(|hold| hold.fence == eviction.fence)
            .map(|hold| Arc::clone(&hold.claim))
            .collect();
        // All are removed before a waiter is granted: no grant may share the fence that ends.
        for claim in &claims {
            self.take_out(claim.id, &claim.parts);
        }
        for claim in claims {
            let reason = Arc::clone(&eviction.reason);
            let tomb = Tomb { until: now.tick + claim.lease, reason: Some(Arc::clone(&reason)) };
            self.bury(claim.id, tomb, now);
            for name in claim.parts.names() {
                self.touch(name, now);
            }
            if let Some(session) = claim.session {
                let loss = Loss::Evicted { reason };
                self.signals.push((session, Signal::Ended { claim: claim.id, loss }));
            }
        }
        Evicted::Done(ended)
    }

    /// Ends everything a session holds or waits for, as if its leases had run out now.
    pub(crate) fn end_session(&mut self, session: SessionId, now: Now) {
        self.mint.wall_micros = now.wall_micros;
        for name in self.shelf.names() {
            self.end_session_at(&name, session, now);
        }
    }

    /// The same in those of these slots that it has to do with; the others are not even touched.
    #[allow(dead_code, reason = "for engines that a build may leave out")]
    pub(crate) fn end_session_in(&mut self, names: &[Name], session: SessionId, now: Now) {
        let theirs = |claim: &Claim| claim.session == Some(session);
        self.mint.wall_micros = now.wall_micros;
        for name in names {
            let concerned = self.shelf.peek(name).is_some_and(|slot| {
                slot.holds.iter().any(|hold| theirs(&hold.claim))
                    || slot.line.iter().any(|ticket| theirs(&ticket.claim))
            });
            if concerned {
                self.end_session_at(name, session, now);
            }
        }
    }

    fn end_session_at(&mut self, name: &Name, session: SessionId, now: Now) {
        let Some(slot) = self.shelf.slot(name) else { return };
        // What had expired before ended then, not now.
        slot.expire(now.tick);
        let of_session = |claim: &Claim| claim.session == Some(session);
        let holds = slot.holds.iter().filter(|hold| of_session(&hold.claim));
        let holds: Vec<_> = holds.map(|hold| hold.claim.id).collect();
        let tickets = slot.line.iter().filter(|ticket| of_session(&ticket.claim));
        let tickets: Vec<_> = tickets.map(|ticket| ticket.claim.id).collect();
        for id in holds {
            slot.end_hold(id, End::Expired(now.tick));
        }
        for id in tickets {
            slot.line.remove(id);
        }
        self.touch(name, now);
    }
}
