//! The worker's side of one command: starts the job keeper, sends it the payload and heartbeats,
//! and learns the exit code. Dropping it ends the command and waits until nothing of it is left.

use std::ffi::OsString;
use std::future::{Future as _, poll_fn};
use std::io::Write;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::pin::pin;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tenure::{Job, JobFailure};

use super::keeper::{ARGV0, boot_nanos};
use crate::failure;

/// How often the keeper is told until when the worker may be trusted.
const BEAT: Duration = Duration::from_secs(1);

/// A command that runs for a job.
pub(super) struct RunningCommand {
    shared: Arc<CommandState>,
    keeper: Option<std::thread::JoinHandle<()>>,
    beats: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct CommandState {
    state: Mutex<CommandEnd>,
    changed: Condvar,
}

#[derive(Default)]
struct CommandEnd {
    /// The exit code, once it has ended.
    code: Option<u8>,
    /// The command shall end.
    end: bool,
    waker: Option<Waker>,
}

impl CommandState {
    fn lock(&self) -> MutexGuard<'_, CommandEnd> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().end = true;
        self.changed.notify_all();
    }
}

impl RunningCommand {
    pub(super) fn start(
        job: &Job,
        command: &[OsString],
        liveness: Option<&Path>,
    ) -> Result<Self, JobFailure> {
        let this = std::env::current_exe()?;
        let mut keeper = Command::new(this);
        keeper.arg0(ARGV0).arg(liveness.unwrap_or(Path::new(""))).arg("--").args(command);
        keeper.env("TENURE_QUEUE", job.queue().as_str());
        keeper.env("TENURE_JOB", job.id().to_string());
        keeper.env("TENURE_ATTEMPT", job.attempt().to_string());
        keeper.env("TENURE_FENCE", job.fence()?.to_string());
        // A group of its own: Ctrl-C is for the worker, which stops in good order.
        keeper.process_group(0).stdin(Stdio::piped());
        let mut child = keeper.spawn()?;
        let stdin = child.stdin.take().ok_or("the keeper has no standard input")?;
        let shared = Arc::new(CommandState::default());
        let (beating, job) = (Arc::clone(&shared), job.clone());
        let beats = std::thread::spawn(move || send(stdin, &job, &beating));
        let waiting = Arc::clone(&shared);
        let keeper = std::thread::spawn(move || {
            let code = child.wait().ok().and_then(|status| status.code());
            let mut state = waiting.lock();
            state.code =
                Some(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(failure::OWN));
            let waker = state.waker.take();
            drop(state);
            waiting.changed.notify_all();
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        Ok(Self { shared, keeper: Some(keeper), beats: Some(beats) })
    }

    /// Waits for the exit code. A job that is cancelled is ended.
    pub(super) async fn ended(&self, job: &Job) -> u8 {
        let mut cancelled = pin!(job.cancelled());
        let mut ending = false;
        poll_fn(|cx| {
            if !ending && cancelled.as_mut().poll(cx).is_ready() {
                ending = true;
                self.shared.end();
            }
            let mut state = self.shared.lock();
            if let Some(code) = state.code {
                return Poll::Ready(code);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.shared.end();
        for thread in [self.beats.take(), self.keeper.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

/// Sends the payload and the heartbeats, until the command has ended or shall end. The keeper ends
/// it when the pipe is closed.
fn send(mut stdin: ChildStdin, job: &Job, state: &CommandState) {
    let beat = |stdin: &mut ChildStdin| {
        let until = boot_nanos().saturating_add(nanos(job.remaining()));
        stdin.write_all(&until.to_le_bytes()).and_then(|()| stdin.flush())
    };
    let payload = job.payload();
    let length = u64::try_from(payload.len()).unwrap_or(u64::MAX);
    let sent = stdin
        .write_all(&length.to_le_bytes())
        .and_then(|()| beat(&mut stdin))
        .and_then(|()| stdin.write_all(payload));
    if sent.is_err() {
        return;
    }
    let mut locked = state.lock();
    while locked.code.is_none() && !locked.end {
        let waited = state.changed.wait_timeout(locked, BEAT);
        locked = waited.unwrap_or_else(PoisonError::into_inner).0;
        if locked.code.is_none() && !locked.end {
            drop(locked);
            if beat(&mut stdin).is_err() {
                return;
            }
            locked = state.lock();
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
