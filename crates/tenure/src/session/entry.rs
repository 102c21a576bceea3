//! One claim in the session's table: its phase, and when something is due for it. Pure: contains
//! instants and replies, no threads and no calls.
//!
//! ```text
//! Sent --reply--> Waiting --push or renewal--> Granted --caller polls--> Held --> removed
//!   |                |                            |                        ^
//!   |                '---> Ended <----------------' not picked up          |
//!   '-- reply "granted": the guard is returned at once --------------------'
//! ```
//!
//! `Granted` and `Held` differ in who is responsible: a grant that its caller does not pick up
//! within one lease is released, while one in the hands of guards is renewed for as long as they
//! live. An entry in `Ended` stays until its caller has read the reason.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::hold::Hold;
use super::joint::Joint;
use super::witness::WaitEnd;
use crate::contract::{
    Arrival, Claim, ClaimId, Error, Grant, IdHasher, Loss, Name, Queued, Release, Shape,
};
use crate::limits;
use crate::sync::thread::ThreadId;
use crate::time::Tick;

/// One claim of this session, from before it is sent until its end.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Entry {
    pub(super) claim: Arc<Claim>,
    pub(super) phase: Phase,
    /// The owner is a scope or was given by the caller: claims of the same owner may re-enter.
    pub(super) scoped: bool,
    pub(super) flow: Option<Flow>,
    pub(super) max_hold: Option<Duration>,
    /// How often the claim was sent.
    pub(super) sends: u32,
    /// How many of these sends the store is known not to have acted on.
    pub(super) void_sends: u32,
    /// A reply has come.
    pub(super) answered: bool,
    /// The send time of the last claim or renewal that had a reply.
    pub(super) sent_at: Tick,
    /// The arrival that the latest reply named.
    pub(super) arrival: Option<Arrival>,
    /// A grant that was pushed before the reply to the claim came.
    pub(super) early: Option<Box<Grant>>,
    /// A renewal is in flight.
    pub(super) renewing: bool,
    pub(super) renew_at: Tick,
    /// Signals may have been missed while a call was in flight: its reply may be stale, so renew
    /// again.
    pub(super) missed: bool,
    /// When to ask the store, and not earlier: the head of the queue when the holder's lease ends,
    /// any claim after a renewal that failed.
    pub(super) ask_at: Tick,
    pub(super) failures: u32,
    /// Fields that few claims need, boxed so that the others stay small.
    extras: Option<Box<Extras>>,
    /// The waker of the caller that waits for a change, and when to wake it at the latest.
    pub(super) waker: Option<Waker>,
    pub(super) wake_at: Tick,
}

/// Fields that few claims need.
#[derive(Debug, Default)]
pub(super) struct Extras {
    /// A claim that will take this one's place when it is granted (upgrade, downgrade).
    pub(super) successor: Option<ClaimId>,
    /// The grants acquired for the same set before: a grant that is not picked up ends them too.
    pub(super) behind: Option<Arc<Joint>>,
    /// The joints that this claim is a member of, each with a guard's share.
    pub(super) joints: Vec<Arc<Joint>>,
    /// Why the last renewal of the waiting claim failed, if it did.
    pub(super) trouble: Option<String>,
    /// An end that was pushed before the reply to the claim came.
    pub(super) early_end: Option<EarlyEnd>,
    /// A guard of it has left the flow of its owner, and said so.
    pub(super) detached: bool,
}

/// An end that was pushed before the reply to the claim came.
#[derive(Debug)]
pub(super) enum EarlyEnd {
    /// Of this claim.
    This(Loss),
    /// Of all claims of the session at that time; this claim may have arrived later.
    All,
}

/// The phase of a claim.
#[derive(Debug)]
pub(super) enum Phase {
    /// Sent, no reply yet.
    Sent,
    /// In the queue.
    Waiting { place: usize },
    /// Granted, and not picked up by its caller yet.
    Granted { hold: Arc<Hold>, give_back_at: Tick },
    /// Held by this many guards.
    Held { hold: Arc<Hold>, guards: u32 },
    /// The wait has ended without a grant; the caller reads why.
    Ended(EndReason),
}

/// Why a wait ended without a grant.
#[derive(Clone, Debug)]
pub(super) enum EndReason {
    /// The ticket has expired: claim again, at the end of the queue.
    TicketExpired,
    /// The store ended the claim: a forced release, or a loss of its memory.
    Revoked(Loss),
    /// The store could not be reached for a whole lease.
    Unreachable(Error),
    /// The session was closed.
    Closed,
}

impl EndReason {
    /// What a witness is told.
    pub(super) fn wait_end(&self) -> WaitEnd {
        match self {
            Self::Revoked(Loss::Deadlock { .. }) => WaitEnd::Deadlock,
            Self::Revoked(_) => WaitEnd::Evicted,
            Self::TicketExpired | Self::Unreachable(_) => WaitEnd::Unreachable,
            Self::Closed => WaitEnd::Closed,
        }
    }
}

/// The task or thread that made a claim, to recognize one that waits for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// A task of the async runtime.
    Task(tokio::task::Id),
    /// A thread that blocks.
    Thread(ThreadId),
}

impl Flow {
    /// A number that is the same for all claims of this task or thread, and not 0. Another task may
    /// have the same one by chance: it is for reports.
    pub(super) fn number(self) -> u16 {
        let mut hasher = IdHasher::default();
        let salt = match self {
            Self::Task(id) => {
                id.hash(&mut hasher);
                0
            }
            Self::Thread(id) => {
                id.hash(&mut hasher);
                0x5555
            }
        };
        // The upper bits of the product depend on all bits of the id.
        let spread = hasher.finish().wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        (u16::from_be_bytes([spread[0], spread[1]]) ^ salt).max(1)
    }
}

/// What is due for an entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Wake the caller.
    pub(super) wake: bool,
    /// Send a renewal.
    pub(super) renew: bool,
    /// The grant is over: end the hold and release the claim.
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
            extras: None,
            waker: None,
            wake_at: Tick::NEVER,
        }
    }

    pub(super) fn extras(&self) -> Option<&Extras> {
        self.extras.as_deref()
    }

    pub(super) fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    pub(super) fn take_extras(&mut self) -> Option<Box<Extras>> {
        self.extras.take()
    }

    /// The joints that this claim is a member of.
    pub(super) fn joints(&self) -> &[Arc<Joint>] {
        self.extras.as_ref().map_or(&[], |extras| &extras.joints)
    }

    /// Why the last renewal failed, if it did.
    pub(super) fn trouble(&self) -> Option<&str> {
        let extras = self.extras.as_ref().filter(|_| self.failures > 0);
        extras.and_then(|extras| extras.trouble.as_deref())
    }

    /// The next instant at which something is due.
    pub(super) fn next_due(&self) -> Tick {
        let wake = if self.waker.is_some() { self.wake_at } else { Tick::NEVER };
        let (renews, end) = match &self.phase {
            Phase::Sent | Phase::Ended(_) => (false, Tick::NEVER),
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
            Phase::Sent | Phase::Ended(_) => false,
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
        // Only renewals may be early. Asking before the holder's lease ends would only return "not
        // yet", again and again.
        let window = (self.claim.lease / 12).min(WINDOW);
        let asks = self.renew_at <= now + window || self.ask_at <= now;
        due.renew = renews && !self.renewing && due.lose.is_none() && asks;
        due
    }

    /// Records that the claim is queued, and when to ask the store again.
    pub(super) fn set_queued(&mut self, queued: &Queued, sent: Tick, now: Tick) {
        self.answered_at(sent, queued.arrival);
        let missed = std::mem::take(&mut self.missed);
        self.renew_at = if missed { now } else { sent + self.claim.lease / 3 };
        // The head of the queue asks again when the holder's lease ends, a millisecond later so
        // that the store's clock has passed it too. Where there is no queue, every waiter is a
        // head.
        let first = queued.first_expiry.filter(|_| queued.place <= 1);
        self.ask_at = first.map_or(Tick::NEVER, |first| now + first + Duration::from_millis(1));
        self.phase = Phase::Waiting { place: queued.place };
    }

    /// Records a reply to the call sent at `sent`.
    pub(super) fn answered_at(&mut self, sent: Tick, arrival: Arrival) {
        self.answered = true;
        self.failures = 0;
        self.sent_at = self.sent_at.max(sent);
        self.arrival = Some(arrival);
    }

    /// Returns the end that was pushed before the reply, if it certainly concerns this claim. If it
    /// may concern an earlier copy of the claim, or another claim, the store is asked at once.
    pub(super) fn ended_early(&mut self, now: Tick) -> Option<Loss> {
        // Read first, so that a claim without extras allocates nothing.
        self.extras()?.early_end.as_ref()?;
        match self.extras_mut().early_end.take() {
            Some(EarlyEnd::This(loss)) if self.sends - self.void_sends == 1 => Some(loss),
            _ => {
                self.renew_at = now;
                None
            }
        }
    }

    /// Schedules the retry of a renewal that failed, with back-off and `jitter` (0 to 255).
    pub(super) fn renewal_failed(&mut self, now: Tick, jitter: u8) {
        self.renewing = false;
        self.failures = self.failures.saturating_add(1);
        let step = (self.claim.lease / 24).min(Duration::from_millis(500));
        let grown = step * self.failures.min(4);
        // `ask_at`, not `renew_at`: renewals may go early with a batch, retries must not.
        self.renew_at = Tick::NEVER;
        self.ask_at = now + grown / 2 + grown * u32::from(jitter) / 512;
    }

    /// The weight of this claim on a slot, if it has a part there.
    pub(super) fn weight_on(&self, name: &Name, shape: Shape) -> Option<u32> {
        let parts = self.claim.parts.as_slice();
        let part = parts.iter().find(|part| part.name() == name && part.shape() == shape);
        part.map(crate::contract::Part::weight)
    }

    /// Returns whether the store is known to have nothing of this claim.
    pub(super) fn is_void(&self) -> bool {
        self.void_sends == self.sends
    }

    /// Whether another copy of the claim may still be on its way to the store.
    pub(super) fn is_uncertain(&self) -> bool {
        self.sends > 1 || !self.answered
    }

    /// Builds the release of this claim.
    pub(super) fn to_release(&self) -> Release {
        Release { claim: self.claim.to_ref(), uncertain: self.is_uncertain() }
    }

    /// Adds one guard to the hold, up to the limit of re-entries.
    pub(super) fn reenter(&mut self) -> Option<Arc<Hold>> {
        let Phase::Held { hold, guards } = &mut self.phase else { return None };
        if *guards >= limits::REENTRIES {
            return None;
        }
        *guards += 1;
        Some(Arc::clone(hold))
    }
}

/// Renewals that are due within this time of each other go in one batch.
const WINDOW: Duration = Duration::from_secs(1);
