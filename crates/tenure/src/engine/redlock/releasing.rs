//! Giving back everywhere, and going on with nodes that do not answer. Knows releases; the lease is
//! their backstop.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::Quorum;
use super::node::Lane;
use super::protocol::quorum;
use super::round::{Event, Round};
use super::rules::Token;
use super::scripts::Calling;
use crate::contract::{Claim, ClaimRef, Error, Release, Released};
use crate::engine::redis::client::list;
use crate::time::{Clock, SystemClock, Tick};

/// All attempts of a claim.
const ALL: u32 = u32::MAX;
/// The first pause before a release is sent again to a node that did not answer; each is twice as
/// long as the one before, up to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How often a release was sent again, and until when it makes sense.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    tries: u32,
    until: Tick,
}

impl Again {
    /// Not yet, and until the longest of these leases has run out.
    fn within(leases: impl Iterator<Item = Duration>) -> Self {
        Self { tries: 0, until: SystemClock.now() + leases.max().unwrap_or_default() }
    }
}

/// What nodes answered to the release of one claim.
struct Tally<'a> {
    claim: &'a ClaimRef,
    /// It was no hold.
    waited: bool,
    /// How many nodes it held at.
    yes: usize,
    /// To how many clients nodes have published that the name is free, at most.
    listeners: i64,
    /// A waiter of this process was told.
    told: bool,
}

impl Tally<'_> {
    fn count(&mut self, answer: &Value) {
        if let Value::Int(number @ 1..) = answer {
            self.yes += 1;
            self.listeners = self.listeners.max(number - 1);
        }
    }

    /// Whether it held or waited, when so many nodes did not answer.
    fn is_done(&self, silent: usize, nodes: usize) -> bool {
        self.waited || self.yes + silent >= quorum(nodes) && self.yes > 0
    }
}

impl Quorum {
    /// Gives claims back everywhere. One answer for each, in their order.
    pub(super) async fn release(
        self: &Arc<Self>,
        lane: Lane,
        batch: &[Release],
    ) -> Result<Vec<Released>, Error> {
        let Some(shortest) = batch.iter().map(|one| one.claim.lease).min() else {
            return Ok(Vec::new());
        };
        let mut tallies = Vec::with_capacity(batch.len());
        let mut items = Vec::with_capacity(batch.len());
        for Release { claim, .. } in batch {
            // From here on no attempt of it counts, whatever nodes say.
            let ended = self.claims.end(claim.id);
            self.stop_waiting(claim.parts.first_name(), claim.id);
            let waited = ended.as_ref().is_some_and(|standing| standing.fence.is_none());
            if ended.is_some_and(|standing| standing.attempt == 0) {
                // It waited for its turn all the time: no node has heard of it.
                continue;
            }
            let token = Token { claim: claim.id, attempt: ALL };
            items.push((self.site.lock(&claim.parts), token, claim.lease, true));
            tallies.push(Tally { claim, waited, yes: 0, listeners: 0, told: false });
        }
        if items.is_empty() {
            return Ok(vec![Released::Done; batch.len()]);
        }
        let calling = Arc::new(self.release_calling(items));
        let again = Again::within(batch.iter().map(|one| one.claim.lease));
        let limit = self.site.node_limit(shortest);
        let round = Round::insisting(self, lane, &calling, again, limit);
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

    /// Counts the answers to a release, and lets a waiter of this process try as soon as a majority
    /// has released. Returns how many nodes answered.
    async fn count(&self, mut round: Round, tallies: &mut [Tally<'_>]) -> Result<usize, Error> {
        let nodes = self.nodes.len();
        let (mut answered, mut troubles) = (0, Vec::new());
        while answered + troubles.len() < nodes {
            let all = tallies.iter().all(|tally| tally.yes >= quorum(nodes));
            if answered >= quorum(nodes) && all {
                break;
            }
            match round.next().await {
                Event::TimeIsUp => break,
                Event::Answer(at, Err(trouble)) => troubles.push((at, trouble)),
                Event::Answer(_, Ok(value)) => {
                    answered += 1;
                    let answers = list(&value).unwrap_or_default();
                    for (tally, answer) in tallies.iter_mut().zip(answers) {
                        tally.count(answer);
                        if tally.yes >= quorum(nodes) {
                            self.tell_released(tally);
                        }
                    }
                }
            }
        }
        if answered < quorum(nodes) {
            return Err(self.too_few(answered, troubles.into_iter()).effect_unknown());
        }
        for tally in tallies.iter_mut() {
            self.tell_released(tally);
        }
        Ok(answered)
    }

    /// A waiter of this process may try, if the claim was a hold.
    fn tell_released(&self, tally: &mut Tally<'_>) {
        if tally.waited || std::mem::replace(&mut tally.told, true) {
            return;
        }
        // Every process with a waiter listens at every node, this one too.
        let contended = tally.listeners > 1;
        self.hints.released(tally.claim.parts.first_name(), tally.claim.id, contended);
    }

    /// Withdraws an attempt everywhere, in the background. Nobody is told: whoever else asked at
    /// the same time pauses by chance, and to wake them all would only split the votes again.
    pub(super) fn withdraw(self: &Arc<Self>, lane: Lane, claim: &Claim, token: Token) {
        let item = (self.site.lock(&claim.parts), token, claim.lease, false);
        let calling = Arc::new(self.release_calling(vec![item]));
        let again = Again::within(std::iter::once(claim.lease));
        drop(Round::insisting(self, lane, &calling, again, Duration::ZERO));
    }

    fn release_calling(&self, items: Vec<(String, Token, Duration, bool)>) -> Calling {
        let site = &self.site;
        let keys = items.iter().map(|(key, ..)| key.clone()).collect();
        let mut calling = site.calling(&site.scripts().release, keys);
        for (_, token, lease, tell) in items {
            calling.push(token.claim.to_hex());
            calling.push(token.attempt.to_string());
            calling.push(lease.as_micros().to_string());
            calling.push(if tell { "1" } else { "0" });
        }
        calling
    }

    /// Sends a release once more to a node that did not answer it, after a pause, until all that it
    /// could have granted has run out.
    pub(super) fn insist(self: &Arc<Self>, at: usize, calling: Arc<Calling>, again: Again) {
        let pause = PAUSES.0.saturating_mul(1 << again.tries.min(8)).min(PAUSES.1);
        if SystemClock.now() + pause >= again.until {
            return;
        }
        let next = Again { tries: again.tries + 1, ..again };
        let quorum = Arc::downgrade(self);
        self.own.handle().spawn(async move {
            sleep(pause).await;
            let Some(quorum) = quorum.upgrade() else { return };
            let (again, node) = (Arc::downgrade(&quorum), Arc::clone(&quorum.nodes[at]));
            let same = Arc::clone(&calling);
            node.call(Lane::Back, &calling, move |outcome| {
                if let (Err(_), Some(quorum)) = (outcome, again.upgrade()) {
                    quorum.insist(at, same, next);
                }
            });
        });
    }
}
