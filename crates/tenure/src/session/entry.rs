//! One claim in the session's table: its phase, and when something is due for it. Pure: knows
//! instants and answers, not threads or calls.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::hold::Hold;
use super::joint::Joint;
use crate::contract::{Arrival, Claim, ClaimId, Error, Grant, Loss, Name, Queued, Release, Shape};
use crate::limits;
use crate::sync::thread::ThreadId;
use crate::time::Tick;

/// One claim of this session, from before it is sent until its end.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Entry {
    pub(super) claim: Arc<Claim>,
    pub(super) phase: Phase,
    /// Its owner is a scope or was given: others of the same owner may re-enter.
    pub(super) scoped: bool,
    pub(super) flow: Option<Flow>,
    pub(super) max_hold: Option<Duration>,
    /// How often the claim was sent.
    pub(super) sends: u32,
    /// How many of those the store is known not to have acted on.
    pub(super) void_sends: u32,
    /// An answer has come.
    pub(super) answered: bool,
    /// The send time of the last claim or renewal that was answered.
    pub(super) sent_at: Tick,
    /// The arrival that the latest answer named.
    pub(super) arrival: Option<Arrival>,
    /// A grant that was pushed before the claim's own answer came.
    pub(super) early: Option<Box<Grant>>,
    /// A renewal is under way.
    pub(super) renewing: bool,
    pub(super) renew_at: Tick,
    /// Signals may have been missed while a call was under way: its answer is no news, ask again.
    pub(super) missed: bool,
    /// When to ask at the earliest and not before: the head of a line when a holder's time is up,
    /// anybody after a call that was not answered.
    pub(super) ask_at: Tick,
    pub(super) failures: u32,
    /// What few claims have. Apart, so that the many stay small.
    rare: Option<Box<Rare>>,
    /// Who waits for a change, and when to wake it at the latest.
    pub(super) waker: Option<Waker>,
    pub(super) wake_at: Tick,
}

/// What few claims have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// A claim that will take this one's place when it is granted (upgrade, downgrade).
    pub(super) successor: Option<ClaimId>,
    /// What was taken for the same set before: a grant that is not picked up ends that too.
    pub(super) behind: Option<Arc<Joint>>,
    /// The joints that this claim is a member of, each with a guard's share.
    pub(super) joints: Vec<Arc<Joint>>,
    /// Why the store did not answer the last time, if it did not, while the claim waited.
    pub(super) trouble: Option<String>,
    /// An end that was pushed before the claim's own answer came.
    pub(super) early_end: Option<EarlyEnd>,
}

/// An end that was pushed before the claim's own answer came.
#[derive(Debug)]
pub(super) enum EarlyEnd {
    /// Of this claim.
    This(Loss),
    /// Of everything that the session had by then; the claim may have come later.
    All,
}

/// Where a claim stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// Sent, not answered yet.
    Sent,
    /// In line.
    Waiting { place: usize },
    /// Granted, and not picked up by its caller yet.
    Granted { hold: Arc<Hold>, give_back_at: Tick },
    /// In the hands of this many guards.
    Held { hold: Arc<Hold>, guards: u32 },
    /// The wait has ended without a grant; the caller reads why.
    Over(Over),
}

/// How a wait ended without a grant.
#[derive(Clone, Debug)]
pub(super) enum Over {
    /// The ticket is gone: claim anew, at the end of the line.
    Lapsed,
    /// Somebody ended it.
    Ended(Loss),
    /// The store could not be reached for a whole lease.
    CutOff(Error),
    /// The session was closed.
    Closed,
}

/// The task or thread that made a claim, to tell a flow that waits for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// A task of the async runtime.
    Task(tokio::task::Id),
    /// A thread that blocks.
    Thread(ThreadId),
}

/// What is to be done for an entry now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Wake the caller.
    pub(super) wake: bool,
    /// Send a renewal.
    pub(super) renew: bool,
    /// The grant is over: end it and give it back.
    pub(super) lose: Option<Loss>,
}

impl Entry {
    pub(super) fn new(claim: Arc<Claim>, scoped: bool, flow: Option<Flow>, now: Tick) -> Self {
        Self {
            claim,
            phase: Phase::Sent,
            scoped,
            flow,
            max_hold: None,
            sends: 1,
            void_sends: 0,
            answered: false,
            sent_at: now,
            arrival: None,
            early: None,
            renewing: false,
            renew_at: Tick::NEVER,
            missed: false,
            ask_at: Tick::NEVER,
            failures: 0,
            rare: None,
            waker: None,
            wake_at: Tick::NEVER,
        }
    }

    /// What few claims have, to look at.
    pub(super) fn rare(&self) -> Option<&Rare> {
        self.rare.as_deref()
    }

    /// The same, to change it.
    pub(super) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The joints that this claim is a member of.
    pub(super) fn joints(&self) -> &[Arc<Joint>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.joints)
    }

    /// Why the store has not answered of late, if it has not.
    pub(super) fn trouble(&self) -> Option<&str> {
        let rare = self.rare.as_ref().filter(|_| self.failures > 0);
        rare.and_then(|rare| rare.trouble.as_deref())
    }

    /// The next instant at which something is due.
    pub(super) fn next_due(&self) -> Tick {
        let wake = if self.waker.is_some() { self.wake_at } else { Tick::NEVER };
        let (renews, end) = match &self.phase {
            Phase::Sent | Phase::Over(_) => (false, Tick::NEVER),
            Phase::Waiting { .. } => (true, Tick::NEVER),
            Phase::Granted { give_back_at, .. } => (true, *give_back_at),
            Phase::Held { hold, .. } => (true, hold.safe_until().min(self.first_cap())),
        };
        let ask = self.renew_at.min(self.ask_at);
        let renew = if renews && !self.renewing { ask } else { Tick::NEVER };
        wake.min(renew).min(end)
    }

    /// What is due at `now`. Renewals that will soon be due go along, to make batches.
    pub(super) fn due(&self, now: Tick) -> Due {
        let mut due = Due { wake: self.waker.is_some() && self.wake_at <= now, ..Due::default() };
        let renews = match &self.phase {
            Phase::Sent | Phase::Over(_) => false,
            Phase::Waiting { .. } => true,
            Phase::Granted { give_back_at, .. } => {
                due.lose = (*give_back_at <= now).then_some(Loss::NotPickedUp);
                true
            }
            Phase::Held { hold, .. } => {
                due.lose = hold.loss_at(now);
                true
            }
        };
        // Only renewals may come early. To ask before a holder's time is up would be answered "not
        // yet", again and again.
        let window = (self.claim.lease / 12).min(WINDOW);
        let asks = self.renew_at <= now + window || self.ask_at <= now;
        due.renew = renews && !self.renewing && due.lose.is_none() && asks;
        due
    }

    /// The claim waits: remember its place and when to ask again.
    pub(super) fn queued(&mut self, queued: &Queued, sent: Tick, now: Tick) {
        self.answered_at(sent, queued.arrival);
        let missed = std::mem::take(&mut self.missed);
        self.renew_at = if missed { now } else { sent + self.claim.lease / 3 };
        // The head of the line asks again when the holder's time is up. A millisecond more, so that
        // the store's clock has surely got there too.
        // Where there is no line, everybody is its head.
        let first = queued.first_expiry.filter(|_| queued.place <= 1);
        self.ask_at = first.map_or(Tick::NEVER, |first| now + first + Duration::from_millis(1));
        self.phase = Phase::Waiting { place: queued.place };
    }

    /// An answer came to what was sent at `sent`.
    pub(super) fn answered_at(&mut self, sent: Tick, arrival: Arrival) {
        self.answered = true;
        self.failures = 0;
        self.sent_at = self.sent_at.max(sent);
        self.arrival = Some(arrival);
    }

    /// The claim was answered: whether it was ended before that. Where the end may speak of an
    /// earlier copy of the claim, or of none, the store is asked at once instead.
    pub(super) fn ended_early(&mut self, now: Tick) -> Option<Loss> {
        // Looked at first, so that a claim without anything rare allocates nothing.
        self.rare()?.early_end.as_ref()?;
        match self.rare_mut().early_end.take() {
            Some(EarlyEnd::This(loss)) if self.sends - self.void_sends == 1 => Some(loss),
            _ => {
                self.renew_at = now;
                None
            }
        }
    }

    /// A renewal was not answered: again soon, with some randomness in `jitter` (0 to 255).
    pub(super) fn renewal_failed(&mut self, now: Tick, jitter: u8) {
        self.renewing = false;
        self.failures = self.failures.saturating_add(1);
        let step = (self.claim.lease / 24).min(Duration::from_millis(500));
        let grown = step * self.failures.min(4);
        // Not as a renewal, which may go early with others: a store that is away is not hammered.
        self.renew_at = Tick::NEVER;
        self.ask_at = now + grown / 2 + grown * u32::from(jitter) / 512;
    }

    /// The part of this claim on a slot, if it has one.
    pub(super) fn weight_on(&self, name: &Name, shape: Shape) -> Option<u32> {
        let parts = self.claim.parts.as_slice();
        let part = parts.iter().find(|part| part.name() == name && part.shape() == shape);
        part.map(crate::contract::Part::weight)
    }

    /// Whether the store is known to have nothing of this claim: no call has had an effect.
    pub(super) fn is_void(&self) -> bool {
        self.void_sends == self.sends
    }

    /// The request that gives this claim back.
    pub(super) fn to_release(&self) -> Release {
        let uncertain = self.sends > 1 || !self.answered;
        Release { claim: self.claim.to_ref(), uncertain }
    }

    /// Enters the grant once more, if there is room.
    pub(super) fn reenter(&mut self) -> Option<Arc<Hold>> {
        let Phase::Held { hold, guards } = &mut self.phase else { return None };
        if *guards >= limits::REENTRIES {
            return None;
        }
        *guards += 1;
        Some(Arc::clone(hold))
    }
}

/// Renewals due within this much of each other go in one batch.
const WINDOW: Duration = Duration::from_secs(1);
