//! One lane to the store: a connection, and what waits to be sent on it together. Knows how calls
//! are put together, not what they mean.
//!
//! A call on an idle lane is written at once. Calls that come while others are under way wait until
//! the connection writes next, and then go as one: 256 tasks make few calls, not 256.

use std::sync::{Arc, Mutex, PoisonError};

use redis::Value;
use tokio::sync::oneshot;

use super::answers::fence_of;
use super::manner::Manner;
use super::pack::pack;
use super::scripts::Script;
use super::trouble::Trouble;
use super::wire::{Gather, Greeter, Home, Outgoing, Reply, Wire};
use super::{keys::Keys, location::Location};

/// Most claims in one call: no other client waits longer for the store than for so many.
const TOGETHER: usize = 64;

/// A verb of which several calls may go as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joint {
    Claim,
    Release,
}

/// One claim to make or to give back: its slots, and what the script is told of it.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) slots: Vec<String>,
    pub(super) text: String,
    /// It may take the short way: a claim for this many milliseconds, a release of what was
    /// answered.
    pub(super) plain: Option<String>,
}

impl Item {
    /// Whether it may take the short way by itself.
    fn is_short(&self) -> bool {
        self.plain.is_some() && self.slots.len() == 1
    }

    /// What the script is told.
    fn words(&self, joint: Joint) -> impl Iterator<Item = &[u8]> {
        let time = self.plain.as_deref().unwrap_or_default().as_bytes();
        let time = (joint == Joint::Claim).then_some(time);
        time.into_iter().chain([self.text.as_bytes()])
    }
}

/// The answer to an item: the store's time, and what its script says. A release has no time.
pub(super) type Answer = Result<(u64, Value), Trouble>;

struct Waiting {
    item: Item,
    caller: oneshot::Sender<Answer>,
}

/// What waits to be sent together.
#[derive(Default)]
struct Desk {
    claims: Mutex<Vec<Waiting>>,
    releases: Mutex<Vec<Waiting>>,
}

/// A connection, and what waits to be sent on it.
pub(super) struct Lane {
    wire: Wire,
    desk: Arc<Desk>,
    keys: Arc<Keys>,
    manner: Arc<Manner>,
}

impl Lane {
    pub(super) fn open(
        location: Arc<Location>,
        greeter: Arc<dyn Greeter>,
        keys: &Arc<Keys>,
        manner: &Arc<Manner>,
        home: Home,
    ) -> Self {
        let desk = Arc::<Desk>::default();
        let (at, keys, manner) = (Arc::clone(&desk), Arc::clone(keys), Arc::clone(manner));
        let gather = {
            let (keys, manner) = (Arc::clone(&keys), Arc::clone(&manner));
            move |out: &mut Outgoing| {
                at.gather(Joint::Claim, &keys, &manner, out);
                at.gather(Joint::Release, &keys, &manner, out);
            }
        };
        let wire = Wire::open(location, greeter, Box::new(gather) as Gather, home);
        Self { wire, desk, keys, manner }
    }

    /// The connection, for calls of their own.
    pub(super) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Makes one claim or gives one back, together with others that are on their way.
    pub(super) async fn send(&self, joint: Joint, item: Item) -> Answer {
        self.manner.active();
        if self.wire.is_idle() {
            let packed = command(joint, &[&item], item.is_short(), &self.keys, &self.manner);
            return match self.wire.call(&packed).await {
                // The long way says at which key; the short one did nothing.
                Err(trouble) if trouble.is_wrong_type() => self.alone(joint, item).await,
                reply => single(joint, reply?),
            };
        }
        let (caller, answer) = oneshot::channel();
        self.desk.queue(joint).push(Waiting { item, caller });
        self.wire.ring();
        answer.await.unwrap_or(Err(Trouble::Closed))
    }

    /// The same with a call of its own, whatever scripts the store has forgotten.
    pub(super) async fn alone(&self, joint: Joint, item: Item) -> Answer {
        let slots: Vec<&str> = item.slots.iter().map(String::as_str).collect();
        let script = script(joint, &self.manner);
        let words: Vec<&[u8]> = item.words(joint).collect();
        single(joint, self.run(script, &slots, &words).await?)
    }

    /// Runs a script: by its digest, and by its text if the store has forgotten it.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&str],
        items: &[&[u8]],
    ) -> Result<Value, Trouble> {
        let call = |verb: &str, script: &str| {
            let options = self.manner.options(false);
            let count = keys.len() + 1;
            let count = count.to_string();
            let mut words: Vec<&[u8]> = Vec::with_capacity(keys.len() + items.len() + 5);
            words.extend([verb.as_bytes(), script.as_bytes(), count.as_bytes()]);
            words.push(self.keys.top.as_bytes());
            words.extend(keys.iter().map(|key| key.as_bytes()));
            words.push(options.as_bytes());
            words.extend(items);
            self.wire.call(&pack(&words))
        };
        self.manner.active();
        match call("EVALSHA", &script.sha).await {
            // It was not run, so it may be sent again.
            Err(trouble) if trouble.is_unknown_script() => call("EVAL", &script.text).await,
            answer => answer,
        }
    }
}

impl Desk {
    fn queue(&self, joint: Joint) -> std::sync::MutexGuard<'_, Vec<Waiting>> {
        let queue = match joint {
            Joint::Claim => &self.claims,
            Joint::Release => &self.releases,
        };
        queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns what waits into as few calls as it fits into.
    fn gather(&self, joint: Joint, keys: &Keys, manner: &Manner, out: &mut Outgoing) {
        let mut waiting = std::mem::take(&mut *self.queue(joint));
        // Whoever gave up meanwhile has asked, or will, that nothing come of it.
        waiting.retain(|one| !one.caller.is_closed());
        while !waiting.is_empty() {
            manner.active();
            let rest = waiting.split_off(waiting.len().min(TOGETHER));
            let items: Vec<&Item> = waiting.iter().map(|one| &one.item).collect();
            let packed = command(joint, &items, false, keys, manner);
            let callers: Vec<_> = waiting.into_iter().map(|one| one.caller).collect();
            out.push(&packed, Reply::Many(Box::new(move |reply| tell(joint, callers, reply))));
            waiting = rest;
        }
    }
}

pub(super) fn script(joint: Joint, manner: &Manner) -> &'static Script {
    match joint {
        Joint::Claim => &manner.scripts().claim,
        Joint::Release => &manner.scripts().release,
    }
}

/// A call for these items.
fn command(joint: Joint, items: &[&Item], short: bool, keys: &Keys, manner: &Manner) -> Vec<u8> {
    let script = script(joint, manner);
    let count = 1 + items.iter().map(|item| item.slots.len()).sum::<usize>();
    let count = count.to_string();
    let options = manner.options(short);
    let mut words: Vec<&[u8]> = Vec::with_capacity(5 + 3 * items.len());
    words.extend([b"EVALSHA", script.sha.as_bytes(), count.as_bytes(), keys.top.as_bytes()]);
    words.extend(items.iter().flat_map(|item| &item.slots).map(String::as_bytes));
    words.push(options.as_bytes());
    words.extend(items.iter().flat_map(|item| item.words(joint)));
    pack(&words)
}

/// The answer to a call for one item.
fn single(joint: Joint, reply: Value) -> Answer {
    if !matches!(reply, Value::Array(_)) {
        // By the short way: a fence, which is the store's time as well, or that it was given back.
        return Ok((fence_of(&reply).unwrap_or(0), reply));
    }
    let mut answers = answers(joint, 1, reply)?;
    answers.pop().ok_or(Trouble::Closed)
}

/// Tells each caller its part of the answer. Whoever left does not want to know.
fn tell(joint: Joint, callers: Vec<oneshot::Sender<Answer>>, reply: Result<Value, Trouble>) {
    match reply.and_then(|reply| answers(joint, callers.len(), reply)) {
        Ok(answers) => {
            for (caller, answer) in callers.into_iter().zip(answers) {
                drop(caller.send(Ok(answer)));
            }
        }
        Err(trouble) => {
            for caller in callers {
                drop(caller.send(Err(trouble.clone())));
            }
        }
    }
}

fn answers(joint: Joint, count: usize, reply: Value) -> Result<Vec<(u64, Value)>, Trouble> {
    let strange = |reply: &Value| Trouble::strange(reply);
    let Value::Array(mut list) = reply else { return Err(strange(&reply)) };
    let now = match (joint, list.first()) {
        (Joint::Release, _) => 0,
        (Joint::Claim, Some(Value::Int(now))) => {
            let now = u64::try_from(*now).unwrap_or_default();
            list.remove(0);
            now
        }
        _ => return Err(strange(&Value::Array(list))),
    };
    if list.len() != count {
        return Err(strange(&Value::Array(list)));
    }
    Ok(list.into_iter().map(|answer| (now, answer)).collect())
}
