//! Batching of claims and releases: many calls of one verb become one call of its script.
//!
//! On an idle connection a caller sends its own call. While other calls are in flight, items queue
//! up here until the connection writes next, or until a batch is full: 256 concurrent tasks make
//! about a dozen calls. The connection's task drains the queues through its request source, right
//! before it writes; if there is no connection, it drains them too and every item fails. So no item
//! stays behind.
//!
//! A script replies with one value for each item, or with one value that is the same for all. The
//! scripts have a short path for a single claim or release of one slot (`.` is missing from the
//! options argument, see `lua/head.lua`); only a call with one item may take it.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;
use tokio::sync::oneshot;

use super::client::{
    ConnectionHandler, MultiplexedConnection, ReplyTo, RequestBatch, RequestError, RequestResult,
    RequestSource, TaskRuntimes, pack, push_argument, push_count,
};
use super::keys::RedisKeys;
use super::replies::single_fence;
use super::scripts::{LuaScript, ScriptOptions, pack_script};
use crate::contract::Parts;
use crate::engine::common::redis::url::Location;

/// Most items in one call: no other client waits for the store longer than for so many.
const MAX_BATCH: usize = 32;

/// A verb whose calls can be batched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchVerb {
    Claim,
    Release,
}

impl BatchVerb {
    fn script(self, options: &ScriptOptions) -> &'static LuaScript {
        match self {
            Self::Claim => &options.scripts().claim,
            Self::Release => &options.scripts().release,
        }
    }
}

/// The reply to an item: the store's time, and the value for this item. A release has no time.
pub(super) type ItemReply = Result<(u64, Value), RequestError>;

/// One claim or release, already encoded: the keys of its slots, then its text, in one allocation.
#[derive(Debug)]
pub(super) struct BatchItem {
    packed: Vec<u8>,
    /// Where the keys end and the text begins.
    text_start: usize,
    slots: usize,
    /// The script may take its short path, as far as the client knows.
    plain: bool,
    /// The TTL of the key of a lone holder, in milliseconds; 0 if the claim cannot have one.
    ttl: u64,
}

thread_local! {
    /// Arguments are written here before their length is known.
    static ARGUMENT: RefCell<String> = const { RefCell::new(String::new()) };
}

impl BatchItem {
    /// An item over the slots of `parts`, without its text.
    pub(super) fn new(parts: &Parts, keys: &RedisKeys, plain: bool) -> Self {
        let slots = parts.as_slice().len();
        let packed = Vec::with_capacity(64 * slots + 384);
        let mut item = Self { packed, text_start: 0, slots, plain, ttl: 0 };
        for name in parts.names() {
            item.push(|text| keys.push_slot(text, name));
        }
        item.text_start = item.packed.len();
        item
    }

    /// Sets the TTL of the key of a lone holder.
    pub(super) fn with_ttl(mut self, ttl: u64) -> Self {
        self.ttl = ttl;
        self
    }

    /// Appends the text that the script reads.
    pub(super) fn with_text(mut self, write: impl FnOnce(&mut String)) -> Self {
        self.push(write);
        self
    }

    fn push(&mut self, write: impl FnOnce(&mut String)) {
        ARGUMENT.with_borrow_mut(|argument| {
            argument.clear();
            write(argument);
            push_argument(&mut self.packed, argument.as_bytes());
        });
    }

    /// Returns true if a call for this item alone may take the script's short path.
    fn is_short(&self) -> bool {
        self.plain && self.slots == 1
    }

    fn packed_slots(&self) -> &[u8] {
        &self.packed[..self.text_start]
    }

    fn packed_text(&self) -> &[u8] {
        &self.packed[self.text_start..]
    }
}

struct QueuedItem {
    item: BatchItem,
    caller: oneshot::Sender<ItemReply>,
}

/// Items that wait for the next write.
#[derive(Default)]
struct BatchQueues {
    claims: Mutex<Vec<QueuedItem>>,
    releases: Mutex<Vec<QueuedItem>>,
}

/// A connection, and the items that wait to be sent on it.
pub(super) struct Batcher {
    connection: MultiplexedConnection,
    queues: Arc<BatchQueues>,
    keys: Arc<RedisKeys>,
    options: Arc<ScriptOptions>,
}

impl Batcher {
    pub(super) fn open(
        location: Arc<Location>,
        handler: Arc<dyn ConnectionHandler>,
        keys: &Arc<RedisKeys>,
        options: &Arc<ScriptOptions>,
        runtimes: TaskRuntimes,
    ) -> Self {
        let queues = Arc::<BatchQueues>::default();
        let (keys, options) = (Arc::clone(keys), Arc::clone(options));
        let source: RequestSource = {
            let (queues, keys) = (Arc::clone(&queues), Arc::clone(&keys));
            let options = Arc::clone(&options);
            Box::new(move |batch: &mut RequestBatch| {
                queues.drain_into(batch, BatchVerb::Claim, &keys, &options);
                queues.drain_into(batch, BatchVerb::Release, &keys, &options);
            })
        };
        let connection = MultiplexedConnection::open(location, handler, source, runtimes);
        Self { connection, queues, keys, options }
    }

    /// Returns the connection, for calls that are not batched.
    pub(super) fn connection(&self) -> &MultiplexedConnection {
        &self.connection
    }

    /// Sends one item, batched with others. If the server lost the script, loads it and repeats.
    pub(super) async fn submit(&self, verb: BatchVerb, item: impl Fn() -> BatchItem) -> ItemReply {
        match self.send(verb, item()).await {
            Err(error) if error.is_unknown_script() => {}
            reply => return reply,
        }
        // The script was not run, so it may be sent again.
        let script = verb.script(&self.options);
        self.connection.call(&pack(&[b"SCRIPT", b"LOAD", script.text.as_bytes()])).await?;
        match self.send(verb, item()).await {
            // Lost again meanwhile. By its text it runs all the same.
            Err(error) if error.is_unknown_script() => self.send_text(verb, item()).await,
            reply => reply,
        }
    }

    async fn send(&self, verb: BatchVerb, item: BatchItem) -> ItemReply {
        self.options.count_activity();
        if self.connection.is_idle() {
            let mut packed = Vec::new();
            let call = BatchCall { short: item.is_short(), ..self.call(verb) };
            call.pack(&mut packed, &[&item]);
            return match self.connection.call(&packed).await {
                // The short path did nothing; the long one names the key.
                Err(error) if error.is_wrong_type() => self.send_text(verb, item).await,
                reply => single_reply(verb, reply?),
            };
        }
        self.enqueue(verb, item).await.unwrap_or(Err(RequestError::Closed))
    }

    fn enqueue(&self, verb: BatchVerb, item: BatchItem) -> oneshot::Receiver<ItemReply> {
        let (caller, reply) = oneshot::channel();
        let mut queue = self.queues.queue(verb);
        queue.push(QueuedItem { item, caller });
        let full = queue.len() >= MAX_BATCH;
        drop(queue);
        if full {
            self.connection.flush();
        } else {
            self.connection.notify();
        }
        reply
    }

    /// Sends one item in a call of its own, with the text of the script.
    async fn send_text(&self, verb: BatchVerb, item: BatchItem) -> ItemReply {
        let mut packed = Vec::new();
        let script = verb.script(&self.options);
        let command = ("EVAL", &*script.text);
        BatchCall { command, ..self.call(verb) }.pack(&mut packed, &[&item]);
        single_reply(verb, self.connection.call(&packed).await?)
    }

    fn call(&self, verb: BatchVerb) -> BatchCall<'_> {
        BatchCall::new(verb, &self.keys, &self.options)
    }

    /// Runs a script in a call of its own: by its digest, and by its text if the server lost it.
    pub(super) async fn run(
        &self,
        script: &LuaScript,
        keys: &[&str],
        items: &[&[u8]],
    ) -> Result<Value, RequestError> {
        let call = |command: &str, script: &str| {
            let argument = self.options.argument(false);
            let packed = pack_script((command, script), &self.keys.top, keys, &argument, items);
            self.connection.call(&packed)
        };
        self.options.count_activity();
        match call("EVALSHA", &script.sha).await {
            // It was not run, so it may be sent again.
            Err(error) if error.is_unknown_script() => call("EVAL", &script.text).await,
            reply => reply,
        }
    }
}

impl BatchQueues {
    fn queue(&self, verb: BatchVerb) -> MutexGuard<'_, Vec<QueuedItem>> {
        let queue = match verb {
            BatchVerb::Claim => &self.claims,
            BatchVerb::Release => &self.releases,
        };
        queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns the items of a verb into as few calls as possible.
    fn drain_into(
        &self,
        batch: &mut RequestBatch,
        verb: BatchVerb,
        keys: &RedisKeys,
        options: &ScriptOptions,
    ) {
        let mut queued = std::mem::take(&mut *self.queue(verb));
        // A caller that dropped its future has withdrawn the claim, or will.
        queued.retain(|one| !one.caller.is_closed());
        while !queued.is_empty() {
            options.count_activity();
            let rest = queued.split_off(queued.len().min(MAX_BATCH));
            let (items, callers): (Vec<BatchItem>, Vec<_>) =
                queued.into_iter().map(|one| (one.item, one.caller)).unzip();
            let reply = ReplyTo::Many(Box::new(move |reply| distribute(verb, callers, reply)));
            let items: Vec<&BatchItem> = items.iter().collect();
            batch.write(|packed| BatchCall::new(verb, keys, options).pack(packed, &items), reply);
            queued = rest;
        }
    }
}

/// One call of a script for some items.
struct BatchCall<'a> {
    /// `EVALSHA` and a digest, or `EVAL` and a text.
    command: (&'static str, &'a str),
    verb: BatchVerb,
    short: bool,
    keys: &'a RedisKeys,
    options: &'a ScriptOptions,
}

impl<'a> BatchCall<'a> {
    fn new(verb: BatchVerb, keys: &'a RedisKeys, options: &'a ScriptOptions) -> Self {
        let command = ("EVALSHA", &*verb.script(options).sha);
        Self { command, verb, short: false, keys, options }
    }

    fn pack(&self, packed: &mut Vec<u8>, items: &[&BatchItem]) {
        let slots = 1 + items.iter().map(|item| item.slots).sum::<usize>();
        // The TTL is sent once if it is the same for all, as it nearly always is.
        let ttl = items.first().map_or(0, |item| item.ttl);
        let alike = ttl > 0 && items.iter().all(|item| item.ttl == ttl);
        let arguments = match self.verb {
            BatchVerb::Release => items.len(),
            BatchVerb::Claim if alike => 1 + items.len(),
            BatchVerb::Claim => 1 + 2 * items.len(),
        };
        packed.reserve(items.iter().map(|item| item.packed.len()).sum::<usize>() + 200);
        push_count(packed, 4 + slots + arguments);
        push_argument(packed, self.command.0.as_bytes());
        push_argument(packed, self.command.1.as_bytes());
        push_argument(packed, slots.to_string().as_bytes());
        push_argument(packed, self.keys.top.as_bytes());
        for item in items {
            packed.extend_from_slice(item.packed_slots());
        }
        push_argument(packed, self.options.argument(self.short).as_bytes());
        if self.verb == BatchVerb::Claim {
            push_ttl(packed, if alike { ttl } else { 0 });
        }
        for item in items {
            if self.verb == BatchVerb::Claim && !alike {
                push_ttl(packed, item.ttl);
            }
            packed.extend_from_slice(item.packed_text());
        }
    }
}

/// Appends milliseconds, or an empty argument for 0.
fn push_ttl(packed: &mut Vec<u8>, ttl: u64) {
    let text = if ttl > 0 { ttl.to_string() } else { String::new() };
    push_argument(packed, text.as_bytes());
}

/// Parses the reply to a call with one item.
pub(super) fn single_reply(verb: BatchVerb, reply: Value) -> ItemReply {
    if matches!(reply, Value::BulkString(_)) {
        // From the short path: a fence, which is the store's time as well.
        return Ok((single_fence(&reply).unwrap_or(0), reply));
    }
    match BatchReply::read(verb, 1, reply)? {
        BatchReply::Same(now, reply) => Ok((now, reply)),
        BatchReply::Each(now, mut all) => {
            all.pop().map(|one| (now, one)).ok_or(RequestError::Closed)
        }
    }
}

/// Sends each caller its part of the reply. A caller that dropped its future gets none.
fn distribute(verb: BatchVerb, callers: Vec<oneshot::Sender<ItemReply>>, reply: RequestResult) {
    match reply.and_then(|reply| BatchReply::read(verb, callers.len(), reply)) {
        Ok(BatchReply::Same(now, reply)) => {
            for caller in callers {
                drop(caller.send(Ok((now, reply.clone()))));
            }
        }
        Ok(BatchReply::Each(now, all)) => {
            for (caller, reply) in callers.into_iter().zip(all) {
                drop(caller.send(Ok((now, reply))));
            }
        }
        Err(error) => {
            for caller in callers {
                drop(caller.send(Err(error.clone())));
            }
        }
    }
}

/// The reply to several items, with the store's time; a release has none.
enum BatchReply {
    /// One number for all items.
    Same(u64, Value),
    Each(u64, Vec<Value>),
}

impl BatchReply {
    fn read(verb: BatchVerb, count: usize, reply: Value) -> Result<Self, RequestError> {
        let mut all = match reply {
            Value::Int(1) if verb == BatchVerb::Release => return Ok(Self::Same(0, reply)),
            Value::Array(all) => all,
            _ => return Err(RequestError::strange(&reply)),
        };
        let now = match (verb, &all[..]) {
            (BatchVerb::Release, _) => 0,
            (BatchVerb::Claim, [Value::Int(now), Value::Int(fence)]) => {
                let now = u64::try_from(*now).unwrap_or_default();
                return Ok(Self::Same(now, Value::Int(*fence)));
            }
            (BatchVerb::Claim, [Value::Int(now), ..]) => {
                let now = u64::try_from(*now).unwrap_or_default();
                all.remove(0);
                now
            }
            _ => return Err(RequestError::strange(&Value::Array(all))),
        };
        if all.len() != count {
            return Err(RequestError::strange(&Value::Array(all)));
        }
        Ok(Self::Each(now, all))
    }
}
