//! The contract of job queues: what a job is, what a worker and an operator may ask for, and the
//! replies. Data and limits; the rules over them are in `ledger::jobs`.
//!
//! A queue belongs to a namespace and exists as soon as a job is pushed to it. A worker is a claim
//! like any other: a shared hold on the reserved slot of the queue ([`worker_slot`]). The id of that
//! claim is in every job that the worker runs, so the store can see whether a job's worker lives.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Pending;
use super::error::{Error, ErrorKind};
use super::ids::{ClaimId, SessionId};
use super::job_views::{JobFilter, JobView, QueueCounts};
use super::name::Name;
use super::verdict::Fence;
use crate::limits;

/// The kind of reserved names that the slots of workers have.
const WORKER_SLOT: &str = "worker";

/// Queues of jobs. Promised as [`Promises::jobs`](super::Promises::jobs).
///
/// Every method is one atomic step in the store. Jobs are numbered in the order in which the store
/// took them in.
pub trait Jobs: Send + Sync {
    /// Adds jobs to a queue: all of them, or none. Returns one reply for each, in their order. When
    /// it returns, the jobs are as durable as the store.
    fn push<'a>(&'a self, queue: &'a Name, jobs: &'a [NewJob]) -> Pending<'a, Vec<Pushed>>;

    /// One turn of a worker: ends attempts, gives back jobs of workers that do not live any more,
    /// and claims jobs. An attempt is named by job and fence; a stale one is refused.
    fn turn<'a>(&'a self, queue: &'a Name, turn: &'a Turn) -> Pending<'a, TurnReply>;

    /// A change by an operator.
    fn change_job<'a>(&'a self, queue: &'a Name, change: &'a JobChange) -> Pending<'a, JobChanged>;

    /// Returns one job in full.
    fn job<'a>(&'a self, queue: &'a Name, id: JobId) -> Pending<'a, Option<JobView>>;

    /// Returns jobs in the order of their numbers, without their payloads.
    fn list<'a>(&'a self, queue: &'a Name, filter: &'a JobFilter) -> Pending<'a, Vec<JobView>>;

    /// Returns how many jobs of each state there are, without scanning them.
    fn counts<'a>(&'a self, queue: &'a Name) -> Pending<'a, QueueCounts>;

    /// Returns the names of all queues of the namespace, in order.
    fn queues(&self) -> Pending<'_, Vec<Name>>;
}

/// The name of the slot on which every worker of a queue has a shared hold.
///
/// # Errors
/// `InvalidName` if the name of the queue is too long.
pub fn worker_slot(queue: &Name) -> Result<Name, Error> {
    Name::reserved(WORKER_SLOT, queue)
}

/// The number of a job in its queue. Grows from job to job and is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Self).map_err(|_| {
            let what = format!("{text:?} is not the number of a job");
            Error::invalid(ErrorKind::InvalidOption, what)
        })
    }
}

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
    pub due: Due,
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
pub enum Due {
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
            due: Due::In(Duration::ZERO),
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
        self.due = Due::In(delay);
        self
    }

    /// Begins no earlier than at this instant of the wall clock, in microseconds since 1970.
    pub fn at_micros(mut self, micros: u64) -> Self {
        self.due = Due::At(micros);
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
        if let Due::In(delay) = self.due
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

/// What became of a job that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is in the queue.
    New(JobId),
    /// A job with its key is there already. Nothing was added.
    Exists(JobId),
    /// It is in the queue instead of another job with its key, which is gone.
    Replaced {
        /// The job that is in the queue now.
        id: JobId,
        /// The job that is gone.
        instead_of: JobId,
    },
}

impl Pushed {
    /// The job that stands for what was pushed.
    #[must_use]
    pub fn id(self) -> JobId {
        match self {
            Self::New(id) | Self::Exists(id) | Self::Replaced { id, .. } => id,
        }
    }
}

/// One attempt at a job: what every change by a worker names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobAttempt {
    /// The job.
    pub job: JobId,
    /// Minted when the job was claimed. Larger than that of any attempt before.
    pub fence: Fence,
}

/// What a worker asks for in one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The worker: its claim on the slot of the queue.
    pub worker: ClaimId,
    /// The session that is signalled when there is work.
    pub session: SessionId,
    /// The attempts that end or report.
    pub reports: Vec<AttemptReport>,
    /// How many jobs to claim at most.
    pub want: usize,
    /// Looks for jobs of workers that are gone even if that was done just now.
    pub look: bool,
}

/// The end or the progress of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptReport {
    /// Which attempt.
    pub attempt: JobAttempt,
    /// What happened.
    pub outcome: AttemptOutcome,
}

/// What happened in an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The job is done.
    Complete,
    /// The attempt failed.
    Fail {
        /// Why, for people.
        error: String,
        /// No further attempt.
        for_good: bool,
        /// The pause, if not that of the job's back-off.
        retry_after: Option<Duration>,
        /// A random number from 0 to 65,535, which chooses the part of the back-off.
        jitter: u16,
    },
    /// Once more after this time. The attempt does not count.
    Later(Duration),
    /// The worker stops: ready again at its old place. The attempt does not count.
    GiveBack,
    /// What to show of the attempt that runs; the next attempt gets it too.
    Progress(Vec<u8>),
}

/// What a worker gets from one turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnReply {
    /// The jobs that were claimed, in the order of the queue.
    pub jobs: Vec<ClaimedJob>,
    /// What became of the reports, in their order.
    pub reported: Vec<Reported>,
    /// How long until the next job is due, if any is scheduled.
    pub next_due: Option<Duration>,
    /// The attempts of this worker whose job was cancelled.
    pub cancelled: Vec<JobAttempt>,
    /// The queue is paused.
    pub paused: bool,
}

/// A job in the hands of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedJob {
    /// Job and fence.
    pub attempt: JobAttempt,
    /// The payload.
    pub payload: Vec<u8>,
    /// 1 at the first attempt.
    pub number: u32,
    /// How many attempts the job has.
    pub max_attempts: u32,
    /// How many workers died or were lost while they ran it.
    pub crashes: u32,
    /// What the attempt before reported as progress.
    pub progress: Vec<u8>,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// Noted; of a job that is complete: it is done.
    Done,
    /// The next attempt is due after this time.
    Again(Duration),
    /// No attempts are left: the job is dead.
    Dead,
    /// The job was cancelled meanwhile, and is gone.
    Cancelled,
    /// The attempt is not the current one: nothing was changed.
    Stale,
}

/// A change by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// Removes a job that waits; tells the worker of one that runs.
    Cancel(JobId),
    /// Removes a job that is dead or done.
    Delete(JobId),
    /// Makes a dead job ready, with all its attempts.
    Retry(JobId),
    /// No job is claimed until the queue is resumed.
    Pause,
    /// Jobs are claimed again.
    Resume,
    /// Changes the settings of the queue.
    Configure(QueueSettings),
}

/// The settings of a queue, kept in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// How long dead jobs are kept.
    pub keep_dead: Duration,
    /// How long jobs that are done are kept; zero keeps none.
    pub keep_done: Duration,
    /// What one step of priority is worth in waiting time. Zero: priorities come first, whatever a
    /// job has waited. Counts for jobs that are pushed or come back from then on.
    pub aging: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        let keep_dead = limits::KEEP_DEAD;
        Self { keep_dead, keep_done: Duration::ZERO, aging: Duration::ZERO }
    }
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobChanged {
    /// Done.
    Done,
    /// The job runs: its worker is told. A completion still wins, a failure becomes the end.
    Told,
    /// There is no such job.
    Unknown,
    /// The job is in another state.
    Is(JobState),
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// Due later.
    Scheduled,
    /// Its lane is full.
    Blocked,
    /// Can be claimed.
    Ready,
    /// In the hands of a worker.
    Running,
    /// Failed for good; kept for a while.
    Dead,
    /// Complete; kept if the queue keeps such jobs.
    Done,
}

impl JobState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Scheduled, Self::Blocked, Self::Ready, Self::Running, Self::Dead, Self::Done];

    /// The state as one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Blocked => "blocked",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Dead => "dead",
            Self::Done => "done",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
