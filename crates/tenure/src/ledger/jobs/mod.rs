//! The rules of job queues, once, as pure Rust: rows + verb + now -> rows + replies. The memory and
//! the embedded engine run this code over rows of their own ([`JobRows`]).
//!
//! ```text
//!            push                    time                    claim
//!   (none) ────────> scheduled ───────────────> ready ─────────────────> running
//!      └──────────────────┬──> blocked ──────────┘ ▲ ▲                   │ │ │ │
//!        its lane is full ┘     a place is free    │ └── worker is gone ─┘ │ │ └> (none): complete
//!                    scheduled <───────────────────┼── fail, later ────────┘ └──> dead
//!                                                  └── retry by an operator ──────┘
//! ```
//!
//! # Invariants
//!
//! - **J1** A job leaves the queue only by completion, cancellation, deletion of a dead one, or
//!   because another job with its key replaces it.
//! - **J2** Each claim mints a fence above all fences of the queue. Every report of a worker names
//!   job and fence, and changes nothing unless that is the attempt that runs.
//! - **J3** A running job names its worker, which is a claim on the slot of the queue.
//! - **J4** A running job is given back only if its worker's claim does not live in the same step.
//!   A claim that is missing does not live. Other attempts of the same job are not touched: rescue
//!   acts on the row it has just read.
//! - **J5** Jobs are claimed in the order of priority, due time and number; with aging, in the
//!   order of due time less priority times aging. A job keeps its rank when it is given back.
//! - At most `limit` jobs of a lane are ready or run. A job that leaves lets the next one of its
//!   lane in, in the same step. Places are counted as rows, never as a sum that could leak.
//! - A key belongs to one job at most. A job that comes back while a newer one has its key goes on
//!   without the key.
//! - The counts of the queue row are those of the rows, because [`JobRules::change`] is the only
//!   place that writes a job.

mod beside;
mod heap;
pub(crate) mod row;
mod rules;
pub(crate) mod settle;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub(crate) use self::heap::JobHeap;
pub(crate) use self::row::{JobRow, QueueRow};
use super::shelf::Shelf;
use super::{Ledger, Now};
use crate::contract::{ClaimId, Fence, Name, Query, SessionId};

/// The rows of one queue, in the order of their keys. Reads see earlier writes.
pub(crate) trait JobRows {
    /// Returns the row under a key.
    fn get(&self, key: &[u8]) -> Option<Vec<u8>>;
    /// Writes a row.
    fn put(&mut self, key: &[u8], value: &[u8]);
    /// Removes a row, if there is one.
    fn remove(&mut self, key: &[u8]);
    /// Returns the first row whose key is after `key` (or at `key`, if `including`) and begins with
    /// `prefix`.
    fn next(&self, key: &[u8], including: bool, prefix: &[u8]) -> Option<(Vec<u8>, Vec<u8>)>;
    /// Notes that a row cannot be decoded. The step is not committed then.
    fn damaged(&self, what: &'static str);
}

/// The workers of the queue whose claims live, each with its session.
pub(crate) type LivingWorkers = HashMap<ClaimId, Option<SessionId>>;

/// Mints a fence above the one it is given, and above all that a slot may have had.
pub(crate) type MintFence<'a> = &'a mut dyn FnMut(&mut u64) -> Fence;

#[allow(private_bounds, reason = "only engines of this crate keep the state elsewhere")]
impl<S: Shelf> Ledger<S> {
    /// The workers whose claims hold this slot now. What has expired is dropped first.
    pub(crate) fn living_workers(&mut self, slot: &Name, now: Now) -> LivingWorkers {
        let seen = self.inspect(&Query::Slot(slot.clone()), now);
        let holders = seen.slots.into_iter().flat_map(|slot| slot.holders);
        holders.map(|holder| (holder.claim, holder.session)).collect()
    }

    /// A fence above `last`, for an attempt at a job.
    pub(crate) fn job_fence(&mut self, last: &mut u64, now: Now) -> Fence {
        self.mint.wall_micros = now.wall_micros;
        self.mint.fence(last)
    }
}

/// One verb over the rows of a queue.
pub(crate) struct JobRules<'a, R> {
    rows: &'a mut R,
    queue: QueueRow,
    stored: QueueRow,
    now: u64,
    /// How many jobs have become ready and were not claimed.
    ready: usize,
    outcome: StepNotes,
}

/// What a verb leaves to the engine.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StepNotes {
    /// The sessions to signal: there may be work, or a job of theirs was cancelled.
    pub(crate) wake: Vec<SessionId>,
    /// The jobs whose lasting facts have changed, and those that are gone.
    pub(crate) changed: Vec<u64>,
    /// Pause or settings have changed.
    pub(crate) settings: bool,
}
