//! What a sentinel reports about a primary: its address, and the details of `SENTINEL MASTER` where
//! the access list allows that command.

use std::time::Duration;

use redis::Value;

use super::super::resp::info_text;
use super::vote::HostPort;

/// The report of one sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct SentinelReport {
    /// The host and port of the sentinel.
    pub(in crate::engine) sentinel: String,
    /// The status, or why there is none.
    pub(in crate::engine) status: Result<PrimaryStatus, String>,
}

/// A primary, as one sentinel sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct PrimaryStatus {
    pub(in crate::engine) primary: HostPort,
    /// None if `SENTINEL MASTER` was refused.
    pub(in crate::engine) details: Option<PrimaryDetails>,
}

/// The reply to `SENTINEL MASTER`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct PrimaryDetails {
    pub(in crate::engine) flags: String,
    /// The epoch of the sentinel's configuration: the number of the latest fail-over it knows.
    pub(in crate::engine) epoch: Option<u64>,
    pub(in crate::engine) quorum: u64,
    pub(in crate::engine) other_sentinels: u64,
    pub(in crate::engine) replicas: u64,
    pub(in crate::engine) down_after: Duration,
}

impl PrimaryStatus {
    /// From the address that a sentinel names, and its reply to `SENTINEL MASTER`, which may be an
    /// error.
    pub(in crate::engine) fn new(primary: HostPort, reply: Option<&Value>) -> Self {
        Self { primary, details: reply.and_then(PrimaryDetails::read) }
    }

    /// Returns the epoch of the sentinel's configuration.
    pub(in crate::engine) fn epoch(&self) -> Option<u64> {
        self.details.as_ref()?.epoch
    }
}

impl PrimaryDetails {
    fn read(reply: &Value) -> Option<Self> {
        let Value::Map(pairs) = reply else { return None };
        let field = |name: &str| {
            let pair = pairs.iter().find(|(key, _)| info_text(key) == Some(name))?;
            info_text(&pair.1)
        };
        let number = |name: &str| field(name)?.parse::<u64>().ok();
        Some(Self {
            flags: field("flags")?.escape_debug().to_string(),
            epoch: number("config-epoch"),
            quorum: number("quorum")?,
            other_sentinels: number("num-other-sentinels")?,
            replicas: number("num-slaves")?,
            down_after: Duration::from_millis(number("down-after-milliseconds")?),
        })
    }
}
