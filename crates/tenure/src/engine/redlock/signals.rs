//! How signals reach the sessions of this process, and which of its waiters tries next.
//!
//! Sessions receive two kinds of messages by the channels of the nodes: an eviction, which a node
//! publishes to the session's own channel, and *the name is free*, which each node publishes when a
//! hold ends. The second is only a hint: a waiter that receives none tries again when its pause is
//! over. The process subscribes to a name's channel while it has a waiter that pauses, and each
//! name has a queue of the process's waiters (`queue.rs`), of which the one with the turn gets
//! `Signal::Again`.
//!
//! Listeners are called after the lock was dropped: a listener may call back.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::Quorum;
use super::attempt::Taken;
use super::keys::NodeKeys;
use super::queue::{Admission, Departure, Notice, TryQueue, pause_without_session};
use crate::contract::{Claim, ClaimId, Name, NameMap, SessionId, SignalListener};
use crate::engine::common::listeners::Listeners;
use crate::engine::common::redis::signals::dispatch;
use crate::engine::redis::client::ReplyTo;
use crate::time::{Clock, Tick};

/// The waiters of this process by name, and the listeners of its sessions.
pub(super) struct ProcessWaiters {
    /// The size of a majority.
    majority: usize,
    clock: Arc<dyn Clock>,
    listeners: Listeners,
    queues: Mutex<NameMap<TryQueue>>,
}

/// How long a waiter pauses whose attempt was lost, or that waits for its turn.
pub(super) struct Pause {
    pub(super) length: Option<Duration>,
    /// The caller has to subscribe to the name's channel.
    pub(super) subscribe: bool,
}

impl ProcessWaiters {
    pub(super) fn new(majority: usize, clock: &Arc<dyn Clock>) -> Self {
        Self {
            majority,
            clock: Arc::clone(clock),
            listeners: Listeners::default(),
            queues: Mutex::default(),
        }
    }

    /// Sends a session's signals to this listener.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.listeners.remove_ended();
        self.listeners.insert(session, listener, ());
    }

    /// Returns whether a waiter may try now, with an attempt that takes no longer than `limit`;
    /// otherwise how long it pauses.
    pub(super) fn may_try(&self, claim: &Arc<Claim>, limit: Duration) -> Result<(), Pause> {
        let now = self.clock.now();
        let mut queues = self.lock();
        let queue = match queues.entry(claim.parts.first_name().clone()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(free) => {
                free.insert(TryQueue::new(claim, now, limit));
                return Ok(());
            }
        };
        match queue.may_try(claim, now, limit) {
            Admission::Try => Ok(()),
            Admission::Wait(length) => Err(pause_of(queue, length)),
        }
    }

    /// Records that an attempt found the name taken. Returns how long its waiter pauses.
    pub(super) fn lost(&self, claim: &Claim, taken: &Taken) -> Pause {
        let now = self.clock.now();
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(claim.parts.first_name()) else {
            // It has left meanwhile, or it has no session and cannot be woken.
            return Pause { length: Some(pause_without_session()), subscribe: false };
        };
        let length = queue.lost(claim.id, taken.by.first(), taken.free_in, now);
        pause_of(queue, length)
    }

    /// Records that too few nodes replied to an attempt for this name.
    pub(super) fn failed(&self, name: &Name) {
        if let Some(queue) = self.lock().get_mut(name) {
            queue.failed();
        }
    }

    /// Records that an attempt was won, and takes its waiter out. Returns whether the caller has to
    /// unsubscribe from the name.
    pub(super) fn won(&self, claim: &Claim) -> bool {
        let name = claim.parts.first_name();
        self.depart(name, |queue, now| queue.won(claim, now))
    }

    /// Takes a waiter out. Returns whether the caller has to unsubscribe from the name.
    pub(super) fn leave(&self, name: &Name, claim: ClaimId) -> bool {
        self.depart(name, |queue, now| queue.leave(claim, now))
    }

    fn depart(&self, name: &Name, leave: impl FnOnce(&mut TryQueue, Tick) -> Departure) -> bool {
        let now = self.clock.now();
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(name) else { return false };
        let mut departure = leave(queue, now);
        loop {
            let notice = match departure {
                Departure::Others(None) => return false,
                Departure::Others(Some(notice)) => notice,
                Departure::Last => {
                    return queues.remove(name).is_some_and(|queue| queue.subscribed);
                }
            };
            let Some(listener) = self.listener_of(&notice) else {
                // The session of the next waiter is gone: take it out too.
                departure = queue.leave(notice.claim, now);
                continue;
            };
            drop(queues);
            listener.on_signal(notice.signal());
            return false;
        }
    }

    /// Notifies the waiter with the turn that this process has released the lock. It tries at once,
    /// unless other processes have waiters too (`contended`) and have to get their chance.
    pub(super) fn released(&self, name: &Name, claim: ClaimId, contended: bool) {
        let now = self.clock.now();
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(name) else { return };
        let notice = queue.released(claim, contended, now);
        let listener = self.listener_of(&notice);
        drop(queues);
        if let Some(listener) = listener {
            listener.on_signal(notice.signal());
        }
    }

    /// Returns whether the name's channel is subscribed.
    pub(super) fn is_subscribed(&self, name: &Name) -> bool {
        self.lock().get(name).is_some_and(|queue| queue.subscribed)
    }

    /// Returns all channels to subscribe to. Nothing is published on the last one: it only shows
    /// whether the ACL of this client allows channels.
    pub(super) fn channels(&self, keys: &NodeKeys) -> Vec<String> {
        let queues = self.lock();
        let sessions = self.listeners.sessions().into_iter().map(|session| keys.channel(session));
        let subscribed = queues.iter().filter(|(_, queue)| queue.subscribed);
        let names = subscribed.map(|(name, _)| keys.free(name));
        sessions.chain(names).chain([keys.probe()]).collect()
    }

    /// Dispatches a published message.
    pub(super) fn on_message(&self, keys: &NodeKeys, channel: &[u8], payload: &[u8]) {
        if let Some(session) = keys.session_of(channel) {
            return dispatch(&self.listeners, Some(session), payload);
        }
        let claim = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        let (Some(name), Some(claim)) = (keys.freed(channel), claim) else { return };
        let now = self.clock.now();
        let mut queues = self.lock();
        let notice = queues.get_mut(&name).and_then(|q| q.published(claim, self.majority, now));
        let notified = notice.and_then(|notice| Some((self.listener_of(&notice)?, notice)));
        drop(queues);
        if let Some((listener, notice)) = notified {
            listener.on_signal(notice.signal());
        }
    }

    /// Messages may have been lost: the waiter with the turn of each name tries again.
    pub(super) fn reconnected(&self) {
        let now = self.clock.now();
        let mut queues = self.lock();
        let notices = queues.values_mut().map(|queue| queue.retry(now));
        let notified: Vec<_> =
            notices.filter_map(|notice| Some((self.listener_of(&notice)?, notice))).collect();
        drop(queues);
        for (listener, notice) in notified {
            listener.on_signal(notice.signal());
        }
    }

    fn listener_of(&self, notice: &Notice) -> Option<Arc<dyn SignalListener>> {
        self.listeners.get(notice.session?)
    }

    fn lock(&self) -> MutexGuard<'_, NameMap<TryQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Builds the pause of a waiter. The first one that pauses subscribes.
fn pause_of(queue: &mut TryQueue, length: Option<Duration>) -> Pause {
    Pause { length, subscribe: !std::mem::replace(&mut queue.subscribed, true) }
}

impl Quorum {
    /// Sends a session's signals to this listener, and subscribes to the session's channel.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.waiters.listen(session, listener);
        let channel = self.context.keys.channel(session);
        for node in &self.nodes {
            let wire = node.wire(self.subscriber());
            wire.subscribe(channel.as_bytes(), ReplyTo::Many(Box::new(drop)));
        }
    }

    /// Unsubscribes from a name's channel at all nodes.
    pub(super) fn unsubscribe(&self, name: &Name) {
        let channel = self.context.keys.free(name);
        for node in &self.nodes {
            drop(node.wire(self.subscriber()).unsubscribe(channel.as_bytes()));
        }
        // A waiter that arrived meanwhile may have subscribed before this.
        if self.waiters.is_subscribed(name) {
            self.subscribe(name);
        }
    }

    /// Subscribes to a name's channel at all nodes.
    pub(super) fn subscribe(&self, name: &Name) {
        let channel = self.context.keys.free(name);
        for node in &self.nodes {
            let wire = node.wire(self.subscriber());
            wire.subscribe(channel.as_bytes(), ReplyTo::Many(Box::new(drop)));
        }
    }
}
