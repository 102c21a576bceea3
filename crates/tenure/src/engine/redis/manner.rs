//! How scripts are called: which of them, and with which options. Knows settings, not connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::scripts::{self, Scripts};
#[cfg(feature = "conformance")]
use crate::time::Clock;

/// How much longer than anybody needs it the top of a name is kept in a cluster: it is what keeps
/// its fences growing through corrections of the clock.
const LINGER: Duration = Duration::from_secs(60 * 60);

/// How scripts are called.
#[derive(Debug)]
pub(super) struct Manner {
    /// For how long nobody comes in after a loss of memory.
    grace: Duration,
    /// For how long a top is kept after its last change: for ever, except in a cluster.
    linger: Option<Duration>,
    /// The store knows flags of scripts (Redis 7).
    flags: AtomicBool,
    /// The clock of the suite, where it plays.
    #[cfg(feature = "conformance")]
    clock: Option<std::sync::Arc<dyn Clock>>,
    /// How many calls were made and pushes heard.
    #[cfg(feature = "conformance")]
    pub(super) activity: std::sync::atomic::AtomicU64,
}

impl Manner {
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            grace,
            linger: None,
            flags: AtomicBool::new(false),
            #[cfg(feature = "conformance")]
            clock: None,
            #[cfg(feature = "conformance")]
            activity: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// As in a cluster, where every name has a top of its own.
    pub(super) fn in_cluster(max_lease: Duration) -> Self {
        // A top also says until when tombstones stand: a lease. Servers before 7 are refused.
        let linger = Some(LINGER + max_lease);
        Self { linger, flags: AtomicBool::new(true), ..Self::new(Duration::ZERO) }
    }

    /// On a clock that is not the store's.
    #[cfg(feature = "conformance")]
    pub(super) fn with_clock(mut self, clock: std::sync::Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The scripts to call.
    pub(super) fn scripts(&self) -> &'static Scripts {
        #[cfg(feature = "conformance")]
        if self.clock.is_some() {
            return scripts::on_given_clock();
        }
        scripts::on_store_clock(self.flags.load(Ordering::Relaxed))
    }

    /// Something was sent or heard.
    #[cfg_attr(not(feature = "conformance"), allow(clippy::unused_self, reason = "counts there"))]
    pub(super) fn active(&self) {
        #[cfg(feature = "conformance")]
        self.activity.fetch_add(1, Ordering::SeqCst);
    }

    /// The store told its version: from 7 on it knows flags.
    pub(super) fn version_is(&self, major: u32) {
        self.flags.store(major >= 7, Ordering::Relaxed);
    }

    /// The first argument of every script: see `lua/head.lua`. The short way is for calls that need
    /// none of what it says.
    pub(super) fn options(&self, short: bool) -> String {
        let options = match (self.grace.as_micros(), self.linger) {
            (0, None) if short => String::new(),
            (0, None) => ".".to_owned(),
            (grace, linger) => {
                format!(".{grace} {}", linger.map_or(0, |linger| linger.as_millis()))
            }
        };
        #[cfg(feature = "conformance")]
        if let Some(clock) = &self.clock {
            let space = if options.len() < 2 { "" } else { " " };
            return format!("{options}{space}{:016}", clock.wall_micros());
        }
        options
    }
}
