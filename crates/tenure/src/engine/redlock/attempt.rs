//! One attempt with real nodes: sends acquire and raise to all of them, counts their votes by
//! `protocol.rs`, and withdraws everything unless it wins.
//!
//! 1. **Acquire** goes to all nodes. As soon as a majority has granted, though with different
//!    numbers, the remaining nodes get as long again as the attempt has taken: one of them may make
//!    a second round unnecessary.
//! 2. **Raise** goes to all nodes if no number can win by itself.
//! 3. **Won**: nodes with a smaller number are raised in the background, so that the hold outlives
//!    the loss of other nodes.
//! 4. **Lost**: replies are awaited until they distinguish a name that is held (the claim waits)
//!    from nodes that are away (an error), but not beyond the timeout.
//!
//! Dropping a [`RunningAttempt`] that has not won withdraws it at all nodes, also when the caller's
//! future is dropped at an await.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::Quorum;
use super::connect::QuorumContext;
use super::node::Placement;
use super::protocol::{AttemptVotes, NextStep, NodeVote, quorum};
use super::record::NodeRecord;
use super::round::{Round, RoundEvent};
use super::rules::AttemptId;
use super::scripts::ScriptCall;
use crate::contract::{Claim, Effect, Error, ErrorKind, HolderView, OwnerId, SessionId};
use crate::engine::common::redis::codec::push_about;
use crate::engine::redis::client::{RequestError, RequestResult, list, text};
use crate::time::{Clock, SystemClock};

/// The least time that slower nodes get once a majority has granted.
const MIN_WAIT: Duration = Duration::from_millis(2);

/// The result of an attempt.
pub(super) enum AttemptOutcome {
    /// The name is held, with this fence.
    Won(u64),
    /// Another claim holds the name, or several attempts split the votes.
    Taken(Taken),
    /// The claim had been released before.
    Withdrawn,
}

/// Why an attempt was lost to other claims.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// The holder at a majority; empty if votes were split.
    pub(super) by: Vec<HolderView>,
    /// How long until a majority may be free without a release.
    pub(super) free_in: Option<Duration>,
}

impl Quorum {
    /// Makes one attempt. Dropping the future withdraws it.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        placement: Placement,
        claim: &Claim,
        token: AttemptId,
    ) -> Result<AttemptOutcome, Error> {
        let mut running = RunningAttempt {
            quorum: self,
            placement,
            claim,
            token,
            attempt: AttemptVotes::new(self.nodes.len()),
            replies: AcquireReplies::default(),
            won: false,
        };
        match running.run().await {
            NextStep::Won(fence) => {
                running.won = true;
                running.raise_nodes_below(fence);
                Ok(AttemptOutcome::Won(fence))
            }
            _ => running.replies.outcome(self),
        }
    }
}

/// An attempt in flight. Dropped without having won, it is withdrawn at all nodes.
struct RunningAttempt<'a> {
    quorum: &'a Arc<Quorum>,
    placement: Placement,
    claim: &'a Claim,
    token: AttemptId,
    attempt: AttemptVotes,
    replies: AcquireReplies,
    won: bool,
}

impl RunningAttempt<'_> {
    /// Runs both rounds, and returns how the attempt ended.
    async fn run(&mut self) -> NextStep {
        let call = self.acquire_call();
        let began = SystemClock.now();
        let mut round = self.begin(call, 0..self.quorum.nodes.len());
        let (mut hurried, mut late) = (false, false);
        loop {
            let step = match round.next().await {
                RoundEvent::Reply(at, outcome) => {
                    let vote = self.replies.read(at, outcome);
                    self.attempt.acquired(at, vote)
                }
                RoundEvent::TimedOut => {
                    late = true;
                    self.attempt.timed_out()
                }
            };
            match step {
                // The other nodes may spare the second round, if they take no longer than it.
                NextStep::Wait if self.attempt.could_raise() && !hurried => {
                    hurried = true;
                    round.shorten(self.quorum, SystemClock.now().since(began).max(MIN_WAIT));
                }
                NextStep::Wait => {}
                NextStep::Raise(fence) => return self.raise(fence).await,
                NextStep::Won(_) => return step,
                NextStep::Lost => break,
            }
        }
        // Lost: to a holder, for which the claim waits, or to nodes that are away, which is an
        // error. More replies decide, but none is awaited after the timeout.
        while !late && !self.replies.is_decided(self.quorum.nodes.len()) {
            match round.next().await {
                RoundEvent::Reply(at, outcome) => drop(self.replies.read(at, outcome)),
                RoundEvent::TimedOut => break,
            }
        }
        NextStep::Lost
    }

    async fn raise(&mut self, fence: u64) -> NextStep {
        let call = self.raise_call(fence);
        let mut round = self.begin(call, 0..self.quorum.nodes.len());
        loop {
            let step = match round.next().await {
                RoundEvent::Reply(at, outcome) => {
                    let yes = matches!(outcome, Ok(Value::Int(1)));
                    self.replies.trouble(at, outcome.err());
                    self.attempt.raised(at, yes)
                }
                RoundEvent::TimedOut => self.attempt.timed_out(),
            };
            if step != NextStep::Wait {
                return step;
            }
        }
    }

    /// Raises nodes that granted with a smaller number, in the background: the hold then outlives
    /// the loss of other nodes.
    fn raise_nodes_below(&self, fence: u64) {
        let below = self.attempt.below(fence);
        if !below.is_empty() {
            drop(self.begin(self.raise_call(fence), below));
        }
    }

    fn begin(&self, call: ScriptCall, nodes: impl IntoIterator<Item = usize>) -> Round {
        let limit = self.quorum.context.round_limit(self.claim.lease);
        Round::begin(self.quorum, self.placement, &Arc::new(call), nodes, limit)
    }

    fn acquire_call(&self) -> ScriptCall {
        let (context, claim) = (&self.quorum.context, self.claim);
        let keys = vec![context.lock_key(&claim.parts), context.keys.node.clone()];
        let owners: Vec<String> = claim.lineage.all().map(OwnerId::to_hex).collect();
        let mut about = String::new();
        push_about(&mut about, &claim.about);
        context
            .script_call(&context.scripts().acquire, keys)
            .with(self.token.claim.to_hex())
            .with(self.token.attempt.to_string())
            .with(context.clock.wall_micros().to_string())
            .with(claim.lease.as_micros().to_string())
            .with(claim.lock_delay.as_micros().to_string())
            .with(context.quarantine().as_micros().to_string())
            .with(QuorumContext::counter_ttl_millis())
            .with(claim.session.map(SessionId::to_hex).unwrap_or_default())
            .with(owners.join(","))
            .with(about)
    }

    fn raise_call(&self, fence: u64) -> ScriptCall {
        let context = &self.quorum.context;
        let keys = vec![context.lock_key(&self.claim.parts), context.keys.node.clone()];
        context
            .script_call(&context.scripts().raise, keys)
            .with(self.token.claim.to_hex())
            .with(self.token.attempt.to_string())
            .with(fence.to_string())
            .with(self.claim.lease.as_micros().to_string())
            .with(QuorumContext::counter_ttl_millis())
    }
}

impl Drop for RunningAttempt<'_> {
    fn drop(&mut self) {
        if !self.won {
            self.quorum.withdraw(self.placement, self.claim, self.token);
        }
    }
}

/// What the replies to an acquire say beside their votes.
#[derive(Default)]
struct AcquireReplies {
    granted: usize,
    held: Vec<(u64, NodeRecord)>,
    withdrawn: bool,
    /// How much longer nodes that may have lost their data grant nothing.
    closed: Vec<Duration>,
    troubles: Vec<(usize, RequestError)>,
}

impl AcquireReplies {
    /// Reads a node's reply to an acquire. Only a grant that can be parsed is a vote.
    fn read(&mut self, at: usize, outcome: RequestResult) -> NodeVote {
        let value = match outcome {
            Ok(value) => value,
            Err(trouble) => {
                self.troubles.push((at, trouble));
                return NodeVote::No;
            }
        };
        let words = list(&value).unwrap_or_default();
        let number = |at: usize| words.get(at).and_then(text).and_then(|word| word.parse().ok());
        match (words.first().and_then(text), words.get(1)) {
            (Some("g"), _) => {
                if let Some(fence) = number(1) {
                    self.granted += 1;
                    return NodeVote::Yes(fence);
                }
            }
            (Some("h"), _) => {
                if let (Some(left), Some(record)) = (number(1), NodeRecord::refused(&words[2..])) {
                    self.held.push((left, record));
                    return NodeVote::No;
                }
            }
            (Some("w"), _) => {
                self.withdrawn = true;
                return NodeVote::No;
            }
            (Some("s"), Some(Value::Int(left))) => {
                self.closed.push(Duration::from_micros(u64::try_from(*left).unwrap_or_default()));
                return NodeVote::No;
            }
            _ => {}
        }
        self.troubles.push((at, RequestError::strange(&value)));
        NodeVote::No
    }

    fn trouble(&mut self, at: usize, trouble: Option<RequestError>) {
        self.troubles.extend(trouble.map(|trouble| (at, trouble)));
    }

    /// Returns whether other claims have the name, as far as the replies tell.
    fn is_taken(&self, nodes: usize) -> bool {
        let needed = quorum(nodes);
        self.granted + self.held.len() >= needed || self.held.len() > nodes - needed
    }

    /// Returns whether more replies cannot change why the attempt was lost.
    fn is_decided(&self, nodes: usize) -> bool {
        let away = self.closed.len() + self.troubles.len();
        self.withdrawn || self.is_taken(nodes) || away > nodes - quorum(nodes)
    }

    /// Returns whether no node can have recorded the attempt: all replied, and none has granted.
    fn is_void(&self, nodes: usize) -> bool {
        let answered = self.held.len() + self.closed.len() + self.troubles.len();
        let untouched = |(_, trouble): &(usize, RequestError)| trouble.effect() == Effect::None;
        self.granted == 0 && answered >= nodes && self.troubles.iter().all(untouched)
    }

    /// Returns why the attempt was lost.
    fn outcome(&self, engine: &Quorum) -> Result<AttemptOutcome, Error> {
        if self.withdrawn {
            return Ok(AttemptOutcome::Withdrawn);
        }
        let (nodes, needed) = (engine.nodes.len(), quorum(engine.nodes.len()));
        let answered = self.granted + self.held.len();
        if !self.is_taken(nodes) {
            let error = self.unavailable(engine, answered);
            return Err(if self.is_void(nodes) { error } else { error.effect_unknown() });
        }
        let mut left: Vec<u64> = self.held.iter().map(|(left, _)| *left).collect();
        left.sort_unstable();
        // A majority is free when enough of the holds have expired.
        let ends = (self.held.len() + needed).checked_sub(nodes + 1);
        let free_in = ends.and_then(|at| left.get(at)).map(|left| Duration::from_micros(*left));
        let records = self.held.iter().map(|(_, record)| record);
        let by = NodeRecord::of_majority(records, nodes - answered, nodes);
        Ok(AttemptOutcome::Taken(Taken { by: by.into_iter().collect(), free_in }))
    }

    fn unavailable(&self, engine: &Quorum, answered: usize) -> Error {
        let (nodes, needed) = (engine.nodes.len(), quorum(engine.nodes.len()));
        let closed = self.closed.len();
        if answered + closed >= needed {
            let longest = self.closed.iter().max().copied().unwrap_or_default();
            let what = format!(
                "{closed} of {nodes} nodes may have lost their memory and grant nothing for \
                 another {longest:.0?}, because locks from before may still be held"
            );
            return Error::new(ErrorKind::Unavailable, what)
                .with_help("wait; or, if this set of nodes was never used, connect with ?new=yes");
        }
        engine.too_few_replies(
            answered + closed,
            self.troubles.iter().map(|(at, why)| (*at, why.clone())),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| Value::SimpleString((*word).to_owned())).collect())
    }

    #[test]
    fn only_a_grant_that_can_be_read_is_a_vote() {
        let mut replies = AcquireReplies::default();
        assert_eq!(replies.read(0, Ok(words(&["g", "17"]))), NodeVote::Yes(17));
        let strange = [Value::Int(1), Value::Okay, Value::Nil, words(&["g"]), words(&["g", "x"])];
        for (at, answer) in strange.into_iter().chain([words(&["h", "5"])]).enumerate() {
            assert_eq!(replies.read(at, Ok(answer)), NodeVote::No, "answer {at}");
        }
        assert_eq!((replies.granted, replies.troubles.len()), (1, 6));
        assert_eq!(replies.read(0, Ok(words(&["w"]))), NodeVote::No);
        let closed = Value::Array(vec![Value::SimpleString("s".to_owned()), Value::Int(9)]);
        assert_eq!(replies.read(1, Ok(closed)), NodeVote::No);
        assert!(replies.withdrawn && replies.closed == [Duration::from_micros(9)]);
    }
}
