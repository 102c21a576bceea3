//! Values of arguments: durations and signals. Knows text.

use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;

/// A duration such as `500ms`, `30s`, `5m`; a bare number is seconds, as in `flock`, `timeout` and
/// `sleep`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds)
            .map_err(|_| format!("{text} is no number of seconds"));
    }
    humantime::parse_duration(text)
        .map_err(|why| format!("{why}; write it as 500ms, 30s, 5m or 2h"))
}

/// A signal by its name, with or without `SIG`, or by its number.
pub(super) fn signal(text: &str) -> Result<Signal, String> {
    let number = text.parse::<i32>().ok().and_then(|number| Signal::try_from(number).ok());
    let upper = text.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    number
        .or_else(|| Signal::from_str(&full).ok())
        .ok_or_else(|| "no such signal; use a name such as TERM, INT or USR1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_a_bare_number_is_seconds() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("2m", 120_000), ("5", 5_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "-1", "soon", "5 parsecs", "nan", "inf"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "SIGTERM", "sigterm", "15"] {
            assert_eq!(signal(text), Ok(Signal::SIGTERM), "{text}");
        }
        for text in ["", "SIG", "0", "99", "TERMINATE"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }
}
