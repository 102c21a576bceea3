//! Chance in pauses and choices, so that many clients of one server do not act at the same instant.

#![allow(dead_code, reason = "for engines that a build may leave out")]

use std::time::Duration;

use crate::sync::random_bytes;

/// Returns how long to wait after a failure that followed `failures` others: `first`, doubled with
/// each failure, at most `longest`, of which chance takes up to a half away.
pub(in crate::engine) fn backoff(first: Duration, longest: Duration, failures: u32) -> Duration {
    jittered(first, longest, failures, random_bytes()[0])
}

/// Returns between once and twice the length of a pause.
pub(in crate::engine) fn spread(pause: Duration) -> Duration {
    pause + pause * u32::from(random_bytes()[0]) / 255
}

/// Chooses one of `count` things. `count` is not zero.
pub(in crate::engine) fn index(count: usize) -> usize {
    usize::from(random_bytes()[0]) % count
}

fn jittered(first: Duration, longest: Duration, failures: u32, chance: u8) -> Duration {
    let whole = first.saturating_mul(1 << failures.min(10)).min(longest);
    whole / 2 + whole / 2 * u32::from(chance) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_with_chance_in_their_second_half() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_secs(1));
        let millis = |failures, chance| jittered(first, longest, failures, chance).as_millis();
        assert_eq!((millis(0, 0), millis(0, 255)), (5, 10));
        assert_eq!((millis(3, 0), millis(3, 255)), (40, 80));
        assert_eq!((millis(7, 0), millis(7, 255)), (500, 1000));
        assert_eq!((millis(u32::MAX, 0), millis(u32::MAX, 255)), (500, 1000));
    }

    #[test]
    fn a_pause_is_spread_and_a_choice_stays_within_its_bounds() {
        let pause = Duration::from_secs(60);
        for _ in 0..64 {
            assert!((pause..=pause * 2).contains(&spread(pause)));
            assert!(index(3) < 3);
        }
    }
}
