//! Re-entry inside a process: found in the table of holds, no call to the store. Knows owners and
//! the terms of a hold; what the store does about owners is its own business.
//!
//! A guard that enters shares the hold, and with it fence, lease and loss. What a shared hold
//! cannot give is a `max_hold` of one guard alone: that guard holds a joint of one member with an
//! end of its own. Nor can it give another lease, which the store has to know: that is a claim of
//! its own.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Flow, Phase};
use super::request::AcquireRequest;
use super::table::Table;
use super::{Core, Hold, Share, closed_error};
use crate::contract::{Claim, Error, Name, OwnerId, Part, Verb};
use crate::time::Tick;

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

impl Table {
    /// Returns a hold of this owner that a claim for `part` may re-enter, with one more guard.
    pub(super) fn reenter(
        &mut self,
        owner: OwnerId,
        part: &Part,
        now: Tick,
        terms_fit: impl Fn(&Claim) -> bool,
    ) -> Option<Arc<Hold>> {
        if !part.shape().reentrant() {
            return None;
        }
        let fits = |entry: &Entry| {
            // Not a hold that is being exchanged, and not a set, which has other names and fences.
            let plain = entry.extras().is_none_or(|extras| extras.successor.is_none())
                && entry.claim.parts.as_slice().len() == 1;
            if entry.claim.lineage.owner() != owner || !plain || !terms_fit(&entry.claim) {
                return false;
            }
            let weight = entry.weight_on(part.name(), part.shape());
            let living = matches!(&entry.phase,
                Phase::Held { hold, .. } if hold.loss_at(now).is_none());
            living && weight.is_some_and(|weight| weight >= part.weight())
        };
        // The first that fits is as good as any: holds of one owner on a slot share a fence.
        let ids = self.held.get(part.name())?;
        let id = *ids.iter().find(|id| self.get(**id).is_some_and(fits))?;
        self.update(id, Entry::reenter)?
    }

    /// Returns the hold of the same task or thread on this name under another owner, if there is
    /// one: a task that waits for it waits for itself.
    pub(super) fn own_hold(&self, flow: Flow, name: &Name, owner: OwnerId) -> Option<Arc<Hold>> {
        let mut entries = self.held.get(name)?.iter().filter_map(|id| self.get(*id));
        entries.find_map(|entry| match &entry.phase {
            Phase::Held { hold, .. }
                if entry.flow == Some(flow) && entry.claim.lineage.owner() != owner =>
            {
                Some(Arc::clone(hold))
            }
            _ => None,
        })
    }
}
