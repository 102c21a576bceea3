//! Recurring jobs: a schedule by which a queue gets a job again and again.
//!
//! The schedules of a queue are in one cell. The runs are ordinary jobs, and each has the unique
//! key of its schedule until it is started:
//!
//! ```text
//! add ──> cell ──> run 1, due at its tick ──(claimed)──> run 2 is pushed ──> handler of run 1
//!                                                          └──(claimed)──> run 3 is pushed ──> ...
//! ```
//!
//! # Why a tick gets one job
//!
//! 1. At most one run of a schedule waits: the store refuses a second one, by the key.
//! 2. A worker that has claimed a run pushes the next one before it calls the handler, due at the
//!    first tick that is after both the run and now. So runs that were missed while no worker lived
//!    are one run: the one that has waited all the time.
//! 3. A worker that dies before that leaves the run in the queue with its key, and the next attempt
//!    pushes the next run. One that is slow finds that another attempt has pushed it, or that an
//!    even later run waits: refused by the key in both cases.
//! 4. A run that comes back (it failed, or its worker died) while the next one waits goes on
//!    without the key, and pushes nothing.
//!
//! So it does not matter how many processes work on a queue or add the same schedule. A run that an
//! operator cancels while it waits is skipped; the next worker that starts pushes the one after it,
//! as does adding the schedule again. Only that step, which starts from no run, depends on clocks:
//! a host whose clock is behind by more than the time to the next tick could repeat a tick there.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::JobQueue;
use super::cron::CronSchedule;
use crate::contract::{
    BackOff, Cells as _, ClaimedJob, Error, ErrorKind, JobChange, JobDue, Jobs as _, KeyMode, Lane,
    Name, NewJob, UniqueKey, Verb,
};
use crate::limits;
use crate::primitives::update::UpdatableCell;
use crate::session::block_on;

/// The kind of reserved names that the cells of schedules and the keys of their runs have.
const CRON: &str = "cron";
/// The version of the encoding of a cell.
const FORMAT: u32 = 1;

/// A job that a queue gets again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecurringJob {
    /// Its name, unique in the queue.
    pub name: Name,
    /// When it runs.
    pub schedule: CronSchedule,
    /// What is pushed, without key and due time.
    pub job: NewJob,
    /// The first tick after now by the clock of this host, in microseconds since 1970; `None` if
    /// there is none. A run that is late waits in the queue.
    pub next_micros: Option<u64>,
}

impl JobQueue {
    /// Adds a recurring job, or changes the one of this name. As long as there are workers, the
    /// queue gets one job for each tick of the schedule, however many processes add the schedule or
    /// work on the queue. Ticks that pass while there is no worker are one run.
    ///
    /// To add a recurring job that is there already changes nothing: let every process do it when
    /// it starts. If it differs, the run that waits is replaced.
    ///
    /// Runs are jobs like all others: listed, retried, cancelled. Two runs may overlap if one takes
    /// longer than the time between two ticks; with a [lane](NewJob::lane) they do not.
    ///
    /// # Errors
    /// `InvalidOption` if the job has a key or a due time of its own, or is outside the limits (2
    /// KiB of payload, 100 recurring jobs in a queue); `InvalidName` if the name cannot be one;
    /// otherwise as [`push`](Self::push).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not add it. To do it once more is harmless.
    ///
    /// # Examples
    /// ```
    /// use tenure::{CronSchedule, NewJob, Tenure};
    ///
    /// # tenure::block_on(async {
    /// let queue = Tenure::connect("memory:").await?.queue("reports")?;
    /// let nightly: CronSchedule = "30 3 * * *".parse()?;
    /// queue.add_recurring("nightly", &nightly.in_zone("Europe/Berlin")?, "all").await?;
    /// assert_eq!(queue.recurring().await?[0].name.as_str(), "nightly");
    /// assert_eq!(queue.counts().await?.scheduled, 1);
    /// assert!(queue.remove_recurring("nightly").await?);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn add_recurring(
        &self,
        name: impl AsRef<str>,
        schedule: &CronSchedule,
        job: impl Into<NewJob>,
    ) -> Result<(), Error> {
        let (name, job) = (Name::try_from(name.as_ref())?, job.into());
        let refused = |what: String| {
            Error::invalid(ErrorKind::InvalidOption, what).on(&self.name).during(Verb::Job)
        };
        if job.key.is_some() || job.due != JobDue::In(Duration::ZERO) {
            return Err(refused("a recurring job has no key and no due time of its own".into()));
        }
        if job.payload.len() > limits::RECURRING_BYTES {
            let (is, most) = (job.payload.len(), limits::RECURRING_BYTES);
            return Err(refused(format!(
                "the payload of a recurring job has {is} bytes, at most {most} are allowed"
            )));
        }
        let key = run_key(&name)?;
        job.clone().key(key, KeyMode::UntilStarted).check_limits()?;
        if schedule.next_after(self.wall_micros()).is_none() {
            return Err(refused(format!("{:?} has no tick after now", schedule.expression())));
        }
        self.core().check_jobs().map_err(|error| error.on(&self.name))?;
        let record = ScheduleRecord::new(schedule, &job);
        let mut changed = false;
        self.update_schedules(|schedules| {
            changed = schedules.schedules.get(name.as_str()) != Some(&record);
            if changed && schedules.schedules.len() >= limits::RECURRING_JOBS {
                let known = schedules.schedules.contains_key(name.as_str());
                if !known {
                    let most = limits::RECURRING_JOBS;
                    return Err(refused(format!("a queue has at most {most} recurring jobs")));
                }
            }
            schedules.schedules.insert(name.as_str().to_owned(), record.clone());
            Ok(())
        })
        .await?;
        let mode = if changed { KeyMode::Replace } else { KeyMode::UntilStarted };
        self.push_next(&name, schedule, job, mode, 0).await
    }

    /// Removes a recurring job and the run that waits. A run that has begun goes on. Returns
    /// whether there was such a recurring job.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not remove it. To do it once more is harmless.
    pub async fn remove_recurring(&self, name: impl AsRef<str>) -> Result<bool, Error> {
        let name = Name::try_from(name.as_ref())?;
        self.core().check_jobs().map_err(|error| error.on(&self.name))?;
        if !self.schedules().await?.schedules.contains_key(name.as_str()) {
            return Ok(false);
        }
        let mut known = false;
        self.update_schedules(|schedules| {
            known = schedules.schedules.remove(name.as_str()).is_some();
            Ok(())
        })
        .await?;
        // A run that waits is found by its key: another job takes its place, and goes.
        let last = NewJob::new("").key(run_key(&name)?, KeyMode::Replace).after(limits::JOB_DELAY);
        let last = self.push(last).await?.id();
        self.core().change_job(&self.name, &JobChange::Cancel(last)).await?;
        Ok(known)
    }

    /// Lists the recurring jobs of the queue, by name.
    ///
    /// # Errors
    /// As [`job`](Self::job); `Corrupt` if another version has written them.
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    pub async fn recurring(&self) -> Result<Vec<RecurringJob>, Error> {
        self.core().check_jobs().map_err(|error| error.on(&self.name))?;
        let (schedules, now) = (self.schedules().await?, self.wall_micros());
        let one = |(name, record): (&String, &ScheduleRecord)| {
            let (schedule, job) = record.parse()?;
            let next_micros = schedule.next_after(now);
            Ok(RecurringJob { name: Name::try_from(name.as_str())?, schedule, job, next_micros })
        };
        schedules.schedules.iter().map(one).collect()
    }

    /// The blocking form of [`add_recurring`](Self::add_recurring).
    ///
    /// # Errors
    /// As [`add_recurring`](Self::add_recurring).
    pub fn blocking_add_recurring(
        &self,
        name: impl AsRef<str>,
        schedule: &CronSchedule,
        job: impl Into<NewJob>,
    ) -> Result<(), Error> {
        block_on(self.add_recurring(name, schedule, job))
    }

    /// The blocking form of [`remove_recurring`](Self::remove_recurring).
    ///
    /// # Errors
    /// As [`remove_recurring`](Self::remove_recurring).
    pub fn blocking_remove_recurring(&self, name: impl AsRef<str>) -> Result<bool, Error> {
        block_on(self.remove_recurring(name))
    }

    /// The blocking form of [`recurring`](Self::recurring).
    ///
    /// # Errors
    /// As [`recurring`](Self::recurring).
    pub fn blocking_recurring(&self) -> Result<Vec<RecurringJob>, Error> {
        block_on(self.recurring())
    }

    /// Prepares the run of a recurring job: pushes the next one. Returns whether to run it; not if
    /// it was removed. A job that is no such run is to be run.
    pub(super) async fn begin_run(&self, claimed: &ClaimedJob) -> Result<bool, Error> {
        let Some(name) = claimed.key.as_ref().and_then(schedule_of) else { return Ok(true) };
        let schedules = self.schedules().await?;
        let Some(record) = schedules.schedules.get(name) else { return Ok(false) };
        let (schedule, job) = record.parse()?;
        let view = self.core().job(&self.name, claimed.attempt.job).await?;
        let due = view.map_or(0, |view| view.due_micros);
        let name = Name::try_from(name)?;
        self.push_next(&name, &schedule, job, KeyMode::UntilStarted, due).await?;
        Ok(true)
    }

    /// Pushes the next run of each recurring job of which none waits, because an operator has
    /// cancelled it or the process that added it has died.
    pub(super) async fn push_missing_runs(&self) -> Result<(), Error> {
        let mut runs = Vec::new();
        for (name, record) in self.schedules().await?.schedules {
            let (schedule, job) = record.parse()?;
            let name = Name::try_from(name.as_str())?;
            runs.extend(self.next_run(&name, &schedule, job, KeyMode::UntilStarted, 0)?);
        }
        if !runs.is_empty() {
            self.push_many(runs).await?;
        }
        Ok(())
    }

    async fn push_next(
        &self,
        name: &Name,
        schedule: &CronSchedule,
        job: NewJob,
        mode: KeyMode,
        after: u64,
    ) -> Result<(), Error> {
        if let Some(run) = self.next_run(name, schedule, job, mode, after)? {
            self.push(run).await?;
        }
        Ok(())
    }

    /// The run at the first tick after `after` and after now.
    fn next_run(
        &self,
        name: &Name,
        schedule: &CronSchedule,
        job: NewJob,
        mode: KeyMode,
        after: u64,
    ) -> Result<Option<NewJob>, Error> {
        let key = run_key(name)?;
        let due = schedule.next_after(after.max(self.wall_micros()));
        Ok(due.map(|due| job.key(key, mode).at_micros(due)))
    }

    fn wall_micros(&self) -> u64 {
        self.core().clock().wall_micros()
    }

    async fn schedules(&self) -> Result<Schedules, Error> {
        let cell = self.core().get(&Name::reserved(CRON, &self.name)?).await?;
        cell.map_or_else(|| Ok(Schedules::default()), |cell| self.decode(&cell.value))
    }

    async fn update_schedules(
        &self,
        mut change: impl FnMut(&mut Schedules) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let name = Name::reserved(CRON, &self.name)?;
        let cell = UpdatableCell::new(self.session.clone(), name, self.options.clone());
        let updated = cell.update_async(|old| {
            let mut new = || {
                let mut schedules = match &old {
                    Some(old) => self.decode(old)?,
                    None => Schedules::default(),
                };
                change(&mut schedules)?;
                if schedules.schedules.is_empty() {
                    return Ok(None);
                }
                self.encode(&schedules).map(Some)
            };
            std::future::ready(new())
        });
        updated.await.map(drop)
    }

    fn encode(&self, schedules: &Schedules) -> Result<Vec<u8>, Error> {
        let wrong = |what: String| Error::invalid(ErrorKind::InvalidOption, what).on(&self.name);
        let bytes = serde_json::to_vec(schedules).map_err(|error| wrong(error.to_string()))?;
        if bytes.len() > limits::CELL_BYTES {
            let most = limits::CELL_BYTES;
            return Err(wrong(format!("the recurring jobs of a queue take {most} bytes at most")));
        }
        Ok(bytes)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Schedules, Error> {
        let schedules = serde_json::from_slice::<Schedules>(bytes).ok();
        schedules.filter(|schedules| schedules.format == FORMAT).ok_or_else(|| {
            let what = "the recurring jobs of this queue were written by another version";
            Error::new(ErrorKind::Corrupt, what)
                .on(&self.name)
                .with_help("use the version that wrote them, or remove them with it")
        })
    }
}

/// The key of the runs of a schedule.
fn run_key(schedule: &Name) -> Result<Name, Error> {
    Name::reserved(CRON, schedule)
}

/// The schedule of a run with this key, if it is one.
fn schedule_of(key: &Name) -> Option<&str> {
    (key.reserved_kind() == Some(CRON)).then(|| key.user_part())
}

/// The content of a cell.
#[derive(Serialize, Deserialize)]
struct Schedules {
    format: u32,
    schedules: BTreeMap<String, ScheduleRecord>,
}

impl Default for Schedules {
    fn default() -> Self {
        Self { format: FORMAT, schedules: BTreeMap::new() }
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct ScheduleRecord {
    expression: String,
    zone: String,
    payload: PayloadRecord,
    priority: u8,
    lane: Option<(String, u32)>,
    max_attempts: u32,
    back_off: (Duration, Duration),
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum PayloadRecord {
    Text(String),
    Bytes(Vec<u8>),
}

impl ScheduleRecord {
    fn new(schedule: &CronSchedule, job: &NewJob) -> Self {
        let payload = match String::from_utf8(job.payload.clone()) {
            Ok(text) => PayloadRecord::Text(text),
            Err(bytes) => PayloadRecord::Bytes(bytes.into_bytes()),
        };
        let lane = job.lane.as_ref().map(|lane| (lane.name.as_str().to_owned(), lane.limit));
        Self {
            expression: schedule.expression().to_owned(),
            zone: schedule.zone().to_owned(),
            payload,
            priority: job.priority,
            lane,
            max_attempts: job.max_attempts,
            back_off: (job.back_off.first, job.back_off.most),
        }
    }

    fn parse(&self) -> Result<(CronSchedule, NewJob), Error> {
        let schedule = self.expression.parse::<CronSchedule>()?.in_zone(&self.zone)?;
        let lane = |(name, limit): &(String, u32)| -> Result<Lane, Error> {
            Ok(Lane { name: Name::try_from(name.as_str())?, limit: *limit })
        };
        let job = NewJob {
            payload: match &self.payload {
                PayloadRecord::Text(text) => text.clone().into_bytes(),
                PayloadRecord::Bytes(bytes) => bytes.clone(),
            },
            priority: self.priority,
            due: JobDue::In(Duration::ZERO),
            key: None::<UniqueKey>,
            lane: self.lane.as_ref().map(lane).transpose()?,
            max_attempts: self.max_attempts,
            back_off: BackOff { first: self.back_off.0, most: self.back_off.1 },
        };
        Ok((schedule, job))
    }
}
