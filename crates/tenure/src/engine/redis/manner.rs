//! How scripts are called: which of them, and with which options. Knows settings, not connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::scripts::{self, Scripts};
#[cfg(feature = "conformance")]
use crate::time::Clock;

/// How scripts are called.
#[derive(Debug)]
pub(super) struct Manner {
    /// For how long nobody comes in after a loss of memory.
    grace: Duration,
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
            flags: AtomicBool::new(false),
            #[cfg(feature = "conformance")]
            clock: None,
            #[cfg(feature = "conformance")]
            activity: std::sync::atomic::AtomicU64::new(0),
        }
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
        let options = match self.grace.as_micros() {
            0 if short => String::new(),
            0 => ".".to_owned(),
            grace => format!(".{grace} 0"),
        };
        #[cfg(feature = "conformance")]
        if let Some(clock) = &self.clock {
            let space = if options.len() < 2 { "" } else { " " };
            return format!("{options}{space}{:016}", clock.wall_micros());
        }
        options
    }
}
