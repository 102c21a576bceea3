//! Several grants that are held as one: whoever loses one loses all. Knows the table and its holds,
//! not how they were got.
//!
//! The guard sees one hold that follows its members: it may be trusted for as long as every one of
//! them may. A member can be entered by other guards of the same owner, or belong to two joints of
//! it; so a joint holds one guard's share of each member, and gives back those that nobody else
//! needs. One grant alone makes a joint too, where a guard that entered it once more has a
//! `max_hold` of its own.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;

use super::entry::{Entry, Phase};
use super::hold::Hold;
use super::table::{Giving, Table, Work};
use super::{Core, Event};
use crate::contract::{Arrival, Claim, Fences, Grant, Loss, Name, Parts, Release};
use crate::time::{Clock, Tick};

/// Several grants that are held as one.
pub(super) struct Joint {
    /// What the guard sees.
    hold: Arc<Hold>,
    /// Sorted by name, as the set is.
    members: Vec<Arc<Hold>>,
    /// The member whose loss was the end of all.
    culprit: OnceLock<Name>,
}

impl Joint {
    /// Makes one of several, which must be held and must not be none. It ends at `cap` at the
    /// latest.
    fn new(parts: &Parts, members: Vec<Arc<Hold>>, clock: &Arc<dyn Clock>, cap: Tick) -> Self {
        // The store has no claim for the whole. The id is that of the first part, so that whoever
        // looks it up finds something.
        let claim = Arc::new(Claim { parts: parts.clone(), ..Claim::clone(members[0].claim()) });
        let grant = Grant { fences: fences_of(&members), arrival: Arrival(0) };
        let (fencing, end) = (members[0].fencing(), first_end(&members));
        let hold = Hold::new(&claim, grant, fencing, clock, end, cap);
        // As many have the whole as have the part that fewest have.
        if let Some(fewest) = members.iter().map(|member| member.replicas()).min().flatten() {
            hold.confirmed_by(fewest);
        }
        Self { hold, members, culprit: OnceLock::new() }
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// The name whose loss was the end of all, as far as that is known.
    pub(super) fn culprit(&self) -> &Name {
        self.culprit.get().unwrap_or_else(|| self.hold.claim().parts.first_name())
    }

    /// A member was renewed. The end of the whole is the first end of a member, which only grows as
    /// theirs do.
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
    /// Binds one more hold to those of a joint. The new joint takes over the shares of the old one
    /// and that of the hold. If one of them is over, nothing changes: says which and why.
    pub(super) fn join(
        &self,
        parts: &Parts,
        old: Option<&Arc<Joint>>,
        next: &Arc<Hold>,
        max_hold: Option<Duration>,
    ) -> Result<Arc<Joint>, (Name, Loss)> {
        // From here on nobody renews or ends a member until all know of the joint.
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
        // Where a member has a max_hold of its own, that is the reason of the end which it brings.
        let caps = members.iter().map(|member| member.cap());
        let cap = caps.fold(max_hold.map_or(Tick::NEVER, |most| now + most), Tick::min);
        let joint = Arc::new(Joint::new(parts, members, &self.clock, cap));
        for member in &joint.members {
            table.update(member.claim().id, |entry| entry.enter(old, &joint));
        }
        Ok(joint)
    }

    /// Ends a joint, in reverse order. The right ends here, before the store can hear of it; the
    /// caller has to send back what nobody else needs.
    pub(super) fn take_apart(&self, joint: &Arc<Joint>, now: Tick) -> SmallVec<[Release; 1]> {
        let entries = self.lock().take_apart(joint, now);
        joint.hold.end_at(now, Loss::Released);
        for entry in &entries {
            self.saw(&entry.claim, Event::Released);
            if let Phase::Held { hold, .. } = &entry.phase {
                hold.end_at(now, Loss::Released);
            }
        }
        entries.iter().map(Entry::to_release).collect()
    }
}

impl Table {
    /// Which name is over and why, if this hold, or its share in a joint, is not there at `now`.
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
        // What left the table is over, though its hold may have to be told yet.
        let gone = (!there).then_some(Loss::Forgotten);
        let loss = hold.loss_at(now).or(gone)?;
        Some((hold.claim().parts.first_name().clone(), loss))
    }

    /// Takes the joint's share from its members, in reverse order. Returns those that nobody holds
    /// any more, counted as on their way back.
    fn take_apart(&mut self, joint: &Arc<Joint>, now: Tick) -> Vec<Entry> {
        let mut unheld = Vec::new();
        for member in joint.members.iter().rev() {
            let id = member.claim().id;
            if self.update(id, |entry| entry.leave(joint)) == Some(true) {
                unheld.extend(self.remove(id));
            }
        }
        for entry in &unheld {
            self.on_its_way(entry.claim.lease, now);
        }
        unheld
    }

    /// Ends a joint that was lost, because of one of its members or as a whole. Members that others
    /// hold as well stay with them.
    pub(super) fn lose_joint(
        &mut self,
        joint: &Arc<Joint>,
        culprit: Option<&Hold>,
        loss: &Loss,
        now: Tick,
        work: &mut Work,
    ) {
        if let Some(culprit) = culprit {
            let _ = joint.culprit.set(culprit.claim().parts.first_name().clone());
        }
        work.joints.push((Arc::clone(&joint.hold), loss.clone()));
        for entry in self.take_apart(joint, now) {
            work.give_back.push(Giving::of(&entry));
            if let Phase::Held { hold, .. } = entry.phase {
                work.lost.push((hold, loss.clone()));
            }
        }
    }
}

impl Entry {
    /// A joint that is over at `now` though this member may not be: `max_hold` counts for the
    /// whole.
    pub(super) fn joint_over(&self, now: Tick) -> Option<(Arc<Joint>, Loss)> {
        let over = |joint: &Arc<Joint>| Some((Arc::clone(joint), joint.hold.loss_at(now)?));
        self.joints().iter().find_map(over)
    }

    /// The first instant at which `max_hold` ends a joint of this member.
    pub(super) fn first_cap(&self) -> Tick {
        self.joints().iter().map(|joint| joint.hold.cap()).min().unwrap_or(Tick::NEVER)
    }

    fn place_of(&self, joint: &Arc<Joint>) -> Option<usize> {
        self.joints().iter().position(|other| Arc::ptr_eq(other, joint))
    }

    /// The joint takes over the share of an older one, or that of a guard.
    fn enter(&mut self, old: Option<&Arc<Joint>>, joint: &Arc<Joint>) {
        match old.and_then(|old| self.place_of(old)) {
            Some(at) => self.rare_mut().joints[at] = Arc::clone(joint),
            None => self.rare_mut().joints.push(Arc::clone(joint)),
        }
    }

    /// The joint gives its share of this member up. Returns whether it was the last share.
    fn leave(&mut self, joint: &Arc<Joint>) -> bool {
        let Some(at) = self.place_of(joint) else { return false };
        self.rare_mut().joints.swap_remove(at);
        match &mut self.phase {
            Phase::Held { guards, .. } => {
                *guards -= 1;
                *guards == 0
            }
            _ => false,
        }
    }
}
