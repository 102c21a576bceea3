//! How long before the end of a lease a command is asked to stop, and killed. Pure arithmetic.

use std::time::Duration;

/// When to stop a command whose lock cannot be renewed, as time left of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Margins {
    /// Ask it to stop when this much is left.
    pub(super) ask: Duration,
    /// Kill it when this much is left.
    pub(super) kill: Duration,
}

impl Margins {
    /// A lease is renewed when a third of it has passed, so a healthy one never has less than two
    /// thirds left. A third is as early as we may ask; killing needs time too.
    pub(super) fn new(lease: Duration, kill_after: Duration) -> Self {
        let kill = (lease / 20).clamp(Duration::from_millis(20), Duration::from_millis(250));
        let ask = (kill_after + kill).min(lease / 3).max(kill);
        Self { ask, kill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_lease_leaves_the_whole_grace_and_a_short_one_a_third() {
        let seconds = Duration::from_secs;
        let long = Margins::new(seconds(30), seconds(5));
        assert_eq!(long.ask, Duration::from_millis(5_250));
        let short = Margins::new(seconds(3), seconds(5));
        assert_eq!(short, Margins { ask: seconds(1), kill: Duration::from_millis(150) });
        let shortest = Margins::new(Duration::from_millis(100), seconds(5));
        assert!(shortest.ask < Duration::from_millis(34) && shortest.kill <= shortest.ask);
    }
}
