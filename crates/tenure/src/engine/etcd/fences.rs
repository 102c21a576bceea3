//! How fences and arrivals are computed from revisions.
//!
//! A fence is the revision that wrote the hold, plus a base, plus the amount by which fences were
//! raised. Revisions of a cluster only grow, so fences of all names do. What could make them fall
//! is excluded by the terms of the namespace (`terms.rs`): a restored backup, which has an older
//! revision, gets a higher base, and every transaction that gives out a fence compares that the
//! base and the raise are the ones its client knows.
//!
//! The revision of a transaction is known only when it is written. Until then the ledger works with
//! numbers from [`PLACEHOLDER`] on, which `settle_*` replace by the revision.

use crate::contract::{Arrival, Fence, Grant, Renewed};
use crate::limits;

/// Numbers from here on stand for the revision of the transaction in progress. Real fences stay
/// below: they are not raised further than [`limits::FENCE_FLOOR`].
pub(super) const PLACEHOLDER: u64 = limits::FENCE - (1 << 32);

/// How fences are computed from revisions. The base is the wall clock at the creation of the
/// namespace, in microseconds, so that a service that moves here from another store goes on with
/// larger fences. A new base, of a restored store, counts for revisions from the one on that wrote
/// it. The amount by which fences were raised is written with each fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) base: u64,
    /// The base before.
    pub(super) former: u64,
    /// The revision that wrote the base.
    pub(super) written: u64,
    /// By how much fences were raised.
    pub(super) raised: u64,
    /// The revision that last wrote the terms of the namespace, where all this was read.
    pub(super) terms: u64,
}

impl Epoch {
    /// The largest base that a wall clock may give.
    pub(super) const MAX: u64 = (1 << 52) - (1 << 48);

    /// A number that grows with the revision, also when the store is restored.
    pub(super) fn version(self, revision: u64) -> u64 {
        revision + if revision >= self.written { self.base } else { self.former }
    }

    /// The revision of a version; `None` if no revision has this one.
    pub(super) fn revision_of(self, version: u64) -> Option<u64> {
        let newer = version >= self.base + self.written;
        let revision = version.checked_sub(if newer { self.base } else { self.former })?;
        (revision > 0 && self.version(revision) == version).then_some(revision)
    }

    /// The fence of a hold that is written at this revision.
    pub(super) fn fence(self, revision: u64) -> u64 {
        self.version(revision) + self.raised
    }

    /// The revision at which a fence of this epoch was given out.
    pub(super) fn revision(self, fence: Fence) -> u64 {
        let version = fence.get().saturating_sub(self.raised);
        let newer = version >= self.base + self.written;
        version.saturating_sub(if newer { self.base } else { self.former })
    }
}

/// Replaces the placeholders in a grant by the revision of the transaction.
pub(super) fn settle_grant(grant: &Grant, epoch: Epoch, revision: u64) -> Grant {
    let fence = |fence: &Fence| match fence.get() {
        PLACEHOLDER.. => Fence::new(epoch.fence(revision)),
        _ => *fence,
    };
    let fences = grant.fences.as_slice().iter().map(fence).collect();
    Grant { fences, arrival: settle_arrival(grant.arrival, revision) }
}

/// Replaces a placeholder of an arrival by the revision of the transaction.
pub(super) fn settle_arrival(arrival: Arrival, revision: u64) -> Arrival {
    if arrival.0 >= PLACEHOLDER { Arrival(revision) } else { arrival }
}

/// Replaces the placeholders in the result of a renewal by the revision of the transaction.
pub(super) fn settle_renewed(answer: Renewed, epoch: Epoch, revision: u64) -> Renewed {
    match answer {
        Renewed::Held(grant) => Renewed::Held(settle_grant(&grant, epoch, revision)),
        Renewed::Waiting(mut queued) => {
            queued.arrival = settle_arrival(queued.arrival, revision);
            Renewed::Waiting(queued)
        }
        other @ (Renewed::Gone(_) | Renewed::Unanswered(_)) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_base_counts_from_its_own_revision_on_and_a_raise_for_all() {
        let epoch = Epoch { base: 5_000, former: 1_000, written: 40, ..Epoch::default() };
        assert_eq!((epoch.fence(39), epoch.fence(40)), (1_039, 5_040));
        let raised = Epoch { raised: 100_000, ..epoch };
        assert_eq!((raised.version(41), raised.fence(41)), (5_041, 105_041));
        for (revision, epoch) in [1, 39, 40, 41, 1 << 30].into_iter().zip([epoch, raised].repeat(3))
        {
            assert_eq!(epoch.revision(Fence::new(epoch.fence(revision))), revision);
            assert_eq!(epoch.revision_of(epoch.version(revision)), Some(revision));
        }
        // Below the former base, and between what the two bases give.
        for version in [0, 999, 1_000, 1_040, 4_999, 5_039] {
            assert_eq!(epoch.revision_of(version), None, "{version}");
        }
        const { assert!(limits::FENCE_FLOOR < PLACEHOLDER) }
    }
}
