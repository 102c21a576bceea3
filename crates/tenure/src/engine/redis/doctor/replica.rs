//! A replica as its primary sees it: in which state, and how far behind. Pure: knows a line of
//! `INFO`, not what it means for locks.

use std::fmt;
use std::time::Duration;

/// A replica answers every second; one that was silent for this long does not keep up.
const LATE: Duration = Duration::from_secs(5);

/// A replica, as its primary sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReplicaStatus {
    place: String,
    state: String,
    behind: u64,
    heard: Option<Duration>,
}

impl ReplicaStatus {
    /// From `ip=..,port=..,state=..,offset=..,lag=..`.
    pub(super) fn read(line: &str, offset: u64) -> Option<Self> {
        let field = |name: &str| {
            let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.escape_debug().to_string())
        };
        let known: u64 = field("offset")?.parse().ok()?;
        Some(Self {
            place: format!("{}:{}", field("ip")?, field("port")?),
            state: field("state")?,
            behind: offset.saturating_sub(known),
            heard: field("lag").and_then(|lag| lag.parse().ok()).map(Duration::from_secs),
        })
    }

    /// Whether it does not keep up: it was not heard for long, or is still being filled.
    pub(super) fn is_late(&self) -> bool {
        self.state != "online" || self.heard.is_none_or(|heard| heard > LATE)
    }
}

impl fmt::Display for ReplicaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, state, behind, heard } = self;
        write!(f, "{place} {state}, {behind} bytes behind")?;
        match heard {
            Some(heard) => write!(f, ", heard {}s ago", heard.as_secs()),
            None => Ok(()),
        }
    }
}
