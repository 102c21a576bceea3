//! A replica as its primary reports it in `INFO`: its state, and how far it is behind. Pure.

use std::fmt;
use std::time::Duration;

/// A replica acknowledges every second; one that was silent for this long does not keep up.
const LATE: Duration = Duration::from_secs(5);

/// A replica, as its primary sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReplicaStatus {
    place: String,
    state: String,
    behind: u64,
    acknowledged: Option<Duration>,
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
            acknowledged: field("lag").and_then(|lag| lag.parse().ok()).map(Duration::from_secs),
        })
    }

    /// Returns true if it does not keep up: its last acknowledgement is old, or it is still being
    /// filled.
    pub(super) fn is_late(&self) -> bool {
        self.state != "online" || self.acknowledged.is_none_or(|acknowledged| acknowledged > LATE)
    }
}

impl fmt::Display for ReplicaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, state, behind, acknowledged } = self;
        write!(f, "{place} {state}, {behind} bytes behind")?;
        match acknowledged {
            Some(acknowledged) => write!(f, ", heard {}s ago", acknowledged.as_secs()),
            None => Ok(()),
        }
    }
}
