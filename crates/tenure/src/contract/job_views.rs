//! What a look at a job queue shows: jobs and counts. Data only.

use super::ids::ClaimId;
use super::jobs::{JobId, JobState, QueueSettings};
use super::name::Name;
use super::new_job::UniqueKey;
use super::verdict::Fence;

/// One job as it stands in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// The number.
    pub id: JobId,
    /// The state.
    pub state: JobState,
    /// 0 to 9.
    pub priority: u8,
    /// When it may begin, by the store's wall clock in microseconds since 1970.
    pub due_micros: u64,
    /// When the store took it in.
    pub pushed_micros: u64,
    /// When it was complete or dead; 0 before.
    pub ended_micros: u64,
    /// How many attempts have begun, without those that did not count.
    pub attempts: u32,
    /// How many attempts it has.
    pub max_attempts: u32,
    /// How many workers died or were lost while they ran it.
    pub crashes: u32,
    /// The unique key, while it has one.
    pub key: Option<UniqueKey>,
    /// The lane.
    pub lane: Option<Name>,
    /// The worker and the fence of the attempt that runs.
    pub running: Option<(ClaimId, Fence)>,
    /// It was cancelled while it ran.
    pub cancelled: bool,
    /// What the last attempt reported as progress.
    pub progress: Vec<u8>,
    /// The last attempts that failed, oldest first.
    pub errors: Vec<AttemptError>,
    /// The payload. Empty in a list.
    pub payload: Vec<u8>,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptError {
    /// Which attempt.
    pub attempt: u32,
    /// When, by the store's wall clock in microseconds since 1970.
    pub at_micros: u64,
    /// Why.
    pub error: String,
}

/// How many jobs a queue has, and its settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Due later.
    pub scheduled: u64,
    /// Waiting for their lane.
    pub blocked: u64,
    /// Ready.
    pub ready: u64,
    /// Running.
    pub running: u64,
    /// Dead.
    pub dead: u64,
    /// Done, and kept.
    pub done: u64,
    /// The queue is paused.
    pub paused: bool,
    /// The settings.
    pub settings: QueueSettings,
}

impl QueueCounts {
    /// How many jobs are in a state.
    #[must_use]
    pub fn of(&self, state: JobState) -> u64 {
        match state {
            JobState::Scheduled => self.scheduled,
            JobState::Blocked => self.blocked,
            JobState::Ready => self.ready,
            JobState::Running => self.running,
            JobState::Dead => self.dead,
            JobState::Done => self.done,
        }
    }

    pub(crate) fn of_mut(&mut self, state: JobState) -> &mut u64 {
        match state {
            JobState::Scheduled => &mut self.scheduled,
            JobState::Blocked => &mut self.blocked,
            JobState::Ready => &mut self.ready,
            JobState::Running => &mut self.running,
            JobState::Dead => &mut self.dead,
            JobState::Done => &mut self.done,
        }
    }
}

/// Which jobs of a queue to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only jobs of this state.
    pub state: Option<JobState>,
    /// Only jobs after this one.
    pub after: Option<JobId>,
    /// At most so many; at most [`limits::PAGE`](crate::limits::PAGE) in any case.
    pub limit: usize,
}
