//! Finds deadlocks in a snapshot. Pure: facts in, deadlocks out; no store, no clock, no session.
//!
//! ```text
//! Snapshot ──> Picture ──reduce──> stuck actors ──reasons──> sink components ──> Deadlock
//!              picture.rs                         cycles.rs                      words.rs
//! ```
//!
//! **Reduction.** Every actor that can run releases what it holds; what then fits is granted, and
//! its actor can run too; and so on. Actors that remain are *stuck*. Unlike a search for cycles
//! this
//! is exact for readers and writers, semaphores, sets and places in a queue: a cycle through a
//! semaphore is no deadlock while one holder of a permit can run.
//!
//! **Who can run.** An actor without a wait; one with two waits at once, or whose marker
//! ([`concurrency_marker`](crate::contract::concurrency_marker)) is held, because another flow of
//! control may release for it. An actor without a wait whose own child process is stuck
//! ([`Conduct::held_up`](crate::contract::Conduct::held_up)) cannot run.
//!
//! **Suspicions.** Two things that are likely but not known are assumed for reports only, by
//! [`find_suspected`]: that the claims which one task made without a scope belong together, and
//! that an owner does nothing until the owners nested in it have ended (a shell between two runs, a
//! scope in a scope, a caller of another service). Waits for each other that the store sees beside
//! the slots ([`OutsideWait`](crate::contract::OutsideWait)) count there, too. What is found only
//! so is never refused.
//!
//! **Which facts decide.** Many may be stuck behind a deadlock without being part of it. So each
//! stuck actor gets a *reason*: holders that keep it out, as few as suffice, or the ticket before
//! it. A strongly connected component of these reasons that no reason leaves is a deadlock by
//! itself: its members stay stuck even if every other actor releases everything. Only the facts of
//! its members are compared by the store.

mod cycles;
mod picture;
#[cfg(test)]
mod tests;
mod words;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use self::picture::{Assume, Picture};
use crate::contract::{
    About, ClaimAt, ClaimId, Conduct, DeadlockCase, Fence, Name, OwnerId, Snapshot,
};

/// Owners that wait for each other for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The members; each waits for the next where the deadlock is one cycle.
    pub members: Vec<DeadlockMember>,
    /// The member whose wait is refused to break the deadlock: of those that may be refused, the
    /// one with the lowest priority, the fewest holds, the youngest claim. `None` if none may.
    pub victim: Option<usize>,
    /// It was found by grouping claims by task or thread, not by owner: it is reported, and no wait
    /// is refused.
    pub by_task: bool,
    /// It was found by assuming that an owner waits for one that is nested in it, which is not
    /// known: it is reported, and no wait is refused.
    pub by_nesting: bool,
    /// It goes through a lock of the database that is none of Tenure's: it is reported, and no wait
    /// is refused.
    pub by_database: bool,
    holds: Vec<ClaimAt>,
    waits: Vec<ClaimAt>,
}

/// One member of a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlockMember {
    /// The owner; of claims that were grouped by task, that of the waiting one.
    pub owner: OwnerId,
    /// Host, process, label and place in the code, of its wait if it has one.
    pub about: About,
    /// What it waits for; `None` if it waits for the end of its child process or, where the
    /// deadlock was found [by nesting](Deadlock::by_nesting), of an owner nested in it.
    pub wait: Option<MemberWait>,
    /// What it waits for that is no lock of Tenure's.
    pub outside: Option<Arc<str>>,
    /// What it holds that other members wait for.
    pub holds: Vec<MemberHold>,
}

/// The wait of a member of a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberWait {
    /// The slot.
    pub name: Name,
    /// The waiting claim.
    pub claim: ClaimId,
    /// How long it has waited.
    pub waited_for: Duration,
}

/// A hold of a member of a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberHold {
    /// The slot.
    pub name: Name,
    /// How long it has been held.
    pub held_for: Duration,
    /// Its fence.
    pub fence: Fence,
}

/// Finds the deadlocks in a snapshot, by owner.
#[must_use]
pub fn find(snapshot: &Snapshot) -> Vec<Deadlock> {
    Picture::new(snapshot, Assume::Known).deadlocks()
}

/// Finds what looks like a deadlock in a snapshot, with claims that have no scope grouped by the
/// task or thread that made them, and with owners that wait for those nested in them. Returns those
/// that [`find`] does not return: they are for reports.
#[must_use]
pub fn find_suspected(snapshot: &Snapshot) -> Vec<Deadlock> {
    let found = Picture::new(snapshot, Assume::Likely).deadlocks();
    found.into_iter().filter(Deadlock::is_suspected).collect()
}

/// Finds what looks like a deadlock that an owner is in or stuck behind, as [`find_suspected`].
#[must_use]
pub fn find_suspected_around(snapshot: &Snapshot, owner: OwnerId) -> Vec<Deadlock> {
    let picture = Picture::new(snapshot, Assume::Likely);
    if !picture.stuck_owners().contains(&owner) {
        return Vec::new();
    }
    picture.deadlocks().into_iter().filter(Deadlock::is_suspected).collect()
}

/// Finds the deadlocks that an owner is in or stuck behind. The owner has to wait in the snapshot.
#[must_use]
pub fn find_around(snapshot: &Snapshot, owner: OwnerId) -> Vec<Deadlock> {
    let picture = Picture::new(snapshot, Assume::Known);
    if picture.stuck_owners().contains(&owner) { picture.deadlocks() } else { Vec::new() }
}

/// The owners that are stuck: in a deadlock, or behind one.
#[must_use]
pub fn stuck_owners(snapshot: &Snapshot) -> Vec<OwnerId> {
    Picture::new(snapshot, Assume::Known).stuck_owners()
}

impl Deadlock {
    /// What the store has to compare to refuse the victim. `None` if no member may be refused.
    #[must_use]
    pub fn case(&self) -> Option<DeadlockCase> {
        let victim = &self.members[self.victim?];
        let wait = victim.wait.as_ref()?;
        Some(DeadlockCase {
            victim: ClaimAt { name: wait.name.clone(), claim: wait.claim },
            holds: self.holds.clone(),
            waits: self.waits.clone(),
            owners: self.members.iter().map(|member| member.owner).collect(),
            words: self.words().into(),
        })
    }

    /// Whether it rests on an assumption ([`find_suspected`]): then no wait is refused.
    #[must_use]
    pub fn is_suspected(&self) -> bool {
        self.by_task || self.by_nesting || self.by_database
    }

    /// Whether an owner is a member.
    #[must_use]
    pub fn includes(&self, owner: OwnerId) -> bool {
        self.members.iter().any(|member| member.owner == owner)
    }

    /// Whether both rest on the same waits: then it is the same deadlock.
    #[must_use]
    pub fn same_waits(&self, other: &Self) -> bool {
        self.waits == other.waits
    }

    /// The member to refuse. All detectors choose alike, because they compare the same facts.
    fn choose_victim(members: &[DeadlockMember]) -> Option<usize> {
        let breakable =
            |member: &DeadlockMember| member.wait.is_some() && member.about.conduct.breakable;
        let all = members.iter().enumerate().filter(|(_, member)| breakable(member));
        let rank = |member: &DeadlockMember| {
            let Conduct { priority, .. } = member.about.conduct;
            let wait = member.wait.as_ref().map(|wait| (wait.waited_for, Reverse(wait.claim)));
            (priority, member.holds.len(), wait)
        };
        all.min_by_key(|(_, member)| rank(member)).map(|(at, _)| at)
    }
}
