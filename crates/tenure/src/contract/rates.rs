//! Rates: how much may be taken in how much time. Data and limits; the rule over them is in
//! `ledger::rates`.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::Pending;
use super::error::{Error, ErrorKind, Verb};
use super::inspect::short;
use super::name::Name;
use crate::limits;

/// Exact rate limits in the store. Promised as [`Promises::rates`](super::Promises::rates).
///
/// Rates have a name space of their own: a rate and a lock of one name never meet.
pub trait Rates: Send + Sync {
    /// Takes permits at the earliest instant at which all limits allow it, if that is near enough.
    /// One atomic step. What is refused, and a probe, writes nothing.
    fn take<'a>(&'a self, take: &'a Take) -> Pending<'a, TakeVerdict>;

    /// As [`take`](Self::take), where the engine can answer without waiting for anything: then the
    /// request needs no future and no timeout. `take` has passed [`Take::check`]. `None` if nothing
    /// was done and the request is to be made by [`take`](Self::take).
    fn take_at_once(&self, _take: &Take) -> Option<TakeVerdict> {
        None
    }

    /// Corrects how much was taken. Does nothing if it is not counted any more.
    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Settled>;

    /// Forgets everything that was taken.
    fn reset<'a>(&'a self, name: &'a Name) -> Pending<'a, ()>;
}

/// One limit: in every window of this length, however placed, at most so many permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// How many permits.
    pub permits: u64,
    /// In how long a time. Counted in whole microseconds.
    pub window: Duration,
}

/// An even flow: one permit after the other, and so many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatePace {
    /// How many permits flow in `per`.
    pub permits: u64,
    /// In how long a time.
    pub per: Duration,
    /// How many may be taken at once.
    pub burst: u64,
}

/// What limits a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateShape {
    /// Limits that all hold, shortest window first.
    Windows(Arc<[RateLimit]>),
    /// An even flow (GCRA).
    Pace(RatePace),
}

/// A request for permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// Of which rate.
    pub name: Name,
    /// Its limits, as this caller states them.
    pub shape: RateShape,
    /// How many permits, all or none.
    pub cost: u64,
    /// How far ahead the instant may be.
    pub wait: Duration,
    /// Only says what the reply would be.
    pub probe: bool,
}

/// A correction of what was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// Of which rate.
    pub name: Name,
    /// Its limits, as this caller states them.
    pub shape: RateShape,
    /// The stamp of the reply by which permits were taken.
    pub stamp: u64,
    /// How many were taken.
    pub taken: u64,
    /// How many it should have been.
    pub actual: u64,
}

/// The reply to a [`Take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeVerdict {
    /// Taken, or not: when it was or would be possible.
    Told(TakeReply),
    /// The rate is in use with these windows, shortest first; none for an even flow.
    OtherWindows(Vec<Duration>),
}

/// When permits are available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeReply {
    /// Whether the permits were taken.
    pub taken: bool,
    /// How long from now on until they may be used; if they were not taken, until they fit.
    pub wait: Duration,
    /// Which limit is the last to allow it.
    pub limit: usize,
    /// What [`Settle`] names.
    pub stamp: u64,
    /// How far each limit is used, in their order.
    pub levels: RateLevels,
}

/// How far a limit is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLevel {
    /// How many permits count against it.
    pub used: u64,
    /// How long until none does, if no more are taken.
    pub clear_after: Duration,
}

/// How far each limit of a rate is used. One limit needs no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLevels(SmallVec<[RateLevel; 1]>);

/// The reply to a [`Settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The limits count the actual number.
    Counted,
    /// What was taken is in no window any more, or the rate was reset.
    Past,
}

impl RateLevels {
    /// Appends the level of the next limit.
    pub fn push(&mut self, level: RateLevel) {
        self.0.push(level);
    }
}

impl Deref for RateLevels {
    type Target = [RateLevel];

    fn deref(&self) -> &[RateLevel] {
        &self.0
    }
}

impl FromIterator<RateLevel> for RateLevels {
    fn from_iter<I: IntoIterator<Item = RateLevel>>(levels: I) -> Self {
        Self(levels.into_iter().collect())
    }
}

impl From<RateLevel> for RateLevels {
    fn from(level: RateLevel) -> Self {
        Self(SmallVec::from([level]))
    }
}

impl RateLimit {
    /// The window in microseconds.
    #[must_use]
    pub fn window_micros(&self) -> u64 {
        micros(self.window)
    }
}

impl RatePace {
    /// For how many microseconds so many permits keep the flow busy, rounded up.
    #[must_use]
    pub fn micros_for(&self, permits: u64) -> u64 {
        let micros = u128::from(permits) * u128::from(micros(self.per));
        u64::try_from(micros.div_ceil(u128::from(self.permits.max(1)))).unwrap_or(u64::MAX)
    }

    /// For how many microseconds a burst keeps the flow busy, rounded down: how far ahead of the
    /// even flow permits may be taken.
    #[must_use]
    pub fn burst_micros(&self) -> u64 {
        let micros = u128::from(self.burst) * u128::from(micros(self.per));
        u64::try_from(micros / u128::from(self.permits.max(1))).unwrap_or(u64::MAX)
    }

    /// How many permits keep the flow busy for so long, rounded up.
    fn permits_in(&self, busy: Duration) -> u64 {
        let permits = u128::from(micros(busy)) * u128::from(self.permits);
        let permits = permits.div_ceil(u128::from(micros(self.per).max(1)));
        u64::try_from(permits).unwrap_or(u64::MAX)
    }
}

impl RateShape {
    /// The windows in microseconds, in order; none for an even flow.
    #[must_use]
    pub fn windows(&self) -> Vec<u64> {
        match self {
            Self::Windows(limits) => limits.iter().map(RateLimit::window_micros).collect(),
            Self::Pace(_) => Vec::new(),
        }
    }

    /// The largest number of permits that can be taken at once.
    #[must_use]
    pub fn most_at_once(&self) -> u64 {
        match self {
            Self::Windows(limits) => limits.iter().map(|limit| limit.permits).min().unwrap_or(0),
            Self::Pace(pace) => pace.burst,
        }
    }

    /// The level of an even flow that is busy for so long.
    #[must_use]
    pub fn pace_level(pace: &RatePace, busy: Duration) -> RateLevel {
        RateLevel { used: pace.permits_in(busy), clear_after: busy }
    }

    /// Checks the limits. Engines get only shapes that pass.
    ///
    /// # Errors
    /// `InvalidOption` if there is no limit or too many, if a number of permits is 0 or too large,
    /// if a window is too short or too long, or if two limits have one window.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::Windows(limits) => check_windows(limits),
            Self::Pace(pace) => {
                check_permits("rate", pace.permits)?;
                check_permits("burst", pace.burst)?;
                check_window(pace.per)?;
                if pace.micros_for(pace.burst) > micros(limits::RATE_WINDOW) {
                    let what = format!(
                        "a burst of {} at {} per {} lasts longer than {}",
                        pace.burst,
                        pace.permits,
                        short(pace.per),
                        short(limits::RATE_WINDOW)
                    );
                    return Err(invalid(what, "choose a smaller burst or a higher rate"));
                }
                Ok(())
            }
        }
    }
}

impl Take {
    /// Checks limits, cost and wait. Engines get only requests that pass.
    ///
    /// # Errors
    /// `InvalidOption` with what is wrong.
    pub fn check(&self) -> Result<(), Error> {
        self.shape.check()?;
        if self.cost == 0 {
            let help = "take at least one permit, or peek";
            return Err(invalid("a cost of 0 takes nothing".into(), help).on(&self.name));
        }
        let most = self.shape.most_at_once();
        if self.cost > most {
            let what = format!("a cost of {} never fits a limit of {most}", self.cost);
            return Err(invalid(what, "raise the limit, or take it in parts").on(&self.name));
        }
        if self.wait > limits::MAX_WAIT {
            let what = format!("a wait is at most {}", short(limits::MAX_WAIT));
            return Err(invalid(what, "wait for a shorter time").on(&self.name));
        }
        Ok(())
    }
}

impl Settle {
    /// Checks limits and numbers. Engines get only requests that pass.
    ///
    /// # Errors
    /// `InvalidOption` with what is wrong.
    pub fn check(&self) -> Result<(), Error> {
        self.shape.check()?;
        if self.actual > limits::RATE_PERMITS {
            let what = format!("at most {} permits can be settled", limits::RATE_PERMITS);
            return Err(invalid(what, "count in a larger unit").on(&self.name));
        }
        Ok(())
    }
}

fn check_windows(limits: &[RateLimit]) -> Result<(), Error> {
    let most = limits::RATE_LIMITS;
    if limits.is_empty() {
        let what = "a rate without a limit limits nothing".to_owned();
        return Err(invalid(what, "add a limit, such as `.limit(100, Duration::from_secs(1))`"));
    }
    if limits.len() > most {
        let what = format!("a rate has at most {most} limits, not {}", limits.len());
        return Err(invalid(what, "leave out limits that others imply"));
    }
    for limit in limits {
        check_permits("limit", limit.permits)?;
        check_window(limit.window)?;
    }
    if let Some(pair) = limits.windows(2).find(|pair| pair[0].window >= pair[1].window) {
        let what = format!("two limits have the window {}", short(pair[1].window));
        return Err(invalid(what, "state each window once, with its smaller limit"));
    }
    Ok(())
}

fn check_permits(what: &str, permits: u64) -> Result<(), Error> {
    let most = limits::RATE_PERMITS;
    let what = match permits {
        0 => format!("a {what} of 0 allows nothing"),
        more if more > most => format!("a {what} is at most {most}, not {more}"),
        _ => return Ok(()),
    };
    Err(invalid(what, "choose a number of permits in between"))
}

fn check_window(window: Duration) -> Result<(), Error> {
    let (least, most) = (limits::MIN_RATE_WINDOW, limits::RATE_WINDOW);
    if (least..=most).contains(&window) {
        return Ok(());
    }
    let what = format!("a window is {} to {} long, not {window:?}", short(least), short(most));
    Err(invalid(what, "choose a window in between"))
}

fn invalid(what: String, help: &'static str) -> Error {
    Error::invalid(ErrorKind::InvalidOption, what).during(Verb::Rate).with_help(help)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(permits: u64, millis: u64) -> RateLimit {
        RateLimit { permits, window: Duration::from_millis(millis) }
    }

    fn take(shape: RateShape, cost: u64) -> Take {
        let name = Name::try_from("a").unwrap();
        Take { name, shape, cost, wait: Duration::ZERO, probe: false }
    }

    #[test]
    fn limits_outside_their_bounds_are_refused_with_the_reason() {
        let windows = |limits: &[RateLimit]| take(RateShape::Windows(limits.into()), 1);
        let pace = |permits, millis, burst| {
            let per = Duration::from_millis(millis);
            take(RateShape::Pace(RatePace { permits, per, burst }), 1)
        };
        let many: Vec<RateLimit> = (1..=9).map(|at| limit(1, at)).collect();
        let long = RateLimit { permits: 1, window: Duration::MAX };
        let cases = [
            (windows(&[]), "without a limit"),
            (windows(&many), "at most 8 limits, not 9"),
            (windows(&[limit(0, 1)]), "a limit of 0 allows nothing"),
            (windows(&[limit(u64::MAX, 1)]), "at most 1000000000"),
            (windows(&[limit(1, 0)]), "a window is 1ms"),
            (windows(&[long]), "a window is 1ms"),
            (windows(&[limit(5, 10), limit(4, 10)]), "two limits have the window 10ms"),
            (pace(0, 1, 1), "a rate of 0"),
            (pace(1, 1, 0), "a burst of 0"),
            (pace(1, 3_600_000, 1_000_000), "lasts longer"),
            (Take { cost: 0, ..windows(&[limit(5, 10)]) }, "a cost of 0"),
            (Take { cost: 6, ..windows(&[limit(5, 10), limit(7, 20)]) }, "cost of 6 never fits"),
            (Take { cost: 3, ..pace(1, 10, 2) }, "never fits a limit of 2"),
            (Take { wait: Duration::MAX, ..windows(&[limit(5, 10)]) }, "a wait is at most"),
        ];
        for (take, says) in cases {
            let error = take.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(says), "{error}");
        }
        windows(&[limit(1, 1), limit(1_000_000_000, 86_400_000)]).check().unwrap();
    }

    #[test]
    fn a_pace_is_rounded_to_the_strict_side() {
        let pace = RatePace { permits: 3, per: Duration::from_micros(10), burst: 2 };
        assert_eq!([1, 2, 3].map(|permits| pace.micros_for(permits)), [4, 7, 10]);
        assert_eq!(pace.burst_micros(), 6);
        let level = RateShape::pace_level(&pace, Duration::from_micros(4));
        assert_eq!((level.used, level.clear_after), (2, Duration::from_micros(4)));
    }
}
