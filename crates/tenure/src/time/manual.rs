//! A clock that stands still until a test moves it. Knows who waits for it, not why.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Alarm, Clock, Tick};
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A clock for tests: time passes only by [`advance`](Self::advance).
///
/// Advancing goes from alarm to alarm and lets every waiting thread finish its work at each of
/// them, so that a second of renewals happens in its order, in microseconds, without a sleep.
#[derive(Clone, Debug)]
pub struct ManualClock {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    now: Tick,
    wall_micros: u64,
    alarms: Vec<(u64, AlarmState)>,
    next_alarm: u64,
}

#[derive(Debug)]
struct AlarmState {
    at: Tick,
    rung: bool,
    waiting: bool,
}

impl ManualClock {
    /// A clock one hour after its origin, on 14 November 2023.
    #[must_use]
    pub fn new() -> Self {
        let state = State {
            now: Tick::from_nanos(3_600_000_000_000),
            wall_micros: 1_700_000_000_000_000,
            alarms: Vec::new(),
            next_alarm: 0,
        };
        Self { inner: Arc::new(Inner { state: Mutex::new(state), changed: Condvar::new() }) }
    }

    /// Lets `by` pass, stopping at every alarm on the way until the woken threads wait again.
    pub fn advance(&self, by: Duration) {
        self.advance_with(by, || {});
    }

    /// The same, where answers come from elsewhere: `quiet` returns when none is under way.
    pub fn advance_with(&self, by: Duration, quiet: impl Fn()) {
        self.settle();
        let mut state = self.inner.lock();
        let end = state.now + by;
        loop {
            let next = state.alarms.iter().map(|(_, alarm)| alarm.at).min().unwrap_or(Tick::NEVER);
            let stop = next.max(state.now).min(end);
            state.pass(stop);
            self.inner.changed.notify_all();
            drop(self.inner.settled(state));
            quiet();
            state = self.inner.settled(self.inner.lock());
            let due = state.alarms.iter().any(|(_, alarm)| alarm.at <= end);
            if state.now == end && !due {
                return;
            }
        }
    }

    /// Lets `by` pass at once, as a suspended machine would see it: nothing runs in between.
    pub fn jump(&self, by: Duration) {
        let mut state = self.inner.lock();
        let stop = state.now + by;
        state.pass(stop);
        self.inner.changed.notify_all();
    }

    /// Waits until every thread that waits on this clock has nothing to do.
    pub fn settle(&self) {
        let state = self.inner.lock();
        drop(self.inner.settled(state));
    }

    /// Steps the wall clock without any time passing, as an administrator or NTP would.
    pub fn set_wall_micros(&self, micros: u64) {
        self.inner.lock().wall_micros = micros;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Tick {
        self.inner.lock().now
    }

    fn wall_micros(&self) -> u64 {
        self.inner.lock().wall_micros
    }

    fn alarm(&self) -> Arc<dyn Alarm> {
        let mut state = self.inner.lock();
        let id = state.next_alarm;
        state.next_alarm += 1;
        let alarm = AlarmState { at: Tick::NEVER, rung: false, waiting: false };
        state.alarms.push((id, alarm));
        Arc::new(ManualAlarm { id, inner: Arc::downgrade(&self.inner) })
    }
}

impl State {
    fn pass(&mut self, to: Tick) {
        let micros = to.since(self.now).as_micros();
        self.wall_micros = self.wall_micros.saturating_add(u64::try_from(micros).unwrap_or(0));
        self.now = to;
    }

    fn idle(&self) -> bool {
        let idle = |alarm: &AlarmState| alarm.waiting && !alarm.rung && alarm.at > self.now;
        self.alarms.iter().all(|(_, alarm)| idle(alarm))
    }

    fn alarm(&mut self, id: u64) -> Option<&mut AlarmState> {
        self.alarms.iter_mut().find(|(other, _)| *other == id).map(|(_, alarm)| alarm)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settled<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while !state.idle() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }
}

#[derive(Debug)]
struct ManualAlarm {
    id: u64,
    /// Weak: a thread that still waits must not keep the clock of a finished test.
    inner: Weak<Inner>,
}

impl ManualAlarm {
    fn change(&self, change: impl FnOnce(&mut AlarmState)) {
        let Some(inner) = self.inner.upgrade() else { return };
        if let Some(alarm) = inner.lock().alarm(self.id) {
            change(alarm);
        }
        inner.changed.notify_all();
    }
}

impl Alarm for ManualAlarm {
    fn set(&self, at: Tick) {
        self.change(|alarm| alarm.at = at);
    }

    fn ring(&self) {
        self.change(|alarm| alarm.rung = true);
    }

    fn wait(&self) {
        let Some(inner) = self.inner.upgrade() else { return };
        let mut state = inner.lock();
        loop {
            let now = state.now;
            let Some(alarm) = state.alarm(self.id) else { return };
            if alarm.rung || alarm.at <= now {
                alarm.rung = false;
                alarm.waiting = false;
                if alarm.at <= now {
                    alarm.at = Tick::NEVER;
                }
                return;
            }
            if !alarm.waiting {
                // Notified once: otherwise two threads that wait on this clock would wake each
                // other for ever.
                alarm.waiting = true;
                inner.changed.notify_all();
            }
            state = inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ManualAlarm {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else { return };
        inner.lock().alarms.retain(|(id, _)| *id != self.id);
        inner.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn advancing_stops_at_every_alarm_on_the_way() {
        let clock = ManualClock::new();
        let start = clock.now();
        let alarm = clock.alarm();
        let seen = Arc::new(AtomicU64::new(0));
        alarm.set(start + Duration::from_secs(1));
        let worker = thread::spawn({
            let (clock, alarm, seen) = (clock.clone(), Arc::clone(&alarm), Arc::clone(&seen));
            move || {
                for round in 1..=3 {
                    alarm.wait();
                    assert_eq!(clock.now(), start + Duration::from_secs(round));
                    seen.fetch_add(1, Ordering::SeqCst);
                    alarm.set(start + Duration::from_secs(round + 1));
                }
                alarm.wait();
            }
        });
        clock.advance(Duration::from_millis(3_500));
        assert_eq!(seen.load(Ordering::SeqCst), 3);
        alarm.ring();
        worker.join().unwrap();
    }
}
