//! What engines and sessions say to each other about deadlocks: how a claim behaves towards the
//! detector, the facts that a verdict rests on, and the verb that refuses a victim.
//!
//! A deadlock is found on a snapshot ([`Query::Reach`](super::Query::Reach)) and broken by one
//! atomic step in the store: [`Deadlocks::refuse_victim`] compares that every fact of the
//! [`DeadlockCase`] still stands and only then refuses the waiting claim. So a claim is never
//! refused because of a hold or a wait that ended after the snapshot was taken.
//!
//! Facts come in two kinds. *Holds and waits* must not have disappeared: each is named by its claim
//! id, which is never used twice, so a fact that is found again stood all the time. *Other flows*
//! must not have appeared: an owner that has a second wait, in which another owner is nested that
//! waits too, or whose marker slot is held, has another flow of control that may release what it
//! holds, and counts as able to run.

use std::sync::Arc;

use super::Pending;
use super::ids::{ClaimId, OwnerId};
use super::name::Name;
use crate::limits;

/// How the deadlock detector treats a claim. Travels with the claim as part of its
/// [`About`](super::About).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Conduct {
    /// Its wait may be refused to break a deadlock: it belongs to an owner (a scope, a
    /// `tenure run`, an explicit [`Owner`](crate::Owner)) whose session breaks deadlocks.
    pub breakable: bool,
    /// How many of the nearest ancestors do nothing until this owner has ended, because each runs
    /// the next as its own child process.
    pub held_up: u8,
    /// Among the members of a deadlock, the one with the lowest priority is refused.
    pub priority: i8,
    /// For a claim without a scope: the task or thread that made it, as a number that is the same
    /// for all claims of that task; 0 if it is not known. Groups claims for reports, never for
    /// refusals.
    pub flow: u16,
}

impl Conduct {
    /// The conduct as a number below 2^31, for stores. The default is 0.
    #[must_use]
    pub fn to_code(self) -> u32 {
        let priority = u32::from(self.priority.cast_unsigned());
        let held_up = u32::from(self.held_up.min(63));
        priority | u32::from(self.breakable) << 8 | held_up << 9 | u32::from(self.flow) << 15
    }

    /// The conduct with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Self {
        let [low, ..] = code.to_le_bytes();
        Self {
            priority: low.cast_signed(),
            breakable: code & 1 << 8 != 0,
            held_up: (code >> 9 & 63).to_le_bytes()[0],
            flow: u16::try_from(code >> 15 & 0xffff).unwrap_or_default(),
        }
    }
}

/// The name whose holders say that an owner has another flow of control: while any claim holds it,
/// the owner counts as able to run.
#[must_use]
pub fn concurrency_marker(owner: OwnerId) -> Name {
    Name::reserved_for_owner(MARKER_KIND, owner)
}

/// The kind of the reserved names of markers.
pub(crate) const MARKER_KIND: &str = "concurrent";

/// A claim that holds or waits at a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimAt {
    /// The slot.
    pub name: Name,
    /// The claim.
    pub claim: ClaimId,
}

/// A deadlock as the store has to compare it, and the wait to refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlockCase {
    /// The waiting claim to refuse, at a slot where it waits. One of `waits`.
    pub victim: ClaimAt,
    /// Claims that hold.
    pub holds: Vec<ClaimAt>,
    /// Claims that wait in the queue.
    pub waits: Vec<ClaimAt>,
    /// The owners of these claims. None of them has a wait that is not in `waits`, none has a
    /// holder of its [marker](concurrency_marker), and none that waits has a descendant that waits
    /// too.
    pub owners: Vec<OwnerId>,
    /// What the victim is told: the members of the deadlock, what each holds and waits for. At most
    /// [`limits::DEADLOCK_WORDS`](crate::limits::DEADLOCK_WORDS) bytes, no control characters.
    pub words: Arc<str>,
}

impl DeadlockCase {
    /// The slots of all facts, sorted, each once.
    #[must_use]
    pub fn names(&self) -> Vec<Name> {
        let facts = self.holds.iter().chain(&self.waits).chain([&self.victim]);
        let all = facts.map(|fact| fact.name.clone());
        let mut names: Vec<Name> = all.collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The markers of all owners, sorted.
    #[must_use]
    pub fn markers(&self) -> Vec<Name> {
        let mut markers: Vec<Name> =
            self.owners.iter().map(|owner| concurrency_marker(*owner)).collect();
        markers.sort_unstable();
        markers
    }

    /// Whether the case is small enough for one atomic step.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.holds.len() + self.waits.len() <= limits::DEADLOCK_FACTS
            && self.words.len() <= limits::DEADLOCK_WORDS
    }
}

/// The reply to [`Deadlocks::refuse_victim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimVerdict {
    /// All facts stood: the claim waits no longer, its session is notified, the queue moved on.
    Refused,
    /// Some fact did not stand any more: nothing was changed.
    Changed,
}

/// A store that can compare the facts of a deadlock and refuse a claim in one atomic step. Promised
/// as [`Promises::deadlocks`](super::Promises::deadlocks).
pub trait Deadlocks: Send + Sync {
    /// Refuses the victim if all facts of the case stand: its ticket and reserved parts are removed
    /// as if withdrawn, a late copy of it is refused, and its session receives
    /// [`Signal::Ended`](super::Signal::Ended) with [`Loss::Deadlock`](super::Loss::Deadlock). A
    /// claim that was granted meanwhile does not wait any more and is never refused.
    fn refuse_victim<'a>(&'a self, case: &'a DeadlockCase) -> Pending<'a, VictimVerdict>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conduct_survives_its_number_and_the_default_is_zero() {
        assert_eq!(Conduct::default().to_code(), 0);
        for (priority, held_up, flow) in [(0, 0, 0), (-128, 63, u16::MAX), (127, 1, 7), (-1, 32, 1)]
        {
            for breakable in [false, true] {
                let conduct = Conduct { breakable, held_up, priority, flow };
                assert!(conduct.to_code() < 1 << 31);
                assert_eq!(Conduct::from_code(conduct.to_code()), conduct);
            }
        }
    }
}
