//! A worker: claims jobs and runs handlers, `slots` at a time, in one future.
//!
//! ```text
//! work():  acquire the shared hold ──> WorkLoop::run ──(lost)──> drop all handlers, begin anew
//!
//! WorkLoop::run, until it is stopped:
//!     start a turn, if none is under way and there is something to report, or a free slot and a
//!     reason to look: the last turn filled all slots, the alarm rang, or it is time
//!     wait for: handlers that end · the turn · the alarm · a report of progress · time · stop
//! ```
//!
//! At most one turn is under way. Handlers that end meanwhile gather their reports for the next
//! one, so that a busy worker reports and claims in batches without any timer.
//!
//! Every turn names all attempts that the worker knows of, so that a job which was claimed by a
//! turn whose reply was lost is given back by the store and not stuck with this worker.
//!
//! Reports are repeated until they are answered: a report whose reply was lost is harmless, because
//! the store refuses it as stale or it was not carried out before. Only a report that was refused
//! when it was sent for the first time is logged: then another worker has the job.
//!
//! An attempt that a handler has completed in a transaction of its own is reported as failed: if
//! the transaction was committed, the attempt has ended and the store refuses the report as stale,
//! which is what is expected. If it was not, its effect is not there, and the job is tried again.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::FusedFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, Stream as _};
use tokio::sync::oneshot;

use super::JobQueue;
use super::job::{CancelFlag, Job, JobFailure, OutboxReport, ReportOutbox};
use crate::contract::{
    AttemptReport, ClaimedJob, Error, ErrorKind, JobAttempt, JobOutcome, Jobs as _, Name, Reported,
    Turn, TurnReply,
};
use crate::limits;
use crate::primitives::guard::{LockStatus, RwLockReadGuard};
use crate::primitives::run::until_lost;
use crate::session::{Core, sleep_until};
use crate::time::Tick;

/// How long a worker sleeps at most before it looks by itself.
const LOOK: Duration = Duration::from_secs(1);

/// Runs jobs until `stop` resolves.
pub(super) async fn work<H, F>(
    queue: &JobQueue,
    slots: usize,
    stop: impl Future<Output = ()> + Send,
    handler: &H,
) -> Result<(), Error>
where
    H: Fn(Job) -> F + Send + Sync,
    F: Future<Output = Result<(), JobFailure>> + Send,
{
    let mut stop = pin!(stop.fuse());
    let mut failures = 0;
    loop {
        let acquired = {
            let acquire = pin!(queue.worker_request().wait::<RwLockReadGuard>());
            match until(acquire, stop.as_mut()).await {
                Some(acquired) => acquired,
                None => return Ok(()),
            }
        };
        let guard = match acquired {
            Ok(guard) => guard,
            Err(error) if error.is_transient() => {
                failures += 1;
                if pause(queue.core(), failures, stop.as_mut()).await {
                    return Ok(());
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        failures = 0;
        let status = LockStatus::clone(&guard);
        let run = async {
            // To start is not worth less for it: a worker that starts later tries again.
            if let Err(error) = queue.push_missing_runs().await {
                tracing::warn!(queue = %queue.name, %error, "cannot look after recurring jobs");
            }
            WorkLoop::new(queue, slots, &status, handler).run(stop.as_mut()).await
        };
        match until_lost(&status, run).await {
            Ok(done) => {
                let released = guard.release().await;
                done?;
                return match released {
                    Err(error) if !error.is_transient() && error.kind() != ErrorKind::Lost => {
                        Err(error)
                    }
                    _ => Ok(()),
                };
            }
            Err(error) => {
                tracing::warn!(queue = %queue.name, %error, "a worker was lost: it begins anew");
                drop(guard);
            }
        }
    }
}

/// Waits for a future, unless `stop` resolves first.
async fn until<T>(
    mut future: Pin<&mut impl Future<Output = T>>,
    mut stop: Pin<&mut impl FusedFuture<Output = ()>>,
) -> Option<T> {
    poll_fn(|cx| {
        if stop.is_terminated() || stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Pauses after a failure. Returns whether `stop` has resolved meanwhile.
async fn pause(core: &Core, failures: u32, stop: Pin<&mut impl FusedFuture<Output = ()>>) -> bool {
    let sleep = pin!(sleep_until(core, core.now() + core.pause(failures)));
    until(sleep, stop).await.is_none()
}

type Running<'a> = Pin<Box<dyn Future<Output = EndedAttempt> + Send + 'a>>;
type TurnCall<'a> = Pin<Box<dyn Future<Output = (Turn, Result<TurnReply, Error>)> + Send + 'a>>;

/// A handler that has returned.
struct EndedAttempt {
    report: AttemptReport,
    /// The handler completes the attempt in a transaction of its own.
    in_transaction: bool,
}

/// A report that waits for a turn.
struct WaitingReport {
    report: AttemptReport,
    /// It was sent before, and the reply was lost.
    repeated: bool,
    in_transaction: bool,
    reply: Option<oneshot::Sender<Reported>>,
}

impl WaitingReport {
    fn new(report: AttemptReport) -> Self {
        Self { report, repeated: false, in_transaction: false, reply: None }
    }

    /// Logs a reply that an operator should know of.
    fn log(&self, queue: &Name, reported: Reported) {
        let JobAttempt { job, fence } = self.report.attempt;
        match (reported, self.in_transaction) {
            (Reported::Stale, false) if !self.repeated => tracing::warn!(%queue, %job, %fence,
                "an attempt was refused as stale: another worker has the job"),
            (Reported::Stale, true) => tracing::debug!(%queue, %job, %fence,
                "an attempt has ended whose handler completes it in a transaction"),
            (Reported::Again(_) | Reported::Dead, true) => tracing::warn!(%queue, %job, %fence,
                "the transaction that completes an attempt was not committed"),
            _ => {}
        }
    }
}

/// What the loop waits for.
enum WorkEvent {
    Ended(Vec<EndedAttempt>),
    Turned(Turn, Result<TurnReply, Error>),
    Rung(bool),
    Reports(Vec<OutboxReport>),
    Time,
    Stop,
}

struct WorkLoop<'a, H> {
    queue: &'a JobQueue,
    slots: usize,
    worker: &'a LockStatus,
    handler: &'a H,
    running: FuturesUnordered<Running<'a>>,
    cancels: HashMap<JobAttempt, Arc<CancelFlag>>,
    outbox: Arc<ReportOutbox>,
    waiting: Vec<WaitingReport>,
    /// The reports of the turn that is under way.
    sent: Vec<WaitingReport>,
    call: Option<TurnCall<'a>>,
    /// When to look by itself.
    look_at: Tick,
    /// Look for jobs of lost workers in the next turn.
    look: bool,
    failures: u32,
    /// The instant at which a worker that stops gives up its handlers.
    stopping: Option<Tick>,
}

impl<'a, H, F> WorkLoop<'a, H>
where
    H: Fn(Job) -> F + Send + Sync,
    F: Future<Output = Result<(), JobFailure>> + Send + 'a,
{
    fn new(queue: &'a JobQueue, slots: usize, worker: &'a LockStatus, handler: &'a H) -> Self {
        Self {
            queue,
            slots,
            worker,
            handler,
            running: FuturesUnordered::new(),
            cancels: HashMap::new(),
            outbox: Arc::default(),
            waiting: Vec::new(),
            sent: Vec::new(),
            call: None,
            look_at: Tick::ZERO,
            look: true,
            failures: 0,
            stopping: None,
        }
    }

    fn core(&self) -> &'a Core {
        self.queue.core()
    }

    async fn run(mut self, mut stop: Pin<&mut impl FusedFuture<Output = ()>>) -> Result<(), Error> {
        let alarm = self.core().job_alarms().add(&self.queue.name);
        loop {
            if let Some(give_up) = self.stopping {
                if self.core().now() >= give_up && !self.running.is_empty() {
                    self.give_back_all();
                }
                if self.running.is_empty() && self.waiting.is_empty() && self.call.is_none() {
                    return Ok(());
                }
            }
            self.start_turn();
            let wake_at = self.wake_at();
            let mut time = pin!(sleep_until(self.core(), wake_at));
            let event = poll_fn(|cx| {
                if self.stopping.is_none()
                    && (stop.is_terminated() || stop.as_mut().poll(cx).is_ready())
                {
                    return Poll::Ready(WorkEvent::Stop);
                }
                // All that have ended: one turn is to report them together.
                let mut ended = Vec::new();
                while let Poll::Ready(Some(one)) = Pin::new(&mut self.running).poll_next(cx) {
                    ended.push(one);
                }
                if !ended.is_empty() {
                    return Poll::Ready(WorkEvent::Ended(ended));
                }
                if let Some(call) = &mut self.call
                    && let Poll::Ready((turn, reply)) = call.as_mut().poll(cx)
                {
                    return Poll::Ready(WorkEvent::Turned(turn, reply));
                }
                if let Poll::Ready(reports) = self.outbox.poll_take(cx.waker()) {
                    return Poll::Ready(WorkEvent::Reports(reports));
                }
                if let Poll::Ready(look) = alarm.poll_rung(cx) {
                    return Poll::Ready(WorkEvent::Rung(look));
                }
                time.as_mut().poll(cx).map(|()| WorkEvent::Time)
            })
            .await;
            self.handle(event)?;
        }
    }

    fn handle(&mut self, event: WorkEvent) -> Result<(), Error> {
        match event {
            WorkEvent::Ended(ended) => {
                for EndedAttempt { report, in_transaction } in ended {
                    self.cancels.remove(&report.attempt);
                    let report = WaitingReport { in_transaction, ..WaitingReport::new(report) };
                    self.waiting.push(report);
                }
                // A slot is free: more may be ready.
                self.look_at = Tick::ZERO;
            }
            WorkEvent::Turned(turn, reply) => {
                self.call = None;
                self.turned(&turn, reply)?;
            }
            WorkEvent::Rung(look) => {
                self.look |= look;
                self.look_at = Tick::ZERO;
            }
            WorkEvent::Reports(reports) => {
                let waiting = reports.into_iter().map(|(report, reply)| WaitingReport {
                    reply: Some(reply),
                    ..WaitingReport::new(report)
                });
                self.waiting.extend(waiting);
            }
            WorkEvent::Time => {}
            WorkEvent::Stop => self.stopping = Some(self.core().now() + self.queue.grace),
        }
        Ok(())
    }

    fn free(&self) -> usize {
        if self.stopping.is_some() { 0 } else { self.slots.saturating_sub(self.running.len()) }
    }

    /// The next instant at which there is something to do without an event.
    fn wake_at(&self) -> Tick {
        let now = self.core().now();
        // An instant that has passed would make the loop spin without a pause, and what it waits
        // for then is a reply that may need this very thread.
        let give_up = self.stopping.filter(|_| !self.running.is_empty()).unwrap_or(Tick::NEVER);
        if self.call.is_some() || (self.free() == 0 && self.waiting.is_empty()) {
            // A worker whose slots are full looks whether a job was cancelled.
            return give_up.min(now + LOOK);
        }
        give_up.min(self.look_at.max(now))
    }

    /// Starts a turn if there is a reason for one.
    fn start_turn(&mut self) {
        let now = self.core().now();
        let after_pause = self.failures == 0 || now >= self.look_at;
        let due = now >= self.look_at && self.stopping.is_none();
        if self.call.is_some() || !(due || (!self.waiting.is_empty() && after_pause)) {
            return;
        }
        let take = self.waiting.len().min(limits::WORKER_SLOTS);
        self.sent = self.waiting.drain(..take).collect();
        let waiting = self.sent.iter().chain(&self.waiting).map(|one| one.report.attempt);
        let held = self.cancels.keys().copied().chain(waiting).collect();
        let turn = Turn {
            held: Some(held),
            worker: self.worker.claim_id(),
            session: self.core().id(),
            reports: self.sent.iter().map(|one| one.report.clone()).collect(),
            want: self.free(),
            look: std::mem::take(&mut self.look),
            durable: self.queue.durably,
        };
        let queue = self.queue;
        self.call = Some(Box::pin(async move {
            let reply = queue.core().turn(&queue.name, &turn).await;
            (turn, reply)
        }));
    }

    fn turned(&mut self, turn: &Turn, reply: Result<TurnReply, Error>) -> Result<(), Error> {
        let now = self.core().now();
        let sent = std::mem::take(&mut self.sent);
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) if error.is_transient() => {
                self.failures += 1;
                self.look |= turn.look;
                let again = sent.into_iter().map(|one| WaitingReport { repeated: true, ..one });
                self.waiting.splice(0..0, again);
                self.look_at = now + self.core().pause(self.failures);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.failures = 0;
        for (one, reported) in sent.into_iter().zip(&reply.reported) {
            one.log(&self.queue.name, *reported);
            if let Some(to) = one.reply {
                let _ = to.send(*reported);
            }
        }
        for attempt in &reply.cancelled {
            if let Some(cancel) = self.cancels.get(attempt) {
                cancel.set();
            }
        }
        let filled = reply.jobs.len() == turn.want;
        for job in reply.jobs {
            self.start(job);
        }
        // Full: the next look is when a slot is free. Short: when the next job is due.
        let due = reply.next_due.unwrap_or(LOOK).min(LOOK);
        let early = LOOK.mul_f64(f64::from(self.core().wide_jitter()) / f64::from(u16::MAX) / 4.0);
        let look = LOOK.saturating_sub(early);
        let due = if due == LOOK { look } else { due };
        self.look_at = match self.free() {
            0 => now + look,
            _ if filled => now,
            _ => now + due,
        };
        Ok(())
    }

    fn start(&mut self, claimed: ClaimedJob) {
        let attempt = claimed.attempt;
        let cancel = Arc::new(CancelFlag::default());
        self.cancels.insert(attempt, Arc::clone(&cancel));
        let job = Job {
            claimed: Arc::new(claimed),
            queue: self.queue.name.clone(),
            worker: self.worker.clone(),
            cancel,
            outbox: Arc::clone(&self.outbox),
            sql_place: self.core().sql_place(),
            in_transaction: Arc::default(),
        };
        let (handler, core, queue) = (self.handler, self.core(), self.queue);
        self.running.push(Box::pin(async move {
            let ended = |outcome, in_transaction| {
                let report = AttemptReport { attempt, outcome };
                EndedAttempt { report, in_transaction }
            };
            if let Err(outcome) = begin_run(queue, job.claimed(), attempt).await {
                return ended(outcome, false);
            }
            let in_transaction = Arc::clone(&job.in_transaction);
            // The handler is called inside, so that a panic in it is a failure too.
            let attempted = AssertUnwindSafe(async { handler(job).await }).catch_unwind().await;
            let in_transaction = in_transaction.load(Ordering::SeqCst);
            let failure = match attempted {
                Ok(Ok(())) if in_transaction => {
                    JobFailure::new("the transaction that completes the attempt was not committed")
                }
                Ok(Ok(())) => return ended(JobOutcome::Complete, false),
                Ok(Err(failure)) => failure,
                Err(panic) => JobFailure::new(format!("panic: {}", panic_text(&*panic))),
            };
            ended(failure.into_outcome(core.wide_jitter()), in_transaction)
        }));
    }

    /// Drops all handlers and gives their jobs back.
    fn give_back_all(&mut self) {
        self.running = FuturesUnordered::new();
        for (attempt, _) in self.cancels.drain() {
            let report = AttemptReport { attempt, outcome: JobOutcome::GiveBack };
            self.waiting.push(WaitingReport::new(report));
        }
    }
}

/// Pushes the next run, if the job is a run of a recurring job. Tries until it is done: an attempt
/// that completed without it would end the schedule. An error is the outcome of the attempt.
async fn begin_run(
    queue: &JobQueue,
    claimed: &ClaimedJob,
    attempt: JobAttempt,
) -> Result<(), JobOutcome> {
    let mut failures = 0;
    loop {
        match queue.begin_run(claimed).await {
            Ok(true) => return Ok(()),
            Ok(false) => {
                tracing::info!(queue = %queue.name, job = %attempt.job,
                    "not run: the recurring job was removed");
                return Err(JobOutcome::Complete);
            }
            Err(error) if error.is_transient() => {
                failures += 1;
                let core = queue.core();
                sleep_until(core, core.now() + core.pause(failures)).await;
            }
            Err(error) => {
                let failure = JobFailure::new(format!("the next run cannot be pushed: {error}"));
                return Err(failure.into_outcome(queue.core().wide_jitter()));
            }
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("of another type")
}
