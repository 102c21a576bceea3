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

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tenure::{Job, JobFailure, JobQueue};

use self::command::RunningCommand;
pub(crate) use self::keeper::{ARGV0, main as keeper_main};
use crate::args::{Shared, WorkArgs};
use crate::asking::trouble;
use crate::ending::{Ending, Session};
use crate::failure::{self, Failure};
use crate::interrupts::{Interrupts, ends_wait};
use crate::reactor::{Reactor, Woken};
use crate::settings::Settings;
use crate::signals::Signals;

/// How often `--drain` asks whether there is work.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

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
    let done = work(&queue, args, liveness.as_deref(), &reactor).map_err(Failure::told);
    session.close(&mut Ending::new(&interrupts, settings.close_timeout));
    done
}

fn work(
    queue: &JobQueue,
    args: &WorkArgs,
    liveness: Option<&std::path::Path>,
    reactor: &Reactor,
) -> Result<u8, Failure> {
    let stop = Arc::new(StopFlag::default());
    let stopped = stop.clone();
    let handler = |job: Job| attempt(job, args, liveness);
    let until = poll_fn(move |cx| stopped.poll(cx.waker()));
    let mut working = pin!(queue.work_until(args.slots, until, handler));
    if args.drain {
        stop_when_drained(queue.clone(), Arc::clone(&stop));
    }
    loop {
        match reactor.next(working.as_mut(), None, None).map_err(trouble)? {
            Woken::Done(done) => {
                done?;
                return Ok(0);
            }
            Woken::Signal(caught) if ends_wait(caught.signal).is_some() => stop.set(),
            Woken::Signal(_) | Woken::Readable | Woken::Late => {}
        }
    }
}

/// Runs the command for one job.
async fn attempt(
    job: Job,
    args: &WorkArgs,
    liveness: Option<&std::path::Path>,
) -> Result<(), JobFailure> {
    let running = RunningCommand::start(&job, &args.command, liveness)?;
    let code = running.ended(&job).await;
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

    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(waker.clone());
        Poll::Pending
    }
}
