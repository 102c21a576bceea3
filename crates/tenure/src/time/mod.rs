//! The one room that reads a clock. Knows instants and alarms, not locks.
//!
//! Leases are counted on a clock that goes on while the machine is suspended (`CLOCK_BOOTTIME` on
//! Linux): a laptop that slept through its lease must find out when it wakes, not later. Tests hand
//! in a `ManualClock` and own the time.

#[cfg(any(test, feature = "test-util"))]
mod manual;
mod system;

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(test, feature = "test-util"))]
pub use manual::ManualClock;
pub use system::SystemClock;
#[cfg(all(feature = "embedded", target_os = "linux", target_env = "gnu"))]
pub(crate) use system::steady_deadline;

/// An instant on a [`Clock`], in nanoseconds since an origin that only the clock knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tick(u64);

impl Tick {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);
    /// An instant that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this instant is; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Tick {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Tick {
    type Output = Self;

    fn sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(earlier.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// How long to wait before the next attempt after so many that failed: 40 ms, doubled each time up
/// to [`limits::BACK_OFF`](crate::limits::BACK_OFF), times something between 0.5 and 1.5 that
/// `noise` decides, so that many clients do not come back at one instant.
pub(crate) fn back_off(failures: u32, noise: u8) -> Duration {
    let step = Duration::from_millis(20 << failures.clamp(1, 16)).min(crate::limits::BACK_OFF);
    step * (128 + u32::from(noise)) / 256
}

/// Where time comes from.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The current instant. Goes on while the machine is suspended; never goes back.
    fn now(&self) -> Tick;

    /// The wall clock, in microseconds since 1970. May be stepped; used for fences and for people.
    fn wall_micros(&self) -> u64;

    /// A new alarm, for one thread that waits on it.
    fn alarm(&self) -> Arc<dyn Alarm>;
}

/// Wakes the one thread that waits on it: at an instant, or when it is rung.
pub trait Alarm: fmt::Debug + Send + Sync {
    /// Asks to be woken at `at`, or earlier. Replaces an earlier setting. Any thread may call it.
    fn set(&self, at: Tick);

    /// Wakes the waiting thread now, or makes its next wait return at once.
    fn ring(&self);

    /// Blocks until the set instant has come or it was rung. May return early for no reason.
    fn wait(&self);
}
