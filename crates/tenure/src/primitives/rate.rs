//! Rates as users reach them: limits are collected, checked and sent with each request, and the
//! reply becomes a [`RatePermit`] or a [`RateRefusal`]. The rule is in the store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{
    Error, ErrorKind, Name, RateLevel, RateLevels, RateLimit, RatePace, RateShape, Settle, Settled,
    Take, TakeReply, Verb,
};
use crate::session::{Session, block_on, sleep_until};
use crate::time::Tick;

/// A rate: exact limits for how much is done in how much time, across processes and hosts. Made by
/// [`Tenure::rate`](crate::Tenure::rate).
///
/// Every limit holds in *every* window of its length, however placed. Every client states the
/// limits; the windows of a rate in use cannot be changed, the numbers of permits can, from the
/// next request on.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tenure::{TakeOutcome, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let rate = tenure.rate("api:17")?;
/// let rate = rate.limit(2, Duration::from_secs(60)).limit(100, Duration::from_secs(86_400));
/// assert!(rate.take(1).await?.is_allowed());
/// let TakeOutcome::Allowed(permit) = rate.take(1).await? else { panic!() };
/// assert_eq!(permit.remaining(), 0);
/// match rate.take(1).await? {
///     TakeOutcome::Allowed(_) => unreachable!("two in a minute"),
///     TakeOutcome::Refused(no) => println!("again in {:?}", no.retry_after()),
/// }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use]
pub struct Rate(Arc<RateParts>);

/// What every request has of its rate. Shared with the permits, so that none of it is copied.
#[derive(Clone)]
struct RateParts {
    session: Session,
    name: Name,
    shape: RateShape,
    /// Limits and a pace were stated.
    mixed: bool,
}

/// The answer to a request for permits.
#[derive(Clone, Debug)]
#[must_use]
pub enum TakeOutcome {
    /// The permits were taken.
    Allowed(RatePermit),
    /// They were not: not now, or not as soon as the caller wanted.
    Refused(RateRefusal),
}

/// Permits that were taken.
#[derive(Clone, Debug)]
pub struct RatePermit {
    rate: Rate,
    cost: u64,
    stamp: u64,
    ready_at: Tick,
    wait: Duration,
    status: RateStatus,
}

/// Why permits were not taken, and when they fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateRefusal {
    retry_after: Duration,
    limit: RateLimit,
    status: RateStatus,
}

/// How far the limits of a rate are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateStatus {
    shape: RateShape,
    levels: RateLevels,
}

impl Rate {
    pub(super) fn new(session: Session, name: Name) -> Self {
        let shape = RateShape::Windows(Arc::default());
        Self(Arc::new(RateParts { session, name, shape, mixed: false }))
    }

    /// Adds a limit: at most `permits` in every window of this length.
    pub fn limit(mut self, permits: u64, window: Duration) -> Self {
        let parts = Arc::make_mut(&mut self.0);
        let RateShape::Windows(limits) = &parts.shape else {
            parts.mixed = true;
            return self;
        };
        let mut limits = limits.to_vec();
        limits.push(RateLimit { permits, window });
        limits.sort_by_key(|limit| limit.window);
        parts.shape = RateShape::Windows(limits.into());
        self
    }

    /// An even flow instead of limits (GCRA): `permits` in `per`, one after the other, and up to
    /// `burst` at once after a pause. This is not a window: up to `burst + permits` are taken in
    /// some windows of length `per`. The state in the store is one number, whatever the rate.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let mails = tenure.rate("mails")?.pace(10, Duration::from_secs(1), 2);
    /// assert!(mails.take(2).await?.is_allowed());
    /// assert!(!mails.take(1).await?.is_allowed()); // the next one in a tenth of a second
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn pace(mut self, permits: u64, per: Duration, burst: u64) -> Self {
        let parts = Arc::make_mut(&mut self.0);
        parts.mixed |= matches!(&parts.shape, RateShape::Windows(limits) if !limits.is_empty());
        parts.shape = RateShape::Pace(RatePace { permits, per, burst });
        self
    }

    /// Takes permits if they are available now. All limits are checked and counted in one step: all
    /// of them, or none.
    ///
    /// # Errors
    /// `InvalidOption` if a limit is outside its bounds or the cost never fits, `Shape` if the rate
    /// is in use with other windows, `Unsupported` if the engine has no rates, `Unavailable` if the
    /// store cannot be reached. If the effect of an error is unknown, the permits may be taken.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not take the permits.
    ///
    /// # Fairness
    /// First come, first served: nothing is taken before an instant that is reserved.
    pub async fn take(&self, cost: u64) -> Result<TakeOutcome, Error> {
        self.reserve(cost, Duration::ZERO).await
    }

    /// Reserves permits for the earliest instant at which they fit, if that is at most `within`
    /// ahead, and sleeps until then. There is no polling: the reply of the store names the instant.
    ///
    /// # Errors
    /// As [`take`](Self::take); `InvalidOption` if `within` is too long.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not take the permits. What is reserved stays taken.
    ///
    /// # Fairness
    /// First come, first served.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let rate = tenure.rate("api")?.limit(1, Duration::from_millis(20));
    /// for _ in 0..3 {
    ///     // The second and the third are 20 ms apart.
    ///     assert!(rate.take_within(1, Duration::from_secs(1)).await?.is_allowed());
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn take_within(&self, cost: u64, within: Duration) -> Result<TakeOutcome, Error> {
        let outcome = self.reserve(cost, within).await?;
        if let TakeOutcome::Allowed(permit) = &outcome {
            permit.ready().await;
        }
        Ok(outcome)
    }

    /// As [`take_within`](Self::take_within), without the sleep: the caller waits for
    /// [`RatePermit::ready`] before it uses the permits.
    ///
    /// # Errors
    /// As [`take_within`](Self::take_within).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not take the permits.
    pub async fn reserve(&self, cost: u64, within: Duration) -> Result<TakeOutcome, Error> {
        let take = self.request(cost, within, false)?;
        let core = self.0.session.core();
        let TakeReply { taken, wait, limit, stamp, levels } = core.take_rate(&take).await?;
        let status = RateStatus { shape: take.shape, levels };
        if !taken {
            let limit = status.limits().nth(limit).map_or_else(unlimited, |(limit, _)| limit);
            return Ok(TakeOutcome::Refused(RateRefusal { retry_after: wait, limit, status }));
        }
        // The store counted from some instant after the request was sent. From the reply on, the
        // permits are never used early; a wait of zero is over at any instant.
        let ready_at = if wait.is_zero() { Tick::from_nanos(0) } else { core.now() + wait };
        let rate = self.clone();
        Ok(TakeOutcome::Allowed(RatePermit { rate, cost, stamp, ready_at, wait, status }))
    }

    /// Says how far the limits are used. Takes nothing.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let rate = tenure.rate("api")?.limit(10, Duration::from_secs(1));
    /// assert!(rate.take(3).await?.is_allowed());
    /// assert_eq!(rate.peek().await?.remaining(), 7);
    /// rate.reset().await?;
    /// assert_eq!(rate.peek().await?.remaining(), 10);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn peek(&self) -> Result<RateStatus, Error> {
        let take = self.request(1, Duration::ZERO, true)?;
        let reply = self.0.session.core().take_rate(&take).await?;
        Ok(RateStatus { shape: take.shape, levels: reply.levels })
    }

    /// Forgets everything that was taken and reserved. Those that have a permit keep it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not reset the rate.
    pub async fn reset(&self) -> Result<(), Error> {
        self.0.session.core().reset_rate(&self.0.name).await
    }

    /// The blocking form of [`take`](Self::take).
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn blocking_take(&self, cost: u64) -> Result<TakeOutcome, Error> {
        block_on(self.take(cost))
    }

    /// The blocking form of [`take_within`](Self::take_within).
    ///
    /// # Errors
    /// As [`take_within`](Self::take_within).
    pub fn blocking_take_within(&self, cost: u64, within: Duration) -> Result<TakeOutcome, Error> {
        block_on(self.take_within(cost, within))
    }

    /// The blocking form of [`peek`](Self::peek).
    ///
    /// # Errors
    /// As [`peek`](Self::peek).
    pub fn blocking_peek(&self) -> Result<RateStatus, Error> {
        block_on(self.peek())
    }

    /// The blocking form of [`reset`](Self::reset).
    ///
    /// # Errors
    /// As [`reset`](Self::reset).
    pub fn blocking_reset(&self) -> Result<(), Error> {
        block_on(self.reset())
    }

    fn request(&self, cost: u64, wait: Duration, probe: bool) -> Result<Take, Error> {
        Ok(Take { name: self.0.name.clone(), shape: self.shape()?, cost, wait, probe })
    }

    fn shape(&self) -> Result<RateShape, Error> {
        if !self.0.mixed {
            return Ok(self.0.shape.clone());
        }
        let what = "a rate has limits or a pace, not both";
        let help = "use two rates, and take of both";
        let error = Error::invalid(ErrorKind::InvalidOption, what).with_help(help);
        Err(error.during(Verb::Rate).on(&self.0.name))
    }
}

impl TakeOutcome {
    /// Whether the permits were taken.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// How far the limits are used.
    #[must_use]
    pub fn status(&self) -> &RateStatus {
        match self {
            Self::Allowed(permit) => &permit.status,
            Self::Refused(refusal) => &refusal.status,
        }
    }
}

impl RatePermit {
    /// How many more can be taken at the instant of this permit.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.status.remaining()
    }

    /// How long until the limit with the least remaining permits is unused again.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.status.reset_after()
    }

    /// How long after the request the permits may be used: zero unless they were reserved.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// How far the limits are used.
    #[must_use]
    pub fn status(&self) -> &RateStatus {
        &self.status
    }

    /// Sleeps until the permits may be used.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn ready(&self) {
        sleep_until(self.rate.0.session.core(), self.ready_at).await;
    }

    /// Corrects how many permits were needed: fewer are given back, more are a debt that later
    /// requests feel. Says whether it still counts: what is in no window any more cannot change.
    ///
    /// # Errors
    /// As [`Rate::take`]. A correction is not repeated: if its effect is unknown, it may have been
    /// made.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not make the correction.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tenure::{Settled, TakeOutcome};
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let tokens = tenure.rate("tokens")?.limit(1_000, Duration::from_secs(60));
    /// let TakeOutcome::Allowed(permit) = tokens.take(800).await? else { panic!() };
    /// assert_eq!(permit.settle(300).await?, Settled::Counted); // it were 300 only
    /// assert_eq!(tokens.peek().await?.remaining(), 700);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn settle(self, actual: u64) -> Result<Settled, Error> {
        let Self { rate, cost, stamp, .. } = self;
        let (name, shape) = (rate.0.name.clone(), rate.shape()?);
        let settle = Settle { name, shape, stamp, taken: cost, actual };
        rate.0.session.core().settle_rate(&settle).await
    }

    /// The blocking form of [`settle`](Self::settle).
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub fn blocking_settle(self, actual: u64) -> Result<Settled, Error> {
        block_on(self.settle(actual))
    }
}

impl RateRefusal {
    /// How long until this cost fits, if nothing else is taken before. Exact, for this cost.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// The limit that is the last to allow it.
    #[must_use]
    pub fn limit(&self) -> RateLimit {
        self.limit
    }

    /// How far the limits are used.
    #[must_use]
    pub fn status(&self) -> &RateStatus {
        &self.status
    }
}

impl RateStatus {
    /// Each limit, shortest window first, and how far it is used. Of a [`pace`](Rate::pace), the
    /// burst and how long it takes to fill.
    pub fn limits(&self) -> impl Iterator<Item = (RateLimit, RateLevel)> + '_ {
        let limit = |nth: usize| match &self.shape {
            RateShape::Windows(limits) => limits.get(nth).copied().unwrap_or_else(unlimited),
            RateShape::Pace(pace) => {
                let window = Duration::from_micros(pace.micros_for(pace.burst));
                RateLimit { permits: pace.burst, window }
            }
        };
        self.levels.iter().enumerate().map(move |(nth, level)| (limit(nth), *level))
    }

    /// The limit with the least remaining permits, and its level.
    #[must_use]
    pub fn tightest(&self) -> (RateLimit, RateLevel) {
        let left = |(limit, level): &(RateLimit, RateLevel)| left(limit, level);
        let none = || (unlimited(), RateLevel { used: 0, clear_after: Duration::ZERO });
        self.limits().min_by_key(left).unwrap_or_else(none)
    }

    /// How many permits can be taken.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        let (limit, level) = self.tightest();
        left(&limit, &level)
    }

    /// How long until the limit with the least remaining permits is unused again.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.tightest().1.clear_after
    }
}

fn left(limit: &RateLimit, level: &RateLevel) -> u64 {
    limit.permits.saturating_sub(level.used)
}

fn unlimited() -> RateLimit {
    RateLimit { permits: 0, window: Duration::ZERO }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RateParts { name, shape, .. } = &*self.0;
        f.debug_struct("Rate").field("name", name).field("shape", shape).finish_non_exhaustive()
    }
}
