//! The session, compiled once more with primitives that explore the schedules of its threads.
//!
//! Nothing here is a copy: the session's own sources are included, and only `crate::sync` means
//! something else. Callers, keeper and the passing of time are threads whose every meeting the
//! explorer decides; it finds deadlocks by itself.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "the session's sources as they are")]
#![allow(missing_docs, missing_debug_implementations, reason = "an unpublished test crate")]

#[path = "../../../crates/tenure/src/contract/mod.rs"]
mod contract;
#[path = "../../../crates/tenure/src/deadlock/mod.rs"]
mod deadlock;
#[path = "../../../crates/tenure/src/ledger/mod.rs"]
mod ledger;
#[path = "../../../crates/tenure/src/limits.rs"]
mod limits;
#[path = "../../../crates/tenure/src/process.rs"]
mod process;
#[path = "../../../crates/tenure/src/seeded.rs"]
mod seeded;
#[path = "../../../crates/tenure/src/session/mod.rs"]
mod session;
#[path = "../../../crates/tenure/src/time/mod.rs"]
mod time;

/// The session's primitives, under the explorer's control.
mod sync {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};
    pub(crate) use shuttle::thread;

    /// The same for the same schedule, so that a failure can be replayed.
    pub(crate) fn random_bytes() -> [u8; 16] {
        use shuttle::rand::{Rng, thread_rng};
        thread_rng().r#gen::<u128>().to_le_bytes()
    }
}

mod play;
mod store;

pub use play::{
    a_close_among_callers, a_guard_that_outlives_its_session, callers_that_give_up,
    callers_that_take_turns, renewals_among_releases,
};
