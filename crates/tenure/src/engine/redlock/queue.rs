//! The waiters of this process for one name. Pure: knows claims and instants, not nodes, clocks or
//! sessions.
//!
//! Nodes keep no queue, so a waiter can only try again. If all waiters of a process tried, they
//! would split the votes among themselves, and each hand-off would cost as many calls as there are
//! waiters. So one waiter of a process tries at a time: the one that has the *turn*. The others
//! stand behind it, in the order in which they arrived, and send nothing.
//!
//! - The turn passes on when its waiter has won or has left. After a win the next waiter tries when
//!   this process releases the lock, when a node publishes that the name is free, or when its pause
//!   is over. A waiter that leaves passes on the pause that it had: a crowd of callers that give up
//!   does not make the tries of this process more frequent.
//! - A turn ends by time as well. Its waiter then goes to the back, and the first that asks takes
//!   the turn: a caller that stopped polling in the middle of an attempt stops nothing but itself.
//! - If too few nodes answered the last attempt, the queue is open: every waiter tries for itself,
//!   and hears for itself that the nodes are away.
//!
//! The queue decides when an attempt is made and never what it comes to: nothing in the proof of
//! the protocol rests on it. Two attempts of one process at the same time only compete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Claim, ClaimId, HolderView, IdMap, OwnerId, SessionId, Signal};
use crate::sync::random_bytes;
use crate::time::Tick;

/// The first pause of a waiter that found the name taken; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(8);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);
/// After a release waiters of several processes try at random instants within this time. It doubles
/// with each attempt that was lost because votes were split.
const SPREAD: Duration = Duration::from_millis(4);
/// So often the spread doubles.
const DOUBLINGS: u32 = 5;
/// How late the waiter that has the turn may be before another takes the turn.
const GRACE: Duration = Duration::from_secs(1);
/// So many hand-offs in a row stay inside this process while waiters of other processes wait.
const STREAK: u32 = 8;

/// The waiters of this process for one name. There is always one that has the turn.
#[derive(Debug)]
pub(super) struct Queue {
    turn: Turn,
    /// The others, in order.
    behind: BTreeMap<u64, Waiter>,
    places: IdMap<ClaimId, u64>,
    next: u64,
    /// Whether nodes are asked to publish when the name is free.
    pub(super) subscribed: bool,
    /// Too few nodes answered the last attempt.
    open: bool,
    /// The holder that the last attempt met, or that won.
    holder: Option<(ClaimId, OwnerId)>,
    /// How many attempts were lost since the last win.
    tries: u32,
    /// How often the spread is doubled.
    splits: u32,
    /// How many hand-offs in a row stayed inside this process.
    streak: u32,
    /// The claim of this process that was released last.
    released: Option<ClaimId>,
    /// The claim whose end was published last, and by how many nodes: every node publishes it.
    published: (Option<ClaimId>, usize),
}

#[derive(Debug)]
struct Waiter {
    claim: Arc<Claim>,
    /// When it asked last. One that has not asked for its lease is gone.
    asked: Tick,
}

#[derive(Debug)]
struct Turn {
    waiter: Waiter,
    /// When its next attempt is due.
    try_at: Tick,
    /// Until when only this waiter tries.
    until: Tick,
}

/// Whether a waiter may try now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It makes an attempt.
    Try,
    /// Another waiter has the turn: ask again after this pause, or with the next renewal.
    Wait(Option<Duration>),
}

/// A waiter to be told when to try.
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

/// What came of a departure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Others wait. The one that has the turn now is told, if the turn passed on.
    Others(Option<Notice>),
    /// The last waiter has left.
    Last,
}

impl Queue {
    /// The first waiter has the turn. Its attempt takes no longer than `limit`.
    pub(super) fn new(claim: &Arc<Claim>, now: Tick, limit: Duration) -> Self {
        let waiter = Waiter { claim: Arc::clone(claim), asked: now };
        Self {
            turn: Turn { waiter, try_at: now, until: now + limit + GRACE },
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

    /// A waiter asks, for the first time or again, whether to try. Its attempt takes no longer than
    /// `limit`.
    pub(super) fn ask(&mut self, claim: &Arc<Claim>, now: Tick, limit: Duration) -> Admission {
        if self.turn.waiter.claim.id == claim.id {
            self.turn.waiter.asked = now;
            self.turn.until = now + limit + GRACE;
            return Admission::Try;
        }
        let place = self.stand(claim, now);
        // A holder that may be an ancestor of this waiter is met, to be told apart from one that
        // has left.
        if self.open || self.met_kin(claim) {
            return Admission::Try;
        }
        if now < self.turn.until {
            let second = self.behind.first_key_value().is_some_and(|(first, _)| *first == place);
            // Nested owners look more often, because their ancestor may come to hold.
            let nested = !claim.lineage.ancestors().is_empty();
            let wait = self.turn.until.since(now);
            return Admission::Wait(match (second, nested) {
                (true, false) => Some(wait),
                (true, true) => Some(wait.min(LONGEST)),
                (false, true) => Some(LONGEST),
                (false, false) => None,
            });
        }
        self.take_over(place, now, limit);
        Admission::Try
    }

    /// An attempt has found the name taken. Returns the pause of the waiter that made it.
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
            // Several tried at the same time, and none of them won.
            None => self.splits = (self.splits + 1).min(DOUBLINGS),
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
        self.due(now, pause);
        Some(pause)
    }

    /// Too few nodes answered an attempt: from here on every waiter tries for itself.
    pub(super) fn failed(&mut self) {
        self.open = true;
    }

    /// An attempt was won. Its waiter leaves, and the next one waits for the release.
    pub(super) fn won(&mut self, claim: &Claim, now: Tick) -> Departure {
        self.open = false;
        self.holder = Some((claim.id, claim.lineage.owner()));
        (self.tries, self.splits) = (0, self.splits.saturating_sub(1));
        if self.turn.waiter.claim.id == claim.id {
            self.turn.try_at = now + LONGEST;
        }
        self.leave(claim.id, now)
    }

    /// A waiter leaves.
    pub(super) fn leave(&mut self, claim: ClaimId, now: Tick) -> Departure {
        if self.turn.waiter.claim.id != claim {
            self.take_out(claim);
            return Departure::Others(None);
        }
        let Some(waiter) = self.next_alive(now) else { return Departure::Last };
        self.turn.waiter = waiter;
        self.turn.until = now;
        let after = self.turn.try_at.since(now);
        Departure::Others(Some(self.due(now, after)))
    }

    /// This process has released the lock. `contended` says that other processes wait for it: after
    /// a streak of hand-offs inside this process they have the same chance.
    pub(super) fn released(&mut self, claim: ClaimId, contended: bool, now: Tick) -> Notice {
        self.released = Some(claim);
        self.streak = if contended { self.streak + 1 } else { 0 };
        if self.streak <= STREAK {
            return self.due(now, Duration::ZERO);
        }
        self.streak = 0;
        let after = self.spread();
        self.due(now, after)
    }

    /// A node published that this claim has ended. `majority` nodes will publish it.
    pub(super) fn published(
        &mut self,
        claim: ClaimId,
        majority: usize,
        now: Tick,
    ) -> Option<Notice> {
        // The release of this process has told its waiter already.
        if self.released == Some(claim) {
            return None;
        }
        if self.published.0 != Some(claim) {
            self.published = (Some(claim), 0);
        }
        self.published.1 += 1;
        // The first is early notice. With the last that makes a majority the name can be had, which
        // may be long after, and a waiter that came too early pauses by then.
        let nodes = self.published.1;
        (nodes == 1 || nodes == majority).then(|| self.retry(now))
    }

    /// Messages may have been missed: the waiter that has the turn tries again.
    pub(super) fn retry(&mut self, now: Tick) -> Notice {
        self.tries /= 2;
        let after = self.spread();
        self.due(now, after)
    }

    /// The next attempt is due after this pause.
    fn due(&mut self, now: Tick, after: Duration) -> Notice {
        self.turn.try_at = now + after;
        // Not earlier than the end of an attempt that is under way.
        self.turn.until = self.turn.until.max(self.turn.try_at + GRACE);
        let claim = &self.turn.waiter.claim;
        Notice { session: claim.session, claim: claim.id, after }
    }

    /// Some instant at which this process tries, when waiters of several processes were told that
    /// the name is free: all at once would split the votes.
    fn spread(&self) -> Duration {
        Duration::from_millis(1) + chance(SPREAD * (1 << self.splits))
    }

    /// Puts a waiter at the end of the queue, unless it stands in it. Returns its place.
    fn stand(&mut self, claim: &Arc<Claim>, now: Tick) -> u64 {
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

    /// The time of the turn is over. The waiter at this place takes it, and the one that had it
    /// goes to the back.
    fn take_over(&mut self, place: u64, now: Tick, limit: Duration) {
        let Some(waiter) = self.behind.remove(&place) else { return };
        self.places.remove(&waiter.claim.id);
        let late = std::mem::replace(&mut self.turn.waiter, waiter);
        self.turn.try_at = now;
        self.turn.until = now + limit + GRACE;
        if late.is_alive(now) {
            self.stand(&late.claim, late.asked);
        }
    }

    /// Takes out the first waiter that has asked within its lease.
    fn next_alive(&mut self, now: Tick) -> Option<Waiter> {
        loop {
            let (_, waiter) = self.behind.pop_first()?;
            self.places.remove(&waiter.claim.id);
            if waiter.is_alive(now) {
                return Some(waiter);
            }
        }
    }

    /// Whether the holder that was met last is the owner of this waiter or an ancestor of it.
    fn met_kin(&self, claim: &Claim) -> bool {
        self.holder.is_some_and(|(id, owner)| id != claim.id && claim.lineage.includes(owner))
    }
}

impl Waiter {
    fn is_alive(&self, now: Tick) -> bool {
        now < self.asked + self.claim.lease
    }
}

/// How long to pause after so many tries: between a half and the whole of a length that doubles.
fn pause(tries: u32) -> Duration {
    let whole = PAUSE.saturating_mul(1 << tries.min(10)).min(LONGEST);
    whole / 2 + chance(whole / 2)
}

/// The pause of a claim of no session, which nothing can wake.
pub(super) fn pause_alone() -> Duration {
    pause(4)
}

/// Some length up to this one.
fn chance(most: Duration) -> Duration {
    let [byte, ..] = random_bytes();
    most * u32::from(byte) / 255
}

#[cfg(test)]
mod tests;
