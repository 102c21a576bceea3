//! The renew verb: extends holds at a majority, and makes the next attempt of waiters.
//!
//! All holds of a batch are extended with one call to each node. A reply counts for a hold only if
//! the node has it with exactly this fence: a hold is kept if a majority extended it, gone if a
//! majority can no longer, and otherwise unanswered. A claim that waits is tried, side by side with
//! the extension, so that a slow attempt does not delay a hold. A claim that another process made
//! is looked up at the nodes first.

use std::sync::Arc;

use redis::Value;

use super::Quorum;
use super::connect::QuorumContext;
use super::node::Placement;
use super::protocol::quorum;
use super::round::{Round, RoundEvent, join, join_all};
use super::rules::AttemptId;
use crate::contract::{Arrival, ClaimRef, Fence, Grant, Loss, Renewed, Verdict};
use crate::engine::redis::client::{list, text};

/// A claim that holds, as an extension names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldClaim<'a> {
    pub(super) claim: &'a ClaimRef,
    pub(super) token: AttemptId,
    pub(super) fence: u64,
}

/// Builds the grant of an attempt that was won with this fence.
pub(super) fn grant(token: AttemptId, fence: u64) -> Grant {
    let fences = std::iter::once(Fence::new(fence)).collect();
    Grant { fences, arrival: Arrival(token.attempt.into()) }
}

impl Quorum {
    pub(super) async fn renew(self: &Arc<Self>, batch: &[ClaimRef]) -> Vec<Renewed> {
        let placement = self.placement();
        let mut answers: Vec<Option<Renewed>> = vec![None; batch.len()];
        let (mut holds, mut places, mut apart) = (Vec::new(), Vec::new(), Vec::new());
        for (at, claim) in batch.iter().enumerate() {
            match self.claims.get(claim.id) {
                Some(state) if state.fence.is_some() => {
                    let (token, fence) = (state.token(), state.fence.unwrap_or_default());
                    holds.push(HeldClaim { claim, token, fence });
                    places.push(at);
                }
                _ => apart.push(at),
            }
        }
        // Side by side: attempts must not delay the extension.
        let extended = self.extend(placement, &holds);
        let others = apart.iter().map(|at| self.renew_one(placement, &batch[*at])).collect();
        let (extended, others) = join(extended, join_all(others)).await;
        for (at, answer) in places.into_iter().zip(extended).chain(apart.into_iter().zip(others)) {
            if let Renewed::Gone(_) = &answer {
                self.claims.end(batch[at].id);
                self.leave_queue(batch[at].parts.first_name(), batch[at].id);
            }
            answers[at] = Some(answer);
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(no_reply)).collect()
    }

    /// Renews a claim that is not a known hold: a waiter makes an attempt, and a claim that this
    /// client does not know is looked up.
    async fn renew_one(self: &Arc<Self>, placement: Placement, claim: &ClaimRef) -> Renewed {
        let Some(state) = self.claims.get(claim.id) else {
            return self.renew_unknown(placement, claim).await;
        };
        match self.try_or_queue(placement, &state.claim).await {
            Ok(Verdict::Granted(grant)) => Renewed::Held(grant),
            Ok(Verdict::Queued(queued)) => Renewed::Waiting(queued),
            Ok(Verdict::Refused(_)) => Renewed::Gone(Loss::Forgotten),
            Err(error) => Renewed::Unanswered(error.without_help()),
        }
    }

    /// Renews a claim that another process made, by what the nodes say of it.
    async fn renew_unknown(&self, placement: Placement, claim: &ClaimRef) -> Renewed {
        let name = claim.parts.first_name();
        match self.find_hold(placement, name, claim.id).await {
            Ok(Some((attempt, fence))) => {
                let token = AttemptId { claim: claim.id, attempt };
                let hold = HeldClaim { claim, token, fence };
                self.extend(placement, &[hold]).await.pop().unwrap_or_else(no_reply)
            }
            Ok(None) => Renewed::Gone(Loss::Forgotten),
            Err(error) => Renewed::Unanswered(error.without_help()),
        }
    }

    /// Extends holds at all nodes. Returns one result for each, in their order.
    pub(super) async fn extend(
        &self,
        placement: Placement,
        holds: &[HeldClaim<'_>],
    ) -> Vec<Renewed> {
        let Some(shortest) = holds.iter().map(|hold| hold.claim.lease).min() else {
            return Vec::new();
        };
        let context = &self.context;
        let keys = holds.iter().map(|hold| context.lock_key(&hold.claim.parts)).collect();
        let mut call = context
            .script_call(&context.scripts().extend, keys)
            .with(QuorumContext::counter_ttl_millis());
        for HeldClaim { claim, token, fence } in holds {
            call.push(token.claim.to_hex());
            call.push(token.attempt.to_string());
            call.push(fence.to_string());
            call.push(claim.lease.as_micros().to_string());
        }
        let limit = context.round_limit(shortest);
        let nodes = self.nodes.len();
        let mut round = Round::begin(self, placement, &Arc::new(call), 0..nodes, limit);
        let mut tallies = vec![ExtendTally::default(); holds.len()];
        while !tallies.iter().all(|tally| tally.is_decided(nodes)) {
            match round.next().await {
                RoundEvent::TimedOut => break,
                RoundEvent::Reply(at, Err(trouble)) => {
                    tracing::debug!("{} did not extend: {trouble:?}", self.nodes[at].location);
                }
                RoundEvent::Reply(_, Ok(value)) => {
                    let answers = list(&value).unwrap_or_default();
                    tallies.iter_mut().zip(answers).for_each(|(tally, one)| tally.count(one));
                }
            }
        }
        let result = |(hold, tally): (&HeldClaim<'_>, ExtendTally)| tally.result(hold, nodes);
        holds.iter().zip(tallies).map(result).collect()
    }
}

/// The result where no node replied.
fn no_reply() -> Renewed {
    Renewed::Unanswered("too few nodes answered".to_owned())
}

/// Counts the replies to the extension of one hold.
#[derive(Clone, Debug, Default)]
struct ExtendTally {
    yes: usize,
    no: usize,
    /// The reason of an eviction.
    reason: Option<String>,
}

impl ExtendTally {
    fn count(&mut self, answer: &Value) {
        if *answer == Value::Int(1) {
            self.yes += 1;
        } else {
            self.no += 1;
            self.reason = self.reason.take().or_else(|| text(answer).map(str::to_owned));
        }
    }

    fn is_held(&self, nodes: usize) -> bool {
        self.yes >= quorum(nodes)
    }

    /// A majority is out of reach, whatever the other nodes reply.
    fn is_gone(&self, nodes: usize) -> bool {
        self.no > nodes - quorum(nodes)
    }

    fn is_decided(&self, nodes: usize) -> bool {
        self.is_held(nodes) || self.is_gone(nodes)
    }

    fn result(self, hold: &HeldClaim<'_>, nodes: usize) -> Renewed {
        if self.is_held(nodes) {
            return Renewed::Held(grant(hold.token, hold.fence));
        }
        if !self.is_gone(nodes) {
            let (yes, needed) = (self.yes, quorum(nodes));
            let what = format!("only {yes} of {nodes} nodes extended it, {needed} must");
            return Renewed::Unanswered(what);
        }
        Renewed::Gone(match self.reason {
            Some(text) => Loss::of_reason(&text),
            None => Loss::Forgotten,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_stands_falls_or_is_unknown_by_its_majority() {
        let tally = |yes, no| ExtendTally { yes, no, reason: None };
        for (yes, no, held, gone) in [
            (3, 0, true, false),
            (3, 2, true, false),
            (2, 2, false, false),
            (2, 3, false, true),
            (0, 3, false, true),
            (0, 2, false, false),
        ] {
            let tally = tally(yes, no);
            assert_eq!((tally.is_held(5), tally.is_gone(5)), (held, gone), "{tally:?}");
        }
    }
}
