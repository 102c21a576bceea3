//! The release verb, and the withdrawal of attempts that were not won.
//!
//! A release goes to all nodes and names all attempts of the claim; each node ends the hold and
//! keeps a tombstone, so that a late copy of an acquire is refused. It is confirmed when a majority
//! has replied. A node that did not reply gets the release again, with backoff, until the lease has
//! ended; the lease is the backstop. The claim leaves `claims` before anything is sent, so no
//! attempt of it that wins later is kept.
//!
//! A waiter of this process is notified as soon as a majority has released. Other processes are
//! notified by the nodes, which publish a release; a withdrawal is not published, because attempts
//! that were split would all be woken at the same time, and split the votes again.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::Quorum;
use super::node::Placement;
use super::protocol::quorum;
use super::round::{Round, RoundEvent};
use super::rules::AttemptId;
use super::scripts::ScriptCall;
use crate::contract::{Claim, ClaimRef, Error, Release, Released};
use crate::engine::redis::client::list;
use crate::time::{Clock, SystemClock, Tick};

/// The attempt number that stands for all attempts of a claim.
const ALL: u32 = u32::MAX;
/// The backoff before a release is sent again: the first pause, which doubles, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How many times a release was retried, and until when retries make sense.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReleaseRetry {
    tries: u32,
    until: Tick,
}

impl ReleaseRetry {
    /// No retry yet; retries end when the longest of these leases has ended.
    fn within(leases: impl Iterator<Item = Duration>) -> Self {
        Self { tries: 0, until: SystemClock.now() + leases.max().unwrap_or_default() }
    }
}

/// Counts the replies to the release of one claim.
struct ReleaseTally<'a> {
    claim: &'a ClaimRef,
    /// The claim waited, and did not hold.
    waited: bool,
    /// At how many nodes it held.
    yes: usize,
    /// How many clients received a node's message that the name is free, at most.
    listeners: i64,
    /// The waiter of this process was notified.
    notified: bool,
}

impl ReleaseTally<'_> {
    fn count(&mut self, answer: &Value) {
        if let Value::Int(number @ 1..) = answer {
            self.yes += 1;
            self.listeners = self.listeners.max(number - 1);
        }
    }

    /// Returns whether it held or waited, if `silent` nodes did not reply.
    fn is_done(&self, silent: usize, nodes: usize) -> bool {
        self.waited || self.yes + silent >= quorum(nodes) && self.yes > 0
    }
}

impl Quorum {
    /// Releases claims at all nodes. Returns one result for each, in their order.
    pub(super) async fn release(
        self: &Arc<Self>,
        placement: Placement,
        batch: &[Release],
    ) -> Result<Vec<Released>, Error> {
        let Some(shortest) = batch.iter().map(|one| one.claim.lease).min() else {
            return Ok(Vec::new());
        };
        let mut tallies = Vec::with_capacity(batch.len());
        let mut items = Vec::with_capacity(batch.len());
        for Release { claim, .. } in batch {
            // From here on no attempt of it counts, whatever nodes reply.
            let ended = self.claims.end(claim.id);
            self.leave_queue(claim.parts.first_name(), claim.id);
            let waited = ended.as_ref().is_some_and(|state| state.fence.is_none());
            if ended.is_some_and(|state| state.attempt == 0) {
                // It only waited for its turn: no node knows it.
                continue;
            }
            let token = AttemptId { claim: claim.id, attempt: ALL };
            items.push((self.context.lock_key(&claim.parts), token, claim.lease, true));
            tallies.push(ReleaseTally { claim, waited, yes: 0, listeners: 0, notified: false });
        }
        if items.is_empty() {
            return Ok(vec![Released::Done; batch.len()]);
        }
        let call = Arc::new(self.release_call(items));
        let again = ReleaseRetry::within(batch.iter().map(|one| one.claim.lease));
        let limit = self.context.round_limit(shortest);
        let round = Round::begin_with_retry(self, placement, &call, again, limit);
        let answered = self.count(round, &mut tallies).await?;
        let silent = self.nodes.len() - answered;
        let mut tallies = tallies.iter().peekable();
        let answer = |one: &Release| {
            let sent = tallies.next_if(|tally| tally.claim.id == one.claim.id);
            let done = sent.is_none_or(|tally| tally.is_done(silent, self.nodes.len()));
            if done { Released::Done } else { Released::Gone }
        };
        Ok(batch.iter().map(answer).collect())
    }

    /// Counts the replies to a release, and notifies a waiter of this process as soon as a majority
    /// has released. Returns how many nodes replied.
    async fn count(
        &self,
        mut round: Round,
        tallies: &mut [ReleaseTally<'_>],
    ) -> Result<usize, Error> {
        let nodes = self.nodes.len();
        let (mut answered, mut troubles) = (0, Vec::new());
        while answered + troubles.len() < nodes {
            let all = tallies.iter().all(|tally| tally.yes >= quorum(nodes));
            if answered >= quorum(nodes) && all {
                break;
            }
            match round.next().await {
                RoundEvent::TimedOut => break,
                RoundEvent::Reply(at, Err(trouble)) => troubles.push((at, trouble)),
                RoundEvent::Reply(_, Ok(value)) => {
                    answered += 1;
                    let answers = list(&value).unwrap_or_default();
                    for (tally, answer) in tallies.iter_mut().zip(answers) {
                        tally.count(answer);
                        if tally.yes >= quorum(nodes) {
                            self.notify_released(tally);
                        }
                    }
                }
            }
        }
        if answered < quorum(nodes) {
            return Err(self.too_few_replies(answered, troubles.into_iter()).effect_unknown());
        }
        for tally in tallies.iter_mut() {
            self.notify_released(tally);
        }
        Ok(answered)
    }

    /// Notifies a waiter of this process, if the claim held.
    fn notify_released(&self, tally: &mut ReleaseTally<'_>) {
        if tally.waited || std::mem::replace(&mut tally.notified, true) {
            return;
        }
        // Every process with a waiter is subscribed at every node, this one too.
        let contended = tally.listeners > 1;
        self.waiters.released(tally.claim.parts.first_name(), tally.claim.id, contended);
    }

    /// Withdraws an attempt at all nodes, in the background, without a message to waiters.
    pub(super) fn withdraw(
        self: &Arc<Self>,
        placement: Placement,
        claim: &Claim,
        token: AttemptId,
    ) {
        let item = (self.context.lock_key(&claim.parts), token, claim.lease, false);
        let call = Arc::new(self.release_call(vec![item]));
        let again = ReleaseRetry::within(std::iter::once(claim.lease));
        drop(Round::begin_with_retry(self, placement, &call, again, Duration::ZERO));
    }

    fn release_call(&self, items: Vec<(String, AttemptId, Duration, bool)>) -> ScriptCall {
        let context = &self.context;
        let keys = items.iter().map(|(key, ..)| key.clone()).collect();
        let mut call = context.script_call(&context.scripts().release, keys);
        for (_, token, lease, publish) in items {
            call.push(token.claim.to_hex());
            call.push(token.attempt.to_string());
            call.push(lease.as_micros().to_string());
            call.push(if publish { "1" } else { "0" });
        }
        call
    }

    /// Sends a release again to a node that did not reply, after a pause, unless all that the node
    /// could have granted has expired by then.
    pub(super) fn retry_release(
        self: &Arc<Self>,
        at: usize,
        call: Arc<ScriptCall>,
        again: ReleaseRetry,
    ) {
        let pause = BACKOFF.0.saturating_mul(1 << again.tries.min(8)).min(BACKOFF.1);
        if SystemClock.now() + pause >= again.until {
            return;
        }
        let next = ReleaseRetry { tries: again.tries + 1, ..again };
        let quorum = Arc::downgrade(self);
        self.own.handle().spawn(async move {
            sleep(pause).await;
            let Some(quorum) = quorum.upgrade() else { return };
            let (again, node) = (Arc::downgrade(&quorum), Arc::clone(&quorum.nodes[at]));
            let same = Arc::clone(&call);
            node.call(Placement::Own, &call, move |outcome| {
                if let (Err(_), Some(quorum)) = (outcome, again.upgrade()) {
                    quorum.retry_release(at, same, next);
                }
            });
        });
    }
}
