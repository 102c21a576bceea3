//! Parses the rows that the functions of jobs return. The heads of `sql/turn.sql`, `push.sql`,
//! `change_job.sql` and `job_views.sql` list their columns and kinds.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use super::errors::unexpected_reply;
use super::jobs::{duration, mode_of, state_of};
use crate::contract::{
    AttemptError, ClaimId, ClaimedJob, Error, Fence, JobAttempt, JobChanged, JobId, JobState,
    JobView, Name, Pushed, QueueCounts, QueueSettings, Reported, TurnReply, UniqueKey,
};

/// The reply to a turn.
#[derive(Default)]
pub(super) struct TurnRows {
    pub(super) reply: TurnReply,
    /// Class, place and number of each job that was claimed.
    pub(super) keys: Vec<(usize, i64, i64)>,
    /// What a claim from the start has cost, if there was one.
    pub(super) cost: Option<Duration>,
    /// The session was written down as a sleeper.
    pub(super) fell_asleep: bool,
    /// A job could not be given back, because another transaction has locked it.
    pub(super) locked: bool,
}

impl TurnRows {
    pub(super) fn read(rows: &[Row], reports: usize) -> Result<Self, Error> {
        let mut turn = Self::default();
        let mut ended = false;
        for row in rows.iter().map(JobReplyRow) {
            match row.get::<&str>(0)? {
                "j" => turn.claimed(&row)?,
                "k" => turn.reply.cancelled.push(row.attempt()?),
                "e" => {
                    ended = true;
                    turn.reply.next_due = row.get::<Option<i64>>(11)?.map(duration);
                    turn.reply.paused = row.get::<i32>(4)? == 1;
                    turn.fell_asleep = row.get::<i32>(5)? == 1;
                    turn.locked |= row.get::<Option<i32>>(6)?.is_some_and(|locked| locked > 0);
                    turn.cost = row.get::<Option<i64>>(10)?.map(duration);
                }
                kind => {
                    turn.locked |= kind == "l";
                    let wait = || -> Result<Duration, Error> { Ok(duration(row.get(11)?)) };
                    turn.reply.reported.push(match kind {
                        "d" => Reported::Done,
                        "a" => Reported::Again(wait()?),
                        "x" => Reported::Dead,
                        "c" => Reported::Cancelled,
                        "s" | "l" => Reported::Stale,
                        _ => return Err(unexpected_reply()),
                    });
                }
            }
        }
        if !ended || turn.reply.reported.len() != reports {
            return Err(unexpected_reply());
        }
        Ok(turn)
    }

    fn claimed(&mut self, row: &JobReplyRow<'_>) -> Result<(), Error> {
        let attempt = row.attempt()?;
        self.reply.jobs.push(ClaimedJob {
            attempt,
            payload: row.get(7)?,
            number: row.small(4)?,
            max_attempts: row.small(5)?,
            crashes: row.small(6)?,
            progress: row.get::<Option<Vec<u8>>>(8)?.unwrap_or_default(),
            key: row.name(12)?,
        });
        let class = usize::try_from(row.get::<i32>(9)?).map_err(|_| unexpected_reply())?;
        self.keys.push((class, row.get(10)?, row.get(2)?));
        Ok(())
    }
}

/// A row of a reply from which the columns are taken by number.
pub(super) struct JobReplyRow<'a>(pub(super) &'a Row);

impl<'a> JobReplyRow<'a> {
    fn get<T: FromSql<'a>>(&self, column: usize) -> Result<T, Error> {
        self.0.try_get(column).map_err(|error| unexpected_reply().caused_by(error))
    }

    fn number(&self, column: usize) -> Result<u64, Error> {
        u64::try_from(self.get::<i64>(column)?).map_err(|_| unexpected_reply())
    }

    fn small(&self, column: usize) -> Result<u32, Error> {
        u32::try_from(self.get::<i32>(column)?).map_err(|_| unexpected_reply())
    }

    fn name(&self, column: usize) -> Result<Option<Name>, Error> {
        let name: Option<&str> = self.get(column)?;
        name.map(|name| Name::from_store(name).map_err(|_| unexpected_reply())).transpose()
    }

    fn state(&self, column: usize) -> Result<JobState, Error> {
        state_of(self.get(column)?).ok_or_else(unexpected_reply)
    }

    fn attempt(&self) -> Result<JobAttempt, Error> {
        Ok(JobAttempt { job: JobId(self.number(2)?), fence: Fence::new(self.number(3)?) })
    }

    /// The reply to a change by an operator.
    pub(super) fn changed(&self) -> Result<JobChanged, Error> {
        Ok(match self.get::<&str>(0)? {
            "d" => JobChanged::Done,
            "t" => JobChanged::Told,
            "u" => JobChanged::Unknown,
            "i" => JobChanged::Is(self.state(1)?),
            _ => return Err(unexpected_reply()),
        })
    }
}

/// Parses a row of a push.
pub(super) fn read_pushed(row: &Row) -> Result<Pushed, Error> {
    let row = JobReplyRow(row);
    let id = JobId(row.number(1)?);
    Ok(match row.get::<&str>(0)? {
        "n" => Pushed::New(id),
        "e" => Pushed::Exists(id),
        "r" => Pushed::Replaced { id, instead_of: JobId(row.number(2)?) },
        _ => return Err(unexpected_reply()),
    })
}

/// Adds a row of `job_counts`.
pub(super) fn read_count(row: &Row, counts: &mut QueueCounts) -> Result<(), Error> {
    let row = JobReplyRow(row);
    *counts.of_mut(row.state(0)?) = row.number(1)?;
    counts.paused = row.get(2)?;
    let time = |column| row.get(column).map(duration);
    counts.settings = QueueSettings { keep_dead: time(3)?, keep_done: time(4)?, aging: time(5)? };
    Ok(())
}

/// Parses a job as it is shown.
pub(super) fn read_view(row: &Row) -> Result<JobView, Error> {
    let row = JobReplyRow(row);
    let state = row.state(1)?;
    let key = match (row.name(9)?, row.get::<Option<i32>>(10)?.and_then(mode_of)) {
        (Some(key), Some(mode)) => Some(UniqueKey { key, mode }),
        (None, _) => None,
        _ => return Err(unexpected_reply()),
    };
    let worker: Option<Uuid> = row.get(12)?;
    let running = match worker.filter(|_| state == JobState::Running) {
        Some(worker) => Some((ClaimId::from_u128(worker.as_u128()), Fence::new(row.number(13)?))),
        None => None,
    };
    Ok(JobView {
        id: JobId(row.number(0)?),
        state,
        priority: u8::try_from(row.small(2)?).map_err(|_| unexpected_reply())?,
        due_micros: row.number(3)?,
        pushed_micros: row.number(4)?,
        ended_micros: row.number(5)?,
        attempts: row.small(6)?,
        max_attempts: row.small(7)?,
        crashes: row.small(8)?,
        key,
        lane: row.name(11)?,
        running,
        cancelled: row.get(14)?,
        progress: row.get::<Option<Vec<u8>>>(15)?.unwrap_or_default(),
        errors: read_errors(&row)?,
        payload: row.get::<Option<Vec<u8>>>(19)?.unwrap_or_default(),
    })
}

fn read_errors(row: &JobReplyRow<'_>) -> Result<Vec<AttemptError>, Error> {
    let tried: Vec<i32> = row.get::<Option<_>>(16)?.unwrap_or_default();
    let at: Vec<i64> = row.get::<Option<_>>(17)?.unwrap_or_default();
    let errors: Vec<String> = row.get::<Option<_>>(18)?.unwrap_or_default();
    let error = |((attempt, at), error): ((i32, i64), String)| {
        Some(AttemptError {
            attempt: u32::try_from(attempt).ok()?,
            at_micros: u64::try_from(at).ok()?,
            error,
        })
    };
    let all = tried.into_iter().zip(at).zip(errors).map(error);
    all.collect::<Option<_>>().ok_or_else(unexpected_reply)
}
