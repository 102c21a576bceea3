//! Exponential backoff with jitter between attempts to connect.
//!
//! A pause doubles with each failure, up to [`LONGEST`], and has jitter: many clients of a server
//! that comes back should not connect all at once. A call that waits for the connection ends a
//! pause, but not before a quarter of it ([`least`]): a client that calls again and again while its
//! server is away (a keeper does) connects at most eight times a second, not as often as it calls.

use std::time::Duration;

/// The first pause after a failed attempt; each is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);
/// Pauses up to this length are not worth ending.
const SHORT: Duration = Duration::from_millis(20);

/// Returns how long to wait after a failure that followed `failures` others.
pub(super) fn pause(failures: u32) -> Duration {
    jittered(failures, uuid::Uuid::new_v4().as_bytes()[0])
}

/// Returns how much of a pause is waited even if a call waits for the connection.
pub(super) fn least(pause: Duration) -> Duration {
    pause.min(SHORT).max(pause / 4)
}

/// Returns between a half and the whole of a length that doubles; `chance` chooses.
fn jittered(failures: u32, chance: u8) -> Duration {
    let whole = FIRST.saturating_mul(1 << failures.min(10)).min(LONGEST);
    whole / 2 + whole / 2 * u32::from(chance) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_with_chance_in_their_second_half() {
        let millis = |failures, chance| jittered(failures, chance).as_millis();
        assert_eq!((millis(0, 0), millis(0, 255)), (5, 10));
        assert_eq!((millis(3, 0), millis(3, 255)), (40, 80));
        assert_eq!((millis(7, 0), millis(7, 255)), (500, 1000));
        assert_eq!((millis(u32::MAX, 0), millis(u32::MAX, 255)), (500, 1000));
    }

    #[test]
    fn what_a_call_cannot_end_grows_with_the_pause() {
        let least = |millis| least(Duration::from_millis(millis)).as_millis();
        assert_eq!([5, 20, 60, 400, 1000].map(least), [5, 20, 20, 100, 250]);
    }
}
