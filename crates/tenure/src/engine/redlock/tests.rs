//! The scripts and the rules agree: random programs are run request by request on a real server and
//! in pure code, on one virtual clock, and every reply is compared.

use proptest::prelude::*;
use servers::{Redis, Reply};

use super::rules::{AcquireArgs, AcquireReply, AttemptId, NodeSlot};
use super::scripts::{LuaScript, ScriptCall, on_given_clock};
use crate::contract::{ClaimId, OwnerId};

const KEY: &str = "tenure:{agreement/lock}:q";
const NODE: &str = "tenure:{agreement}:node";
const START: u64 = 1_700_000_000_000_000;

/// One request to a node, or time that passes before it.
#[derive(Clone, Debug)]
enum Message {
    Acquire { token: AttemptId, hint: u64, lease: u64, delay: u64 },
    Raise { token: AttemptId, fence: u64, lease: u64 },
    Extend { token: AttemptId, fence: u64, lease: u64 },
    Release { token: AttemptId },
    Pass(u64),
}

fn token() -> impl Strategy<Value = AttemptId> {
    (0..3_u128, 1..4_u32)
        .prop_map(|(claim, attempt)| AttemptId { claim: ClaimId::from_u128(claim), attempt })
}

/// A number around the present, which the clamp of a node does not change.
fn number() -> impl Strategy<Value = u64> {
    START..START + 40
}

fn message() -> impl Strategy<Value = Message> {
    let lease = 5..200_u64;
    prop_oneof![
        4 => (token(), number(), lease.clone(), prop_oneof![Just(0), 0..60_u64]).prop_map(
            |(token, hint, lease, delay)| Message::Acquire { token, hint, lease, delay }
        ),
        3 => (token(), number(), lease.clone())
            .prop_map(|(token, fence, lease)| Message::Raise { token, fence, lease }),
        3 => (token(), number(), lease)
            .prop_map(|(token, fence, lease)| Message::Extend { token, fence, lease }),
        2 => token().prop_map(|token| Message::Release { token }),
        2 => (0..120_u64).prop_map(Message::Pass),
    ]
}

struct ScriptNode<'a> {
    redis: &'a Redis,
    now: u64,
}

impl ScriptNode<'_> {
    fn run(&self, script: &'static LuaScript, keys: &[&str], words: &[String]) -> Reply {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let mut call = ScriptCall::new(script, keys, self.now.to_string());
        for word in words {
            call.push(word.as_bytes());
        }
        let reply = self.redis.cmd(&call.words()).unwrap();
        assert_eq!(reply.error(), None);
        reply
    }

    fn acquire(&self, asked: &AcquireArgs) -> AcquireReply {
        let AcquireArgs { token, hint, lease, delay } = asked;
        let numbers = [u64::from(token.attempt), *hint, *lease, *delay, 60_000_000, 100_000];
        let mut words = vec![token.claim.to_hex()];
        words.extend(numbers.iter().map(ToString::to_string));
        words.extend([String::new(), OwnerId::new().to_hex(), " =host 1 - -".to_owned()]);
        let reply = self.run(&on_given_clock().acquire, &[KEY, NODE], &words);
        let number = || reply.list()[1].text().unwrap().parse().unwrap();
        match reply.list()[0].text().unwrap() {
            "g" => AcquireReply::Granted(number()),
            "h" => AcquireReply::Held(number()),
            "w" => AcquireReply::Withdrawn,
            other => panic!("{other}"),
        }
    }

    fn raise(&self, token: AttemptId, fence: u64, lease: u64) -> bool {
        let words = [token.claim.to_hex(), token.attempt.to_string(), fence.to_string()];
        let more = [lease.to_string(), "100000".to_owned()];
        let words: Vec<_> = words.into_iter().chain(more).collect();
        self.run(&on_given_clock().raise, &[KEY, NODE], &words).int() == Some(1)
    }

    fn extend(&self, token: AttemptId, fence: u64, lease: u64) -> bool {
        let mut words = vec!["100000".to_owned(), token.claim.to_hex()];
        words.extend([u64::from(token.attempt), fence, lease].iter().map(ToString::to_string));
        self.run(&on_given_clock().extend, &[KEY], &words).list()[0].int() == Some(1)
    }

    fn release(&self, token: AttemptId) -> bool {
        // Kept for longer than any program takes, because the rules keep tombstones for ever.
        let words = [token.claim.to_hex(), token.attempt.to_string(), "60000000".to_owned()];
        let words: Vec<_> = words.into_iter().chain(["1".to_owned()]).collect();
        self.run(&on_given_clock().release, &[KEY], &words).list()[0].int() == Some(1)
    }
}

fn agree(redis: &Redis, program: &[Message]) {
    let done = |words: &[&str]| assert_eq!(redis.cmd(words).unwrap().error(), None);
    done(&["FLUSHALL"]);
    done(&["HSET", NODE, "run", "r", "ready", "0", "top", "0", "fresh", "0"]);
    let (mut node, mut rules) = (ScriptNode { redis, now: START }, NodeSlot::default());
    for (at, message) in program.iter().enumerate() {
        let now = node.now;
        let (theirs, ours) = match *message {
            Message::Acquire { token, hint, lease, delay } => {
                let asked = AcquireArgs { token, hint, lease, delay };
                let (theirs, ours) = (node.acquire(&asked), rules.acquire(asked, now));
                (format!("{theirs:?}"), format!("{ours:?}"))
            }
            Message::Raise { token, fence, lease } => {
                let theirs = node.raise(token, fence, lease);
                (theirs.to_string(), rules.raise(token, fence, now, lease).to_string())
            }
            Message::Extend { token, fence, lease } => {
                // Now and then with the number of the hold.
                let current = rules.record.as_ref().map(|record| record.fence);
                let fence = current.filter(|_| fence % 2 == 0).unwrap_or(fence);
                let theirs = node.extend(token, fence, lease);
                (theirs.to_string(), rules.extend(token, fence, now, lease).to_string())
            }
            Message::Release { token } => {
                let theirs = node.release(token);
                (theirs.to_string(), rules.release(token, now).to_string())
            }
            Message::Pass(time) => {
                node.now += time;
                continue;
            }
        };
        assert_eq!(theirs, ours, "message {at}, {message:?}, of {program:?}");
        let counter = redis.cmd(&["HGET", KEY, "c"]).unwrap();
        let counter = counter.text().map_or(0, |text| text.parse().unwrap());
        assert_eq!(counter, rules.counter, "after message {at} of {program:?}");
    }
}

#[test]
fn a_counter_ahead_of_the_clock_is_kept_until_the_clock_is_past_it() {
    let redis = Redis::start();
    let done = |words: &[&str]| redis.cmd(words).unwrap();
    done(&["HSET", NODE, "run", "r", "ready", "0", "top", "0", "fresh", "0"]);
    let node = ScriptNode { redis: &redis, now: START };
    let token = AttemptId { claim: ClaimId::from_u128(1), attempt: 1 };
    node.acquire(&AcquireArgs { token, hint: START, lease: 1_000_000, delay: 0 });
    // Another node's clock is an hour ahead, and its number was the largest.
    let far = START + 3_600_000_000;
    assert!(node.raise(token, far, 1_000_000));
    let kept = || done(&["PTTL", KEY]).int().unwrap();
    assert!(kept() > 3_600_000, "{}", kept());
    assert!(node.extend(token, far, 1_000_000));
    assert!(kept() > 3_600_000, "an extension takes nothing away: {}", kept());
    assert_eq!(done(&["HGET", NODE, "top"]).text(), Some(&*far.to_string()));
}

#[test]
fn scripts_and_rules_agree_on_random_programs() {
    let redis = Redis::start();
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() };
    proptest!(config, |(program in prop::collection::vec(message(), 1..40))| {
        agree(&redis, &program);
    });
}
