//! Keeping holds alive at a majority, a whole batch with one call to each node. Knows which answers
//! count: only those of nodes that carry exactly the fence.

use std::sync::Arc;

use redis::Value;

use super::Quorum;
use super::node::Lane;
use super::protocol::quorum;
use super::round::{Event, Round};
use super::rules::Token;
use super::site::Site;
use crate::contract::{Arrival, ClaimRef, Fence, Grant, Loss, Renewed};
use crate::engine::redis::client::{list, text};
use crate::engine::redis::codec::reason;

/// A hold to be extended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold<'a> {
    pub(super) claim: &'a ClaimRef,
    pub(super) token: Token,
    pub(super) fence: u64,
}

/// The grant of an attempt that was won with this fence.
pub(super) fn grant(token: Token, fence: u64) -> Grant {
    let fences = std::iter::once(Fence::new(fence)).collect();
    Grant { fences, arrival: Arrival(token.attempt.into()) }
}

impl Quorum {
    /// Extends holds at all nodes. One answer for each, in their order.
    pub(super) async fn extend(&self, lane: Lane, holds: &[Hold<'_>]) -> Vec<Renewed> {
        let Some(shortest) = holds.iter().map(|hold| hold.claim.lease).min() else {
            return Vec::new();
        };
        let site = &self.site;
        let keys = holds.iter().map(|hold| site.lock(&hold.claim.parts)).collect();
        let mut calling = site.calling(&site.scripts().extend, keys).with(Site::linger());
        for Hold { claim, token, fence } in holds {
            calling.push(token.claim.to_hex());
            calling.push(token.attempt.to_string());
            calling.push(fence.to_string());
            calling.push(claim.lease.as_micros().to_string());
        }
        let limit = site.node_limit(shortest);
        let nodes = self.nodes.len();
        let mut round = Round::begin(self, lane, &Arc::new(calling), 0..nodes, limit);
        let mut tallies = vec![Tally::default(); holds.len()];
        while !tallies.iter().all(|tally| tally.is_decided(nodes)) {
            match round.next().await {
                Event::TimeIsUp => break,
                Event::Answer(at, Err(trouble)) => {
                    tracing::debug!("{} did not extend: {trouble:?}", self.nodes[at].location);
                }
                Event::Answer(_, Ok(value)) => {
                    let answers = list(&value).unwrap_or_default();
                    tallies.iter_mut().zip(answers).for_each(|(tally, one)| tally.hear(one));
                }
            }
        }
        let answer = |(hold, tally): (&Hold<'_>, Tally)| tally.answer(hold, nodes);
        holds.iter().zip(tallies).map(answer).collect()
    }
}

/// What nodes said to the extension of one hold.
#[derive(Clone, Debug, Default)]
struct Tally {
    yes: usize,
    no: usize,
    /// Why somebody ended it.
    why: Option<String>,
}

impl Tally {
    fn hear(&mut self, answer: &Value) {
        if *answer == Value::Int(1) {
            self.yes += 1;
        } else {
            self.no += 1;
            self.why = self.why.take().or_else(|| text(answer).map(str::to_owned));
        }
    }

    fn is_held(&self, nodes: usize) -> bool {
        self.yes >= quorum(nodes)
    }

    /// A majority is out of reach, whatever the others say.
    fn is_gone(&self, nodes: usize) -> bool {
        self.no > nodes - quorum(nodes)
    }

    fn is_decided(&self, nodes: usize) -> bool {
        self.is_held(nodes) || self.is_gone(nodes)
    }

    fn answer(self, hold: &Hold<'_>, nodes: usize) -> Renewed {
        if self.is_held(nodes) {
            return Renewed::Held(grant(hold.token, hold.fence));
        }
        if !self.is_gone(nodes) {
            let (yes, needed) = (self.yes, quorum(nodes));
            let what = format!("only {yes} of {nodes} nodes extended it, {needed} must");
            return Renewed::Unanswered(what);
        }
        Renewed::Gone(match self.why {
            Some(why) => Loss::Evicted { reason: reason(&why) },
            None => Loss::Forgotten,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_stands_falls_or_is_unknown_by_its_majority() {
        let tally = |yes, no| Tally { yes, no, why: None };
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
