//! The arguments of `tenure rate`: how much may be done in how much time.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::values::duration;

/// `tenure rate`.
#[derive(Args, Debug)]
pub(crate) struct RateArgs {
    /// The rate
    pub(crate) name: String,
    /// At most so many permits in every window of this length; may be given several times
    #[arg(long, value_name = "N/DUR", value_parser = limit, required_unless_present = "reset")]
    pub(crate) limit: Vec<(u64, Duration)>,
    /// How many permits to take
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) cost: u64,
    /// Wait so long at most until they are available [default: do not wait]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Take nothing: only say how many permits are left
    #[arg(long, conflicts_with_all = ["wait", "command"])]
    pub(crate) peek: bool,
    /// Forget everything that was taken
    #[arg(long, conflicts_with_all = ["wait", "command", "peek", "limit"])]
    pub(crate) reset: bool,
    /// The command to run once the permits are taken
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// A limit such as `100/1s` or `10000/1day`.
fn limit(text: &str) -> Result<(u64, Duration), String> {
    let unclear = || "write it as PERMITS/TIME, such as 100/1s or 10000/1day".to_owned();
    let (permits, window) = text.split_once('/').ok_or_else(unclear)?;
    let permits = permits.trim().parse().map_err(|_| unclear())?;
    let window = window.trim();
    // `100/s` is what most people write.
    let window = if window.starts_with(char::is_alphabetic) {
        duration(&format!("1{window}"))?
    } else {
        duration(window)?
    };
    Ok((permits, window))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_and_a_time() {
        let day = Duration::from_secs(86_400);
        for (text, permits, window) in [
            ("100/1s", 100, Duration::from_secs(1)),
            ("100/s", 100, Duration::from_secs(1)),
            ("10000/1day", 10_000, day),
            ("5/500ms", 5, Duration::from_millis(500)),
        ] {
            assert_eq!(limit(text), Ok((permits, window)), "{text}");
        }
        for text in ["", "100", "100/", "/1s", "-1/1s", "many/1s", "1/soon"] {
            assert!(limit(text).is_err(), "{text}");
        }
    }
}
