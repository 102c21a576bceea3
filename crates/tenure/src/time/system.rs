//! The machine's own clocks. Knows system calls, not locks.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Alarm, Clock, Tick};

/// The clock of the machine: `CLOCK_BOOTTIME` where there is one.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Tick {
        let time = rustix::time::clock_gettime(CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Tick::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    fn wall_micros(&self) -> u64 {
        // A wall clock before 1970 is broken; fences then rest on the last one alone.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
    }

    fn alarm(&self) -> Arc<dyn Alarm> {
        alarm::new()
    }
}

/// The instant `limit` from now on the clock that system calls wait on, counted from its origin.
#[cfg(all(feature = "embedded", target_env = "gnu"))]
pub(crate) fn steady_deadline(limit: std::time::Duration) -> std::time::Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    std::time::Duration::try_from(now).unwrap_or_default() + limit
}

#[cfg(target_os = "linux")]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
// Elsewhere the monotonic clock is the best there is (on macOS it goes on during sleep).
#[cfg(not(target_os = "linux"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// A timer on the boot-time clock fires at once after a suspend that outlasted it. A condition
/// variable would sleep on for as long as it had left.
#[cfg(target_os = "linux")]
mod alarm {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Arc;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use super::super::{Alarm, Tick};

    pub(super) fn new() -> Arc<dyn Alarm> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        match (timer, bell) {
            (Ok(timer), Ok(bell)) => Arc::new(BootAlarm { timer, bell }),
            // Out of descriptors: poll in short steps rather than fail to keep any lock at all.
            _ => super::stepping::new(),
        }
    }

    #[derive(Debug)]
    struct BootAlarm {
        timer: OwnedFd,
        bell: OwnedFd,
    }

    impl Alarm for BootAlarm {
        fn set(&self, at: Tick) {
            let value = match at {
                // Zero disarms; an instant in the past must still fire, so it is at least 1 ns.
                Tick::NEVER => Timespec { tv_sec: 0, tv_nsec: 0 },
                at => timespec(at.as_nanos().max(1)),
            };
            let once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: once, it_value: value };
            let set = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec);
            debug_assert!(set.is_ok(), "timerfd_settime: {set:?}");
        }

        fn ring(&self) {
            // Fails only if the counter is full, and then the bell is ringing already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }

        fn wait(&self) {
            let mut fds = [
                PollFd::from_borrowed_fd(self.timer.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
            ];
            // An interrupted poll returns early, which the contract allows.
            let _ = poll(&mut fds, None);
            let mut count = [0_u8; 8];
            let _ = rustix::io::read(&self.timer, &mut count);
            let _ = rustix::io::read(&self.bell, &mut count);
        }
    }

    fn timespec(nanos: u64) -> Timespec {
        Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (nanos % 1_000_000_000).try_into().unwrap_or(0),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod alarm {
    pub(super) use super::stepping::new;
}

/// Waits in short steps, so that a suspend is noticed soon after the machine wakes.
mod stepping {
    use std::sync::{Arc, Condvar, Mutex, PoisonError};
    use std::time::Duration;

    use super::super::{Alarm, Clock, Tick};
    use super::SystemClock;

    const STEP: Duration = Duration::from_millis(250);

    pub(super) fn new() -> Arc<dyn Alarm> {
        Arc::new(SteppingAlarm { state: Mutex::new((Tick::NEVER, false)), changed: Condvar::new() })
    }

    #[derive(Debug)]
    struct SteppingAlarm {
        state: Mutex<(Tick, bool)>,
        changed: Condvar,
    }

    impl Alarm for SteppingAlarm {
        fn set(&self, at: Tick) {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = at;
            self.changed.notify_one();
        }

        fn ring(&self) {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
            self.changed.notify_one();
        }

        fn wait(&self) {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let now = SystemClock.now();
                if state.1 || state.0 <= now {
                    state.1 = false;
                    return;
                }
                let step = state.0.since(now).min(STEP);
                let waited = self.changed.wait_timeout(state, step);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn it_wakes_at_its_instant_and_when_rung() {
            let alarm = new();
            alarm.set(SystemClock.now() + Duration::from_millis(5));
            alarm.wait();
            alarm.set(Tick::NEVER);
            alarm.ring();
            alarm.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_alarm_wakes_at_its_instant_even_if_that_is_past() {
        let alarm = SystemClock.alarm();
        let at = SystemClock.now() + Duration::from_millis(5);
        alarm.set(at);
        while SystemClock.now() < at {
            alarm.wait();
        }
        alarm.set(Tick::from_nanos(0));
        alarm.wait();
    }

    #[test]
    fn a_ring_before_the_wait_is_not_lost() {
        let alarm = SystemClock.alarm();
        alarm.set(Tick::NEVER);
        alarm.ring();
        alarm.wait();
    }

    #[test]
    fn the_clock_counts_suspended_time_too() {
        // Both readings bracket ours: it is the boot-time clock, not the monotonic one.
        let before = rustix::time::clock_gettime(CLOCK).tv_sec;
        let now = SystemClock.now().as_nanos() / 1_000_000_000;
        let after = rustix::time::clock_gettime(CLOCK).tv_sec;
        let now = i64::try_from(now).unwrap();
        assert!((before..=after).contains(&now));
    }
}
