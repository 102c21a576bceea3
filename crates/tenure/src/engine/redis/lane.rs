//! One lane to the store: a connection, and what waits to be sent on it together. Knows how calls
//! are put together, not what they mean.
//!
//! A call on an idle lane is written at once. Calls that come while others are under way wait until
//! the connection writes next, and then go as one: 256 tasks make few calls, not 256.

use std::sync::{Arc, Mutex, PoisonError};

use redis::Value;
use tokio::sync::oneshot;

use super::answers::fence_of;
use super::errors::Trouble;
use super::item::{Item, Joint};
use super::manner::Manner;
use super::pack::{pack, push_count, push_word};
use super::scripts::Script;
use super::wire::{Gather, Greeter, Home, Outgoing, Reply, Wire};
use super::{keys::Keys, url::Location};

/// Most claims in one call: no other client waits longer for the store than for so many.
const TOGETHER: usize = 32;

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
            let mut packed = Vec::new();
            let call = Calling { short: item.is_short(), ..self.calling(joint) };
            call.pack(&mut packed, &[&item]);
            return match self.wire.call(&packed).await {
                // The long way says at which key; the short one did nothing.
                Err(trouble) if trouble.is_wrong_type() => self.alone(joint, item).await,
                reply => single(joint, reply?),
            };
        }
        self.join(joint, item).await.unwrap_or(Err(Trouble::Closed))
    }

    /// Lays an item to the others that wait to be sent.
    fn join(&self, joint: Joint, item: Item) -> oneshot::Receiver<Answer> {
        let (caller, answer) = oneshot::channel();
        let mut queue = self.desk.queue(joint);
        queue.push(Waiting { item, caller });
        let enough = queue.len() >= TOGETHER;
        drop(queue);
        if enough {
            self.wire.flush();
        } else {
            self.wire.ring();
        }
        answer
    }

    /// The same with a call of its own, whatever scripts the store has forgotten.
    pub(super) async fn alone(&self, joint: Joint, item: Item) -> Answer {
        let mut packed = Vec::new();
        let script = script(joint, &self.manner);
        let words = ("EVAL", &*script.text);
        Calling { words, ..self.calling(joint) }.pack(&mut packed, &[&item]);
        single(joint, self.wire.call(&packed).await?)
    }

    fn calling(&self, joint: Joint) -> Calling<'_> {
        Calling::new(joint, &self.keys, &self.manner)
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
            self.wire.call(&script_call((verb, script), &self.keys.top, keys, &options, items))
        };
        self.manner.active();
        match call("EVALSHA", &script.sha).await {
            // It was not run, so it may be sent again.
            Err(trouble) if trouble.is_unknown_script() => call("EVAL", &script.text).await,
            answer => answer,
        }
    }
}

/// A script with its keys, its options and what it is told, packed.
pub(super) fn script_call(
    (verb, script): (&str, &str),
    top: &str,
    keys: &[&str],
    options: &str,
    items: &[&[u8]],
) -> Vec<u8> {
    let count = keys.len() + 1;
    let count = count.to_string();
    let mut words: Vec<&[u8]> = Vec::with_capacity(keys.len() + items.len() + 5);
    words.extend([verb.as_bytes(), script.as_bytes(), count.as_bytes()]);
    words.push(top.as_bytes());
    words.extend(keys.iter().map(|key| key.as_bytes()));
    words.push(options.as_bytes());
    words.extend(items);
    pack(&words)
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
            let (items, callers): (Vec<Item>, Vec<_>) =
                waiting.into_iter().map(|one| (one.item, one.caller)).unzip();
            let reply = Reply::Many(Box::new(move |reply| tell(joint, callers, reply)));
            let items: Vec<&Item> = items.iter().collect();
            out.write(|packed| Calling::new(joint, keys, manner).pack(packed, &items), reply);
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

/// How a call for some items is put together.
struct Calling<'a> {
    /// The command, and what names the script.
    words: (&'static str, &'a str),
    joint: Joint,
    short: bool,
    keys: &'a Keys,
    manner: &'a Manner,
}

impl<'a> Calling<'a> {
    fn new(joint: Joint, keys: &'a Keys, manner: &'a Manner) -> Self {
        Self { words: ("EVALSHA", &script(joint, manner).sha), joint, short: false, keys, manner }
    }

    fn pack(&self, packed: &mut Vec<u8>, items: &[&Item]) {
        let slots = 1 + items.iter().map(|item| item.slots()).sum::<usize>();
        // How long each is kept is said once if it is the same for all, as it nearly always is.
        let keep = items.first().map_or(0, |item| item.keep());
        let alike = keep > 0 && items.iter().all(|item| item.keep() == keep);
        let words = match self.joint {
            Joint::Release => items.len(),
            Joint::Claim if alike => 1 + items.len(),
            Joint::Claim => 1 + 2 * items.len(),
        };
        packed.reserve(items.iter().map(|item| item.len()).sum::<usize>() + 200);
        push_count(packed, 4 + slots + words);
        push_word(packed, self.words.0.as_bytes());
        push_word(packed, self.words.1.as_bytes());
        push_word(packed, slots.to_string().as_bytes());
        push_word(packed, self.keys.top.as_bytes());
        for item in items {
            packed.extend_from_slice(item.packed_slots());
        }
        push_word(packed, self.manner.options(self.short).as_bytes());
        if self.joint == Joint::Claim {
            push_keep(packed, if alike { keep } else { 0 });
        }
        for item in items {
            if self.joint == Joint::Claim && !alike {
                push_keep(packed, item.keep());
            }
            packed.extend_from_slice(item.packed_text());
        }
    }
}

/// Milliseconds, or nothing.
fn push_keep(packed: &mut Vec<u8>, keep: u64) {
    let text = if keep > 0 { keep.to_string() } else { String::new() };
    push_word(packed, text.as_bytes());
}

/// The answer to a call for one item.
pub(super) fn single(joint: Joint, reply: Value) -> Answer {
    if matches!(reply, Value::BulkString(_)) {
        // By the short way: a fence, which is the store's time as well.
        return Ok((fence_of(&reply).unwrap_or(0), reply));
    }
    match answers(joint, 1, reply)? {
        Answers::Alike(now, answer) => Ok((now, answer)),
        Answers::Each(now, mut list) => list.pop().map(|one| (now, one)).ok_or(Trouble::Closed),
    }
}

/// Tells each caller its part of the answer. Whoever left does not want to know.
fn tell(joint: Joint, callers: Vec<oneshot::Sender<Answer>>, reply: Result<Value, Trouble>) {
    match reply.and_then(|reply| answers(joint, callers.len(), reply)) {
        Ok(Answers::Alike(now, answer)) => {
            for caller in callers {
                drop(caller.send(Ok((now, answer.clone()))));
            }
        }
        Ok(Answers::Each(now, list)) => {
            for (caller, answer) in callers.into_iter().zip(list) {
                drop(caller.send(Ok((now, answer))));
            }
        }
        Err(trouble) => {
            for caller in callers {
                drop(caller.send(Err(trouble.clone())));
            }
        }
    }
}

/// What a script answers to several items, with the store's time; a release has none.
enum Answers {
    /// The same to all: a number.
    Alike(u64, Value),
    Each(u64, Vec<Value>),
}

fn answers(joint: Joint, count: usize, reply: Value) -> Result<Answers, Trouble> {
    let strange = |reply: &Value| Trouble::strange(reply);
    let mut list = match reply {
        Value::Int(1) if joint == Joint::Release => return Ok(Answers::Alike(0, reply)),
        Value::Array(list) => list,
        _ => return Err(strange(&reply)),
    };
    let now = match (joint, &list[..]) {
        (Joint::Release, _) => 0,
        (Joint::Claim, [Value::Int(now), Value::Int(fence)]) => {
            return Ok(Answers::Alike(u64::try_from(*now).unwrap_or_default(), Value::Int(*fence)));
        }
        (Joint::Claim, [Value::Int(now), ..]) => {
            let now = u64::try_from(*now).unwrap_or_default();
            list.remove(0);
            now
        }
        _ => return Err(strange(&Value::Array(list))),
    };
    if list.len() != count {
        return Err(strange(&Value::Array(list)));
    }
    Ok(Answers::Each(now, list))
}
