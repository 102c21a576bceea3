//! The request of a caller to the session, and its outcome. Plain values; the acquire path is in
//! `acquire.rs`.

use std::time::Duration;

use super::Share;
use crate::contract::{About, ClaimId, Lineage, OwnerId, Parts};
use crate::time::Tick;

/// A request to acquire one or several names.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) parts: Parts,
    pub(crate) lineage: Lineage,
    /// The owner is a scope or was given: look for a hold to re-enter.
    pub(crate) scoped: bool,
    pub(crate) lease: Duration,
    pub(crate) wait: Wait,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) replaces: Option<ClaimId>,
    pub(crate) about: About,
}

impl AcquireRequest {
    /// The request for another claim while a ticket of the first may still be queued in the store.
    /// A claim of the same owner would be granted together with that ticket, ahead of claims that
    /// arrived in between; so an owner that was made for this call alone is replaced.
    pub(super) fn anew(mut self) -> Self {
        if !self.scoped {
            self.lineage = Lineage::root(OwnerId::new());
        }
        self
    }
}

/// How long a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: `Outcome::No` if the lock is held.
    Try,
    /// This long, then a timeout error.
    Limit(Duration),
    /// This long, then `Outcome::No`.
    TryFor(Duration),
    /// Until it is granted.
    Unlimited,
}

impl Wait {
    /// Returns when a wait that begins at `now` times out.
    pub(super) fn deadline(self, now: Tick) -> Tick {
        match self {
            Self::Limit(limit) | Self::TryFor(limit) => now + limit,
            Self::Try | Self::Unlimited => Tick::NEVER,
        }
    }

    /// Returns the timeout after which the wait is an error, if it has one.
    pub(super) fn timeout(self) -> Option<Duration> {
        match self {
            Self::Limit(limit) => Some(limit),
            Self::Try | Self::TryFor(_) | Self::Unlimited => None,
        }
    }

    /// Returns whether the outcome may be `No`.
    pub(super) fn may_refuse(self) -> bool {
        matches!(self, Self::Try | Self::TryFor(_))
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The lock is held.
    Held(Share),
    /// A try found the lock held, or its time has passed.
    No,
}
