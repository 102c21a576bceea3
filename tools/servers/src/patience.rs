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

/// Repeats a question until it is answered, the limit has passed, or there is no one left to
/// answer it. Only for questions that change nothing: a broken connection does not tell whether the
/// server acted.
pub(crate) fn repeated<T>(
    mut ask: impl FnMut() -> Result<T, String>,
    mut lives: impl FnMut() -> bool,
) -> Result<T, String> {
    let mut answer = Err(String::new());
    within(LIMIT, || {
        answer = ask();
        answer.is_ok() || !lives()
    });
    answer
}

#[cfg(test)]
mod tests {
    use super::{repeated, within};
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

    #[test]
    fn a_question_is_repeated_while_there_is_a_server_to_answer_it() {
        let mut asked = 0;
        let mut ask = || {
            asked += 1;
            if asked < 3 { Err("cut".to_owned()) } else { Ok(asked) }
        };
        assert_eq!(repeated(&mut ask, || true), Ok(3));
        let gone: Result<(), _> = repeated(|| Err("gone".to_owned()), || false);
        assert_eq!(gone, Err("gone".to_owned()));
    }
}
