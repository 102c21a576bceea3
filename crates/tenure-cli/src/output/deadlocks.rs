//! A deadlock as JSON: its members, what each holds and waits for.

use serde::Serialize;
use tenure::contract::short;
use tenure::deadlock::Deadlock;

/// One deadlock in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct DeadlockRow {
    members: Vec<MemberRow>,
    /// The member that is refused to break it, by its place in `members`.
    victim: Option<usize>,
    by_task: bool,
    by_nesting: bool,
    words: String,
}

#[derive(Debug, Serialize)]
struct MemberRow {
    owner: String,
    holder: String,
    holds: Vec<String>,
    waits_for: Option<String>,
    waited: Option<String>,
}

impl DeadlockRow {
    pub(crate) fn new(deadlock: &Deadlock) -> Self {
        let member = |member: &tenure::deadlock::DeadlockMember| MemberRow {
            owner: member.owner.to_string(),
            holder: member.about.to_string(),
            holds: member.holds.iter().map(|hold| hold.name.shown().into_owned()).collect(),
            waits_for: member.wait.as_ref().map(|wait| wait.name.shown().into_owned()),
            waited: member.wait.as_ref().map(|wait| short(wait.waited_for)),
        };
        Self {
            members: deadlock.members.iter().map(member).collect(),
            victim: deadlock.victim,
            by_task: deadlock.by_task,
            by_nesting: deadlock.by_nesting,
            words: deadlock.words(),
        }
    }
}
