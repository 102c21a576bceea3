//! The contract of job queues: what a job is, what a worker and an operator may ask for, and the
//! replies. Data and limits; the rules over them are in `ledger::jobs`.
//!
//! A queue belongs to a namespace and exists as soon as a job is pushed to it. A worker is a claim
//! like any other: a shared hold on the reserved slot of the queue ([`worker_slot`]). The id of
//! that claim is in every job that the worker runs, so the store can see whether the worker of a
//! job lives.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::Pending;
use super::error::{Error, ErrorKind};
use super::ids::{ClaimId, SessionId};
use super::job_views::{JobFilter, JobView, QueueCounts};
use super::name::{Name, Namespace};
use super::new_job::NewJob;
use super::verdict::Fence;
use crate::limits;

/// The kind of reserved names that the slots of workers have.
const WORKER_SLOT: &str = "worker";

/// Queues of jobs. Promised as [`Promises::jobs`](super::Promises::jobs).
///
/// Every call is one atomic step in the store. Jobs are numbered in the order in which the store
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

    /// Returns where the queues are in a database, if that has functions by which a transaction of
    /// the caller's own pushes and completes jobs.
    fn sql_place(&self) -> Option<Arc<SqlPlace>> {
        None
    }
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
    /// All attempts that the worker knows of, those of the reports included. A job that the store
    /// has given to this worker otherwise was claimed by a turn whose reply was lost: it is given
    /// back. `None` gives nothing back.
    pub held: Option<Vec<JobAttempt>>,
    /// How many jobs to claim at most.
    pub want: usize,
    /// Looks for jobs of workers that are gone even if that was done just now.
    pub look: bool,
    /// Replies when the attempts that end are as durable as a push, where a completion otherwise
    /// is not.
    pub durable: bool,
}

/// Where the queues of an engine are in a database of the caller's: what a transaction of the
/// caller needs in order to push and complete jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlPlace {
    /// The schema of the functions, quoted as in a statement.
    pub schema: String,
    /// The namespace of the queues.
    pub namespace: Namespace,
    /// An expression whose value is different in every database, and its value in this one.
    pub database: (&'static str, String),
}

/// The end or the progress of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptReport {
    /// Which attempt.
    pub attempt: JobAttempt,
    /// What happened.
    pub outcome: JobOutcome,
}

/// What happened in an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOutcome {
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
    /// The unique key of the job, unless a newer job has it.
    pub key: Option<Name>,
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

    /// The number of the state in rows of the ledger and in `lua/jobs.lua`.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Scheduled => 0,
            Self::Blocked => 1,
            Self::Ready => 2,
            Self::Running => 3,
            Self::Dead => 4,
            Self::Done => 5,
        }
    }

    /// The state with this number.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }

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
