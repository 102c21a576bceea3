//! The rule of rates: what was taken, a request and the time -> the earliest instant for it.
//!
//! A limit of L permits in a window of W has a log of entries (instant, cost), whose instants never
//! decrease. An entry counts at the instant t while t < instant + W. So the permits of every
//! window, however placed, are those that count at the instant of the last entry in it, and the
//! rule is: *no entry is added at an instant at which it and those that count exceed L.*
//!
//! A request is granted at the earliest instant t, not before now and not before the last entry, at
//! which every limit has room. What counts only becomes less with time, so t is the latest of the
//! instants at which each limit alone has room. Requests are granted in the order in which they
//! come: none is granted before an instant that was promised to another. If t is further ahead than
//! the caller waits, nothing is written.
//!
//! From [`limits::RATE_ENTRIES`] entries on, a request within a grain (W / 1024) of the first one
//! in the newest entry is added to that entry, whose instant becomes the later one. Permits then
//! count up to a grain longer than they have to, never shorter, and a log has at most about 2,050
//! entries. Requests of one instant always share an entry, so that the instants of entries are
//! distinct.
//!
//! The newest entry is in the [`LogHead`]; [`OlderEntries`] are where the engine keeps them. The
//! time of a log never goes back: where the clock does, it stands still until the clock has caught
//! up.
//!
//! An even flow ([`RatePace`], GCRA) is one number: until when the flow is busy with what was
//! taken.

use std::collections::VecDeque;
use std::time::Duration;

use crate::contract::{
    RateLevel, RateLevels, RateLimit, RatePace, RateShape, Settle, Settled, Take, TakeReply,
    TakeVerdict,
};
use crate::limits;

/// An entry of a log: its instant in microseconds, and how many permits.
pub(crate) type RateEntry = (u64, u64);

/// The head of the log of one limit. Empty if `count` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogHead {
    /// The permits of all entries.
    pub(crate) used: u64,
    /// How many entries there are, the newest included.
    pub(crate) count: u64,
    /// The latest present instant at which something was taken.
    pub(crate) seen: u64,
    /// The instant of the first entry since the log was empty or reset.
    pub(crate) born: u64,
    /// The newest entry: the instant of the first request in it, its instant, its permits.
    pub(crate) first: u64,
    pub(crate) at: u64,
    pub(crate) cost: u64,
}

/// The entries of a log before the newest one, oldest first.
pub(crate) trait OlderEntries {
    /// Calls `each` for the entries, oldest first, while it returns true.
    fn visit(&self, each: &mut dyn FnMut(RateEntry) -> bool);

    /// Removes the oldest entries, up to and including this instant.
    fn remove_until(&mut self, at: u64);

    /// Adds an entry that is younger than all.
    fn push(&mut self, entry: RateEntry);

    /// Changes the permits of the entry with this instant.
    fn set(&mut self, entry: RateEntry);
}

impl OlderEntries for VecDeque<RateEntry> {
    fn visit(&self, each: &mut dyn FnMut(RateEntry) -> bool) {
        let _ = self.iter().all(|entry| each(*entry));
    }

    fn remove_until(&mut self, at: u64) {
        while self.front().is_some_and(|entry| entry.0 <= at) {
            self.pop_front();
        }
    }

    fn push(&mut self, entry: RateEntry) {
        self.push_back(entry);
    }

    fn set(&mut self, entry: RateEntry) {
        if let Ok(place) = self.binary_search_by_key(&entry.0, |entry| entry.0) {
            self[place] = entry;
        }
    }
}

/// The log of one limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct RateLog<E> {
    pub(crate) head: LogHead,
    pub(crate) older: E,
}

/// Everything that is kept of a rate.
#[derive(Clone, Debug)]
pub(crate) enum RateState<E> {
    /// The windows in microseconds, and a log for each.
    Windows(Vec<u64>, Vec<RateLog<E>>),
    /// Until when the flow is busy, and the latest present instant at which something was taken.
    Pace { busy_until: u64, seen: u64 },
}

impl<E> RateState<E> {
    /// A state in which nothing counts, to stand where another one was taken out.
    pub(crate) const EMPTY: Self = Self::Pace { busy_until: 0, seen: 0 };
}

impl<E: OlderEntries> RateState<E> {
    /// Takes permits of a rate that has this state, or none yet. Returns the reply and whether the
    /// state was changed. `empty` makes the entries of a new log, by the number of its limit.
    pub(crate) fn take(
        state: &mut Option<Self>,
        take: &Take,
        now: u64,
        empty: impl FnMut(usize) -> E,
    ) -> (TakeVerdict, bool) {
        if state.as_ref().is_some_and(|state| state.is_past(now)) {
            *state = None;
        }
        if let Some(other) = state.as_ref().and_then(|state| state.other_windows(&take.shape)) {
            return (other, false);
        }
        let (state, is_new) = match state {
            Some(state) => (state, false),
            None => (state.insert(Self::new(&take.shape, empty)), true),
        };
        let reply = match (state, &take.shape) {
            (Self::Windows(_, logs), RateShape::Windows(limits)) => {
                take_windows(limits, logs, take, now)
            }
            (Self::Pace { busy_until, seen }, RateShape::Pace(pace)) => {
                take_pace(pace, (busy_until, seen), take, now)
            }
            _ => unreachable!("another shape was refused before"),
        };
        debug_assert!(!is_new || take.probe || reply.taken, "an empty rate has room");
        let taken = reply.taken;
        (TakeVerdict::Told(reply), taken)
    }

    /// Corrects what was taken. Returns the reply; the state is changed if it is `Counted`.
    pub(crate) fn settle(&mut self, settle: &Settle, now: u64) -> Settled {
        match (self, &settle.shape) {
            (Self::Windows(windows, logs), RateShape::Windows(limits))
                if *windows == settle.shape.windows() =>
            {
                let mut settled = Settled::Past;
                for (limit, log) in limits.iter().zip(logs) {
                    if log.settle(limit.window_micros(), settle, now) {
                        settled = Settled::Counted;
                    }
                }
                settled
            }
            (Self::Pace { busy_until, seen }, RateShape::Pace(pace)) => {
                settle_pace(pace, busy_until, settle, now.max(*seen))
            }
            _ => Settled::Past,
        }
    }

    /// Whether nothing counts any more: the state may be forgotten.
    pub(crate) fn is_past(&self, now: u64) -> bool {
        self.ends() <= now
    }

    /// From when on nothing counts any more.
    pub(crate) fn ends(&self) -> u64 {
        match self {
            Self::Windows(windows, logs) => {
                let ends = windows.iter().zip(logs).map(|(window, log)| log.head.at + window);
                ends.max().unwrap_or(0)
            }
            Self::Pace { busy_until, .. } => *busy_until,
        }
    }

    fn new(shape: &RateShape, mut empty: impl FnMut(usize) -> E) -> Self {
        match shape {
            RateShape::Windows(limits) => {
                let log = |nth| RateLog { head: LogHead::default(), older: empty(nth) };
                Self::Windows(shape.windows(), (0..limits.len()).map(log).collect())
            }
            RateShape::Pace(_) => Self::Pace { busy_until: 0, seen: 0 },
        }
    }

    /// The reply to a request that states other windows than those in use.
    fn other_windows(&self, shape: &RateShape) -> Option<TakeVerdict> {
        let in_use: &[u64] = match self {
            Self::Windows(windows, _) => windows,
            Self::Pace { .. } => &[],
        };
        let stated: &[RateLimit] = match shape {
            RateShape::Windows(limits) => limits,
            RateShape::Pace(_) => &[],
        };
        let same = in_use.iter().copied().eq(stated.iter().map(RateLimit::window_micros));
        let windows = || in_use.iter().map(|micros| Duration::from_micros(*micros)).collect();
        (!same).then(|| TakeVerdict::OtherWindows(windows()))
    }
}

impl<E: OlderEntries> RateLog<E> {
    /// Calls `each` for all entries, oldest first, while it returns true.
    fn visit(&self, each: &mut dyn FnMut(RateEntry) -> bool) {
        let mut go_on = true;
        self.older.visit(&mut |entry| {
            go_on = each(entry);
            go_on
        });
        if go_on && self.head.count > 0 {
            each((self.head.at, self.head.cost));
        }
    }

    /// The earliest instant from `from` on at which so many permits fit, and what counts at `from`.
    fn earliest(&self, limit: &RateLimit, cost: u64, from: u64) -> (u64, u64) {
        let (window, mut used) = (limit.window_micros(), self.head.used);
        let (mut at, mut used_now) = (from, used);
        self.visit(&mut |(entry, permits)| {
            let ends = entry + window;
            if ends <= from {
                used_now -= permits;
            } else if used.saturating_add(cost) <= limit.permits {
                return false;
            } else {
                at = ends;
            }
            used -= permits;
            true
        });
        (at, used_now)
    }

    /// Adds an entry at `at`, when the present instant is `now`.
    fn add(&mut self, window: u64, at: u64, cost: u64, now: u64) {
        self.drop_past(window, at);
        let head = &mut self.head;
        let grain = window / limits::RATE_ENTRIES;
        let merges = head.count > 0
            && (at == head.at || (head.count >= limits::RATE_ENTRIES && at - head.first <= grain));
        if merges {
            (head.at, head.cost) = (at, head.cost + cost);
        } else {
            if head.count > 0 {
                self.older.push((head.at, head.cost));
            } else {
                head.born = at;
            }
            (head.first, head.at, head.cost) = (at, at, cost);
            head.count += 1;
        }
        head.used += cost;
        head.seen = now;
    }

    /// Removes what does not count at an instant. No entry is added before that instant any more.
    fn drop_past(&mut self, window: u64, at: u64) {
        let (mut last, mut count, mut used) = (None, 0, 0);
        self.visit(&mut |(entry, permits)| {
            let past = entry + window <= at;
            if past {
                (last, count, used) = (Some(entry), count + 1, used + permits);
            }
            past
        });
        if let Some(last) = last {
            self.older.remove_until(last);
            self.head.count -= count;
            self.head.used -= used;
        }
    }

    fn settle(&mut self, window: u64, settle: &Settle, now: u64) -> bool {
        let Self { head, older } = self;
        let (stamp, now) = (settle.stamp, now.max(head.seen));
        if head.count == 0 || stamp < head.born || stamp > head.at || stamp + window <= now {
            return false;
        }
        let mut found = None;
        older.visit(&mut |entry| {
            found = Some(entry).filter(|entry| entry.0 >= stamp);
            found.is_none()
        });
        let permits = found.map_or(head.cost, |entry| entry.1);
        let changed = settled(permits, settle);
        head.used = head.used - permits + changed;
        match found {
            Some((at, _)) => older.set((at, changed)),
            None => head.cost = changed,
        }
        true
    }
}

/// The permits of an entry after a correction.
fn settled(permits: u64, settle: &Settle) -> u64 {
    let (taken, actual) = (settle.taken, settle.actual);
    permits.saturating_sub(taken.saturating_sub(actual)) + actual.saturating_sub(taken)
}

fn take_windows<E: OlderEntries>(
    limits: &[RateLimit],
    logs: &mut [RateLog<E>],
    take: &Take,
    now: u64,
) -> TakeReply {
    let now = logs.iter().map(|log| log.head.seen).fold(now, u64::max);
    let from = logs.iter().map(|log| log.head.at).fold(now, u64::max);
    let mut reply = TakeReply {
        taken: false,
        wait: Duration::ZERO,
        limit: 0,
        stamp: from,
        levels: RateLevels::default(),
    };
    for (nth, (limit, log)) in limits.iter().zip(&*logs).enumerate() {
        let (at, used) = log.earliest(limit, take.cost, from);
        if at > reply.stamp {
            (reply.stamp, reply.limit) = (at, nth);
        }
        let ends = if log.head.count == 0 { 0 } else { log.head.at + limit.window_micros() };
        let clear_after = Duration::from_micros(ends.saturating_sub(now));
        reply.levels.push(RateLevel { used, clear_after });
    }
    reply.wait = Duration::from_micros(reply.stamp - now);
    if take.probe || reply.wait > take.wait {
        return reply;
    }
    reply.taken = true;
    reply.levels = RateLevels::default();
    for (limit, log) in limits.iter().zip(logs) {
        let window = limit.window_micros();
        log.add(window, reply.stamp, take.cost, now);
        let clear_after = Duration::from_micros(log.head.at + window - now);
        reply.levels.push(RateLevel { used: log.head.used, clear_after });
    }
    reply
}

fn take_pace(
    pace: &RatePace,
    (busy_until, seen): (&mut u64, &mut u64),
    take: &Take,
    now: u64,
) -> TakeReply {
    let now = now.max(*seen);
    let cost = pace.micros_for(take.cost);
    let at = now.max((*busy_until + cost).saturating_sub(pace.burst_micros()));
    let wait = Duration::from_micros(at - now);
    let taken = !take.probe && wait <= take.wait;
    if taken {
        (*busy_until, *seen) = (at.max(*busy_until) + cost, now);
    }
    let busy = Duration::from_micros(busy_until.saturating_sub(now));
    let levels = RateShape::pace_level(pace, busy).into();
    TakeReply { taken, wait, limit: 0, stamp: *busy_until, levels }
}

/// What was taken keeps the flow busy up to its stamp. Of that, what is still to come can be given
/// back: the rest has let others in already.
fn settle_pace(pace: &RatePace, busy_until: &mut u64, settle: &Settle, now: u64) -> Settled {
    if settle.stamp <= now || settle.stamp > *busy_until {
        return Settled::Past;
    }
    let (taken, actual) = (pace.micros_for(settle.taken), pace.micros_for(settle.actual));
    let back = taken.saturating_sub(actual).min(settle.stamp - now);
    *busy_until = *busy_until - back + actual.saturating_sub(taken);
    Settled::Counted
}

#[cfg(test)]
#[path = "tests/rates.rs"]
mod tests;
