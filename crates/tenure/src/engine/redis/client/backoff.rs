//! Exponential backoff with jitter between attempts to connect.
//!
//! A pause doubles with each failure, up to [`LONGEST`], and has jitter: many clients of a server
//! that comes back should not connect all at once. A call that waits for the connection ends a
//! pause, but not before a quarter of it ([`least`]): a client that calls again and again while its
//! server is away (a keeper does) connects at most eight times a second, not as often as it calls.

use std::time::Duration;

use crate::engine::common::jitter;

/// The first pause after a failed attempt; each is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);
/// Pauses up to this length are not worth ending.
const SHORT: Duration = Duration::from_millis(20);

/// Returns how long to wait after a failure that followed `failures` others.
pub(super) fn pause(failures: u32) -> Duration {
    jitter::backoff(FIRST, LONGEST, failures)
}

/// Returns how much of a pause is waited even if a call waits for the connection.
pub(super) fn least(pause: Duration) -> Duration {
    pause.min(SHORT).max(pause / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_call_cannot_end_grows_with_the_pause() {
        let least = |millis| least(Duration::from_millis(millis)).as_millis();
        assert_eq!([5, 20, 60, 400, 1000].map(least), [5, 20, 20, 100, 250]);
    }
}
