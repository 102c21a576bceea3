//! A job and a queue as rows: their fields, the keys of the indexes that follow from them, and
//! their encoding. Knows no rules.
//!
//! All rows of a queue, under keys that begin with one letter:
//!
//! ```text
//! Q                              -> the queue: counts, settings, last fence, last number
//! J id                           -> a job without its payload
//! R class place id               -> nothing      ready jobs, in the order of claims
//! S due id                       -> nothing      scheduled jobs, by when they are due
//! B lane 0 class place id        -> nothing      blocked jobs of a lane, in the order of claims
//! L lane 0 id                    -> nothing      jobs that have a place in a lane
//! N lane                         -> the limit of a lane
//! K key                          -> the id of the job that has the key
//! W worker id                    -> nothing      running jobs of a worker
//! C worker id                    -> nothing      those of them that were cancelled
//! E state ended id               -> nothing      dead and done jobs, by when they ended
//! T session                      -> nothing      sessions that sleep until there is work
//! ```
//!
//! Numbers are big-endian in keys, so that the order of keys is the order of claims. The index keys
//! of a job are a function of the job ([`JobRow::index_keys`]): a change replaces the keys of the
//! old row by those of the new one, so an index cannot disagree with the row.

use smallvec::SmallVec;

use crate::contract::{
    AttemptError, BackOff, ClaimId, Fence, JobDue, JobId, JobState, JobView, KeyMode, Name, NewJob,
    QueueCounts, QueueSettings, SessionId, UniqueKey,
};
use crate::ledger::bytes::{Damaged, Read, Reader, Writer};
use crate::limits;
use std::time::Duration;

/// The version of the encoding.
const FORMAT: u8 = 1;

/// A key of a row.
pub(crate) type RowKey = SmallVec<[u8; 64]>;

/// A job without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobRow {
    pub(crate) id: JobId,
    pub(crate) state: JobState,
    pub(crate) priority: u8,
    /// The rank among ready jobs: class, then place, then id.
    pub(crate) class: u8,
    pub(crate) place: u64,
    pub(crate) due: u64,
    pub(crate) pushed: u64,
    pub(crate) ended: u64,
    /// Attempts that count and have begun. Those that ended with the worker are in `crashes`.
    pub(crate) attempts: u32,
    pub(crate) max_attempts: u32,
    pub(crate) crashes: u32,
    pub(crate) back_off: BackOff,
    pub(crate) key: Option<UniqueKey>,
    pub(crate) lane: Option<Name>,
    pub(crate) lane_limit: u32,
    /// Worker and session of the attempt that runs.
    pub(crate) worker: Option<(ClaimId, SessionId)>,
    /// The fence of the last attempt.
    pub(crate) fence: u64,
    pub(crate) cancelled: bool,
    pub(crate) progress: Vec<u8>,
    pub(crate) errors: Vec<AttemptError>,
    /// Grows with each change that has to outlive the store's memory.
    pub(crate) generation: u32,
}

/// A queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueRow {
    pub(crate) counts: QueueCounts,
    pub(crate) last_fence: u64,
    /// The number of the last job that was taken in.
    pub(crate) last_number: u64,
    /// When jobs of lost workers were looked for.
    pub(crate) looked: u64,
    /// Grows with each change of pause and settings.
    pub(crate) generation: u64,
}

impl JobRow {
    /// A job that was pushed at this time.
    pub(crate) fn of_new(id: JobId, job: &NewJob, now: u64) -> Self {
        let due = match job.due {
            JobDue::In(delay) => now.saturating_add(micros(delay)),
            JobDue::At(at) => at.min(now.saturating_add(micros(limits::JOB_DELAY))),
        };
        Self {
            id,
            state: JobState::Scheduled,
            priority: job.priority,
            class: 0,
            place: 0,
            due,
            pushed: now,
            ended: 0,
            attempts: 0,
            max_attempts: job.max_attempts,
            crashes: 0,
            back_off: job.back_off,
            key: job.key.clone(),
            lane: job.lane.as_ref().map(|lane| lane.name.clone()),
            lane_limit: job.lane.as_ref().map_or(0, |lane| lane.limit),
            worker: None,
            fence: 0,
            cancelled: false,
            progress: Vec::new(),
            errors: Vec::new(),
            generation: 0,
        }
    }

    /// Returns the keys of the rows that point to the job.
    pub(crate) fn index_keys(&self) -> SmallVec<[RowKey; 3]> {
        let mut keys = SmallVec::new();
        let has_place = matches!(self.state, JobState::Ready | JobState::Running);
        if let Some(lane) = self.lane.as_ref().filter(|_| has_place) {
            keys.push(lane_place_key(lane, Some(self.id)));
        }
        match (self.state, self.worker) {
            (JobState::Scheduled, _) => keys.push(scheduled_key(self.due, self.id)),
            (JobState::Blocked, _) => {
                let mut key = blocked_prefix(self.lane.as_ref());
                self.push_rank(&mut key);
                keys.push(key);
            }
            (JobState::Ready, _) => {
                let mut key = RowKey::from_slice(b"R");
                self.push_rank(&mut key);
                keys.push(key);
            }
            (JobState::Running, Some((worker, _))) => {
                keys.push(worker_key(b'W', worker, Some(self.id)));
                if self.cancelled {
                    keys.push(worker_key(b'C', worker, Some(self.id)));
                }
            }
            (JobState::Running, None) => {}
            (state @ (JobState::Dead | JobState::Done), _) => {
                let mut key = ended_prefix(state);
                key.extend_from_slice(&self.ended.to_be_bytes());
                key.extend_from_slice(&self.id.0.to_be_bytes());
                keys.push(key);
            }
        }
        keys
    }

    fn push_rank(&self, key: &mut RowKey) {
        key.push(self.class);
        key.extend_from_slice(&self.place.to_be_bytes());
        key.extend_from_slice(&self.id.0.to_be_bytes());
    }

    pub(crate) fn view(&self, payload: Vec<u8>) -> JobView {
        let running = self.worker.filter(|_| self.state == JobState::Running);
        JobView {
            id: self.id,
            state: self.state,
            priority: self.priority,
            due_micros: self.due,
            pushed_micros: self.pushed,
            ended_micros: self.ended,
            attempts: self.attempts,
            max_attempts: self.max_attempts,
            crashes: self.crashes,
            key: self.key.clone(),
            lane: self.lane.clone(),
            running: running.map(|(worker, _)| (worker, Fence::new(self.fence))),
            cancelled: self.cancelled,
            progress: self.progress.clone(),
            errors: self.errors.clone(),
            payload,
        }
    }

    pub(crate) fn encode(&self) -> Writer {
        let mut to = Writer::default();
        to.u8(FORMAT);
        to.u64(self.id.0);
        to.u8(self.state.code());
        to.u8(self.priority);
        to.u8(self.class);
        for number in [self.place, self.due, self.pushed, self.ended, self.fence] {
            to.u64(number);
        }
        for number in [self.attempts, self.max_attempts, self.crashes, self.generation] {
            to.u32(number);
        }
        to.duration(self.back_off.first);
        to.duration(self.back_off.most);
        to.option(self.key.as_ref(), |to, key| {
            to.u8(key.mode.code());
            to.text(key.key.as_str());
        });
        to.option(self.lane.as_ref(), |to, lane| to.text(lane.as_str()));
        to.u32(self.lane_limit);
        to.option(self.worker, |to, (worker, session)| {
            to.id(worker.as_u128());
            to.id(session.as_u128());
        });
        to.u8(u8::from(self.cancelled));
        to.raw(&self.progress);
        to.count(self.errors.len());
        for error in &self.errors {
            to.u32(error.attempt);
            to.u64(error.at_micros);
            to.text(&error.error);
        }
        to
    }

    pub(crate) fn decode(bytes: &[u8]) -> Read<Self> {
        let mut from = Reader::new(bytes);
        if from.u8()? != FORMAT {
            return Err(Damaged);
        }
        let id = JobId(from.u64()?);
        let state = JobState::from_code(from.u8()?).ok_or(Damaged)?;
        let (priority, class) = (from.u8()?, from.u8()?);
        let (place, due, pushed) = (from.u64()?, from.u64()?, from.u64()?);
        let (ended, fence) = (from.u64()?, from.u64()?);
        let (attempts, max_attempts) = (from.u32()?, from.u32()?);
        let (crashes, generation) = (from.u32()?, from.u32()?);
        let back_off = BackOff { first: from.duration()?, most: from.duration()? };
        let key = from.option(|from| {
            let mode = KeyMode::from_code(from.u8()?).ok_or(Damaged)?;
            Ok(UniqueKey { key: read_name(from.text()?)?, mode })
        })?;
        let lane = from.option(|from| read_name(from.text()?))?;
        let lane_limit = from.u32()?;
        let worker = from.option(|from| {
            Ok((ClaimId::from_u128(from.id()?), SessionId::from_u128(from.id()?)))
        })?;
        let cancelled = from.u8()? != 0;
        let progress = from.raw()?.to_vec();
        let mut errors = Vec::new();
        for _ in 0..from.count(limits::ATTEMPT_ERRORS)? {
            let (attempt, at_micros) = (from.u32()?, from.u64()?);
            errors.push(AttemptError { attempt, at_micros, error: from.text()?.to_owned() });
        }
        from.end()?;
        Ok(Self {
            id,
            state,
            priority,
            class,
            place,
            due,
            pushed,
            ended,
            attempts,
            max_attempts,
            crashes,
            back_off,
            key,
            lane,
            lane_limit,
            worker,
            fence,
            cancelled,
            progress,
            errors,
            generation,
        })
    }
}

impl QueueRow {
    pub(crate) fn encode(&self) -> Writer {
        let mut to = Writer::default();
        to.u8(FORMAT);
        for state in JobState::ALL {
            to.u64(self.counts.of(state));
        }
        write_settings(&mut to, self.counts.paused, self.counts.settings);
        for number in [self.last_fence, self.last_number, self.looked, self.generation] {
            to.u64(number);
        }
        to
    }

    pub(crate) fn decode(bytes: &[u8]) -> Read<Self> {
        let mut from = Reader::new(bytes);
        if from.u8()? != FORMAT {
            return Err(Damaged);
        }
        let mut counts = QueueCounts::default();
        for state in JobState::ALL {
            *counts.of_mut(state) = from.u64()?;
        }
        (counts.paused, counts.settings) = read_settings(&mut from)?;
        let row = Self {
            counts,
            last_fence: from.u64()?,
            last_number: from.u64()?,
            looked: from.u64()?,
            generation: from.u64()?,
        };
        from.end()?;
        Ok(row)
    }
}

/// Encodes what of a queue outlives the store's memory.
pub(crate) fn write_settings(to: &mut Writer, paused: bool, settings: QueueSettings) {
    to.u8(u8::from(paused));
    to.duration(settings.keep_dead);
    to.duration(settings.keep_done);
    to.duration(settings.aging);
}

pub(crate) fn read_settings(from: &mut Reader<'_>) -> Read<(bool, QueueSettings)> {
    let paused = from.u8()? != 0;
    let (keep_dead, keep_done) = (from.duration()?, from.duration()?);
    Ok((paused, QueueSettings { keep_dead, keep_done, aging: from.duration()? }))
}

pub(crate) fn job_key(id: JobId) -> RowKey {
    let mut key = RowKey::from_slice(b"J");
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

pub(crate) fn scheduled_key(due: u64, id: JobId) -> RowKey {
    let mut key = RowKey::from_slice(b"S");
    key.extend_from_slice(&due.to_be_bytes());
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// The key of a job that has a place in a lane, or what the keys of all of them begin with.
pub(crate) fn lane_place_key(lane: &Name, id: Option<JobId>) -> RowKey {
    let mut key = RowKey::from_slice(b"L");
    key.extend_from_slice(lane.as_str().as_bytes());
    key.push(0);
    key.extend(id.into_iter().flat_map(|id| id.0.to_be_bytes()));
    key
}

pub(crate) fn blocked_prefix(lane: Option<&Name>) -> RowKey {
    let mut key = RowKey::from_slice(b"B");
    key.extend_from_slice(lane.map_or("", Name::as_str).as_bytes());
    key.push(0);
    key
}

pub(crate) fn lane_key(lane: &Name) -> RowKey {
    named_key(b'N', lane)
}

pub(crate) fn unique_key(key: &Name) -> RowKey {
    named_key(b'K', key)
}

fn named_key(kind: u8, name: &Name) -> RowKey {
    let mut key = RowKey::new();
    key.push(kind);
    key.extend_from_slice(name.as_str().as_bytes());
    key
}

/// The key of a running job of a worker, or what the keys of all of them begin with.
pub(crate) fn worker_key(kind: u8, worker: ClaimId, id: Option<JobId>) -> RowKey {
    let mut key = RowKey::new();
    key.push(kind);
    key.extend_from_slice(&worker.as_u128().to_be_bytes());
    key.extend(id.into_iter().flat_map(|id| id.0.to_be_bytes()));
    key
}

pub(crate) fn ended_prefix(state: JobState) -> RowKey {
    RowKey::from_slice(&[b'E', state.code()])
}

pub(crate) fn sleeper_key(session: SessionId) -> RowKey {
    let mut key = RowKey::from_slice(b"T");
    key.extend_from_slice(&session.as_u128().to_be_bytes());
    key
}

/// The id at the end of an index key.
pub(crate) fn id_of(key: &[u8]) -> Option<JobId> {
    key.last_chunk().map(|bytes| JobId(u64::from_be_bytes(*bytes)))
}

/// The claim or session after the first letter of a key.
pub(crate) fn party_of(key: &[u8]) -> Option<u128> {
    key.get(1..)?.first_chunk().map(|bytes| u128::from_be_bytes(*bytes))
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn read_name(text: &str) -> Read<Name> {
    Name::from_store(text).map_err(|_| Damaged)
}
