//! Events of a session, for histories, metrics and reports.
//!
//! An event becomes true under the table's lock, but a witness is code of the user: it may call the
//! session again. So [`Events`] keeps a queue. [`Events::push`] is called in the critical section
//! that makes the event true, which fixes its order and its instant; [`Events::deliver`] is called
//! after the lock was dropped, and calls the witness.
//!
//! - **Order.** Only one thread delivers at a time, from the front of the queue. So a witness
//!   receives the events of a claim in the order in which they became true, whichever threads they
//!   come from.
//! - **Nothing is used before its event.** `deliver` returns only when all that was pushed before
//!   it has been delivered, by this thread or by another. A guard is returned, and a release is
//!   sent, after that.
//! - **A witness may call the session.** An event that is pushed inside `on_event` is delivered
//!   when `on_event` has returned: the call that pushed it does not wait, or it would wait for
//!   itself.
//! - **A witness may panic.** The event counts as delivered, and the next thread goes on.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Claim, ErrorKind, Fences, Loss, Refusal, Verb};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::time::Tick;

/// Receives the events of a session, in the order in which they happened. Called on the path of
/// every lock: must be quick and must not block. May call the session.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use tenure::contract::Claim;
/// use tenure::time::Tick;
/// use tenure::{Event, Tenure, Witness};
///
/// #[derive(Debug, Default)]
/// struct Grants(AtomicU64);
///
/// impl Witness for Grants {
///     fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, event: &Event) {
///         if matches!(event, Event::Granted { .. }) {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let grants = Arc::new(Grants::default());
/// let tenure = Tenure::builder().witness(grants.clone()).blocking_connect("memory:")?;
/// tenure.mutex("reports")?.blocking_lock()?.blocking_release()?;
/// assert_eq!(grants.0.load(Ordering::Relaxed), 1);
/// # Ok::<(), tenure::Error>(())
/// ```
pub trait Witness: fmt::Debug + Send + Sync + 'static {
    /// Called for each event in the life of a claim, with the instant at which it happened. The
    /// call may come a little later than that, but before a caller can act on the event.
    fn on_event(&self, claim: &Arc<Claim>, at: Tick, event: &Event);

    /// Called after each call to the store, from where the call was made. Re-entries and other
    /// steps that the session takes alone make no call.
    fn on_call(&self, call: &StoreCall) {
        let _ = call;
    }
}

/// One call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCall {
    /// Which verb.
    pub verb: Verb,
    /// How many claims or cells it was about.
    pub items: usize,
    /// How long it took, by the session's clock.
    pub took: Duration,
    /// What became of it.
    pub outcome: CallOutcome,
}

/// What became of a call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallOutcome {
    /// The store replied; a refusal is a reply.
    Replied,
    /// It failed with an error of this kind.
    Failed(ErrorKind),
    /// Its caller did not wait for the end: a timeout passed, or the future was dropped.
    Abandoned,
}

/// Why a claim that was not granted came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitEnd {
    /// Its timeout passed.
    TimedOut,
    /// Its future was dropped, or its call failed for good.
    Dropped,
    /// The session was closed.
    Closed,
    /// The store ended the claim: it was evicted, or the store has lost its memory.
    Evicted,
    /// The store could not be reached for a whole lease, or the place in the queue has expired, and
    /// the claim cannot be made anew.
    Unreachable,
    /// It was refused to break a deadlock.
    Deadlock,
    /// The session goes on waiting under another id, because this one may have expired.
    ClaimedAnew,
}

/// One event in the life of a claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// It is about to be sent for the first time.
    Sent,
    /// It waits at this place.
    Queued {
        /// Its place in the queue, from 1.
        place: usize,
    },
    /// It holds, and may be trusted until the given instant. Emitted again if that instant passed
    /// before the caller picked the grant up, and a renewal has made it good again.
    Granted {
        /// One fence for each part.
        fences: Fences,
        /// Until when it may be trusted without another renewal.
        safe_until: Tick,
    },
    /// It was renewed and may be trusted until the given instant.
    Renewed {
        /// Until when it may be trusted.
        safe_until: Tick,
        /// How long it could still have been trusted without this renewal. What falls towards zero
        /// here is lost next.
        slack: Duration,
    },
    /// It was refused.
    Refused {
        /// Why.
        why: Refusal,
    },
    /// It was lost while it held.
    Lost {
        /// Why.
        loss: Loss,
    },
    /// Its guard was released or dropped; from here on it must not be used.
    Released,
    /// Its caller does not wait for it any more.
    Withdrawn {
        /// Why.
        why: WaitEnd,
    },
    /// It is in a deadlock, or stuck behind one. Emitted when that is first noticed.
    Deadlock {
        /// The members of the deadlock, what each holds and waits for.
        words: Arc<str>,
    },
    /// Its own task or thread already holds the name under another owner: it waits for itself.
    WaitsForItself {
        /// The claim that holds.
        held_by: Arc<Claim>,
    },
}

/// The events of a session on their way to its witnesses.
#[derive(Debug)]
pub(super) struct Events {
    witnesses: Vec<Arc<dyn Witness>>,
    queue: Mutex<Queue>,
    delivered: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    pending: VecDeque<(Arc<Claim>, Tick, Event)>,
    /// How many events were ever pushed, and how many delivered.
    pushed: u64,
    done: u64,
    /// The thread that calls the witness now.
    deliverer: Option<ThreadId>,
}

impl Events {
    pub(super) fn new(witnesses: Vec<Arc<dyn Witness>>) -> Self {
        Self { witnesses, queue: Mutex::default(), delivered: Condvar::new() }
    }

    /// Whether there is a witness. Without one, events cost nothing.
    pub(super) fn has_witness(&self) -> bool {
        !self.witnesses.is_empty()
    }

    /// Queues an event. May be called under the table's lock.
    pub(super) fn push(&self, claim: &Arc<Claim>, at: Tick, event: impl FnOnce() -> Event) {
        if self.has_witness() {
            let mut queue = self.lock();
            queue.pushed += 1;
            queue.pending.push_back((Arc::clone(claim), at, event()));
        }
    }

    /// Delivers what was queued. Must not be called under a lock.
    pub(super) fn deliver(&self) {
        if !self.has_witness() {
            return;
        }
        let this = thread::current().id();
        let mut queue = self.lock();
        let mine = queue.pushed;
        while queue.done < mine {
            match queue.deliverer {
                Some(thread) if thread == this => return,
                Some(_) => {
                    queue = self.delivered.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                None => {
                    queue.deliverer = Some(this);
                    while let Some((claim, at, event)) = queue.pending.pop_front() {
                        drop(queue);
                        let delivery = Delivery(self);
                        for witness in &self.witnesses {
                            witness.on_event(&claim, at, &event);
                        }
                        queue = delivery.done();
                    }
                    queue.deliverer = None;
                    self.delivered.notify_all();
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call of the witness. If it panics, the event counts as delivered, and others may deliver.
struct Delivery<'a>(&'a Events);

impl<'a> Delivery<'a> {
    /// The witness has returned: this thread goes on delivering.
    fn done(self) -> MutexGuard<'a, Queue> {
        let events = self.0;
        std::mem::forget(self);
        let mut queue = events.lock();
        queue.done += 1;
        queue
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.done += 1;
        queue.deliverer = None;
        self.0.delivered.notify_all();
    }
}
