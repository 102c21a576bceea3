//! Lanes, unique keys, sleeping workers, and what is kept of ended jobs: each a few rows beside the
//! jobs.
//!
//! A lane has a row for each job that has a place in it, and its limit while there is such a job. A
//! key has a row with the job that it belongs to. A session that found no work has a row until it
//! is woken.

use super::row::{
    self, JobRow, blocked_prefix, ended_prefix, id_of, lane_key, lane_place_key, micros, party_of,
    unique_key, worker_key,
};
use super::{JobRows, JobRules, LivingWorkers};
use crate::contract::{ClaimId, Fence, JobAttempt, JobState, Name, SessionId};
use crate::limits;

/// How many ended jobs one step removes at most.
const MOST_SWEPT: usize = 8;

impl<R: JobRows> JobRules<'_, R> {
    /// Notes the limit of a lane that was stated last. A larger one lets blocked jobs in.
    pub(super) fn state_limit(&mut self, lane: &Name, limit: u32) {
        let (key, limit) = (lane_key(lane), limit.to_le_bytes());
        if self.rows.get(&key).is_some_and(|stated| stated != limit) {
            self.rows.put(&key, &limit);
            self.fill_lane(lane, 0);
        }
        self.rows.put(&key, &limit);
    }

    /// Lets the next jobs of a lane in while there is room.
    pub(super) fn fill_lane(&mut self, lane: &Name, stated: u32) {
        let prefix = blocked_prefix(Some(lane));
        while self.has_room(lane, stated)
            && let Some((key, _)) = self.rows.next(&prefix, true, &prefix)
        {
            let Some(job) = id_of(&key).and_then(|id| self.job(id)) else {
                return self.rows.damaged("a lane of a queue");
            };
            let ready = JobRow { state: JobState::Ready, ..job.clone() };
            self.ready += 1;
            self.change(Some(&job), Some(&ready));
        }
        let places = lane_place_key(lane, None);
        if self.rows.next(&places, true, &places).is_none() {
            self.rows.remove(&lane_key(lane));
        }
    }

    /// Counts the places of a lane that are taken, as rows.
    pub(super) fn has_room(&self, lane: &Name, stated: u32) -> bool {
        let limit = self.rows.get(&lane_key(lane));
        let limit = limit.and_then(|bytes| Some(u32::from_le_bytes(*bytes.first_chunk()?)));
        let limit = limit.unwrap_or(stated);
        let prefix = lane_place_key(lane, None);
        let mut at = prefix.clone();
        for _ in 0..limit {
            match self.rows.next(&at, false, &prefix) {
                Some((key, _)) => at = row::RowKey::from_slice(&key),
                None => return true,
            }
        }
        false
    }

    pub(super) fn key_holder(&self, key: &Name) -> Option<JobRow> {
        let id = self.rows.get(&unique_key(key))?;
        id_of(&id).and_then(|id| self.job(id))
    }

    /// Gives a job that comes back its key, unless a newer one has it: then it goes on without.
    pub(super) fn take_key(&mut self, job: &mut JobRow) {
        let Some(key) = &job.key else { return };
        match self.key_holder(&key.key) {
            Some(holder) if holder.id != job.id => job.key = None,
            _ => self.rows.put(&unique_key(&key.key), &job.id.0.to_be_bytes()),
        }
    }

    pub(super) fn release_key(&mut self, job: &JobRow) {
        if let Some(key) = &job.key
            && self.key_holder(&key.key).is_some_and(|holder| holder.id == job.id)
        {
            self.rows.remove(&unique_key(&key.key));
        }
    }

    /// Gives back jobs that a worker has claimed without knowing it: the reply was lost.
    pub(super) fn give_back_unknown(&mut self, worker: ClaimId, held: &[JobAttempt]) {
        let prefix = worker_key(b'W', worker, None);
        let mut at = prefix.clone();
        while let Some((key, _)) = self.rows.next(&at, false, &prefix) {
            if let Some(job) = id_of(&key).and_then(|id| self.job(id))
                && !held.contains(&JobAttempt { job: job.id, fence: Fence::new(job.fence) })
            {
                let attempts = job.attempts.saturating_sub(1);
                self.resume_rank(&job, JobRow { attempts, ..job.clone() });
            }
            at = row::RowKey::from_slice(&key);
        }
    }

    /// The attempts of a worker whose jobs were cancelled.
    pub(super) fn cancelled_of(&self, worker: ClaimId) -> Vec<JobAttempt> {
        let prefix = worker_key(b'C', worker, None);
        let (mut found, mut at) = (Vec::new(), prefix.clone());
        while found.len() < limits::WORKER_SLOTS
            && let Some((key, _)) = self.rows.next(&at, false, &prefix)
        {
            if let Some(job) = id_of(&key).and_then(|id| self.job(id)) {
                found.push(JobAttempt { job: job.id, fence: Fence::new(job.fence) });
            }
            at = row::RowKey::from_slice(&key);
        }
        found
    }

    /// Wakes one sleeper for each job that has become ready.
    pub(super) fn wake_sleepers(&mut self) {
        let left = usize::try_from(self.queue.counts.ready).unwrap_or(usize::MAX);
        for _ in 0..self.ready.min(left) {
            let Some((key, _)) = self.rows.next(b"T", false, b"T") else { break };
            self.rows.remove(&key);
            self.outcome.wake.extend(party_of(&key).map(SessionId::from_u128));
        }
    }

    /// Removes sleepers that have no worker any more, so that no wake-up is spent on them.
    pub(super) fn forget_sleepers(&mut self, living: &LivingWorkers) {
        let mut at = row::RowKey::from_slice(b"T");
        while let Some((key, _)) = self.rows.next(&at, false, b"T") {
            let session = party_of(&key).map(SessionId::from_u128);
            if !living.values().any(|living| *living == session) {
                self.rows.remove(&key);
            }
            at = row::RowKey::from_slice(&key);
        }
    }

    /// Removes a few ended jobs that are kept no longer.
    pub(super) fn sweep(&mut self) {
        let settings = self.queue.counts.settings;
        let kinds = [(JobState::Dead, settings.keep_dead), (JobState::Done, settings.keep_done)];
        for (state, keep) in kinds {
            let prefix = ended_prefix(state);
            for _ in 0..MOST_SWEPT {
                let Some((key, _)) = self.rows.next(&prefix, false, &prefix) else { break };
                let Some(job) = id_of(&key).and_then(|id| self.job(id)) else {
                    return self.rows.damaged("the ended jobs of a queue");
                };
                let too_many = self.queue.counts.of(state) > limits::DEAD_JOBS;
                if job.ended.saturating_add(micros(keep)) > self.now && !too_many {
                    break;
                }
                self.drop_job(&job);
            }
        }
    }
}
