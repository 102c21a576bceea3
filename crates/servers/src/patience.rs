//! Waiting for what happens soon. Knows how long is too long, not what is waited for.

use std::time::{Duration, Instant};

/// How long anything may take on a busy machine before it counts as not happening.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Returns as soon as the condition holds.
///
/// # Panics
/// When it does not hold within half a minute; the message names what was waited for.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(within(LIMIT, condition), "waited {} s in vain until {what}", LIMIT.as_secs());
}

/// Whether the condition comes to hold within a time.
pub(crate) fn within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if began.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::within;
    use std::time::Duration;

    #[test]
    fn a_condition_is_asked_at_least_once_and_not_for_ever() {
        assert!(within(Duration::ZERO, || true));
        assert!(!within(Duration::ZERO, || false));
        let mut asked = 0;
        assert!(within(Duration::from_secs(30), || {
            asked += 1;
            asked == 3
        }));
    }
}
