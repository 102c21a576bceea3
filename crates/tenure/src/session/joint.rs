//! Several grants that are held as one: if one of them is lost, all are.
//!
//! The guard has one hold that follows its members: its safe-until is the earliest of theirs. A
//! member can be re-entered by other guards of the same owner, or belong to two joints of that
//! owner; so a joint owns one guard's share of each member, and releases the members that have no
//! other share. A joint of one member is how a re-entered guard gets a `max_hold` of its own.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;

use super::effects::{Effects, PendingRelease};
use super::entry::{Entry, Phase};
use super::hold::Hold;
use super::table::Table;
use super::{Core, Event};
use crate::contract::{Arrival, Claim, Fences, Grant, Loss, Name, Parts, Release};
use crate::time::{Clock, Tick};

/// Several grants that are held as one.
pub(super) struct Joint {
    /// The hold of the guard.
    hold: Arc<Hold>,
    /// Sorted by name, as the set is.
    members: Vec<Arc<Hold>>,
    /// The member whose loss ended the joint.
    culprit: OnceLock<Name>,
}

impl Joint {
    /// Joins `members`, of which there must be at least one, all held. It ends at `cap` at the
    /// latest.
    fn new(parts: &Parts, members: Vec<Arc<Hold>>, clock: &Arc<dyn Clock>, cap: Tick) -> Self {
        // The store has no claim for the whole set. The id is that of the first member, so that it
        // can be found with `inspect`.
        let claim = Arc::new(Claim { parts: parts.clone(), ..Claim::clone(members[0].claim()) });
        let grant = Grant { fences: fences_of(&members), arrival: Arrival(0) };
        let (fencing, end) = (members[0].fencing(), first_end(&members));
        let hold = Hold::new(&claim, grant, fencing, clock, end, cap);
        // The whole set is on as many replicas as the member that fewest have.
        if let Some(fewest) = members.iter().map(|member| member.replicas()).min().flatten() {
            hold.confirmed_by(fewest);
        }
        Self { hold, members, culprit: OnceLock::new() }
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// The name whose loss ended the joint, as far as that is known.
    pub(super) fn culprit(&self) -> &Name {
        self.culprit.get().unwrap_or_else(|| self.hold.claim().parts.first_name())
    }

    /// Updates safe-until and fences after a member was renewed. The earliest safe-until of the
    /// members only grows, since each of theirs does.
    pub(super) fn follow(&self) {
        self.hold.follow(first_end(&self.members), fences_of(&self.members));
    }
}

impl fmt::Debug for Joint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}

fn first_end(members: &[Arc<Hold>]) -> Tick {
    members.iter().map(|member| member.safe_until()).min().unwrap_or(Tick::ZERO)
}

fn fences_of(members: &[Arc<Hold>]) -> Fences {
    members.iter().flat_map(|member| member.last_fences().as_slice().to_vec()).collect()
}

impl Core {
    /// Adds a hold to those of a joint. The new joint takes over the shares of the old one and that
    /// of the hold. If one of them has ended, nothing changes: returns which one and why.
    pub(super) fn join(
        &self,
        parts: &Parts,
        old: Option<&Arc<Joint>>,
        next: &Arc<Hold>,
        max_hold: Option<Duration>,
    ) -> Result<Arc<Joint>, (Name, Loss)> {
        // Under one lock, so that no member is renewed or ended before all refer to the new joint.
        let mut table = self.lock();
        let now = self.clock.now();
        let mut members = old.map(|old| old.members.clone()).unwrap_or_default();
        if let Some(over) = members.iter().find_map(|member| table.over(member, old, now)) {
            return Err(over);
        }
        if let Some(over) = table.over(next, None, now) {
            return Err(over);
        }
        members.push(Arc::clone(next));
        // A member's own max_hold ends the joint too, with that reason.
        let caps = members.iter().map(|member| member.cap());
        let cap = caps.fold(max_hold.map_or(Tick::NEVER, |most| now + most), Tick::min);
        let joint = Arc::new(Joint::new(parts, members, &self.clock, cap));
        for member in &joint.members {
            table.update(member.claim().id, |entry| entry.enter(old, &joint));
        }
        Ok(joint)
    }

    /// Ends a joint. Returns the releases of the members without another share, in reverse order:
    /// the caller has to send them.
    pub(super) fn take_apart(&self, joint: &Arc<Joint>, now: Tick) -> SmallVec<[Release; 1]> {
        let entries = self.lock().take_apart(joint, now);
        joint.hold.end_at(now, Loss::Released);
        for entry in &entries {
            self.emit(&entry.claim, || Event::Released);
            if let Phase::Held { hold, .. } = &entry.phase {
                hold.end_at(now, Loss::Released);
            }
        }
        entries.iter().map(Entry::to_release).collect()
    }
}

impl Table {
    /// Returns name and reason if this hold, or the joint's share of it, has ended at `now`.
    fn over(
        &self,
        hold: &Arc<Hold>,
        joint: Option<&Arc<Joint>>,
        now: Tick,
    ) -> Option<(Name, Loss)> {
        let there = self.get(hold.claim().id).is_some_and(|entry| {
            let shares = joint.is_none_or(|joint| entry.place_of(joint).is_some());
            matches!(entry.phase, Phase::Held { .. }) && shares
        });
        // A claim that left the table has ended, even if its hold was not notified yet.
        let gone = (!there).then_some(Loss::Forgotten);
        let loss = hold.loss_at(now).or(gone)?;
        Some((hold.claim().parts.first_name().clone(), loss))
    }

    /// Removes the joint's share from its members, in reverse order. Returns the members without
    /// another share, with their releases counted as in flight.
    fn take_apart(&mut self, joint: &Arc<Joint>, now: Tick) -> Vec<Entry> {
        let mut unheld = Vec::new();
        for member in joint.members.iter().rev() {
            let id = member.claim().id;
            if self.update(id, |entry| entry.leave(joint)) == Some(true) {
                unheld.extend(self.remove(id));
            }
        }
        for entry in &unheld {
            self.begin_release(entry.claim.lease, now);
        }
        unheld
    }

    /// Ends a joint that was lost, because of one of its members or as a whole. Members with other
    /// guards stay held by those.
    pub(super) fn lose_joint(
        &mut self,
        joint: &Arc<Joint>,
        culprit: Option<&Hold>,
        loss: &Loss,
        now: Tick,
        effects: &mut Effects,
    ) {
        if let Some(culprit) = culprit {
            let _ = joint.culprit.set(culprit.claim().parts.first_name().clone());
        }
        effects.joints.push((Arc::clone(&joint.hold), loss.clone()));
        for entry in self.take_apart(joint, now) {
            effects.give_back.push(PendingRelease::of(&entry));
            if let Phase::Held { hold, .. } = entry.phase {
                effects.lost.push((hold, loss.clone()));
            }
        }
    }
}

impl Entry {
    /// Returns a joint that has ended at `now` though this member may not have: `max_hold` counts
    /// for the whole.
    pub(super) fn joint_over(&self, now: Tick) -> Option<(Arc<Joint>, Loss)> {
        let over = |joint: &Arc<Joint>| Some((Arc::clone(joint), joint.hold.loss_at(now)?));
        self.joints().iter().find_map(over)
    }

    /// Returns when `max_hold` first ends a joint of this member.
    pub(super) fn first_cap(&self) -> Tick {
        self.joints().iter().map(|joint| joint.hold.cap()).min().unwrap_or(Tick::NEVER)
    }

    fn place_of(&self, joint: &Arc<Joint>) -> Option<usize> {
        self.joints().iter().position(|other| Arc::ptr_eq(other, joint))
    }

    /// Gives the joint the share of an older joint, or that of a guard.
    fn enter(&mut self, old: Option<&Arc<Joint>>, joint: &Arc<Joint>) {
        match old.and_then(|old| self.place_of(old)) {
            Some(at) => self.extras_mut().joints[at] = Arc::clone(joint),
            None => self.extras_mut().joints.push(Arc::clone(joint)),
        }
    }

    /// Removes the joint's share of this member. Returns whether it was the last share.
    fn leave(&mut self, joint: &Arc<Joint>) -> bool {
        let Some(at) = self.place_of(joint) else { return false };
        self.extras_mut().joints.swap_remove(at);
        match &mut self.phase {
            Phase::Held { guards, .. } => {
                *guards -= 1;
                *guards == 0
            }
            _ => false,
        }
    }
}
