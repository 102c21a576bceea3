//! A job to be pushed: payload, order, key, lane, attempts, and the limits of each. Data only.

use std::time::Duration;

use super::error::{Error, ErrorKind};
use super::name::Name;
use crate::limits;

/// A job to be pushed.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tenure::contract::{KeyMode, NewJob};
///
/// let job = NewJob::new("to: ann@example.org")
///     .priority(7)
///     .after(Duration::from_secs(60))
///     .key("welcome:ann".parse()?, KeyMode::UntilDone)
///     .lane("example.org".parse()?, 2)
///     .max_attempts(5);
/// assert!(job.check_limits().is_ok());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct NewJob {
    /// What the handler gets.
    pub payload: Vec<u8>,
    /// 0 to 9, larger first.
    pub priority: u8,
    /// When it may begin.
    pub due: JobDue,
    /// At most one job with this key waits.
    pub key: Option<UniqueKey>,
    /// At most so many jobs of a lane are ready or run at once.
    pub lane: Option<Lane>,
    /// After so many attempts that failed it is dead.
    pub max_attempts: u32,
    /// The pause after an attempt that failed.
    pub back_off: BackOff,
}

/// When a job may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobDue {
    /// After this time, counted from when the store takes the job in.
    In(Duration),
    /// At this instant by the store's wall clock, in microseconds since 1970.
    At(u64),
}

/// The unique key of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueKey {
    /// The key.
    pub key: Name,
    /// What happens to a second job with the key.
    pub mode: KeyMode,
}

/// What happens to a second job with a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyMode {
    /// It is refused while the first one waits, and let in beside one that runs.
    #[default]
    UntilStarted,
    /// It is refused until the first one is done, cancelled or dead.
    UntilDone,
    /// It takes the place of the first one if that waits, and is let in beside one that runs.
    Replace,
}

impl KeyMode {
    /// The number of the mode in rows of the ledger and in `lua/jobs.lua`.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::UntilStarted => 0,
            Self::UntilDone => 1,
            Self::Replace => 2,
        }
    }

    /// The mode with this number.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::UntilStarted, Self::UntilDone, Self::Replace].get(usize::from(code)).copied()
    }
}

/// A lane of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The name.
    pub name: Name,
    /// How many jobs of the lane are ready or run at once. The last one that was pushed counts.
    pub limit: u32,
}

/// The pause before the next attempt: `first` doubles with each attempt up to `most`, of which a
/// random part is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// The longest pause after the first attempt.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
}

impl Default for BackOff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), most: Duration::from_secs(60 * 60) }
    }
}

impl NewJob {
    /// A job with this payload, priority 4, due at once.
    pub fn new(payload: impl Into<Vec<u8>>) -> Self {
        Self {
            payload: payload.into(),
            priority: limits::JOB_PRIORITY,
            due: JobDue::In(Duration::ZERO),
            key: None,
            lane: None,
            max_attempts: limits::JOB_ATTEMPTS,
            back_off: BackOff::default(),
        }
    }

    /// A priority from 0 to 9. Jobs of a larger priority begin first.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Begins no earlier than after this time.
    pub fn after(mut self, delay: Duration) -> Self {
        self.due = JobDue::In(delay);
        self
    }

    /// Begins no earlier than at this instant of the wall clock, in microseconds since 1970.
    pub fn at_micros(mut self, micros: u64) -> Self {
        self.due = JobDue::At(micros);
        self
    }

    /// A key of which at most one job waits.
    pub fn key(mut self, key: Name, mode: KeyMode) -> Self {
        self.key = Some(UniqueKey { key, mode });
        self
    }

    /// A lane of which at most `limit` jobs are ready or run at once.
    pub fn lane(mut self, name: Name, limit: u32) -> Self {
        self.lane = Some(Lane { name, limit });
        self
    }

    /// How many attempts may fail before the job is dead.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The pause after an attempt that failed.
    pub fn back_off(mut self, first: Duration, most: Duration) -> Self {
        self.back_off = BackOff { first, most };
        self
    }

    /// Checks the job against the limits.
    ///
    /// # Errors
    /// `InvalidOption` with the limit that it exceeds.
    pub fn check_limits(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::invalid(ErrorKind::InvalidOption, what));
        if self.payload.len() > limits::JOB_BYTES {
            let (is, most) = (self.payload.len(), limits::JOB_BYTES);
            let what = format!("the payload has {is} bytes, at most {most} are allowed");
            return wrong(what).map_err(|error| {
                error.with_help("put the data where the handler finds it, and push its name")
            });
        }
        if self.priority > limits::JOB_PRIORITIES {
            return wrong(format!("the priority is {}, not 0 to 9", self.priority));
        }
        if self.max_attempts == 0 || self.max_attempts > limits::JOB_MAX_ATTEMPTS {
            let most = limits::JOB_MAX_ATTEMPTS;
            return wrong(format!("max attempts is {}, not 1 to {most}", self.max_attempts));
        }
        let names =
            self.key.iter().map(|key| &key.key).chain(self.lane.iter().map(|lane| &lane.name));
        for name in names {
            let (is, most) = (name.as_str().len(), limits::JOB_KEY_BYTES);
            if is > most {
                return wrong(format!("a key or lane has {is} bytes, at most {most} are allowed"));
            }
        }
        if let Some(lane) = &self.lane
            && (lane.limit == 0 || lane.limit > limits::LANE_JOBS)
        {
            let most = limits::LANE_JOBS;
            return wrong(format!("the limit of a lane is {}, not 1 to {most}", lane.limit));
        }
        if self.back_off.first > self.back_off.most || self.back_off.most > limits::JOB_BACK_OFF {
            let (first, most) = (self.back_off.first, self.back_off.most);
            return wrong(format!(
                "the back-off goes from {first:?} to {most:?}: it has to grow, to 24 hours at most"
            ));
        }
        if let JobDue::In(delay) = self.due
            && delay > limits::JOB_DELAY
        {
            return wrong("a job is due within ten years at most".to_owned());
        }
        Ok(())
    }
}

impl From<&str> for NewJob {
    fn from(payload: &str) -> Self {
        Self::new(payload)
    }
}

impl From<Vec<u8>> for NewJob {
    fn from(payload: Vec<u8>) -> Self {
        Self::new(payload)
    }
}
