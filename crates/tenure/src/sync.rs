//! The primitives that threads meet at, and chance, from one place, so that the session can be
//! compiled once more with others that explore its schedules. Knows the standard library.

#[allow(unused_imports, reason = "not every build needs the clock for tests")]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};
pub(crate) use std::thread;

/// Sixteen bytes that nobody can guess.
pub(crate) fn random_bytes() -> [u8; 16] {
    uuid::Uuid::new_v4().into_bytes()
}
