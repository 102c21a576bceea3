//! What a handler gets: the job of one attempt, and how it says that the attempt has failed.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::contract::{
    AttemptReport, ClaimedJob, Error, ErrorKind, Fence, JobAttempt, JobId, JobOutcome, Name,
    Reported, SqlPlace,
};
use crate::primitives::guard::LockStatus;
use crate::session::Lost;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One attempt at a job. Handlers get it by value; cheap to clone.
#[derive(Clone)]
pub struct Job {
    pub(super) claimed: Arc<ClaimedJob>,
    pub(super) queue: Name,
    pub(super) worker: LockStatus,
    pub(super) cancel: Arc<CancelFlag>,
    pub(super) outbox: Arc<ReportOutbox>,
    /// Where a transaction of the handler can complete the attempt.
    pub(super) sql_place: Option<Arc<SqlPlace>>,
    /// A transaction of the handler completes the attempt; whether it is committed is not known.
    pub(super) in_transaction: Arc<AtomicBool>,
}

impl Job {
    /// The number of the job.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.claimed.attempt.job
    }

    pub(super) fn claimed(&self) -> &ClaimedJob {
        &self.claimed
    }

    /// The queue of the job.
    #[must_use]
    pub fn queue(&self) -> &Name {
        &self.queue
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.claimed.payload
    }

    /// Parses the payload as JSON. [`NewJob::json`](crate::NewJob::json) is the other side.
    ///
    /// # Errors
    /// Why the payload is not such a value; such a job fails for good.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, JobFailure> {
        serde_json::from_slice(self.payload())
            .map_err(|error| JobFailure::new(format!("payload: {error}")).for_good())
    }

    /// Which attempt this is: 1 is the first.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.claimed.number
    }

    /// How many attempts the job has.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.claimed.max_attempts
    }

    /// What an attempt before reported as [progress](Self::progress). Empty at first.
    #[must_use]
    pub fn last_progress(&self) -> &[u8] {
        &self.claimed.progress
    }

    /// The fence of this attempt: larger than that of any attempt before. Hand it to what the job
    /// writes to, so that a stale attempt is refused there too.
    ///
    /// # Errors
    /// `Lost` if the worker is lost: another one may have the job.
    pub fn fence(&self) -> Result<Fence, Error> {
        self.check()?;
        Ok(self.claimed.attempt.fence)
    }

    /// Returns an error if the worker is lost, and another one may have the job.
    ///
    /// # Errors
    /// `Lost`.
    pub fn check(&self) -> Result<(), Error> {
        self.worker.check()
    }

    /// How long the job stays with this worker if the store is not reached again.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.worker.remaining()
    }

    /// Resolves when the worker is lost. The future of the handler is dropped then anyway; this is
    /// for what it has spawned.
    pub fn lost(&self) -> Lost {
        self.worker.lost()
    }

    /// Resolves when the job was cancelled. A handler may go on: if it completes, the job is done;
    /// if it fails, the job is gone.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        let cancel = Arc::clone(&self.cancel);
        poll_fn(move |cx| {
            let mut state = cancel.lock();
            if state.0 {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
    }

    /// Whether the job was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.lock().0
    }

    /// Ends the attempt, and begins another one after this time. It does not count as one that
    /// failed. To be returned from the handler: `return Err(job.later(delay))`.
    #[must_use]
    pub fn later(&self, delay: Duration) -> JobFailure {
        JobFailure(FailureKind::Later(delay))
    }

    /// Where a transaction can complete the attempt: for the crate `tenure-postgres`.
    #[doc(hidden)]
    #[must_use]
    pub fn sql_place(&self) -> Option<Arc<SqlPlace>> {
        self.sql_place.clone()
    }

    /// Notes that a transaction of the handler completes the attempt: the worker expects that it
    /// has ended when the handler returns. For the crate `tenure-postgres`.
    #[doc(hidden)]
    pub fn completes_in_transaction(&self) {
        self.in_transaction.store(true, Ordering::SeqCst);
    }

    /// Notes how far the attempt is, for [`JobView::progress`](crate::JobView) and for the next
    /// attempt: 4 KiB at most.
    ///
    /// # Errors
    /// `Lost` if the attempt is not the current one any more, `InvalidOption` if it is too long.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not note it.
    pub async fn progress(&self, progress: impl Into<Vec<u8>>) -> Result<(), Error> {
        let progress = progress.into();
        if progress.len() > crate::limits::PROGRESS_BYTES {
            let most = crate::limits::PROGRESS_BYTES;
            let what = format!("a progress report has at most {most} bytes");
            return Err(Error::invalid(ErrorKind::InvalidOption, what).on(&self.queue));
        }
        let (reply, noted) = oneshot::channel();
        let outcome = JobOutcome::Progress(progress);
        let report = AttemptReport { attempt: self.claimed.attempt, outcome };
        self.outbox.push(report, reply);
        match noted.await {
            Ok(Reported::Stale) | Err(_) => {
                let what = "this attempt is not the current one: another worker may have the job";
                Err(Error::new(ErrorKind::Lost, what).on(&self.queue))
            }
            Ok(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobAttempt { job, fence } = self.claimed.attempt;
        f.debug_struct("Job")
            .field("queue", &self.queue)
            .field("id", &job)
            .field("attempt", &self.attempt())
            .field("fence", &fence)
            .finish_non_exhaustive()
    }
}

/// Why an attempt ended without the job being done. Made from any error by `?`, from a text, or by
/// [`Job::later`].
pub struct JobFailure(pub(super) FailureKind);

pub(super) enum FailureKind {
    Failed { error: String, for_good: bool, retry_after: Option<Duration> },
    Later(Duration),
}

impl JobFailure {
    /// A failure with this text.
    #[must_use]
    pub fn new(error: impl fmt::Display) -> Self {
        let error = error.to_string();
        Self(FailureKind::Failed { error, for_good: false, retry_after: None })
    }

    /// No further attempt: the job is dead.
    #[must_use]
    pub fn for_good(mut self) -> Self {
        if let FailureKind::Failed { for_good, .. } = &mut self.0 {
            *for_good = true;
        }
        self
    }

    /// The next attempt begins after this time, whatever the back-off of the job is.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        if let FailureKind::Failed { retry_after, .. } = &mut self.0 {
            *retry_after = Some(pause);
        }
        self
    }

    pub(super) fn into_outcome(self, jitter: u16) -> JobOutcome {
        match self.0 {
            FailureKind::Failed { error, for_good, retry_after } => {
                JobOutcome::Fail { error, for_good, retry_after, jitter }
            }
            FailureKind::Later(delay) => JobOutcome::Later(delay),
        }
    }
}

// `JobFailure` is no error itself, which is what makes this implementation possible.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for JobFailure {
    fn from(error: E) -> Self {
        Self::new(error.into())
    }
}

impl fmt::Debug for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            FailureKind::Failed { error, .. } => f.debug_tuple("JobFailure").field(error).finish(),
            FailureKind::Later(delay) => f.debug_tuple("Later").field(delay).finish(),
        }
    }
}

/// Whether a job was cancelled, and the wakers of tasks that wait for it.
#[derive(Default)]
pub(super) struct CancelFlag(Mutex<(bool, Vec<Waker>)>);

impl CancelFlag {
    pub(super) fn set(&self) {
        let mut state = self.lock();
        state.0 = true;
        let wakers = std::mem::take(&mut state.1);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, (bool, Vec<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A report of a handler that runs, and where the reply goes.
pub(super) type OutboxReport = (AttemptReport, oneshot::Sender<Reported>);

/// Reports of handlers that run, for the next turn of the worker.
#[derive(Default)]
pub(super) struct ReportOutbox(Mutex<(Vec<OutboxReport>, Option<Waker>)>);

impl ReportOutbox {
    fn push(&self, report: AttemptReport, reply: oneshot::Sender<Reported>) {
        let mut outbox = self.lock();
        outbox.0.push((report, reply));
        let waker = outbox.1.take();
        drop(outbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the reports that wait, or leaves a waker.
    pub(super) fn poll_take(&self, waker: &Waker) -> Poll<Vec<OutboxReport>> {
        let mut outbox = self.lock();
        if outbox.0.is_empty() {
            outbox.1 = Some(waker.clone());
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut outbox.0))
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<OutboxReport>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
