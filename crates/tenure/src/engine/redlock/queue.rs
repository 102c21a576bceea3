//! The waiters of this process for one name, and which of them tries. Pure: instants are handed in.
//!
//! Nodes keep no queue, so a waiter can only try again. If all waiters of a process tried, they
//! would split the votes among themselves, and each hand-off would cost as many calls as there are
//! waiters. So one waiter of a process tries at a time, the one that has the *turn*. The others
//! queue behind it in the order of their arrival, and send nothing.
//!
//! - The turn passes on when its waiter has won or has left. After a win the next waiter tries when
//!   this process releases the lock, when a node publishes that the name is free, or when its pause
//!   is over. A waiter that leaves passes on the pause that it had: many callers that time out do
//!   not make the attempts of this process more frequent.
//! - A turn times out. Its waiter then goes to the back, and the next waiter that asks takes the
//!   turn: a caller that stopped polling in the middle of an attempt blocks only itself.
//! - If too few nodes replied to the last attempt, the queue is *open*: every waiter tries, and
//!   gets the error itself.
//!
//! Invariant: there is always a waiter with the turn; a queue without waiters is removed. The queue
//! decides when an attempt is made and never its result, so nothing in the proof of the protocol
//! rests on it: two attempts of one process at the same time only compete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Claim, ClaimId, HolderView, IdMap, OwnerId, SessionId, Signal};
use crate::sync::random_bytes;
use crate::time::Tick;

/// The first pause of a waiter that found the name taken. The backoff doubles it each time.
const FIRST_PAUSE: Duration = Duration::from_millis(8);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// After a release waiters of several processes try at random instants within this time. It doubles
/// with each attempt that was lost because votes were split.
const SPREAD: Duration = Duration::from_millis(4);
/// How many times the spread doubles at most.
const MAX_DOUBLINGS: u32 = 5;
/// How late the waiter that has the turn may be before another takes the turn.
const GRACE: Duration = Duration::from_secs(1);
/// How many hand-offs in a row stay inside this process while other processes have waiters.
const MAX_STREAK: u32 = 8;

/// The waiters of this process for one name.
#[derive(Debug)]
pub(super) struct TryQueue {
    turn: QueueTurn,
    /// The others, in order.
    behind: BTreeMap<u64, Waiter>,
    places: IdMap<ClaimId, u64>,
    next: u64,
    /// Whether the name's channel is subscribed.
    pub(super) subscribed: bool,
    /// Too few nodes replied to the last attempt: every waiter tries.
    open: bool,
    /// The holder that refused the last attempt, or that won it.
    holder: Option<(ClaimId, OwnerId)>,
    /// How many attempts were lost since the last win.
    tries: u32,
    /// How many times the spread is doubled.
    splits: u32,
    /// How many hand-offs in a row stayed inside this process.
    streak: u32,
    /// The claim of this process that was released last.
    released: Option<ClaimId>,
    /// The claim whose end was published last, and by how many nodes so far.
    published: (Option<ClaimId>, usize),
}

#[derive(Debug)]
struct Waiter {
    claim: Arc<Claim>,
    /// When it asked last. A waiter that has not asked for a lease is dead.
    asked: Tick,
}

#[derive(Debug)]
struct QueueTurn {
    waiter: Waiter,
    /// When its next attempt is due.
    try_at: Tick,
    /// Until when only this waiter tries.
    until: Tick,
}

/// Whether a waiter may make an attempt now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The waiter makes an attempt.
    Try,
    /// Another waiter has the turn: ask again after this pause, or with the next renewal.
    Wait(Option<Duration>),
}

/// When a waiter has to try, for `Signal::Again`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) session: Option<SessionId>,
    pub(super) claim: ClaimId,
    pub(super) after: Duration,
}

impl Notice {
    pub(super) fn signal(&self) -> Signal {
        Signal::Again { claim: self.claim, after: self.after }
    }
}

/// The queue after a waiter has left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Other waiters remain. If the turn passed on, its new waiter is to be notified.
    Others(Option<Notice>),
    /// The last waiter has left.
    Last,
}

impl TryQueue {
    /// Makes a queue whose first waiter has the turn. Its attempt takes no longer than `limit`.
    pub(super) fn new(claim: &Arc<Claim>, now: Tick, limit: Duration) -> Self {
        let waiter = Waiter { claim: Arc::clone(claim), asked: now };
        Self {
            turn: QueueTurn { waiter, try_at: now, until: now + limit + GRACE },
            behind: BTreeMap::new(),
            places: IdMap::default(),
            next: 0,
            subscribed: false,
            open: false,
            holder: None,
            tries: 0,
            splits: 0,
            streak: 0,
            released: None,
            published: (None, 0),
        }
    }

    /// Returns whether a waiter may try, and queues it otherwise. Its attempt takes no longer than
    /// `limit`.
    pub(super) fn may_try(&mut self, claim: &Arc<Claim>, now: Tick, limit: Duration) -> Admission {
        if self.turn.waiter.claim.id == claim.id {
            self.turn.waiter.asked = now;
            self.turn.until = now + limit + GRACE;
            return Admission::Try;
        }
        let place = self.enqueue(claim, now);
        // If the last holder was an ancestor of this waiter, the attempt finds out whether it still
        // holds, which is an error, or has released.
        if self.open || self.held_by_kin(claim) {
            return Admission::Try;
        }
        if now < self.turn.until {
            let second = self.behind.first_key_value().is_some_and(|(first, _)| *first == place);
            // Nested owners try more often, because their ancestor may come to hold.
            let nested = !claim.lineage.ancestors().is_empty();
            let wait = self.turn.until.since(now);
            return Admission::Wait(match (second, nested) {
                (true, false) => Some(wait),
                (true, true) => Some(wait.min(MAX_PAUSE)),
                (false, true) => Some(MAX_PAUSE),
                (false, false) => None,
            });
        }
        self.take_over(place, now, limit);
        Admission::Try
    }

    /// Records that an attempt found the name taken. Returns the pause of its waiter.
    pub(super) fn lost(
        &mut self,
        claim: ClaimId,
        by: Option<&HolderView>,
        free_in: Option<Duration>,
        now: Tick,
    ) -> Option<Duration> {
        self.open = false;
        self.holder = by.map(|holder| (holder.claim, holder.lineage.owner()));
        match by {
            // Several attempts split the votes, and none won.
            None => self.splits = (self.splits + 1).min(MAX_DOUBLINGS),
            Some(_) => self.splits = self.splits.saturating_sub(1),
        }
        if self.turn.waiter.claim.id != claim {
            return None;
        }
        self.streak = 0;
        let pause = pause(self.tries);
        self.tries = self.tries.saturating_add(1);
        let free = free_in.map(|free| free + Duration::from_millis(1) + pause / 16);
        let pause = free.map_or(pause, |free| free.min(pause));
        self.schedule(now, pause);
        Some(pause)
    }

    /// Records that too few nodes replied to an attempt: from here on every waiter tries.
    pub(super) fn failed(&mut self) {
        self.open = true;
    }

    /// Records that an attempt was won. Its waiter leaves; the next one waits for the release.
    pub(super) fn won(&mut self, claim: &Claim, now: Tick) -> Departure {
        self.open = false;
        self.holder = Some((claim.id, claim.lineage.owner()));
        (self.tries, self.splits) = (0, self.splits.saturating_sub(1));
        if self.turn.waiter.claim.id == claim.id {
            self.turn.try_at = now + MAX_PAUSE;
        }
        self.leave(claim.id, now)
    }

    /// Removes a waiter. If it had the turn, the next living waiter gets it, with the same pause.
    pub(super) fn leave(&mut self, claim: ClaimId, now: Tick) -> Departure {
        if self.turn.waiter.claim.id != claim {
            self.take_out(claim);
            return Departure::Others(None);
        }
        let Some(waiter) = self.next_alive(now) else { return Departure::Last };
        self.turn.waiter = waiter;
        self.turn.until = now;
        let after = self.turn.try_at.since(now);
        Departure::Others(Some(self.schedule(now, after)))
    }

    /// This process has released the lock. `contended` says that other processes have waiters:
    /// after a streak of hand-offs inside this process they get the same chance.
    pub(super) fn released(&mut self, claim: ClaimId, contended: bool, now: Tick) -> Notice {
        self.released = Some(claim);
        self.streak = if contended { self.streak + 1 } else { 0 };
        if self.streak <= MAX_STREAK {
            return self.schedule(now, Duration::ZERO);
        }
        self.streak = 0;
        let after = self.spread();
        self.schedule(now, after)
    }

    /// A node has published that this claim has ended; at least `majority` nodes will.
    pub(super) fn published(
        &mut self,
        claim: ClaimId,
        majority: usize,
        now: Tick,
    ) -> Option<Notice> {
        // Released by this process, which has notified the waiter already.
        if self.released == Some(claim) {
            return None;
        }
        if self.published.0 != Some(claim) {
            self.published = (Some(claim), 0);
        }
        self.published.1 += 1;
        // The first message is an early notice. With the one that completes a majority the name can
        // be acquired; that may be later, when a waiter that tried too early pauses again.
        let nodes = self.published.1;
        (nodes == 1 || nodes == majority).then(|| self.retry(now))
    }

    /// Lets the waiter with the turn try again soon, at a random instant.
    pub(super) fn retry(&mut self, now: Tick) -> Notice {
        self.tries /= 2;
        let after = self.spread();
        self.schedule(now, after)
    }

    /// Schedules the next attempt of the waiter with the turn.
    fn schedule(&mut self, now: Tick, after: Duration) -> Notice {
        self.turn.try_at = now + after;
        // Not before the end of an attempt in flight.
        self.turn.until = self.turn.until.max(self.turn.try_at + GRACE);
        let claim = &self.turn.waiter.claim;
        Notice { session: claim.session, claim: claim.id, after }
    }

    /// Returns a random delay. Waiters of several processes are notified of a free name at the same
    /// time, and attempts at the same time would split the votes.
    fn spread(&self) -> Duration {
        Duration::from_millis(1) + random_up_to(SPREAD * (1 << self.splits))
    }

    /// Appends a waiter, unless it is queued already. Returns its place.
    fn enqueue(&mut self, claim: &Arc<Claim>, now: Tick) -> u64 {
        let next = &mut self.next;
        let place = *self.places.entry(claim.id).or_insert_with(|| {
            *next += 1;
            *next
        });
        self.behind.insert(place, Waiter { claim: Arc::clone(claim), asked: now });
        place
    }

    fn take_out(&mut self, claim: ClaimId) -> Option<Waiter> {
        self.behind.remove(&self.places.remove(&claim)?)
    }

    /// The turn has timed out: the waiter at this place takes it, and the late one goes to the
    /// back.
    fn take_over(&mut self, place: u64, now: Tick, limit: Duration) {
        let Some(waiter) = self.behind.remove(&place) else { return };
        self.places.remove(&waiter.claim.id);
        let late = std::mem::replace(&mut self.turn.waiter, waiter);
        self.turn.try_at = now;
        self.turn.until = now + limit + GRACE;
        if late.is_alive(now) {
            self.enqueue(&late.claim, late.asked);
        }
    }

    /// Removes and returns the first waiter that has asked within its lease.
    fn next_alive(&mut self, now: Tick) -> Option<Waiter> {
        loop {
            let (_, waiter) = self.behind.pop_first()?;
            self.places.remove(&waiter.claim.id);
            if waiter.is_alive(now) {
                return Some(waiter);
            }
        }
    }

    /// Returns whether the last holder is the owner of this waiter or an ancestor of it.
    fn held_by_kin(&self, claim: &Claim) -> bool {
        self.holder.is_some_and(|(id, owner)| id != claim.id && claim.lineage.includes(owner))
    }
}

impl Waiter {
    fn is_alive(&self, now: Tick) -> bool {
        now < self.asked + self.claim.lease
    }
}

/// Returns the pause after so many attempts: exponential backoff with half of it random.
fn pause(tries: u32) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << tries.min(10)).min(MAX_PAUSE);
    whole / 2 + random_up_to(whole / 2)
}

/// Returns the pause of a claim without a session, which cannot be woken.
pub(super) fn pause_without_session() -> Duration {
    pause(4)
}

/// Returns a random duration up to this one.
fn random_up_to(most: Duration) -> Duration {
    let [byte, ..] = random_bytes();
    most * u32::from(byte) / 255
}

#[cfg(test)]
mod tests;
