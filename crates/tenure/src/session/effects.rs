//! What follows from a change of the table: callers to wake, calls to make, losses to declare,
//! releases to send. Collected under the table's lock and carried out after it was dropped, because
//! wakers and witnesses may run anything, and because a release must not reach the store before the
//! hold has ended in this process.

use std::sync::Arc;
use std::task::Waker;

use super::entry::Entry;
use super::hold::Hold;
use crate::contract::{ClaimRef, Loss, Release};
use crate::limits;
use crate::time::Tick;

/// A release that the keeper has to send, or to send again.
#[derive(Debug)]
pub(super) struct PendingRelease {
    pub(super) release: Release,
    /// When the lease has ended the claim in the store anyway. Set when the keeper first collects
    /// the release: the thread that released may have been stopped after it had read the clock,
    /// while the keeper went on renewing.
    pub(super) until: Tick,
    pub(super) not_before: Tick,
    /// The store never received the claim. The release is sent once, so that the engine can drop
    /// what it keeps of the claim; it is not counted as in flight and not retried.
    pub(super) void: bool,
}

impl PendingRelease {
    /// The release of an entry's claim, to be sent at once.
    pub(super) fn of(entry: &Entry) -> Self {
        Self::new(entry.to_release())
    }

    /// A release to be sent at once.
    pub(super) fn new(release: Release) -> Self {
        Self { release, until: Tick::NEVER, not_before: Tick::ZERO, void: false }
    }

    /// Returns how many of these count as in flight.
    pub(super) fn count(pending: &[Self]) -> usize {
        pending.iter().filter(|pending| !pending.void).count()
    }
}

/// What follows from a change of the table, to be carried out after its lock was dropped.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) wake: Vec<Waker>,
    pub(super) renew: Vec<ClaimRef>,
    pub(super) release: Vec<PendingRelease>,
    /// Releases of claims that were lost, to be queued after their holders were notified.
    pub(super) give_back: Vec<PendingRelease>,
    pub(super) lost: Vec<(Arc<Hold>, Loss)>,
    /// The holds of joints, which are lost with the first of their members.
    pub(super) joints: Vec<(Arc<Hold>, Loss)>,
    /// Holds that another grant of the same owner has replaced.
    pub(super) replaced: Vec<Arc<Hold>>,
}

impl Effects {
    /// Splits claims into batches.
    pub(super) fn batches<T>(items: Vec<T>) -> Vec<Vec<T>> {
        let mut batches = Vec::with_capacity(items.len().div_ceil(limits::BATCH));
        let mut items = items.into_iter();
        loop {
            let batch: Vec<T> = items.by_ref().take(limits::BATCH).collect();
            if batch.is_empty() {
                return batches;
            }
            batches.push(batch);
        }
    }

    /// Ends the lost holds and wakes callers. Never called under the table's lock, since wakers may
    /// run anything.
    pub(super) fn notify(&mut self) {
        for (hold, loss) in self.lost.drain(..) {
            tracing::warn!(name = %hold.claim().parts.first_name(), %loss, "lock lost");
            hold.end(loss);
        }
        for (hold, loss) in self.joints.drain(..) {
            hold.end(loss);
        }
        for hold in self.replaced.drain(..) {
            hold.end(Loss::Released);
        }
        self.wake.drain(..).for_each(Waker::wake);
    }
}
