//! Queues of jobs as users reach them: push, inspect, operate. `worker.rs` runs handlers, `job.rs`
//! is what a handler gets, `recurring.rs` pushes by a schedule (`cron.rs`). Each call goes through
//! the session, which gives it a time limit.

mod cron;
mod job;
mod recurring;
mod worker;

use std::fmt;
use std::future::Future;
use std::time::Duration;

pub use self::cron::CronSchedule;
pub use self::job::{Job, JobFailure};
pub use self::recurring::RecurringJob;
use super::options::Options;
use super::request::Request;
use crate::contract::{
    ClaimId, Error, ErrorKind, JobChange, JobChanged, JobFilter, JobId, JobState, JobView, Jobs,
    Name, NewJob, Part, Parts, Pushed, QueueCounts, QueueSettings, SessionId, Turn, worker_slot,
};
use crate::limits;
use crate::session::{Core, Session, block_on};

/// How long a worker that stops waits for its handlers, unless it says otherwise.
const GRACE: Duration = Duration::from_secs(10);

/// A queue of jobs. Made by [`Tenure::queue`](crate::Tenure::queue). Cheap to clone.
///
/// A job is done at least once: it survives the death of its worker and, as far as the store is
/// durable, that of the store. Every attempt has a [fence](Job::fence), and what a stale attempt
/// reports is refused.
///
/// # Examples
/// ```
/// use tenure::{NewJob, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let queue = tenure.queue("mail")?;
/// queue.push(NewJob::new("ann@example.org").priority(7)).await?;
///
/// let (sent, mut all_sent) = tokio::sync::mpsc::channel(1);
/// let stop = async { all_sent.recv().await.unwrap() };
/// queue.work_until(4, stop, |job| {
///     let sent = sent.clone();
///     async move {
///         println!("to {:?}, fence {}", job.payload(), job.fence()?);
///         sent.send(()).await?;
///         Ok(())
///     }
/// }).await?;
/// assert_eq!(queue.counts().await?.ready, 0);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a queue does nothing until a job is pushed or a worker runs"]
pub struct JobQueue {
    session: Session,
    name: Name,
    /// The slot on which its workers have a shared hold.
    slot: Name,
    options: Options,
    grace: Duration,
    durably: bool,
}

impl JobQueue {
    pub(super) fn new(session: Session, name: Name, options: Options) -> Result<Self, Error> {
        let slot = worker_slot(&name)?;
        Ok(Self { session, name, slot, options, grace: GRACE, durably: false })
    }

    /// The lease of a worker: how long its jobs stay with it if its host is cut off from the store.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.on_lock("lease").lease = Some(lease);
        self
    }

    /// A label of the worker, shown wherever claims are.
    pub fn label(mut self, label: &str) -> Self {
        self.options.set_label(label);
        self
    }

    /// How long [`work_until`](Self::work_until) waits for running handlers when it stops; 10
    /// seconds unless it is set. What is not done then is given back.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Waits for the disk where a completion otherwise does not. On an embedded store, and on a
    /// PostgreSQL with `durability=grace`, a job that was done in the last moments before a loss of
    /// power may run once more. With this, the worker begins no job in the place of one that is
    /// done before that is on the disk, and [`work_until`](Self::work_until) returns after all of
    /// it is. It costs a sync for each turn of the worker that ends attempts. A PostgreSQL with its
    /// default durability waits in any case; a Redis is as durable as its log, and memory as its
    /// process, with this or without.
    pub fn durably(mut self) -> Self {
        self.durably = true;
        self
    }

    /// Where the queue is in a database: for the crate `tenure-postgres`.
    #[doc(hidden)]
    #[must_use]
    pub fn sql_place(&self) -> Option<std::sync::Arc<crate::contract::SqlPlace>> {
        self.core().sql_place()
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The reserved name under which [`Tenure::inspect`](crate::Tenure::inspect) shows the workers.
    #[must_use]
    pub fn slot(&self) -> &Name {
        &self.slot
    }

    fn core(&self) -> &Core {
        self.session.core()
    }

    /// The request for the shared hold of a worker.
    fn worker_request(&self) -> Request {
        let parts = Ok(Parts::one(Part::read(self.slot.clone())));
        Request::new(&self.session, &self.options, parts, None).for_new_owner()
    }

    /// Adds a job. When this returns, the job is as durable as the store.
    ///
    /// # Errors
    /// `InvalidOption` if the job is outside the limits, `Unsupported` if the engine has no jobs,
    /// `Unavailable` if the store cannot be reached: the error says whether the job may have been
    /// added all the same. A [unique key](NewJob::key) makes a repeated push harmless.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not add the job.
    ///
    /// # Examples
    /// ```
    /// # use tenure::{KeyMode, NewJob, Pushed, Tenure};
    /// # tenure::block_on(async {
    /// let queue = Tenure::connect("memory:").await?.queue("mail")?;
    /// let welcome = || NewJob::new("ann").key("welcome:ann".parse().unwrap(), KeyMode::UntilDone);
    /// let first = queue.push(welcome()).await?;
    /// assert_eq!(queue.push(welcome()).await?, Pushed::Exists(first.id()));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn push(&self, job: impl Into<NewJob>) -> Result<Pushed, Error> {
        let pushed = self.push_many([job.into()]).await?;
        pushed
            .into_iter()
            .next()
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "no reply to a push"))
    }

    /// Adds jobs in one step: all of them, or none.
    ///
    /// # Errors
    /// As [`push`](Self::push); `InvalidOption` for more than 1,000 jobs or 4 MiB.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not add the jobs: all of them, or none.
    pub async fn push_many(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Result<Vec<Pushed>, Error> {
        let jobs: Vec<NewJob> = jobs.into_iter().collect();
        self.core().push(&self.name, &jobs).await
    }

    /// Runs jobs, `slots` at a time, until the future is dropped. See
    /// [`work_until`](Self::work_until), which can stop in good order.
    ///
    /// # Errors
    /// As [`work_until`](Self::work_until).
    ///
    /// # Cancel safety
    /// Dropping the future drops the handlers; their jobs go to other workers at once, as after a
    /// crash.
    pub async fn work<H, F>(&self, slots: usize, handler: H) -> Result<(), Error>
    where
        H: Fn(Job) -> F + Send + Sync,
        F: Future<Output = Result<(), JobFailure>> + Send,
    {
        self.work_until(slots, std::future::pending(), handler).await
    }

    /// Runs jobs, `slots` at a time, until `stop` resolves. Then no job is claimed any more,
    /// running handlers have the time of [`grace`](Self::grace), and the rest is given back.
    ///
    /// The worker is a shared hold on the queue's slot. If that is lost, all handlers are dropped
    /// before another worker can get their jobs; then the worker begins anew. A handler that
    /// returns an error or panics has failed: the job is tried again after a pause, until its
    /// attempts are used up and it is dead. While the store is away the worker waits for it.
    ///
    /// Handlers run as part of this future, all in one task. One that computes for long or blocks
    /// its thread delays the others: let it spawn that work, and await it.
    ///
    /// # Errors
    /// `InvalidOption` if there are 0 or more than 256 slots or the lease is not allowed,
    /// `Unsupported` if the engine has no jobs, `Closed` after
    /// [`Tenure::close`](crate::Tenure::close).
    ///
    /// # Cancel safety
    /// As [`work`](Self::work).
    pub async fn work_until<H, F>(
        &self,
        slots: usize,
        stop: impl Future<Output = ()> + Send,
        handler: H,
    ) -> Result<(), Error>
    where
        H: Fn(Job) -> F + Send + Sync,
        F: Future<Output = Result<(), JobFailure>> + Send,
    {
        if slots == 0 || slots > limits::WORKER_SLOTS {
            let what = format!("a worker has 1 to {} slots, not {slots}", limits::WORKER_SLOTS);
            return Err(Error::invalid(ErrorKind::InvalidOption, what).on(&self.name));
        }
        self.core().check_jobs().map_err(|error| error.on(&self.name))?;
        worker::work(self, slots, stop, &handler).await
    }

    /// Returns one job in full, `None` if there is no such job.
    ///
    /// # Errors
    /// `Unsupported` if the engine has no jobs, `Unavailable` if the store cannot be reached.
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    pub async fn job(&self, id: JobId) -> Result<Option<JobView>, Error> {
        self.core().job(&self.name, id).await
    }

    /// Lists jobs in the order of their numbers, without payloads. See [`JobFilter`] for pages.
    ///
    /// # Errors
    /// As [`job`](Self::job).
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    pub async fn list(&self, filter: &JobFilter) -> Result<Vec<JobView>, Error> {
        self.core().list(&self.name, filter).await
    }

    /// Lists dead jobs after a number.
    ///
    /// # Errors
    /// As [`job`](Self::job).
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    pub async fn dead(&self, after: Option<JobId>, limit: usize) -> Result<Vec<JobView>, Error> {
        self.list(&JobFilter { state: Some(JobState::Dead), after, limit }).await
    }

    /// Returns how many jobs of each state there are, whether the queue is paused, and its
    /// settings. Does not scan the jobs. A job that has become due counts as scheduled until the
    /// next turn of a worker.
    ///
    /// # Errors
    /// As [`job`](Self::job).
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    pub async fn counts(&self) -> Result<QueueCounts, Error> {
        self.core().counts(&self.name).await
    }

    /// The [`counts`](Self::counts) after a turn of no worker, which moves what is due out of the
    /// schedule and claims nothing: for the command, which exits when nothing is left to do.
    ///
    /// # Errors
    /// As [`job`](Self::job).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not promote what is due.
    #[doc(hidden)]
    pub async fn counts_when_promoted(&self) -> Result<QueueCounts, Error> {
        let turn = Turn {
            worker: ClaimId::from_u128(0),
            session: SessionId::from_u128(0),
            reports: Vec::new(),
            held: None,
            want: 0,
            look: false,
            durable: false,
        };
        self.core().turn(&self.name, &turn).await?;
        self.counts().await
    }
}

/// Declares the changes of operators, each async and blocking.
macro_rules! changes {
    ($(
        $(#[$doc:meta])*
        $name:ident, $blocking:ident, ($($arg:ident: $type:ty)?) => $change:expr;
    )+) => {
        impl JobQueue {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// As [`job`](Self::job).
                ///
                /// # Cancel safety
                /// Dropping the future may or may not make the change. A repeat is harmless.
                pub async fn $name(&self, $($arg: $type)?) -> Result<JobChanged, Error> {
                    self.core().change_job(&self.name, &$change).await
                }

                #[doc = concat!("The blocking form of `", stringify!($name), "`.")]
                ///
                /// # Errors
                /// As [`job`](Self::job).
                pub fn $blocking(&self, $($arg: $type)?) -> Result<JobChanged, Error> {
                    block_on(self.$name($($arg)?))
                }
            )+
        }
    };
}

changes! {
    /// Removes a job that waits. A job that runs is not stopped: its handler hears
    /// [`Job::cancelled`], and the answer is [`JobChanged::Told`].
    cancel, blocking_cancel, (id: JobId) => JobChange::Cancel(id);
    /// Makes a dead job ready, with all its attempts.
    retry, blocking_retry, (id: JobId) => JobChange::Retry(id);
    /// Removes a job that is dead or done.
    delete, blocking_delete, (id: JobId) => JobChange::Delete(id);
    /// Pauses the queue: no job is claimed until it is resumed. Running jobs go on.
    pause, blocking_pause, () => JobChange::Pause;
    /// Resumes a queue that is paused.
    resume, blocking_resume, () => JobChange::Resume;
    /// Changes the settings that the store keeps for the queue.
    configure, blocking_configure, (settings: QueueSettings) => JobChange::Configure(settings);
}

impl JobQueue {
    /// The blocking form of [`push`](Self::push).
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn blocking_push(&self, job: impl Into<NewJob>) -> Result<Pushed, Error> {
        block_on(self.push(job))
    }

    /// The blocking form of [`push_many`](Self::push_many).
    ///
    /// # Errors
    /// As [`push_many`](Self::push_many).
    pub fn blocking_push_many(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Result<Vec<Pushed>, Error> {
        block_on(self.push_many(jobs))
    }

    /// The blocking form of [`job`](Self::job).
    ///
    /// # Errors
    /// As [`job`](Self::job).
    pub fn blocking_job(&self, id: JobId) -> Result<Option<JobView>, Error> {
        block_on(self.job(id))
    }

    /// The blocking form of [`list`](Self::list).
    ///
    /// # Errors
    /// As [`job`](Self::job).
    pub fn blocking_list(&self, filter: &JobFilter) -> Result<Vec<JobView>, Error> {
        block_on(self.list(filter))
    }

    /// The blocking form of [`dead`](Self::dead).
    ///
    /// # Errors
    /// As [`job`](Self::job).
    pub fn blocking_dead(&self, after: Option<JobId>, limit: usize) -> Result<Vec<JobView>, Error> {
        block_on(self.dead(after, limit))
    }

    /// The blocking form of [`counts`](Self::counts).
    ///
    /// # Errors
    /// As [`job`](Self::job).
    pub fn blocking_counts(&self) -> Result<QueueCounts, Error> {
        block_on(self.counts())
    }
}

impl NewJob {
    /// A job whose payload is this value as JSON. [`Job::json`] is the other side.
    ///
    /// # Errors
    /// `InvalidOption` if the value cannot be written as JSON.
    pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        let payload = serde_json::to_vec(value).map_err(|error| {
            Error::invalid(ErrorKind::InvalidOption, format!("the payload is no JSON: {error}"))
        })?;
        Ok(Self::new(payload))
    }
}

impl fmt::Debug for JobQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobQueue").field("name", &self.name).finish_non_exhaustive()
    }
}
