//! Queues of jobs, in tables of their own. A push, a turn and a change by an operator are one call
//! and one transaction each; the rules are those of `ledger::jobs`, restated in `sql/jobs.sql`,
//! `push.sql`, `turn.sql` and `change_job.sql`, whose heads say what they lock.
//!
//! What this engine remembers of each worker between its turns ([`WorkerMemory`]) only saves work.
//! It is taken out when a turn begins and put back when its reply is there, so that a turn whose
//! reply was lost leaves nothing behind:
//!
//! - **The last key claimed of each class.** The next claim begins there, and does not pass the
//!   rows that earlier claims have left behind. Rows of late commits, of claims that were rolled
//!   back and of jobs that other processes have given back may stand before the key. So once in a
//!   second a claim begins at the start, and so does one that comes up short; neither takes more
//!   than a hundredth of the time.
//! - **Which attempts the worker may have.** If it names all of them, no reply was lost, and the
//!   store is not asked for jobs that the worker knows nothing of.
//! - **Whether its session sleeps.** A worker that gets less than it wants is written down as a
//!   sleeper and looks once more: a push that has committed meanwhile has seen no sleeper. From
//!   then on a push notifies it. Where no session sleeps, nothing is notified.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::PostgresEngine;
use super::errors::{call_failed, unexpected_reply};
use super::job_rows::{JobReplyRow, TurnRows, read_count, read_pushed, read_view};
use super::statements::{Function, Parameters, micros, uuid};
use crate::contract::{
    AttemptReport, ClaimId, Error, JobAttempt, JobChange, JobChanged, JobDue, JobFilter, JobId,
    JobOutcome, JobState, JobView, Jobs, KeyMode, Name, NewJob, Pending, Pushed, QueueCounts,
    SqlPlace, Turn, TurnReply, Verb, worker_slot,
};
use crate::engine::common::job_limits;
use crate::ledger::jobs::settle::shortened;
use crate::limits;
use crate::time::{Clock, SystemClock, Tick};

/// How many classes there are: one for each priority.
const CLASSES: usize = limits::JOB_PRIORITIES as usize + 1;
/// How often a claim begins at the start, although it may find enough behind the last key.
const START_INTERVAL: Duration = Duration::from_secs(1);
/// Claims that begin at the start may cost one part in so many.
const START_SHARE: u32 = 100;
/// Of so many workers the engine remembers something.
const MAX_WORKERS: usize = 4_096;

/// What the engine remembers of its workers.
#[derive(Default)]
pub(super) struct WorkerMemories(Mutex<HashMap<ClaimId, WorkerMemory>>);

#[derive(Default)]
struct WorkerMemory {
    /// Place and number of the last job that was claimed of each class.
    keys: Option<[(i64, i64); CLASSES]>,
    /// When a claim begins at the start again, and from when on it may if it comes up short.
    start_at: Option<Tick>,
    restart_at: Option<Tick>,
    /// All attempts that the store has given to the worker and that have not ended since, perhaps
    /// with some that have; `None` if that is not known.
    attempts: Option<HashSet<JobAttempt>>,
    /// Whether its session may be among the sleepers.
    asleep: bool,
}

impl WorkerMemory {
    /// Whether a worker names all attempts that it may have.
    fn names_all(&self, held: &HashSet<JobAttempt>) -> bool {
        self.attempts.as_ref().is_some_and(|given| given.is_subset(held))
    }
}

impl WorkerMemories {
    fn take(&self, worker: ClaimId) -> WorkerMemory {
        // Unknown: a reply may have been lost after the session was written down as a sleeper.
        self.lock().remove(&worker).unwrap_or(WorkerMemory { asleep: true, ..Default::default() })
    }

    fn put(&self, worker: ClaimId, memory: WorkerMemory) {
        let mut all = self.lock();
        if all.len() >= MAX_WORKERS {
            all.clear();
        }
        all.insert(worker, memory);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, WorkerMemory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Jobs for PostgresEngine {
    fn push<'a>(&'a self, queue: &'a Name, jobs: &'a [NewJob]) -> Pending<'a, Vec<Pushed>> {
        Box::pin(async move {
            job_limits::check_push(jobs)?;
            // The statement behind the push wakes workers, unless the call is a transaction of
            // several statements.
            let later = !self.inner.context.wraps_calls();
            let permit = self.permit(Verb::Job).await?;
            let mut parameters: Parameters =
                vec![Box::new(permit.ns()), Box::new(queue.as_str().to_owned())];
            parameters.push(Box::new(false));
            parameters.push(Box::new(later));
            parameters.extend(push_parameters(jobs));
            let rows = if later {
                permit.call_then(Function::PushJobs, parameters, Function::WakeLater).await
            } else {
                permit.call(Function::PushJobs, parameters).await
            };
            let rows = rows.map_err(|error| call_failed(error.as_ref()).during(Verb::Job))?;
            let pushed = rows.iter().map(read_pushed).collect::<Result<Vec<_>, _>>();
            let pushed = pushed.map_err(|error| error.during(Verb::Job))?;
            if pushed.len() != jobs.len() {
                return Err(unexpected_reply().during(Verb::Job));
            }
            self.may_have_notified();
            Ok(pushed)
        })
    }

    fn turn<'a>(&'a self, queue: &'a Name, turn: &'a Turn) -> Pending<'a, TurnReply> {
        Box::pin(async move {
            job_limits::check_turn(turn)?;
            let (mut reply, fell_asleep) = self.run_turn(queue, turn).await?;
            let missing = turn.want - reply.jobs.len();
            if !fell_asleep || reply.paused || missing == 0 {
                return Ok(reply);
            }
            let again = Turn {
                reports: Vec::new(),
                held: None,
                want: missing,
                look: false,
                ..turn.clone()
            };
            // If it fails, the next turn finds out what it has claimed.
            if let Ok((more, _)) = self.run_turn(queue, &again).await {
                reply.jobs.extend(more.jobs);
                reply.next_due = more.next_due;
                reply.cancelled = more.cancelled;
            }
            Ok(reply)
        })
    }

    fn change_job<'a>(&'a self, queue: &'a Name, change: &'a JobChange) -> Pending<'a, JobChanged> {
        Box::pin(async move {
            job_limits::check_change(change)?;
            let (word, id) = match change {
                JobChange::Cancel(id) => ("cancel", Some(*id)),
                JobChange::Delete(id) => ("delete", Some(*id)),
                JobChange::Retry(id) => ("retry", Some(*id)),
                JobChange::Pause => ("pause", None),
                JobChange::Resume => ("resume", None),
                JobChange::Configure(_) => ("configure", None),
            };
            let settings = match change {
                JobChange::Configure(settings) => Some(*settings),
                _ => None,
            };
            let rows = self.query(Verb::Job, Function::ChangeJob, |ns| {
                vec![
                    Box::new(ns),
                    Box::new(queue.as_str().to_owned()),
                    Box::new(word),
                    Box::new(id.map(big)),
                    Box::new(settings.map(|settings| micros(settings.keep_dead))),
                    Box::new(settings.map(|settings| micros(settings.keep_done))),
                    Box::new(settings.map(|settings| micros(settings.aging))),
                ]
            });
            let rows = rows.await?;
            self.may_have_notified();
            let changed = match &rows[..] {
                [row] => JobReplyRow(row).changed(),
                _ => Err(unexpected_reply()),
            };
            changed.map_err(|error| error.during(Verb::Job))
        })
    }

    fn job<'a>(&'a self, queue: &'a Name, id: JobId) -> Pending<'a, Option<JobView>> {
        Box::pin(async move {
            let rows = self.query(Verb::Job, Function::Job, |ns| {
                vec![Box::new(ns), Box::new(queue.as_str().to_owned()), Box::new(big(id))]
            });
            let rows = rows.await?;
            let view = rows.first().map(read_view).transpose();
            view.map_err(|error| error.during(Verb::Job))
        })
    }

    fn list<'a>(&'a self, queue: &'a Name, filter: &'a JobFilter) -> Pending<'a, Vec<JobView>> {
        Box::pin(async move {
            let limit = i32::try_from(filter.limit.clamp(1, limits::PAGE)).unwrap_or(i32::MAX);
            let rows = self.query(Verb::Job, Function::JobsAfter, |ns| {
                vec![
                    Box::new(ns),
                    Box::new(queue.as_str().to_owned()),
                    Box::new(filter.state.map(state_letter)),
                    Box::new(filter.after.map_or(0, big)),
                    Box::new(limit),
                ]
            });
            let views: Result<_, Error> = rows.await?.iter().map(read_view).collect();
            views.map_err(|error| error.during(Verb::Job))
        })
    }

    fn counts<'a>(&'a self, queue: &'a Name) -> Pending<'a, QueueCounts> {
        Box::pin(async move {
            let rows = self.query(Verb::Job, Function::JobCounts, |ns| {
                vec![Box::new(ns), Box::new(queue.as_str().to_owned())]
            });
            let mut counts = QueueCounts::default();
            for row in &rows.await? {
                read_count(row, &mut counts).map_err(|error| error.during(Verb::Job))?;
            }
            Ok(counts)
        })
    }

    fn queues(&self) -> Pending<'_, Vec<Name>> {
        Box::pin(async move {
            let rows = self.query(Verb::Job, Function::QueueNames, |ns| vec![Box::new(ns)]);
            let name = |row: &tokio_postgres::Row| {
                let name = row.try_get(0).map_err(|error| unexpected_reply().caused_by(error))?;
                Name::from_store(name)
            };
            let names: Result<_, Error> = rows.await?.iter().map(name).collect();
            names.map_err(|error| error.during(Verb::Job))
        })
    }

    fn sql_place(&self) -> Option<Arc<SqlPlace>> {
        self.inner.context.sql_place()
    }
}

impl PostgresEngine {
    /// Runs one turn. Also returns whether the session sleeps since this turn.
    async fn run_turn(&self, queue: &Name, turn: &Turn) -> Result<(TurnReply, bool), Error> {
        let slot = worker_slot(queue)?;
        let mut memory = self.inner.workers.take(turn.worker);
        let held: Option<HashSet<JobAttempt>> =
            turn.held.as_ref().map(|held| held.iter().copied().collect());
        // A worker that names every attempt that it was given has missed no reply.
        let unsure = held.as_ref().filter(|held| !memory.names_all(held));
        let given_back = unsure.map(|held| held.iter().map(|one| one.fence.get()).map(bigint));
        let now = SystemClock.now();
        // On the virtual clock of the suite no time passes, and every claim is a first one.
        if memory.start_at.is_none_or(|at| now >= at) || self.inner.context.has_test_clock() {
            memory.keys = None;
        }
        let may_restart = memory.restart_at.is_none_or(|at| now >= at);
        let sleeps = self.inner.listener.is_some();
        let rows = self.query(Verb::Job, Function::Turn, |ns| {
            let mut parameters: Parameters = vec![
                Box::new(ns),
                Box::new(queue.as_str().to_owned()),
                Box::new(slot.as_str().to_owned()),
                Box::new(self.inner.context.is_async()),
                Box::new(uuid(turn.worker.as_u128())),
                Box::new(uuid(turn.session.as_u128())),
            ];
            parameters.extend(report_parameters(&turn.reports));
            let keys = memory.keys.as_ref();
            parameters.extend::<Parameters>(vec![
                Box::new(given_back.map(Iterator::collect::<Vec<i64>>)),
                Box::new(i32::try_from(turn.want).unwrap_or(i32::MAX)),
                Box::new(turn.look),
                Box::new(keys.map(|keys| keys.iter().map(|key| key.0).collect::<Vec<i64>>())),
                Box::new(keys.map(|keys| keys.iter().map(|key| key.1).collect::<Vec<i64>>())),
                Box::new(may_restart),
                Box::new(sleeps),
                Box::new(memory.asleep),
                Box::new(turn.durable),
            ]);
            parameters
        });
        let rows = rows.await?;
        let TurnRows { reply, keys, cost, fell_asleep, locked } =
            TurnRows::read(&rows, turn.reports.len()).map_err(|error| error.during(Verb::Job))?;
        for (class, place, id) in keys {
            let known = memory.keys.get_or_insert([(i64::MIN, 0); CLASSES]);
            *known.get_mut(class).ok_or_else(unexpected_reply)? = (place, id);
        }
        if let Some(cost) = cost {
            let (now, pause) = (SystemClock.now(), cost * START_SHARE);
            memory.restart_at = Some(now + pause);
            memory.start_at = Some(now + pause.max(START_INTERVAL));
        }
        // Whatever the worker did not name is given back, unless it was locked.
        memory.attempts = held.or(memory.attempts).filter(|_| !locked);
        if let Some(attempts) = &mut memory.attempts {
            for ended in turn.reports.iter().filter(|one| ends(&one.outcome)) {
                attempts.remove(&ended.attempt);
            }
            attempts.extend(reply.jobs.iter().map(|job| job.attempt));
        }
        memory.asleep = sleeps && reply.jobs.len() < turn.want;
        self.inner.workers.put(turn.worker, memory);
        Ok((reply, fell_asleep))
    }

    /// Tells the conformance suite that a notification may be under way.
    fn may_have_notified(&self) {
        self.inner.notifies_done.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes ended jobs that are kept no longer.
    pub(super) async fn sweep_jobs(&self) -> Result<(), Error> {
        self.query(Verb::Job, Function::SweepJobs, |ns| vec![Box::new(ns)]).await.map(drop)
    }
}

/// Whether an outcome ends its attempt.
fn ends(outcome: &JobOutcome) -> bool {
    !matches!(outcome, JobOutcome::Progress(_))
}

/// The jobs of a push, as parallel arrays.
fn push_parameters(jobs: &[NewJob]) -> Parameters {
    fn all<T>(jobs: &[NewJob], one: impl Fn(&NewJob) -> T) -> Vec<T> {
        jobs.iter().map(one).collect()
    }
    let delay = |job: &NewJob| match job.due {
        JobDue::In(delay) => Some(micros(delay)),
        JobDue::At(_) => None,
    };
    let at = |job: &NewJob| match job.due {
        JobDue::In(_) => None,
        JobDue::At(at) => Some(bigint(at)),
    };
    let key = |job: &NewJob| job.key.as_ref().map(|key| key.key.as_str().to_owned());
    let lane = |job: &NewJob| job.lane.as_ref().map(|lane| lane.name.as_str().to_owned());
    vec![
        Box::new(all(jobs, |job| job.payload.clone())),
        Box::new(all(jobs, |job| i32::from(job.priority))),
        Box::new(all(jobs, delay)),
        Box::new(all(jobs, at)),
        Box::new(all(jobs, |job| int(job.max_attempts))),
        Box::new(all(jobs, |job| micros(job.back_off.first))),
        Box::new(all(jobs, |job| micros(job.back_off.most))),
        Box::new(all(jobs, key)),
        Box::new(all(jobs, |job| job.key.as_ref().map(|key| mode_number(key.mode)))),
        Box::new(all(jobs, lane)),
        Box::new(all(jobs, |job| job.lane.as_ref().map(|lane| int(lane.limit)))),
    ]
}

/// The reports of a turn, as parallel arrays.
fn report_parameters(reports: &[AttemptReport]) -> Parameters {
    fn all<T>(reports: &[AttemptReport], one: impl Fn(&JobOutcome) -> T) -> Vec<T> {
        reports.iter().map(|report| one(&report.outcome)).collect()
    }
    let letter = |outcome: &JobOutcome| match outcome {
        JobOutcome::Complete => "c",
        JobOutcome::Fail { .. } => "f",
        JobOutcome::GiveBack => "g",
        JobOutcome::Later(_) => "l",
        JobOutcome::Progress(_) => "p",
    };
    let error = |outcome: &JobOutcome| match outcome {
        // The server takes no NUL in a text.
        JobOutcome::Fail { error, .. } => Some(shortened(&error.replace('\0', " ")).to_owned()),
        _ => None,
    };
    let pause = |outcome: &JobOutcome| match outcome {
        JobOutcome::Fail { retry_after, .. } => *retry_after,
        JobOutcome::Later(delay) => Some(*delay),
        _ => None,
    };
    let pause = |outcome: &JobOutcome| pause(outcome).map(|it| micros(it.min(limits::JOB_DELAY)));
    let progress = |outcome: &JobOutcome| match outcome {
        JobOutcome::Progress(progress) => Some(progress.clone()),
        _ => None,
    };
    let for_good =
        |outcome: &JobOutcome| matches!(outcome, JobOutcome::Fail { for_good: true, .. });
    let jitter = |outcome: &JobOutcome| match outcome {
        JobOutcome::Fail { jitter, .. } => i32::from(*jitter),
        _ => 0,
    };
    let attempts = || reports.iter().map(|report| report.attempt);
    vec![
        Box::new(attempts().map(|attempt| big(attempt.job)).collect::<Vec<i64>>()),
        Box::new(attempts().map(|attempt| bigint(attempt.fence.get())).collect::<Vec<i64>>()),
        Box::new(all(reports, letter)),
        Box::new(all(reports, error)),
        Box::new(all(reports, for_good)),
        Box::new(all(reports, pause)),
        Box::new(all(reports, jitter)),
        Box::new(all(reports, progress)),
    ]
}

/// The letter by which the schema keeps a state.
fn state_letter(state: JobState) -> &'static str {
    match state {
        JobState::Scheduled => "s",
        JobState::Blocked => "b",
        JobState::Ready => "r",
        JobState::Running => "w",
        JobState::Dead => "d",
        JobState::Done => "f",
    }
}

/// The state of a letter.
pub(super) fn state_of(letter: &str) -> Option<JobState> {
    JobState::ALL.into_iter().find(|state| state_letter(*state) == letter)
}

/// The number by which the schema keeps the mode of a key.
fn mode_number(mode: KeyMode) -> i32 {
    match mode {
        KeyMode::UntilStarted => 0,
        KeyMode::UntilDone => 1,
        KeyMode::Replace => 2,
    }
}

/// The mode of a number.
pub(super) fn mode_of(number: i32) -> Option<KeyMode> {
    let modes = [KeyMode::UntilStarted, KeyMode::UntilDone, KeyMode::Replace];
    modes.into_iter().find(|mode| mode_number(*mode) == number)
}

fn big(id: JobId) -> i64 {
    bigint(id.0)
}

/// Saturates: no job and no fence has a number that large.
fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A time in microseconds that the store has returned.
pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
