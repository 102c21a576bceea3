//! Jobs in and out: push, promote, claim, rescue, changes by operators. How attempts end is in
//! `settle.rs`; lanes, keys and sleepers are in `beside.rs`.

use super::row::{
    self, JobRow, QueueRow, id_of, job_key, lane_key, micros, party_of, sleeper_key, unique_key,
    worker_key,
};
use super::{JobRows, JobRules, LivingWorkers, MintFence, StepNotes};
use crate::contract::{
    AttemptError, ClaimId, ClaimedJob, JobAttempt, JobChange, JobChanged, JobFilter, JobId,
    JobState, JobView, KeyMode, Pushed, QueueCounts, SessionId, Turn, TurnReply,
};
use crate::limits;
use std::time::Duration;

/// How many jobs one step promotes or gives back at most: the next step goes on.
const MOST_MOVED: usize = 1_000;
/// How often jobs of lost workers are looked for while there is other work, in microseconds.
const LOOK_EVERY: u64 = 100_000;

impl<'a, R: JobRows> JobRules<'a, R> {
    /// Reads the queue for a verb at this time, in microseconds of the wall clock.
    pub(crate) fn new(rows: &'a mut R, now: u64) -> Self {
        let stored = rows.get(b"Q");
        let stored = match stored.map(|bytes| QueueRow::decode(&bytes)) {
            Some(Ok(row)) => row,
            Some(Err(_)) => {
                rows.damaged("a queue of jobs");
                QueueRow::default()
            }
            None => QueueRow::default(),
        };
        let (queue, outcome) = (stored, StepNotes::default());
        Self { rows, queue, stored, now, ready: 0, outcome }
    }

    /// Writes the queue back. Returns what is left to the engine.
    pub(crate) fn finish(mut self) -> StepNotes {
        self.sweep();
        if !self.queue.counts.paused {
            self.wake_sleepers();
        }
        if self.queue != self.stored || self.rows.get(b"Q").is_none() {
            self.rows.put(b"Q", self.queue.encode().bytes());
        }
        self.outcome
    }

    /// The number of the last job that was taken in.
    pub(crate) fn last_number(&self) -> u64 {
        self.queue.last_number
    }

    /// Counts all jobs up to a number as taken in: those that are missing are gone.
    pub(crate) fn skip_to(&mut self, number: u64) {
        self.queue.last_number = self.queue.last_number.max(number);
    }

    /// The rows, for what an engine keeps beside those of the rules.
    pub(crate) fn rows_mut(&mut self) -> &mut R {
        self.rows
    }

    pub(crate) fn counts(&self) -> QueueCounts {
        self.queue.counts
    }

    /// Restores pause and settings that were kept elsewhere.
    pub(crate) fn restore_settings(&mut self, kept: &QueueRow) {
        let counts = &mut self.queue.counts;
        (counts.paused, counts.settings) = (kept.counts.paused, kept.counts.settings);
        self.queue.generation = kept.generation;
    }

    /// Takes a job in: one that was just pushed, or one (`restored`) that was in the queue before
    /// the store lost its memory. A restored job whose key is taken goes on without it, because it
    /// was accepted then.
    pub(crate) fn take_in(&mut self, mut job: JobRow, restored: bool) -> Pushed {
        let id = job.id;
        self.queue.last_number = self.queue.last_number.max(id.0);
        if restored && matches!(job.state, JobState::Dead | JobState::Done) {
            self.change(None, Some(&job));
            return Pushed::New(id);
        }
        job.state = JobState::Scheduled;
        job.worker = None;
        let mut instead_of = None;
        if let Some(key) = &job.key
            && let Some(other) = self.key_holder(&key.key)
        {
            if restored {
                job.key = None;
            } else if key.mode == KeyMode::Replace && is_waiting(other.state) {
                instead_of = Some(other.id);
                self.drop_job(&other);
            } else {
                let other = other.id;
                // Its record, if it has one, is of no use.
                self.outcome.changed.push(id.0);
                return Pushed::Exists(other);
            }
        }
        if let Some(lane) = job.lane.clone().filter(|_| !restored) {
            self.state_limit(&lane, job.lane_limit);
        }
        self.enter(None, job);
        match instead_of {
            Some(instead_of) => Pushed::Replaced { id, instead_of },
            None => Pushed::New(id),
        }
    }

    /// One turn of a worker. `living` is given if the engine has looked which workers live.
    pub(crate) fn turn(
        &mut self,
        turn: &Turn,
        living: Option<&LivingWorkers>,
        mint: MintFence<'_>,
    ) -> TurnReply {
        self.rows.remove(&sleeper_key(turn.session));
        let reported = turn.reports.iter().map(|report| self.settle(report)).collect();
        if let Some(held) = &turn.held {
            self.give_back_unknown(turn.worker, held);
        }
        if let Some(living) = living {
            self.rescue(living);
        }
        let promoted_all = self.promote();
        let want = if self.queue.counts.paused { 0 } else { turn.want.min(limits::WORKER_SLOTS) };
        let jobs = self.claim(want, (turn.worker, turn.session), mint);
        if jobs.len() < turn.want {
            self.rows.put(&sleeper_key(turn.session), &[]);
        }
        TurnReply {
            jobs,
            reported,
            next_due: if promoted_all { self.next_due() } else { Some(Duration::ZERO) },
            cancelled: self.cancelled_of(turn.worker),
            paused: self.queue.counts.paused,
        }
    }

    /// Whether it is time to look for jobs of lost workers.
    pub(crate) fn wants_look(&self) -> bool {
        self.queue.counts.running > 0 && self.now.abs_diff(self.queue.looked) >= LOOK_EVERY
    }

    /// A change by an operator.
    pub(crate) fn change_by_operator(&mut self, change: &JobChange) -> JobChanged {
        let id = match change {
            JobChange::Cancel(id) | JobChange::Delete(id) | JobChange::Retry(id) => *id,
            JobChange::Pause | JobChange::Resume => {
                let paused = *change == JobChange::Pause;
                if self.queue.counts.paused && !paused {
                    // Everything that is ready may be claimed now.
                    let ready = self.queue.counts.ready;
                    self.ready += usize::try_from(ready).unwrap_or(usize::MAX);
                }
                self.queue.counts.paused = paused;
                self.note_settings();
                return JobChanged::Done;
            }
            JobChange::Configure(settings) => {
                self.queue.counts.settings = *settings;
                self.note_settings();
                return JobChanged::Done;
            }
        };
        let Some(job) = self.job(id) else { return JobChanged::Unknown };
        match (change, job.state) {
            (JobChange::Cancel(_), JobState::Running) => {
                let told = JobRow { cancelled: true, ..job.clone() };
                self.outcome.wake.extend(job.worker.map(|(_, session)| session));
                self.change(Some(&job), Some(&told));
                JobChanged::Told
            }
            (JobChange::Cancel(_), state) if is_waiting(state) => {
                self.drop_job(&job);
                JobChanged::Done
            }
            (JobChange::Delete(_), JobState::Dead | JobState::Done) => {
                self.drop_job(&job);
                JobChanged::Done
            }
            (JobChange::Retry(_), JobState::Dead) => {
                let mut again = JobRow { due: self.now, ended: 0, cancelled: false, ..job.clone() };
                (again.attempts, again.crashes) = (0, 0);
                self.come_back(&job, again);
                JobChanged::Done
            }
            (_, state) => JobChanged::Is(state),
        }
    }

    pub(crate) fn view(&self, id: JobId) -> Option<JobView> {
        self.job(id).map(|job| job.view(Vec::new()))
    }

    pub(crate) fn list(&self, filter: &JobFilter) -> Vec<JobView> {
        let after = filter.after.map_or(JobId(0), |after| JobId(after.0.saturating_add(1)));
        let mut at = job_key(after);
        let (mut found, mut including) = (Vec::new(), true);
        while found.len() < filter.limit.clamp(1, limits::PAGE)
            && let Some((key, value)) = self.rows.next(&at, including, b"J")
        {
            if let Some(job) = self.decoded(&value)
                && filter.state.is_none_or(|state| state == job.state)
            {
                found.push(job.view(Vec::new()));
            }
            (at, including) = (row::RowKey::from_slice(&key), false);
        }
        found
    }

    /// Moves what is due out of the schedule. Returns whether that was all.
    fn promote(&mut self) -> bool {
        for _ in 0..MOST_MOVED {
            let Some((key, _)) = self.rows.next(b"S", true, b"S") else { return true };
            let due = key.get(1..).and_then(|key| key.first_chunk()).copied();
            if due.is_none_or(|due| u64::from_be_bytes(due) > self.now) {
                return true;
            }
            let Some(job) = id_of(&key).and_then(|id| self.job(id)) else {
                self.rows.damaged("the schedule of a queue");
                return true;
            };
            let due = job.clone();
            self.enter(Some(&job), due);
        }
        false
    }

    fn next_due(&self) -> Option<Duration> {
        let (key, _) = self.rows.next(b"S", true, b"S")?;
        let due = u64::from_be_bytes(*key.get(1..)?.first_chunk()?);
        Some(Duration::from_micros(due.saturating_sub(self.now)))
    }

    /// Claims ready jobs in their order.
    fn claim(
        &mut self,
        want: usize,
        worker: (ClaimId, SessionId),
        mint: MintFence<'_>,
    ) -> Vec<ClaimedJob> {
        let mut claimed = Vec::new();
        while claimed.len() < want
            && let Some((key, _)) = self.rows.next(b"R", true, b"R")
        {
            let Some(job) = id_of(&key).and_then(|id| self.job(id)) else {
                self.rows.damaged("the order of a queue");
                break;
            };
            let fence = mint(&mut self.queue.last_fence);
            let mut runs = job.clone();
            runs.state = JobState::Running;
            runs.attempts += 1;
            runs.worker = Some(worker);
            runs.fence = fence.get();
            // A key that lasts until the start is free for the next job from here on.
            if let Some(key) = runs.key.as_ref().filter(|key| key.mode != KeyMode::UntilDone) {
                self.rows.remove(&unique_key(&key.key));
            }
            claimed.push(ClaimedJob {
                attempt: JobAttempt { job: runs.id, fence },
                payload: Vec::new(),
                number: runs.attempts + runs.crashes,
                max_attempts: runs.max_attempts,
                crashes: runs.crashes,
                progress: runs.progress.clone(),
                key: runs.key.as_ref().map(|key| key.key.clone()),
            });
            self.change(Some(&job), Some(&runs));
            self.ready = self.ready.saturating_sub(1);
        }
        claimed
    }

    /// Gives back the jobs of workers whose claims do not live (J4).
    fn rescue(&mut self, living: &LivingWorkers) {
        self.queue.looked = self.now;
        let mut at = row::RowKey::from_slice(b"W");
        let mut moved = 0;
        while let Some((key, _)) = self.rows.next(&at, true, b"W")
            && let Some(worker) = party_of(&key).map(ClaimId::from_u128)
        {
            if living.contains_key(&worker) || moved >= MOST_MOVED {
                at = worker_key(b'W', worker, Some(JobId(u64::MAX)));
                at.push(0);
                continue;
            }
            moved += 1;
            let Some(job) = id_of(&key).and_then(|id| self.job(id)) else {
                return self.rows.damaged("the running jobs of a queue");
            };
            self.give_back_crashed(&job);
            at = row::RowKey::from_slice(&key);
        }
        self.forget_sleepers(living);
    }

    fn give_back_crashed(&mut self, job: &JobRow) {
        let mut back = job.clone();
        back.attempts = back.attempts.saturating_sub(1);
        back.crashes += 1;
        if job.cancelled {
            self.drop_job(job);
        } else if back.crashes >= limits::JOB_CRASHES {
            let error = "its worker died or was lost each time".to_owned();
            let attempt = back.attempts + back.crashes;
            self.bury(job, back, AttemptError { attempt, at_micros: self.now, error });
        } else {
            self.resume_rank(job, back);
        }
    }

    /// Makes a running job ready at its old place; it keeps its place in the lane.
    pub(super) fn resume_rank(&mut self, job: &JobRow, mut back: JobRow) {
        back.state = JobState::Ready;
        back.worker = None;
        self.take_key(&mut back);
        back.generation += 1;
        self.outcome.changed.push(back.id.0);
        self.ready += 1;
        self.change(Some(job), Some(&back));
    }

    /// Puts a job that had ended or run back into the queue, at a new due time.
    pub(super) fn come_back(&mut self, job: &JobRow, mut back: JobRow) {
        back.state = JobState::Scheduled;
        back.worker = None;
        self.take_key(&mut back);
        back.generation += 1;
        self.outcome.changed.push(back.id.0);
        self.enter(Some(job), back);
    }

    /// Makes a job dead.
    pub(super) fn bury(&mut self, job: &JobRow, mut dead: JobRow, error: AttemptError) {
        dead.errors.push(error);
        if dead.errors.len() > limits::ATTEMPT_ERRORS {
            dead.errors.remove(0);
        }
        dead.state = JobState::Dead;
        dead.worker = None;
        dead.ended = self.now;
        dead.generation += 1;
        self.outcome.changed.push(dead.id.0);
        self.release_key(&dead);
        self.change(Some(job), Some(&dead));
    }

    /// Removes a job.
    pub(super) fn drop_job(&mut self, job: &JobRow) {
        self.release_key(job);
        self.outcome.changed.push(job.id.0);
        self.change(Some(job), None);
    }

    /// Decides whether a job is scheduled, blocked or ready, and writes it.
    fn enter(&mut self, before: Option<&JobRow>, mut job: JobRow) {
        let aging = micros(self.queue.counts.settings.aging);
        let below = limits::JOB_PRIORITIES.saturating_sub(job.priority);
        (job.class, job.place) = match aging {
            0 => (below, job.due),
            aging => (0, job.due.saturating_add(aging.saturating_mul(u64::from(below)))),
        };
        if before.is_none()
            && let Some(key) = &job.key
        {
            self.rows.put(&unique_key(&key.key), &job.id.0.to_be_bytes());
        }
        let due = job.due <= self.now;
        if let Some(lane) = job.lane.as_ref().filter(|_| due)
            && self.rows.get(&lane_key(lane)).is_none()
        {
            // The lane was empty meanwhile, and has forgotten its limit.
            self.rows.put(&lane_key(lane), &job.lane_limit.to_le_bytes());
        }
        job.state = if !due {
            JobState::Scheduled
        } else if job.lane.as_ref().is_some_and(|lane| !self.has_room(lane, job.lane_limit)) {
            JobState::Blocked
        } else {
            self.ready += 1;
            JobState::Ready
        };
        self.change(before, Some(&job));
    }

    /// Writes a job, or removes it, with all rows that follow from it.
    pub(super) fn change(&mut self, before: Option<&JobRow>, after: Option<&JobRow>) {
        let old = before.map(JobRow::index_keys).unwrap_or_default();
        let new = after.map(JobRow::index_keys).unwrap_or_default();
        for key in old.iter().filter(|key| !new.contains(key)) {
            self.rows.remove(key);
        }
        for key in new.iter().filter(|key| !old.contains(key)) {
            self.rows.put(key, &[]);
        }
        if let Some(before) = before {
            let count = self.queue.counts.of_mut(before.state);
            *count = count.saturating_sub(1);
        }
        match after {
            Some(after) => {
                *self.queue.counts.of_mut(after.state) += 1;
                self.rows.put(&job_key(after.id), after.encode().bytes());
            }
            None => {
                if let Some(before) = before {
                    self.rows.remove(&job_key(before.id));
                }
            }
        }
        let leaves = |job: &JobRow| matches!(job.state, JobState::Ready | JobState::Running);
        if let Some(before) = before.filter(|before| leaves(before))
            && !after.is_some_and(leaves)
            && let Some(lane) = &before.lane
        {
            self.fill_lane(lane, before.lane_limit);
        }
    }

    pub(super) fn job(&self, id: JobId) -> Option<JobRow> {
        self.rows.get(&job_key(id)).and_then(|bytes| self.decoded(&bytes))
    }

    fn decoded(&self, bytes: &[u8]) -> Option<JobRow> {
        let job = JobRow::decode(bytes).ok();
        if job.is_none() {
            self.rows.damaged("a job");
        }
        job
    }

    fn note_settings(&mut self) {
        self.queue.generation += 1;
        self.outcome.settings = true;
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn note_changed(&mut self, id: JobId) {
        self.outcome.changed.push(id.0);
    }

    pub(super) fn keeps_done(&self) -> bool {
        !self.queue.counts.settings.keep_done.is_zero()
    }
}

fn is_waiting(state: JobState) -> bool {
    matches!(state, JobState::Scheduled | JobState::Blocked | JobState::Ready)
}
