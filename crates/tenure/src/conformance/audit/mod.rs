//! The auditor: judges what was recorded of a concurrent run by the promises alone. Knows nothing
//! of the ledger, and could be wrong only by itself.
//!
//! A [`Recorder`] is a [`Witness`](crate::Witness): give it to every session of a run, let callers
//! note each use of what they protect, and [`judge`] the [`History`].

mod history;
mod judge;
mod timeline;

pub use history::{History, HistoryEntry, Recorder, What};
pub use judge::{Rules, Verdicts, Violation, judge};
