//! `tenure work`: claims jobs and runs a command for each, with the payload on its standard input.
//!
//! ```text
//! tenure work ──> job keeper ──> command ──> whatever it starts
//! session, worker's hold,   sub-reaper, lock on the liveness file,
//! reports, heartbeats       kills the tree in time
//! ```
//!
//! Each command has a process of its own that watches over it, the *job keeper* (`keeper.rs`). The
//! worker sends it the payload, and then again and again until when the worker's hold may be
//! trusted. The keeper kills the whole tree of the command when that instant comes, or when the
//! worker is gone, and it holds a lock on the session's liveness file until nothing of the tree is
//! left. So the job cannot go to another worker before the command has ended: not when the worker
//! is killed, not when it is stopped, and not when the store is out of reach.

mod command;
mod keeper;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tenure::contract::short;
use tenure::{Job, JobFailure, JobQueue, Loss};

use self::command::RunningCommand;
use self::keeper::MARGIN;
pub(crate) use self::keeper::{ARGV0, main as keeper_main};
use crate::args::{Shared, WorkArgs};
use crate::asking::trouble;
use crate::ending::{Ending, GRACE, Session};
use crate::failure::{self, Failure};
use crate::interrupts::{Interrupts, ends_wait};
use crate::reactor::{Reactor, Woken};
use crate::settings::Settings;
use crate::signals::Signals;

/// How often `--drain` asks whether there is work.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// Longer than any wait, and short enough to be added to any instant.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Runs jobs until a signal comes. The answer is the exit code.
pub(crate) fn run(shared: &Shared, args: &WorkArgs) -> Result<u8, Failure> {
    let (settings, _) = Settings::new(shared)?;
    let signals = [nix::sys::signal::SIGTERM, nix::sys::signal::SIGINT, nix::sys::signal::SIGHUP];
    let reactor = Reactor::new(Signals::catch_only(&signals).map_err(trouble)?).map_err(trouble)?;
    let interrupts = Interrupts::new(&reactor);
    let session = match Session::open(&settings, std::process::id(), &interrupts)? {
        Ok(session) => session,
        Err(code) => return Ok(code),
    };
    let mut queue = session.tenure().queue(&args.queue)?.grace(args.grace);
    if let Some(lease) = args.lease {
        queue = queue.lease(lease);
    }
    if let Some(label) = &args.label {
        queue = queue.label(label);
    }
    if args.durably {
        queue = queue.durably();
    }
    let liveness = session.tenure().liveness_file();
    let limit = settings.close_timeout;
    let done = work(&queue, args, liveness.as_deref(), &reactor, limit).map_err(Failure::told);
    // A store that did not answer for so long is asked once more, and not waited for again.
    let limit = if done.is_ok() { limit } else { limit.min(GRACE) };
    session.close(&mut Ending::new(&interrupts, limit));
    done
}

/// Works until a signal comes. Then the commands have `--grace` to end, and when they have, the
/// store has `limit` to take the reports; another signal shortens that to [`GRACE`].
fn work(
    queue: &JobQueue,
    args: &WorkArgs,
    liveness: Option<&std::path::Path>,
    reactor: &Reactor,
    limit: Duration,
) -> Result<u8, Failure> {
    let (stop, running) = (Arc::new(StopFlag::default()), AtomicUsize::new(0));
    let stopped = stop.clone();
    let handler = |job: Job| attempt(job, args, liveness, &running);
    let until = poll_fn(move |cx| stopped.poll(cx.waker()));
    let mut working = pin!(queue.work_until(args.slots, until, handler));
    if args.drain {
        stop_when_drained(queue.clone(), Arc::clone(&stop));
    }
    // From when on the store alone is waited for, and until when.
    let mut end: Option<(Instant, Instant)> = None;
    let mut only_store = false;
    loop {
        let mut step = pin!(poll_fn(|cx| match working.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            // Once: the commands have ended, the store alone is waited for.
            Poll::Pending if !only_store && stop.is_set() && running.load(SeqCst) == 0 => {
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }));
        let until = end.map(|(_, until)| until);
        let woken = reactor.next(step.as_mut(), None, until).map_err(trouble)?;
        let now = Instant::now();
        match (woken, end) {
            (Woken::Done(Some(done)), _) => {
                done?;
                return Ok(0);
            }
            (Woken::Done(None), _) => {
                only_store = true;
                end = Some((now, now + limit.min(FOREVER)));
            }
            (Woken::Signal(caught), _) if ends_wait(caught.signal).is_some() => {
                stop.set();
                end = Some(if let Some((from, until)) = end {
                    (from, until.min(from.max(now) + GRACE))
                } else {
                    let from = now + args.grace.min(FOREVER);
                    (from, from + limit.min(FOREVER))
                });
            }
            (Woken::Late, Some((from, _))) => {
                let message = format!(
                    "{}: the store did not confirm the end of this worker within {}; the jobs it \
                     had are run again when its lease ends",
                    args.queue,
                    short(now.saturating_duration_since(from))
                );
                return Err(Failure::new(failure::UNREACHABLE, message));
            }
            (Woken::Signal(_) | Woken::Readable | Woken::Late, _) => {}
        }
    }
}

/// Counts a command while it runs.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Tells that a job was lost while its command ran, when the command has ended or before it is
/// ended with its attempt.
struct TellLoss<'a> {
    job: &'a Job,
    told: bool,
}

impl TellLoss<'_> {
    /// The command has ended. Its keeper kills it a moment before the job is lost.
    fn ended(mut self, code: u8) {
        if code > failure::SIGNAL && self.job.remaining() <= Duration::from_nanos(MARGIN) {
            self.tell(&Loss::Expired);
        }
    }

    fn tell(&mut self, loss: &Loss) {
        if !std::mem::replace(&mut self.told, true) {
            eprintln!("tenure: lost job {} of {}: {loss}", self.job.id(), self.job.queue());
        }
    }
}

impl Drop for TellLoss<'_> {
    fn drop(&mut self) {
        let error = self.job.check().err();
        if let Some(loss) = error.as_ref().and_then(tenure::Error::loss) {
            self.tell(loss);
        }
    }
}

/// Runs the command for one job.
async fn attempt(
    job: Job,
    args: &WorkArgs,
    liveness: Option<&std::path::Path>,
    running: &AtomicUsize,
) -> Result<(), JobFailure> {
    let _counted = Counted::new(running);
    let command = RunningCommand::start(&job, &args.command, liveness)?;
    let tell = TellLoss { job: &job, told: false };
    let code = command.ended(&job).await;
    tell.ended(code);
    match code {
        0 => Ok(()),
        failure::NOT_OBTAINED => Err(job.later(args.later)),
        failure::NOT_FOUND => Err(JobFailure::new("exit code 127: the command was not found")),
        code if code > failure::SIGNAL => {
            Err(JobFailure::new(format!("ended by signal {}", code - failure::SIGNAL)))
        }
        code => Err(JobFailure::new(format!("exit code {code}"))),
    }
}

/// Stops the worker when no job is ready, blocked or runs.
fn stop_when_drained(queue: JobQueue, stop: Arc<StopFlag>) {
    std::thread::spawn(move || {
        loop {
            // A job that is due counts as scheduled before the first turn of the worker.
            match tenure::block_on(queue.counts_when_promoted()) {
                Ok(counts) if counts.ready + counts.blocked + counts.running == 0 => break,
                _ => std::thread::sleep(DRAIN_LOOK),
            }
        }
        stop.set();
    });
}

/// Whether the worker shall stop.
#[derive(Default)]
struct StopFlag(Mutex<(bool, Option<Waker>)>);

impl StopFlag {
    fn set(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_set(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(waker.clone());
        Poll::Pending
    }
}
