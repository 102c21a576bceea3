//! The waiters of this process, a queue for each name, and the listeners of its sessions. Knows
//! sessions and names, not nodes.
//!
//! Nodes publish when a name is free. That is only a hint: a waiter that receives none tries again
//! when its pause is over.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::keys::Keys;
use super::queue::{Admission, Departure, Notice, Queue, pause_alone};
use super::trying::Taken;
use crate::contract::{Claim, ClaimId, IdMap, Name, SessionId, SignalListener};
use crate::engine::redis::signals::parse_signal as signal;
use crate::time::{Clock, Tick};

/// The waiters of this process, and the listeners of its sessions.
pub(super) struct Hints {
    /// How many nodes are a majority.
    majority: usize,
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    listeners: IdMap<SessionId, Weak<dyn SignalListener>>,
    queues: HashMap<Name, Queue>,
}

/// What a waiter is told whose attempt was lost, or that has to wait for its turn.
pub(super) struct Pause {
    pub(super) length: Option<Duration>,
    /// The nodes are not asked yet to publish when the name is free.
    pub(super) subscribe: bool,
}

impl Hints {
    pub(super) fn new(majority: usize, clock: &Arc<dyn Clock>) -> Self {
        Self { majority, clock: Arc::clone(clock), inner: Mutex::default() }
    }

    /// Sends a session's signals to this listener.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let mut inner = self.lock();
        inner.listeners.retain(|_, listener| listener.strong_count() > 0);
        inner.listeners.insert(session, listener);
    }

    /// Whether a waiter may try now, with an attempt that takes no longer than `limit`; otherwise
    /// how long it pauses.
    pub(super) fn ask(&self, claim: &Arc<Claim>, limit: Duration) -> Result<(), Pause> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let queue = match inner.queues.entry(claim.parts.first_name().clone()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(free) => {
                free.insert(Queue::new(claim, now, limit));
                return Ok(());
            }
        };
        match queue.ask(claim, now, limit) {
            Admission::Try => Ok(()),
            Admission::Wait(length) => Err(subscribing(queue, length)),
        }
    }

    /// An attempt has found the name taken: how long its waiter pauses.
    pub(super) fn lost(&self, claim: &Claim, taken: &Taken) -> Pause {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Some(queue) = inner.queues.get_mut(claim.parts.first_name()) else {
            // It has left meanwhile, or it belongs to no session and nothing can wake it.
            return Pause { length: Some(pause_alone()), subscribe: false };
        };
        let length = queue.lost(claim.id, taken.by.first(), taken.free_in, now);
        subscribing(queue, length)
    }

    /// Too few nodes answered an attempt for this name.
    pub(super) fn failed(&self, name: &Name) {
        if let Some(queue) = self.lock().queues.get_mut(name) {
            queue.failed();
        }
    }

    /// An attempt was won: its waiter has left. Returns whether the nodes need not publish any more
    /// when the name is free.
    pub(super) fn won(&self, claim: &Claim) -> bool {
        let name = claim.parts.first_name();
        self.depart(name, |queue, now| queue.won(claim, now))
    }

    /// A waiter has left. Returns whether the nodes need not publish any more when the name is
    /// free.
    pub(super) fn leave(&self, name: &Name, claim: ClaimId) -> bool {
        self.depart(name, |queue, now| queue.leave(claim, now))
    }

    fn depart(&self, name: &Name, leave: impl FnOnce(&mut Queue, Tick) -> Departure) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { listeners, queues } = &mut *inner;
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
            let Some(listener) = ear_of(listeners, &notice) else {
                // Its session is gone.
                departure = queue.leave(notice.claim, now);
                continue;
            };
            drop(inner);
            listener.on_signal(notice.signal());
            return false;
        }
    }

    /// This process has released a lock. The waiter that has the turn tries, at once unless other
    /// processes are `contended` with.
    pub(super) fn released(&self, name: &Name, claim: ClaimId, contended: bool) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { listeners, queues } = &mut *inner;
        let Some(queue) = queues.get_mut(name) else { return };
        let notice = queue.released(claim, contended, now);
        let listener = ear_of(listeners, &notice);
        drop(inner);
        if let Some(listener) = listener {
            listener.on_signal(notice.signal());
        }
    }

    /// Whether a waiter wants to know when the name is free.
    pub(super) fn is_waited_for(&self, name: &Name) -> bool {
        self.lock().queues.get(name).is_some_and(|queue| queue.subscribed)
    }

    /// All channels to hear. No client publishes on the last one: it only shows whether this client
    /// may listen.
    pub(super) fn channels(&self, keys: &Keys) -> Vec<String> {
        let inner = self.lock();
        let sessions = inner.listeners.keys().map(|session| keys.channel(*session));
        let waited_for = inner.queues.iter().filter(|(_, queue)| queue.subscribed);
        let names = waited_for.map(|(name, _)| keys.free(name));
        sessions.chain(names).chain([keys.channels() + "nobody"]).collect()
    }

    /// A message has arrived.
    pub(super) fn message(&self, keys: &Keys, channel: &[u8], payload: &[u8]) {
        if let Some(session) = keys.session_of(channel) {
            let listener = self.lock().listeners.get(&session).and_then(Weak::upgrade);
            if let (Some(listener), Some(signal)) = (listener, signal(payload)) {
                listener.on_signal(signal);
            }
            return;
        }
        let claim = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        let (Some(name), Some(claim)) = (keys.freed(channel), claim) else { return };
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { listeners, queues } = &mut *inner;
        let notice = queues.get_mut(&name).and_then(|q| q.published(claim, self.majority, now));
        let told = notice.and_then(|notice| Some((ear_of(listeners, &notice)?, notice)));
        drop(inner);
        if let Some((listener, notice)) = told {
            listener.on_signal(notice.signal());
        }
    }

    /// Messages may have been missed: a waiter of each name tries again.
    pub(super) fn missed(&self) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { listeners, queues } = &mut *inner;
        let notices = queues.values_mut().map(|queue| queue.retry(now));
        let told: Vec<_> =
            notices.filter_map(|notice| Some((ear_of(listeners, &notice)?, notice))).collect();
        drop(inner);
        for (listener, notice) in told {
            listener.on_signal(notice.signal());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ear_of(
    listeners: &IdMap<SessionId, Weak<dyn SignalListener>>,
    notice: &Notice,
) -> Option<Arc<dyn SignalListener>> {
    listeners.get(&notice.session?)?.upgrade()
}

/// The pause of a waiter. The first that pauses subscribes.
fn subscribing(queue: &mut Queue, length: Option<Duration>) -> Pause {
    Pause { length, subscribe: !std::mem::replace(&mut queue.subscribed, true) }
}
