//! What a caller asks the session for, and what comes of it. Plain values; the acquire path is in
//! `acquire.rs`.

use std::time::Duration;

use super::Lease;
use crate::contract::{About, ClaimId, Lineage, OwnerId, Parts};

/// What a caller asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
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

impl Ask {
    /// The same once more, while a ticket of the first claim may still stand in the store. With the
    /// owner of that ticket it would come in together with it, ahead of claims that came in
    /// between; so where the owner was made for this call alone, it gets another one.
    pub(super) fn anew(&self) -> Self {
        let mut ask = self.clone();
        if !ask.scoped {
            ask.lineage = Lineage::root(OwnerId::new());
        }
        ask
    }
}

/// How long a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: "no" is an answer.
    Try,
    /// This long; then it is an error.
    Limit(Duration),
    /// This long; then "no" is an answer.
    TryFor(Duration),
    /// Until it is granted.
    Unlimited,
}

impl Wait {
    /// After how long it is an error that the lock was not granted.
    pub(super) fn timeout(self) -> Option<Duration> {
        match self {
            Self::Limit(limit) => Some(limit),
            Self::Try | Self::TryFor(_) | Self::Unlimited => None,
        }
    }

    /// Whether "no" is an answer.
    pub(super) fn may_refuse(self) -> bool {
        matches!(self, Self::Try | Self::TryFor(_))
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The lock is held.
    Held(Lease),
    /// A try found it taken, or its time has passed.
    No,
}
