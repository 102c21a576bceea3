//! What a store answers and what it pushes. Knows outcomes, not how they came about.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::claim::Shape;
use super::ids::{Arrival, ClaimId};
use super::inspect::HolderView;
use super::name::Name;

/// The growing number that comes with a grant.
///
/// Hand it to whatever you protect and let that refuse a smaller one than it has seen: this is
/// what makes a late writer harmless.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The fence with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({})", self.0)
    }
}

/// The fences of a claim, one for each of its parts, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fences(SmallVec<[Fence; 1]>);

impl Fences {
    /// The fences as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[Fence] {
        &self.0
    }
}

impl FromIterator<Fence> for Fences {
    fn from_iter<I: IntoIterator<Item = Fence>>(fences: I) -> Self {
        Self(fences.into_iter().collect())
    }
}

/// A claim that holds all its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// One fence for each part.
    pub fences: Fences,
    /// Which arrival of the claim this speaks of.
    pub arrival: Arrival,
}

/// A claim that waits in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Its place, counted from 1. For a set: the worst of its places. 0 where the engine keeps no
    /// queue: every renewal is then another attempt.
    pub place: usize,
    /// How long until the first holder in its way expires, lock delay included. The head of the
    /// queue asks again then; where there is no queue, every waiter does after this pause.
    pub first_expiry: Option<Duration>,
    /// Which arrival of the claim this speaks of.
    pub arrival: Arrival,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Granted(Grant),
    /// It waits.
    Queued(Queued),
    /// It neither holds nor waits, and left nothing behind.
    Refused(Refusal),
}

/// Why a claim was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A try found the slot held, or other claims waiting for it.
    Held {
        /// Who holds it, as far as the limit on named holders goes.
        by: Vec<HolderView>,
        /// How many wait.
        waiting: usize,
    },
    /// Another reader already waits to write; both could only wait for each other.
    Upgrade {
        /// Who asked first.
        by: super::About,
    },
    /// The name is in use with another shape.
    Shape {
        /// Which name.
        name: Name,
        /// Its shape while it has a holder or a waiter.
        stands: Shape,
    },
    /// The claim had been withdrawn or released before this copy arrived.
    Withdrawn,
    /// The claim it should replace is not held any more.
    NothingToReplace,
    /// Too many hold or wait already.
    Full {
        /// Which name.
        name: Name,
        /// How many there may be.
        limit: usize,
    },
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// It holds. The fences may be new (see promise 3 on nested owners).
    Held(Grant),
    /// It waits.
    Waiting(Queued),
    /// The store does not know it any more.
    Gone(Loss),
    /// Too few of the store's nodes answered for this one, for this reason. Its old expiry stands;
    /// ask again.
    Unanswered(String),
}

/// The answer to a confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// What became of the claim, which was renewed.
    pub renewed: Renewed,
    /// How many replicas have it.
    pub replicas: u32,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It held or waited, and does not any more.
    Done,
    /// The store did not know it: it had ended before.
    Gone,
}

/// The answer to a forced release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// These claims were ended.
    Done(Vec<HolderView>),
    /// No holder has that fence; these are the holders.
    NoSuchGrant(Vec<HolderView>),
}

/// The reply to [`FenceFloor::raise_fences`](super::FenceFloor::raise_fences).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// Every later grant of the namespace has a larger fence than the number.
    Done,
    /// Nothing was changed: fences of the namespace may have reached this one already.
    NotAbove(Fence),
}

/// A push from the store to a session. The state is in the store; a signal only announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signal {
    /// A waiting claim of the session now holds.
    Granted {
        /// Which claim.
        claim: ClaimId,
        /// What it was granted.
        grant: Grant,
    },
    /// A claim of the session was ended by another client.
    Ended {
        /// Which claim.
        claim: ClaimId,
        /// Why.
        loss: Loss,
    },
    /// Everything that the session holds or waits for has ended: the store is gone.
    AllEnded {
        /// Why.
        loss: Loss,
    },
    /// Signals may have been missed: ask again about everything that waits.
    Resync,
    /// There may be work in a queue of jobs, or a job of the session was cancelled.
    Jobs {
        /// Which queue.
        queue: Name,
    },
    /// What a claim waits for may be free: ask again after a short pause, unless that is due
    /// earlier anyway. Only a hint.
    Again {
        /// Which claim.
        claim: ClaimId,
        /// The pause.
        after: Duration,
    },
}

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// It could not be renewed before its safe-until passed.
    Expired,
    /// The store no longer knows it: it expired there, or the store lost its memory.
    Forgotten,
    /// It was released by force.
    Evicted {
        /// The reason they gave.
        reason: Arc<str>,
    },
    /// Its wait was refused to break a deadlock.
    Deadlock {
        /// The members of the deadlock, what each holds and waits for.
        words: Arc<str>,
    },
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// The connection that it lived on has ended.
    Disconnected,
    /// The session was closed.
    Closed,
    /// It was granted, but its caller did not pick the guard up for a whole lease.
    NotPickedUp,
    /// Its upgrade or downgrade was given up; the store may have made the exchange already.
    ExchangeGivenUp,
    /// It was released or dropped; only handles that outlive the guard see this.
    Released,
    /// This process was forked from the one that holds it, which holds it still or not: the child
    /// has no part in that.
    Forked,
}

/// Marks the reason of a tombstone or a signal as that of a deadlock. Reasons of forced releases
/// have no control characters.
const DEADLOCK_REASON: char = '\u{1}';

impl Loss {
    /// The loss for a reason as stores keep it with tombstones and signals.
    #[must_use]
    pub fn of_reason(reason: &str) -> Self {
        let clean = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
        match reason.strip_prefix(DEADLOCK_REASON) {
            Some(words) => Self::Deadlock { words: clean(words).into() },
            None => Self::Evicted { reason: clean(reason).into() },
        }
    }

    /// The reason that stores keep for a victim of a deadlock; [`of_reason`](Self::of_reason)
    /// recognizes it.
    #[must_use]
    pub fn deadlock_reason(words: &str) -> Arc<str> {
        format!("{DEADLOCK_REASON}{words}").into()
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("it could not be renewed before the lease ran out"),
            Self::Forgotten => f.write_str("the store no longer knows it"),
            Self::Evicted { reason } => write!(f, "it was released by force: {reason}"),
            Self::Deadlock { words } => write!(f, "it was refused to break a deadlock: {words}"),
            Self::MaxHold => f.write_str("it was held for its max_hold"),
            Self::Disconnected => f.write_str("its connection has ended"),
            Self::Closed => f.write_str("the session was closed"),
            Self::NotPickedUp => f.write_str("it was granted but not picked up for a lease"),
            Self::ExchangeGivenUp => f.write_str("its upgrade or downgrade was given up"),
            Self::Released => f.write_str("it was released"),
            Self::Forked => f.write_str("this process was forked from the one that holds it"),
        }
    }
}
