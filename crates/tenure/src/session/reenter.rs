//! Re-entry inside a process: found in the table of holds, no call to the store. Knows owners and
//! the terms of a hold; what the store does about owners is its own business.
//!
//! A guard that enters shares the hold, and with it fence, lease and loss. What a shared hold
//! cannot give is a `max_hold` of one guard alone: that guard holds a joint of one member with an
//! end of its own. Nor can it give another lease, which the store has to know: that is a claim of
//! its own.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Phase};
use super::request::AcquireRequest;
use super::{Core, Share, closed_error};
use crate::contract::{Claim, Error, Name, OwnerId, Verb};

impl Core {
    /// Enters a hold of the same owner once more, without a call. A lock with another lease, or a
    /// longer lock delay, is a claim of its own: the store grants it beside the one that stands.
    pub(super) fn reenter(self: &Arc<Self>, ask: &AcquireRequest) -> Result<Option<Share>, Error> {
        let [part] = ask.parts.as_slice() else { return Ok(None) };
        if !ask.scoped || ask.replaces.is_some() {
            return Ok(None);
        }
        let mut table = self.lock();
        if table.closed {
            return Err(closed_error(Verb::Claim).on(part.name()));
        }
        // Where the store knows no line it knows no re-entry either, and a claim of its own would
        // wait for the one that stands.
        let any = !self.engine.promises().queue;
        let fits =
            |claim: &Claim| any || claim.lease == ask.lease && claim.lock_delay >= ask.lock_delay;
        let hold = table.reenter(ask.lineage.owner(), part, self.clock.now(), fits);
        drop(table);
        let Some(hold) = hold else { return Ok(None) };
        let lease = Share::new(Arc::clone(self), hold, ask.wait.timeout());
        match ask.max_hold {
            None => Ok(Some(lease)),
            Some(most) => Ok(self.end_after(lease, ask, most)),
        }
    }

    /// Gives one guard of a shared hold an end of its own: it holds a set of one, which ends when
    /// `most` has passed or the hold ends. `None` if the hold has ended just now.
    fn end_after(
        self: &Arc<Self>,
        lease: Share,
        ask: &AcquireRequest,
        most: Duration,
    ) -> Option<Share> {
        let joint = self.join(&ask.parts, None, lease.hold(), Some(most)).ok()?;
        lease.hand_over();
        Some(Share::of_joint(Arc::clone(self), joint, ask.wait.timeout()))
    }

    /// How many guards of this owner on this name there are.
    pub(super) fn depth(&self, name: &Name, owner: OwnerId) -> u32 {
        let table = self.lock();
        let ids = table.held.get(name).into_iter().flatten();
        let guards = |entry: &Entry| match entry.phase {
            Phase::Held { guards, .. } if entry.claim.lineage.owner() == owner => guards,
            _ => 0,
        };
        ids.filter_map(|id| table.get(*id)).map(guards).sum()
    }
}
