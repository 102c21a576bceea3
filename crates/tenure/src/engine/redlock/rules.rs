//! What one node does with one name, as pure code: state, request and time in, reply out.
//!
//! The scripts in `lua/` restate this: `acquire.lua` is [`NodeSlot::acquire`], `raise.lua`,
//! `extend.lua` and `release.lua` the methods of those names, `bury` and `tomb_of` in `head.lua`
//! are `withdraw` and `is_withdrawn`. `tests.rs` compares the two on a real server with random
//! programs, and the model of the protocol is made of this code, so that neither can drift from the
//! other.
#![cfg_attr(
    not(feature = "test-util"),
    allow(unreachable_pub, dead_code, reason = "the model in the tests is made of it")
)]

use crate::contract::ClaimId;

/// One attempt of a claim. For a node, each attempt is a claim of its own: the proof rests on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The claim.
    pub claim: ClaimId,
    /// Which of its attempts, counted from 1.
    pub attempt: u32,
}

/// All that a node keeps for one name. Times are microseconds of the node's own clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSlot {
    /// The largest number granted. It never decreases.
    pub counter: u64,
    /// The hold at this node.
    pub record: Option<NodeHold>,
    /// For each claim the latest of its attempts that was withdrawn, and with it all before.
    pub withdrawn: Vec<AttemptId>,
}

/// A hold at one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeHold {
    /// The attempt that holds.
    pub token: AttemptId,
    /// Its number.
    pub fence: u64,
    /// When it expires, unless it is extended.
    pub expires: u64,
    /// For how long the name stays closed after that: the lock delay.
    pub delay: u64,
}

/// The reply to an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AcquireReply {
    /// The attempt holds here, with this number.
    Granted(u64),
    /// Another attempt holds here, for this much longer.
    Held(u64),
    /// The attempt had been withdrawn before this copy of it arrived.
    Withdrawn,
}

/// The arguments of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcquireArgs {
    /// The attempt.
    pub token: AttemptId,
    /// The number that the client proposes to all nodes, already clamped to the node's clock.
    pub hint: u64,
    /// The lease in microseconds.
    pub lease: u64,
    /// The lock delay in microseconds.
    pub delay: u64,
}

impl NodeSlot {
    /// Grants the name if it is free.
    pub fn acquire(&mut self, asked: AcquireArgs, now: u64) -> AcquireReply {
        let AcquireArgs { token, hint, lease, delay } = asked;
        if self.is_withdrawn(token) {
            return AcquireReply::Withdrawn;
        }
        if let Some(record) = &self.record {
            if record.token == token && now < record.expires {
                return AcquireReply::Granted(record.fence);
            }
            // An earlier attempt of the same claim gives way, as if it had been released first.
            let own = record.token.claim == token.claim && record.token.attempt < token.attempt;
            let free = record.expires.saturating_add(record.delay);
            if !own && now < free {
                return AcquireReply::Held(free - now);
            }
            if own {
                self.withdraw(record.token);
            }
        }
        let fence = (self.counter + 1).max(hint);
        self.counter = fence;
        self.record = Some(NodeHold { token, fence, expires: now + lease, delay });
        AcquireReply::Granted(fence)
    }

    /// Raises the number of a hold to the one that its client chose. Never lowers it: see the proof
    /// in the docs.
    pub fn raise(&mut self, token: AttemptId, fence: u64, now: u64, lease: u64) -> bool {
        let Some(record) = self.living(token, now).filter(|record| record.fence <= fence) else {
            return false;
        };
        record.fence = fence;
        record.expires = now + lease;
        self.counter = self.counter.max(fence);
        true
    }

    /// Extends a hold. Only one with exactly this number counts for the quorum.
    pub fn extend(&mut self, token: AttemptId, fence: u64, now: u64, lease: u64) -> bool {
        let Some(record) = self.living(token, now).filter(|record| record.fence == fence) else {
            return false;
        };
        record.expires = now + lease;
        true
    }

    /// Releases this attempt and all before it, and refuses them from now on. Returns whether one
    /// of them held.
    pub fn release(&mut self, token: AttemptId, now: u64) -> bool {
        self.withdraw(token);
        let ours = |record: &NodeHold| {
            record.token.claim == token.claim && record.token.attempt <= token.attempt
        };
        self.record.take_if(|record| ours(record)).is_some_and(|record| now < record.expires)
    }

    fn living(&mut self, token: AttemptId, now: u64) -> Option<&mut NodeHold> {
        self.record.as_mut().filter(|record| record.token == token && now < record.expires)
    }

    fn is_withdrawn(&self, token: AttemptId) -> bool {
        self.withdrawn.iter().any(|one| one.claim == token.claim && one.attempt >= token.attempt)
    }

    fn withdraw(&mut self, token: AttemptId) {
        match self.withdrawn.binary_search_by_key(&token.claim, |one| one.claim) {
            Ok(at) => self.withdrawn[at].attempt = self.withdrawn[at].attempt.max(token.attempt),
            Err(at) => self.withdrawn.insert(at, token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claim: u128, attempt: u32) -> AttemptId {
        AttemptId { claim: ClaimId::from_u128(claim), attempt }
    }

    fn asked(token: AttemptId, hint: u64) -> AcquireArgs {
        AcquireArgs { token, hint, lease: 100, delay: 0 }
    }

    #[test]
    fn a_hold_keeps_others_out_and_answers_its_own_copies_alike() {
        let mut slot = NodeSlot::default();
        assert_eq!(slot.acquire(asked(token(1, 1), 7), 0), AcquireReply::Granted(7));
        assert_eq!(slot.acquire(asked(token(1, 1), 9), 50), AcquireReply::Granted(7));
        assert_eq!(slot.acquire(asked(token(2, 1), 9), 60), AcquireReply::Held(40));
        assert_eq!(slot.acquire(asked(token(2, 1), 3), 100), AcquireReply::Granted(8));
    }

    #[test]
    fn a_lock_delay_keeps_it_closed_after_an_expiry_and_not_after_a_release() {
        let mut slot = NodeSlot::default();
        let late = AcquireArgs { delay: 30, ..asked(token(1, 1), 0) };
        slot.acquire(late, 0);
        assert_eq!(slot.acquire(asked(token(2, 1), 0), 110), AcquireReply::Held(20));
        assert!(!slot.release(token(1, 1), 110), "it had ended");
        assert_eq!(slot.acquire(asked(token(2, 1), 0), 110), AcquireReply::Granted(2));
    }

    #[test]
    fn what_was_withdrawn_is_refused_and_what_comes_after_is_not() {
        let mut slot = NodeSlot::default();
        assert!(!slot.release(token(1, 2), 0));
        assert_eq!(slot.acquire(asked(token(1, 1), 0), 0), AcquireReply::Withdrawn);
        assert_eq!(slot.acquire(asked(token(1, 2), 0), 0), AcquireReply::Withdrawn);
        assert_eq!(slot.acquire(asked(token(1, 3), 0), 0), AcquireReply::Granted(1));
        // The fourth takes the place of the third, of which no copy counts any more.
        assert_eq!(slot.acquire(asked(token(1, 4), 0), 0), AcquireReply::Granted(2));
        assert_eq!(slot.acquire(asked(token(1, 3), 0), 0), AcquireReply::Withdrawn);
    }

    #[test]
    fn only_the_hold_itself_is_raised_and_never_down() {
        let mut slot = NodeSlot::default();
        slot.acquire(asked(token(1, 1), 5), 0);
        assert!(!slot.raise(token(1, 1), 4, 0, 100), "below what it has");
        assert!(!slot.raise(token(2, 1), 9, 0, 100), "another claim");
        assert!(slot.raise(token(1, 1), 9, 50, 100));
        assert!(!slot.extend(token(1, 1), 5, 50, 100), "it has another number now");
        assert!(slot.extend(token(1, 1), 9, 149, 100));
        assert!(!slot.extend(token(1, 1), 9, 249, 100), "its time was up");
        assert_eq!(slot.counter, 9);
    }
}
