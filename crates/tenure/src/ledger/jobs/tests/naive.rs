//! An oracle: the rules once more, over a plain list of jobs that every question scans. Slow, and
//! written from the table of states rather than from the rules.

use std::cmp::Reverse;
use std::time::Duration;

use super::super::LivingWorkers;
use crate::contract::{
    AttemptError, ClaimedJob, Fence, JobAttempt, JobChange, JobChanged, JobDue, JobId, JobOutcome,
    JobState, JobView, KeyMode, NewJob, Pushed, QueueSettings, Reported, Turn, TurnReply,
};

#[derive(Default)]
pub(super) struct NaiveQueue {
    jobs: Vec<NaiveJob>,
    last: u64,
    lanes: Vec<(String, u32)>,
    paused: bool,
    settings: QueueSettings,
}

#[derive(Clone)]
struct NaiveJob {
    view: JobView,
    has_key: bool,
    lane_limit: u32,
    back_off: crate::contract::BackOff,
    /// Smaller first.
    rank: (u64, u64),
    fence: u64,
}

fn waits(state: JobState) -> bool {
    [JobState::Scheduled, JobState::Blocked, JobState::Ready].contains(&state)
}

impl NaiveQueue {
    pub(super) fn views(&self) -> Vec<JobView> {
        let mut views: Vec<JobView> = self.jobs.iter().map(|job| job.view.clone()).collect();
        views.sort_by_key(|view| view.id);
        views
    }

    fn at(&mut self, id: JobId) -> Option<&mut NaiveJob> {
        self.jobs.iter_mut().find(|job| job.view.id == id)
    }

    fn remove(&mut self, id: JobId) {
        let job = self.at(id).unwrap().view.clone();
        self.jobs.retain(|job| job.view.id != id);
        if matches!(job.state, JobState::Ready | JobState::Running) {
            self.leave(job.lane.as_ref());
        }
    }

    fn taken(&self, lane: &str) -> u32 {
        let has = |job: &&NaiveJob| {
            job.view.lane.as_ref().is_some_and(|of| of.as_str() == lane)
                && matches!(job.view.state, JobState::Ready | JobState::Running)
        };
        u32::try_from(self.jobs.iter().filter(has).count()).unwrap()
    }

    fn limit(&self, lane: &str, stated: u32) -> u32 {
        self.lanes.iter().find(|(name, _)| name == lane).map_or(stated, |(_, limit)| *limit)
    }

    /// A job has left its place in a lane: lets blocked jobs in wherever there is room. A lane in
    /// which no job has a place forgets its limit.
    fn leave(&mut self, lane: Option<&crate::contract::Name>) {
        let Some(left) = lane else { return };
        loop {
            let room = |job: &&NaiveJob| {
                let lane = job.view.lane.as_ref().unwrap().as_str();
                self.taken(lane) < self.limit(lane, job.lane_limit)
            };
            let blocked = self.jobs.iter().filter(|job| job.view.state == JobState::Blocked);
            let next = blocked.filter(room).min_by_key(|job| (job.rank, job.view.id));
            let Some(id) = next.map(|job| job.view.id) else { break };
            self.at(id).unwrap().view.state = JobState::Ready;
        }
        if self.taken(left.as_str()) == 0 {
            self.lanes.retain(|(lane, _)| lane != left.as_str());
        }
    }

    /// Ranks a job and decides its state.
    fn enter(&mut self, mut job: NaiveJob, now: u64) {
        let below = u64::from(9 - job.view.priority);
        let aging = u64::try_from(self.settings.aging.as_micros()).unwrap();
        job.rank = match aging {
            0 => (below, job.view.due_micros),
            _ => (0, job.view.due_micros + below * aging),
        };
        if let Some(lane) = job.view.lane.as_ref().filter(|_| job.view.due_micros <= now)
            && !self.lanes.iter().any(|(known, _)| known == lane.as_str())
        {
            self.lanes.push((lane.as_str().to_owned(), job.lane_limit));
        }
        let full = job.view.lane.as_ref().is_some_and(|lane| {
            self.taken(lane.as_str()) >= self.limit(lane.as_str(), job.lane_limit)
        });
        job.view.state = match (job.view.due_micros > now, full) {
            (true, _) => JobState::Scheduled,
            (false, true) => JobState::Blocked,
            (false, false) => JobState::Ready,
        };
        self.jobs.push(job);
    }

    pub(super) fn push(&mut self, new: &NewJob, now: u64) -> Pushed {
        self.last += 1;
        let id = JobId(self.last);
        let mut instead_of = None;
        if let Some(key) = &new.key {
            let has =
                |job: &&NaiveJob| job.has_key && job.view.key.as_ref().unwrap().key == key.key;
            let other = self.jobs.iter().find(has).map(|job| (job.view.id, job.view.state));
            match other {
                Some((other, state)) if key.mode == KeyMode::Replace && waits(state) => {
                    instead_of = Some(other);
                    self.remove(other);
                }
                Some((other, _)) => {
                    self.sweep(now);
                    return Pushed::Exists(other);
                }
                None => {}
            }
        }
        if let Some(lane) = &new.lane {
            let name = lane.name.as_str().to_owned();
            let known = self.lanes.iter_mut().find(|(known, _)| *known == name);
            match known {
                Some((_, limit)) if *limit == lane.limit => {}
                Some((_, limit)) => {
                    *limit = lane.limit;
                    self.leave(Some(&lane.name));
                }
                None => {}
            }
            self.lanes.retain(|(known, _)| *known != name);
            self.lanes.push((name, lane.limit));
        }
        let JobDue::In(delay) = new.due else { panic!("programs use delays") };
        let view = JobView {
            id,
            state: JobState::Scheduled,
            priority: new.priority,
            due_micros: now + u64::try_from(delay.as_micros()).unwrap(),
            pushed_micros: now,
            ended_micros: 0,
            attempts: 0,
            max_attempts: new.max_attempts,
            crashes: 0,
            key: new.key.clone(),
            lane: new.lane.as_ref().map(|lane| lane.name.clone()),
            running: None,
            cancelled: false,
            progress: Vec::new(),
            errors: Vec::new(),
            payload: Vec::new(),
        };
        let lane_limit = new.lane.as_ref().map_or(0, |lane| lane.limit);
        let (has_key, back_off) = (new.key.is_some(), new.back_off);
        self.enter(NaiveJob { view, has_key, lane_limit, back_off, rank: (0, 0), fence: 0 }, now);
        self.sweep(now);
        match instead_of {
            Some(instead_of) => Pushed::Replaced { id, instead_of },
            None => Pushed::New(id),
        }
    }

    pub(super) fn turn(
        &mut self,
        turn: &Turn,
        living: Option<&LivingWorkers>,
        now: u64,
        fences: &mut u64,
    ) -> TurnReply {
        let reported = turn
            .reports
            .iter()
            .map(|report| self.settle(report.attempt, &report.outcome, now))
            .collect();
        if let Some(living) = living {
            self.rescue(living, now);
        }
        self.promote(now);
        let mut jobs = Vec::new();
        while !self.paused && jobs.len() < turn.want {
            let ready = self.jobs.iter().filter(|job| job.view.state == JobState::Ready);
            let Some(id) = ready.min_by_key(|job| (job.rank, job.view.id)).map(|job| job.view.id)
            else {
                break;
            };
            *fences += 1;
            let fence = *fences;
            let job = self.at(id).unwrap();
            job.view.state = JobState::Running;
            job.view.attempts += 1;
            job.fence = fence;
            job.view.running = Some((turn.worker, Fence::new(fence)));
            let keeps = job.view.key.as_ref().is_some_and(|key| key.mode == KeyMode::UntilDone);
            job.has_key &= keeps;
            jobs.push(ClaimedJob {
                attempt: JobAttempt { job: id, fence: Fence::new(fence) },
                payload: Vec::new(),
                number: job.view.attempts + job.view.crashes,
                max_attempts: job.view.max_attempts,
                crashes: job.view.crashes,
                progress: job.view.progress.clone(),
                key: job.view.key.as_ref().map(|key| key.key.clone()),
            });
        }
        let scheduled = self.jobs.iter().filter(|job| job.view.state == JobState::Scheduled);
        let next = scheduled.map(|job| job.view.due_micros).min();
        let mut cancelled: Vec<JobAttempt> = self
            .jobs
            .iter()
            .filter(|job| job.view.cancelled)
            .filter_map(|job| {
                let (worker, fence) = job.view.running?;
                (worker == turn.worker).then_some(JobAttempt { job: job.view.id, fence })
            })
            .collect();
        cancelled.sort_by_key(|attempt| attempt.job);
        self.sweep(now);
        TurnReply {
            jobs,
            reported,
            next_due: next.map(|due| Duration::from_micros(due - now)),
            cancelled,
            paused: self.paused,
        }
    }

    /// Due jobs leave the schedule in the order of their due times.
    fn promote(&mut self, now: u64) {
        loop {
            let due = self
                .jobs
                .iter()
                .filter(|job| job.view.state == JobState::Scheduled && job.view.due_micros <= now);
            let first = due.min_by_key(|job| (job.view.due_micros, job.view.id));
            let Some(job) = first.cloned() else { break };
            self.jobs.retain(|other| other.view.id != job.view.id);
            self.enter(job, now);
        }
    }

    fn settle(&mut self, attempt: JobAttempt, outcome: &JobOutcome, now: u64) -> Reported {
        let current = self.jobs.iter().find(|job| {
            job.view.id == attempt.job
                && job.view.running.is_some_and(|(_, fence)| fence == attempt.fence)
        });
        let Some(mut job) = current.cloned() else { return Reported::Stale };
        match outcome {
            JobOutcome::Complete if self.settings.keep_done.is_zero() => {
                self.remove(attempt.job);
                Reported::Done
            }
            JobOutcome::Complete => {
                self.end(attempt.job, JobState::Done, now, None);
                Reported::Done
            }
            JobOutcome::Progress(progress) => {
                self.at(attempt.job).unwrap().view.progress.clone_from(progress);
                Reported::Done
            }
            _ if job.view.cancelled => {
                self.remove(attempt.job);
                Reported::Cancelled
            }
            JobOutcome::Fail { error, for_good, jitter, .. } => {
                let number = job.view.attempts + job.view.crashes;
                let error = AttemptError { attempt: number, at_micros: now, error: error.clone() };
                if *for_good || job.view.attempts == job.view.max_attempts {
                    self.end(attempt.job, JobState::Dead, now, Some(error));
                    return Reported::Dead;
                }
                let doubled = job.back_off.first * 2_u32.pow(job.view.attempts - 1);
                let longest = u64::try_from(doubled.min(job.back_off.most).as_micros()).unwrap();
                let pause = longest * u64::from(*jitter) / 65_535;
                job.view.errors.push(error);
                self.back(job, Some(now + pause), now);
                Reported::Again(Duration::from_micros(pause))
            }
            JobOutcome::Later(delay) => {
                job.view.attempts -= 1;
                self.back(job, Some(now + u64::try_from(delay.as_micros()).unwrap()), now);
                Reported::Again(*delay)
            }
            JobOutcome::GiveBack => {
                job.view.attempts -= 1;
                self.back(job, None, now);
                Reported::Done
            }
        }
    }

    /// A job that ran or was dead comes back: at a new due time, or ready at its old place.
    fn back(&mut self, mut job: NaiveJob, due: Option<u64>, now: u64) {
        job.view.running = None;
        let id = job.view.id;
        if let Some(key) = job.view.key.clone() {
            let newer = self.jobs.iter().any(|other| {
                let same = other.view.key.as_ref().is_some_and(|of| of.key == key.key);
                other.has_key && same && other.view.id != id
            });
            job.has_key = !newer;
            if newer {
                job.view.key = None;
            }
        }
        self.jobs.retain(|other| other.view.id != id);
        match due {
            None => {
                job.view.state = JobState::Ready;
                self.jobs.push(job);
            }
            Some(due) => {
                job.view.due_micros = due;
                let had_place = job.view.state == JobState::Running;
                let lane_was_own = job.clone();
                // The job's own place counts until it is written.
                self.enter_from(job, now, had_place.then_some(lane_was_own));
            }
        }
    }

    /// Enters a job that had a place in its lane: while its state is decided, it still has it.
    fn enter_from(&mut self, job: NaiveJob, now: u64, before: Option<NaiveJob>) {
        let id = job.view.id;
        let had_place = before.is_some();
        if let Some(mut before) = before {
            before.view.id = JobId(u64::MAX);
            before.view.state = JobState::Running;
            self.jobs.push(before);
        }
        self.enter(job, now);
        self.jobs.retain(|other| other.view.id != JobId(u64::MAX));
        let entered = self.at(id).unwrap().view.clone();
        if had_place && entered.state != JobState::Ready {
            self.leave(entered.lane.as_ref());
        }
    }

    fn end(&mut self, id: JobId, state: JobState, now: u64, error: Option<AttemptError>) {
        let job = self.at(id).unwrap();
        job.view.state = state;
        job.view.running = None;
        job.view.ended_micros = now;
        job.has_key = false;
        job.view.errors.extend(error);
        if job.view.errors.len() > 10 {
            job.view.errors.remove(0);
        }
        let lane = job.view.lane.clone();
        self.leave(lane.as_ref());
    }

    fn rescue(&mut self, living: &LivingWorkers, now: u64) {
        let lost = self.jobs.iter().filter_map(|job| {
            let (worker, _) = job.view.running?;
            (!living.contains_key(&worker)).then_some((worker, job.view.id))
        });
        let mut lost: Vec<_> = lost.collect();
        lost.sort_by_key(|(worker, id)| (worker.as_u128(), *id));
        for (_, id) in lost {
            let mut job = self.at(id).unwrap().clone();
            job.view.attempts -= 1;
            job.view.crashes += 1;
            if job.view.cancelled {
                self.remove(id);
            } else if job.view.crashes == 3 {
                let attempt = job.view.attempts + 3;
                let error = "its worker died or was lost each time".to_owned();
                *self.at(id).unwrap() = job;
                let error = AttemptError { attempt, at_micros: now, error };
                self.end(id, JobState::Dead, now, Some(error));
            } else {
                self.back(job, None, now);
            }
        }
    }

    pub(super) fn change(&mut self, change: JobChange, now: u64) -> JobChanged {
        let id = match change {
            JobChange::Pause => {
                self.paused = true;
                return JobChanged::Done;
            }
            JobChange::Resume => {
                self.paused = false;
                return JobChanged::Done;
            }
            JobChange::Configure(settings) => {
                self.settings = settings;
                return JobChanged::Done;
            }
            JobChange::Cancel(id) | JobChange::Delete(id) | JobChange::Retry(id) => id,
        };
        let Some(job) = self.at(id) else { return JobChanged::Unknown };
        let changed = match (change, job.view.state) {
            (JobChange::Cancel(_), JobState::Running) => {
                job.view.cancelled = true;
                JobChanged::Told
            }
            (JobChange::Cancel(_), state) if waits(state) => {
                self.remove(id);
                JobChanged::Done
            }
            (JobChange::Delete(_), JobState::Dead | JobState::Done) => {
                self.remove(id);
                JobChanged::Done
            }
            (JobChange::Retry(_), JobState::Dead) => {
                let mut job = job.clone();
                (job.view.attempts, job.view.crashes, job.view.ended_micros) = (0, 0, 0);
                job.view.cancelled = false;
                self.back(job, Some(now), now);
                JobChanged::Done
            }
            (_, state) => JobChanged::Is(state),
        };
        self.sweep(now);
        changed
    }

    /// Removes what is kept no longer, the oldest first, a few at a time as the rules do.
    pub(super) fn sweep(&mut self, now: u64) {
        for (state, keep) in
            [(JobState::Dead, self.settings.keep_dead), (JobState::Done, self.settings.keep_done)]
        {
            let keep = u64::try_from(keep.as_micros()).unwrap();
            let mut ended: Vec<(u64, JobId)> = self
                .jobs
                .iter()
                .filter(|job| job.view.state == state && job.view.ended_micros + keep <= now)
                .map(|job| (job.view.ended_micros, job.view.id))
                .collect();
            ended.sort_by_key(|(at, id)| Reverse((*at, *id)));
            for _ in 0..8 {
                let Some((_, id)) = ended.pop() else { break };
                self.remove(id);
            }
        }
    }
}
