//! The primitives that threads meet at, and chance, from one place, so that the session can be
//! compiled once more with others that explore its schedules. Knows the standard library.

use std::cell::Cell;

#[allow(unused_imports, reason = "not every build needs the clock for tests")]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};
pub(crate) use std::thread;

use crate::process::forks;

/// Sixteen bytes that no other process can guess or repeat.
///
/// The generator behind `Uuid::new_v4` is seeded once per thread, and a forked child goes on with a
/// copy of it: parent and child would give the same ids to different claims, which the store takes
/// for one. So each process masks the bytes with a key that it got from the system itself.
pub(crate) fn random_bytes() -> [u8; 16] {
    thread_local! {
        /// The key of this thread, and in which process it was made.
        static KEY: Cell<Option<(u32, u128)>> = const { Cell::new(None) };
    }
    let forks = forks();
    let key = match KEY.get() {
        Some((made, key)) if made == forks => key,
        _ => {
            let key = system_random();
            KEY.set(Some((forks, key)));
            key
        }
    };
    (uuid::Uuid::new_v4().as_u128() ^ key).to_le_bytes()
}

/// Sixteen bytes from the system.
fn system_random() -> u128 {
    let mut bytes = [0; 16];
    // So few bytes come all at once. Where a sandbox forbids the call, processes still differ.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => u128::from_le_bytes(bytes),
        _ => u128::from(std::process::id()),
    }
}
