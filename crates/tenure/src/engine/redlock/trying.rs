//! One attempt with real nodes: asks, counts by `protocol.rs`, and leaves nothing behind if it
//! fails. Knows what nodes answer to an acquire and to a raise.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::Quorum;
use super::node::Lane;
use super::protocol::{Attempt, Step, Vote, quorum};
use super::record::Record;
use super::round::{Event, Round};
use super::rules::Token;
use super::scripts::Calling;
use super::site::Site;
use crate::contract::{Claim, Effect, Error, ErrorKind, HolderView, OwnerId, SessionId};
use crate::engine::redis::client::{RequestError as Trouble, RequestResult as Outcome, list, text};
use crate::engine::redis::codec::push_about;
use crate::time::{Clock, SystemClock};

/// Nodes that answer later than the others have at least so long.
const LEAST: Duration = Duration::from_millis(2);

/// What an attempt came to.
pub(super) enum Came {
    /// The name is held, with this fence.
    Won(u64),
    /// Somebody else has it, or several asked at once and nobody got it.
    Taken(Taken),
    /// The claim had been given back before.
    Withdrawn,
}

/// Who is in the way.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Who holds at a majority, if anybody does.
    pub(super) by: Vec<HolderView>,
    /// How long until a majority may be free, if nobody lets go before.
    pub(super) free_in: Option<Duration>,
}

impl Quorum {
    /// Makes one attempt. Dropping the future withdraws it.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        lane: Lane,
        claim: &Claim,
        token: Token,
    ) -> Result<Came, Error> {
        let mut trying = Trying {
            quorum: self,
            lane,
            claim,
            token,
            attempt: Attempt::new(self.nodes.len()),
            heard: Heard::default(),
            won: false,
        };
        match trying.play().await {
            Step::Won(fence) => {
                trying.won = true;
                trying.raise_those_behind(fence);
                Ok(Came::Won(fence))
            }
            _ => trying.heard.verdict(self),
        }
    }
}

/// An attempt under way. Dropped without having won, it is withdrawn everywhere.
struct Trying<'a> {
    quorum: &'a Arc<Quorum>,
    lane: Lane,
    claim: &'a Claim,
    token: Token,
    attempt: Attempt,
    heard: Heard,
    won: bool,
}

impl Trying<'_> {
    async fn play(&mut self) -> Step {
        let calling = self.acquire();
        let began = SystemClock.now();
        let mut round = self.begin(calling, 0..self.quorum.nodes.len());
        let (mut hurried, mut late) = (false, false);
        loop {
            let step = match round.next().await {
                Event::Answer(at, outcome) => {
                    let vote = self.heard.acquire(at, outcome);
                    self.attempt.acquired(at, vote)
                }
                Event::TimeIsUp => {
                    late = true;
                    self.attempt.time_is_up()
                }
            };
            match step {
                // The others may spare us the second round trip, if they take no longer than one.
                Step::Wait if self.attempt.could_raise() && !hurried => {
                    hurried = true;
                    round.hurry(self.quorum, SystemClock.now().since(began).max(LEAST));
                }
                Step::Wait => {}
                Step::Raise(fence) => return self.raise(fence).await,
                Step::Won(_) => return step,
                Step::Lost => break,
            }
        }
        // Lost, but to whom? A name that is held is waited for; nodes that are away are an error.
        // A node that is silent beyond its time is not waited for.
        while !late && !self.heard.is_clear(self.quorum.nodes.len()) {
            match round.next().await {
                Event::Answer(at, outcome) => drop(self.heard.acquire(at, outcome)),
                Event::TimeIsUp => break,
            }
        }
        Step::Lost
    }

    async fn raise(&mut self, fence: u64) -> Step {
        let calling = self.raising(fence);
        let mut round = self.begin(calling, 0..self.quorum.nodes.len());
        loop {
            let step = match round.next().await {
                Event::Answer(at, outcome) => {
                    let yes = matches!(outcome, Ok(Value::Int(1)));
                    self.heard.trouble(at, outcome.err());
                    self.attempt.raised(at, yes)
                }
                Event::TimeIsUp => self.attempt.time_is_up(),
            };
            if step != Step::Wait {
                return step;
            }
        }
    }

    /// Nodes that were granted with a smaller number shall carry the fence too: the hold then
    /// outlives the loss of others.
    fn raise_those_behind(&self, fence: u64) {
        let behind = self.attempt.below(fence);
        if !behind.is_empty() {
            drop(self.begin(self.raising(fence), behind));
        }
    }

    fn begin(&self, calling: Calling, nodes: impl IntoIterator<Item = usize>) -> Round {
        let limit = self.quorum.site.node_limit(self.claim.lease);
        Round::begin(self.quorum, self.lane, &Arc::new(calling), nodes, limit)
    }

    fn acquire(&self) -> Calling {
        let (site, claim) = (&self.quorum.site, self.claim);
        let keys = vec![site.lock(&claim.parts), site.keys.node.clone()];
        let owners: Vec<String> = claim.lineage.all().map(OwnerId::to_hex).collect();
        let mut about = String::new();
        push_about(&mut about, &claim.about);
        site.calling(&site.scripts().acquire, keys)
            .with(self.token.claim.to_hex())
            .with(self.token.attempt.to_string())
            .with(site.clock.wall_micros().to_string())
            .with(claim.lease.as_micros().to_string())
            .with(claim.lock_delay.as_micros().to_string())
            .with(site.quarantine().as_micros().to_string())
            .with(Site::linger())
            .with(claim.session.map(SessionId::to_hex).unwrap_or_default())
            .with(owners.join(","))
            .with(about)
    }

    fn raising(&self, fence: u64) -> Calling {
        let site = &self.quorum.site;
        let keys = vec![site.lock(&self.claim.parts), site.keys.node.clone()];
        site.calling(&site.scripts().raise, keys)
            .with(self.token.claim.to_hex())
            .with(self.token.attempt.to_string())
            .with(fence.to_string())
            .with(self.claim.lease.as_micros().to_string())
            .with(Site::linger())
    }
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if !self.won {
            self.quorum.withdraw(self.lane, self.claim, self.token);
        }
    }
}

/// What nodes said beside their votes.
#[derive(Default)]
struct Heard {
    granted: usize,
    held: Vec<(u64, Record)>,
    withdrawn: bool,
    /// How much longer nodes that may have lost their memory are closed.
    closed: Vec<Duration>,
    troubles: Vec<(usize, Trouble)>,
}

impl Heard {
    fn acquire(&mut self, at: usize, outcome: Outcome) -> Vote {
        let value = match outcome {
            Ok(value) => value,
            Err(trouble) => {
                self.troubles.push((at, trouble));
                return Vote::No;
            }
        };
        let words = list(&value).unwrap_or_default();
        let number = |at: usize| words.get(at).and_then(text).and_then(|word| word.parse().ok());
        match (words.first().and_then(text), words.get(1)) {
            (Some("g"), _) => {
                if let Some(fence) = number(1) {
                    self.granted += 1;
                    return Vote::Yes(fence);
                }
            }
            (Some("h"), _) => {
                if let (Some(left), Some(record)) = (number(1), Record::refused(&words[2..])) {
                    self.held.push((left, record));
                    return Vote::No;
                }
            }
            (Some("w"), _) => {
                self.withdrawn = true;
                return Vote::No;
            }
            (Some("s"), Some(Value::Int(left))) => {
                self.closed.push(Duration::from_micros(u64::try_from(*left).unwrap_or_default()));
                return Vote::No;
            }
            _ => {}
        }
        self.troubles.push((at, Trouble::strange(&value)));
        Vote::No
    }

    fn trouble(&mut self, at: usize, trouble: Option<Trouble>) {
        self.troubles.extend(trouble.map(|trouble| (at, trouble)));
    }

    /// Whether others have it, as far as so many nodes tell.
    fn is_taken(&self, nodes: usize) -> bool {
        let needed = quorum(nodes);
        self.granted + self.held.len() >= needed || self.held.len() > nodes - needed
    }

    /// Whether more answers would not change why the attempt was lost.
    fn is_clear(&self, nodes: usize) -> bool {
        let away = self.closed.len() + self.troubles.len();
        self.withdrawn || self.is_taken(nodes) || away > nodes - quorum(nodes)
    }

    /// Whether no node can have recorded the attempt: all have answered, and none has granted it.
    fn is_void(&self, nodes: usize) -> bool {
        let answered = self.held.len() + self.closed.len() + self.troubles.len();
        let untouched = |(_, trouble): &(usize, Trouble)| trouble.effect() == Effect::None;
        self.granted == 0 && answered >= nodes && self.troubles.iter().all(untouched)
    }

    /// Why the attempt was lost.
    fn verdict(&mut self, site: &Quorum) -> Result<Came, Error> {
        if self.withdrawn {
            return Ok(Came::Withdrawn);
        }
        let (nodes, needed) = (site.nodes.len(), quorum(site.nodes.len()));
        let answered = self.granted + self.held.len();
        if !self.is_taken(nodes) {
            let error = self.unavailable(site, answered);
            return Err(if self.is_void(nodes) { error } else { error.effect_unknown() });
        }
        let mut left: Vec<u64> = self.held.iter().map(|(left, _)| *left).collect();
        left.sort_unstable();
        // Free again when so many of those that are held have ended that the rest is a majority.
        let ends = (self.held.len() + needed).checked_sub(nodes + 1);
        let free_in = ends.and_then(|at| left.get(at)).map(|left| Duration::from_micros(*left));
        let records = self.held.iter().map(|(_, record)| record);
        let by = Record::of_majority(records, nodes - answered, nodes);
        Ok(Came::Taken(Taken { by: by.into_iter().collect(), free_in }))
    }

    fn unavailable(&self, site: &Quorum, answered: usize) -> Error {
        let (nodes, needed) = (site.nodes.len(), quorum(site.nodes.len()));
        let closed = self.closed.len();
        if answered + closed >= needed {
            let longest = self.closed.iter().max().copied().unwrap_or_default();
            let what = format!(
                "{closed} of {nodes} nodes may have lost their memory and grant nothing for \
                 another {longest:.0?}, because locks from before may still be held"
            );
            return Error::new(ErrorKind::Unavailable, what).with_help(
                "wait; or, if nobody has ever used this set of nodes, connect with ?new=yes",
            );
        }
        site.too_few(answered + closed, self.troubles.iter().map(|(at, why)| (*at, why.clone())))
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
        let mut heard = Heard::default();
        assert_eq!(heard.acquire(0, Ok(words(&["g", "17"]))), Vote::Yes(17));
        let strange = [Value::Int(1), Value::Okay, Value::Nil, words(&["g"]), words(&["g", "x"])];
        for (at, answer) in strange.into_iter().chain([words(&["h", "5"])]).enumerate() {
            assert_eq!(heard.acquire(at, Ok(answer)), Vote::No, "answer {at}");
        }
        assert_eq!((heard.granted, heard.troubles.len()), (1, 6));
        assert_eq!(heard.acquire(0, Ok(words(&["w"]))), Vote::No);
        let closed = Value::Array(vec![Value::SimpleString("s".to_owned()), Value::Int(9)]);
        assert_eq!(heard.acquire(1, Ok(closed)), Vote::No);
        assert!(heard.withdrawn && heard.closed == [Duration::from_micros(9)]);
    }
}
