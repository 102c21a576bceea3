//! Counts the votes of one attempt to hold a name at a majority of nodes. Pure: no connections, no
//! clocks.
//!
//! ```text
//! acquire at all ── q nodes grant the same number ──────────────> won, one round trip
//!                └─ q nodes say yes, otherwise ─> raise the largest at all ─ q say yes ─> won
//!                └─ otherwise ─> lost: release everywhere
//! ```
//!
//! `q` is a majority. Only the first vote of a node counts, and votes that arrive after the raise
//! has begun do not. Why a number wins only with q equal votes, and how simpler protocols fail, is
//! in `docs/redlock.md`; `tests/redlock_model.rs` checks it by running this code.
#![cfg_attr(
    not(feature = "test-util"),
    allow(unreachable_pub, dead_code, reason = "the model in the tests is made of it")
)]

/// Returns how many nodes are a majority.
#[must_use]
pub const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The votes of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptVotes(VotePhase);

/// The round in flight, with the vote of each node; `None` before its reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum VotePhase {
    Acquire(Vec<Option<NodeVote>>),
    Raise(u64, Vec<Option<bool>>),
}

/// A node's vote on an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeVote {
    /// Granted, with this number.
    Yes(u64),
    /// Not granted, or no valid reply.
    No,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextStep {
    /// Wait for more votes.
    Wait,
    /// Send a raise to this number to all nodes. Returned once.
    Raise(u64),
    /// The name is held, with this fence.
    Won(u64),
    /// The name cannot be won any more: release at all nodes.
    Lost,
}

impl AttemptVotes {
    /// Makes an attempt at this many nodes, without any vote.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self(VotePhase::Acquire(vec![None; nodes]))
    }

    /// Counts a node's vote on the acquire. A second vote of a node, or one after the raise has
    /// begun, does not count.
    pub fn acquired(&mut self, node: usize, vote: NodeVote) -> NextStep {
        let VotePhase::Acquire(votes) = &mut self.0 else { return NextStep::Wait };
        votes[node].get_or_insert(vote);
        self.judge()
    }

    /// Counts a node's vote on the raise.
    pub fn raised(&mut self, node: usize, yes: bool) -> NextStep {
        let VotePhase::Raise(_, answers) = &mut self.0 else { return NextStep::Wait };
        answers[node].get_or_insert(yes);
        self.judge()
    }

    /// Counts every node that has not voted as a no.
    pub fn timed_out(&mut self) -> NextStep {
        match &mut self.0 {
            VotePhase::Acquire(votes) => {
                for vote in votes {
                    vote.get_or_insert(NodeVote::No);
                }
            }
            VotePhase::Raise(_, answers) => {
                for answer in answers {
                    answer.get_or_insert(false);
                }
            }
        }
        self.judge()
    }

    /// Returns whether a majority has granted, though not with one number: a raise is possible.
    #[must_use]
    pub fn could_raise(&self) -> bool {
        let VotePhase::Acquire(votes) = &self.0 else { return false };
        let granted = votes.iter().filter(|vote| matches!(vote, Some(NodeVote::Yes(_)))).count();
        granted >= quorum(votes.len())
    }

    /// Returns whether the raise has begun.
    #[must_use]
    pub fn is_raising(&self) -> bool {
        matches!(self.0, VotePhase::Raise(..))
    }

    /// Returns the nodes whose number is below the fence that won by equal votes. If they are
    /// raised too, the hold outlives the loss of other nodes.
    #[must_use]
    pub fn below(&self, fence: u64) -> Vec<usize> {
        let VotePhase::Acquire(votes) = &self.0 else { return Vec::new() };
        let below = |node: &usize| matches!(votes[*node], Some(NodeVote::Yes(g)) if g < fence);
        (0..votes.len()).filter(below).collect()
    }

    fn judge(&mut self) -> NextStep {
        let step = match &self.0 {
            VotePhase::Acquire(votes) => judge_votes(votes),
            VotePhase::Raise(fence, answers) => judge_raise(*fence, answers),
        };
        if let (NextStep::Raise(fence), VotePhase::Acquire(votes)) = (step, &self.0) {
            self.0 = VotePhase::Raise(fence, vec![None; votes.len()]);
        }
        step
    }
}

fn judge_votes(votes: &[Option<NodeVote>]) -> NextStep {
    let quorum = quorum(votes.len());
    let pending = votes.iter().filter(|vote| vote.is_none()).count();
    let number = |vote: &Option<NodeVote>| match vote {
        Some(NodeVote::Yes(number)) => Some(*number),
        _ => None,
    };
    let numbers = || votes.iter().filter_map(number);
    let granted = numbers().count();
    let count = |wanted: u64| numbers().filter(|number| *number == wanted).count();
    let (most, number) = numbers().map(|number| (count(number), number)).max().unwrap_or((0, 0));
    if most >= quorum {
        return NextStep::Won(number);
    }
    if granted + pending < quorum {
        return NextStep::Lost;
    }
    if granted < quorum || most + pending >= quorum {
        return NextStep::Wait;
    }
    NextStep::Raise(numbers().max().unwrap_or_default())
}

fn judge_raise(fence: u64, answers: &[Option<bool>]) -> NextStep {
    let quorum = quorum(answers.len());
    let count = |wanted: Option<bool>| answers.iter().filter(|one| **one == wanted).count();
    let (yes, pending) = (count(Some(true)), count(None));
    if yes >= quorum {
        NextStep::Won(fence)
    } else if yes + pending < quorum {
        NextStep::Lost
    } else {
        NextStep::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_of_a_majority_win_in_one_round() {
        let mut attempt = AttemptVotes::new(5);
        assert_eq!(attempt.acquired(0, NodeVote::Yes(7)), NextStep::Wait);
        assert_eq!(attempt.acquired(3, NodeVote::Yes(6)), NextStep::Wait);
        assert_eq!(attempt.acquired(1, NodeVote::Yes(7)), NextStep::Wait);
        assert_eq!(attempt.acquired(2, NodeVote::Yes(7)), NextStep::Won(7));
        assert_eq!(attempt.below(7), [3]);
    }

    #[test]
    fn other_numbers_are_raised_to_the_largest_as_soon_as_none_can_win() {
        let mut attempt = AttemptVotes::new(3);
        assert_eq!(attempt.acquired(0, NodeVote::Yes(7)), NextStep::Wait);
        assert_eq!(
            attempt.acquired(1, NodeVote::Yes(9)),
            NextStep::Wait,
            "the third may agree with one"
        );
        assert_eq!(attempt.acquired(2, NodeVote::No), NextStep::Raise(9));
        assert_eq!(attempt.acquired(2, NodeVote::Yes(7)), NextStep::Wait, "too late to count");
        assert_eq!(attempt.raised(1, true), NextStep::Wait);
        assert_eq!(attempt.raised(1, true), NextStep::Wait, "a copy is no second vote");
        assert_eq!(attempt.raised(0, true), NextStep::Won(9));
    }

    #[test]
    fn it_is_lost_as_soon_as_a_majority_is_out_of_reach() {
        let mut attempt = AttemptVotes::new(5);
        for node in 0..2 {
            assert_eq!(attempt.acquired(node, NodeVote::No), NextStep::Wait);
        }
        assert_eq!(attempt.acquired(2, NodeVote::No), NextStep::Lost);
        let mut attempt = AttemptVotes::new(3);
        attempt.acquired(0, NodeVote::Yes(1));
        assert_eq!(attempt.timed_out(), NextStep::Lost);
    }

    #[test]
    fn a_raise_that_too_few_confirm_is_lost() {
        let mut attempt = AttemptVotes::new(3);
        attempt.acquired(0, NodeVote::Yes(1));
        attempt.acquired(1, NodeVote::Yes(2));
        assert_eq!(attempt.timed_out(), NextStep::Raise(2));
        assert_eq!(attempt.raised(0, true), NextStep::Wait);
        assert_eq!(attempt.raised(1, false), NextStep::Wait);
        assert_eq!(attempt.timed_out(), NextStep::Lost);
    }

    #[test]
    fn a_majority_is_more_than_half() {
        assert_eq!([3, 4, 5, 7].map(quorum), [2, 3, 3, 4]);
    }
}
