//! The guardian: takes the lock, starts the command, and stays until its whole tree may go. Knows
//! the order of things; `supervise` knows what can happen while the command runs.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::sys::prctl::{set_child_subreaper, set_name};
use nix::sys::signal::Signal;
use tenure::{LockSetGuard, LockStatus, Owner, Tenure};

use super::child;
use super::supervise::{Ended, Supervisor};
use super::words::{self, Line, Request, ToFront, ToGuardian};
use crate::asking::{Asking, trouble};
use crate::ending::{Ending, Session};
use crate::failure::{self, Failure};
use crate::interrupts::{Interrupts, Other, Said, ends_wait};
use crate::reactor::Reactor;
use crate::signals::Signals;
use crate::wanted::Kind;

/// How the guardian is called: nothing that looks for `tenure` by its name finds it too.
pub(crate) const ARGV0: &str = "tenure-guardian";

/// The line to the front, as the guardian has it.
pub(super) type Front = Line<BorrowedFd<'static>>;

/// The whole life of a guardian. The arguments are the lock's name, `--` and the command.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let front = words::from_standard_input();
    let command: Vec<OsString> = arguments.skip_while(|word| word != "--").skip(1).collect();
    match watch_over(&front, &command) {
        Ok(code) => code,
        Err(failure) => finish(&front, Err(failure)),
    }
}

/// Sends the exit code to the front, and prints the reason on standard error.
fn finish(front: &Front, done: Result<u8, Failure>) -> u8 {
    let code = done.unwrap_or_else(|failure| {
        failure.tell();
        failure.code
    });
    // If the front is gone, the exit code has no reader.
    let _ = front.send(&ToFront::Exit(code));
    code
}

fn watch_over(front: &Front, command: &[OsString]) -> Result<u8, Failure> {
    let failed =
        |error: io::Error| Failure::new(failure::OWN, format!("the guardian cannot work: {error}"));
    // The front had blocked its signals when it started us, so none could come before this.
    let signals = Signals::catch().map_err(failed)?;
    let received = front.receive_with().map_err(|error| {
        let next = "it is a part of `tenure run`, not for use by hand";
        Failure::new(failure::USAGE, format!("the guardian hears nothing: {error}; {next}"))
    })?;
    let Some((ToGuardian::Request(request), mut files)) = received else {
        return Ok(failure::OWN);
    };
    let stdin = files.pop().ok_or_else(|| failed(io::ErrorKind::NotConnected.into()))?;
    set_child_subreaper(true).map_err(|error| failed(error.into()))?;
    set_name(c"tenure-guardian").map_err(|error| failed(error.into()))?;
    let reactor = Reactor::new(signals).map_err(failed)?;
    let guardian = Guardian { front, reactor: &reactor, request: &request };
    guardian.run(command, &stdin).map_err(|failure| guardian.as_of_run(failure))
}

/// Closes standard output and error for good: a reader of these may wait for their end.
fn let_go_of_output() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

pub(super) struct Guardian<'a> {
    pub(super) front: &'a Front,
    reactor: &'a Reactor,
    pub(super) request: &'a Request,
}

/// The command, and the session in which its lock is held.
pub(super) struct Job<'a> {
    command: &'a [OsString],
    stdin: &'a OwnedFd,
    tenure: &'a Tenure,
    owner: &'a Owner,
}

impl Guardian<'_> {
    fn run(&self, command: &[OsString], stdin: &OwnedFd) -> Result<u8, Failure> {
        let owner = Owner::from_env()?.unwrap_or_else(Owner::new);
        let owner = owner.with_waiting_parents(self.request.wanted.waiting_parents);
        let settings = &self.request.settings;
        let began = Instant::now();
        let hear = || self.hear();
        let front = Other { fd: self.front.as_fd(), read: &hear };
        let interrupts = Interrupts::from(self.reactor, front);
        let session = match Session::open(settings, self.request.front, &interrupts)? {
            Ok(session) => session,
            Err(code) => return Ok(finish(self.front, Ok(code))),
        };
        let tenure = session.tenure();
        let mut ending = Ending::new(&interrupts, settings.close_timeout);
        let job = Job { command, stdin, tenure, owner: &owner };
        let done = if self.request.wanted.kind == Kind::Leader {
            self.lead(&job, began, &interrupts)
        } else {
            self.asking(&job, began).obtain(&interrupts).and_then(|obtained| match obtained {
                Ok(guard) => self.hold(&job, guard, &mut ending),
                Err(code) => Ok(code),
            })
        };
        // The lock is free; what is left to tidy up need not keep the caller waiting, nor a reader
        // of its output.
        let code = finish(self.front, done.map_err(|failure| self.as_of_run(failure)));
        let _ = let_go_of_output();
        session.close(&mut ending);
        Ok(code)
    }

    fn as_of_run(&self, failure: Failure) -> Failure {
        let Request { wanted, settings, .. } = self.request;
        failure.conflict(wanted.conflict, settings.quiet).of_run()
    }

    pub(super) fn asking<'b>(&'b self, job: &'b Job<'_>, began: Instant) -> Asking<'b> {
        let Request { settings, wanted, rules, .. } = self.request;
        let Job { tenure, owner, .. } = *job;
        // The session ends what was not ended before, so much later than we do that what is left of
        // the lease does not look short meanwhile.
        let backstop = wanted.max_hold.map(|most| most + rules.kill_after + wanted.lease);
        Asking { tenure, settings, wanted, owner, began, backstop }
    }

    /// Whether the front ends what the guardian waits for.
    fn hear(&self) -> Result<Said, Failure> {
        Ok(match self.front.receive().map_err(trouble)? {
            None => Said::Gone,
            Some(ToGuardian::Signal(number)) => {
                let code = Signal::try_from(number).ok().and_then(ends_wait);
                code.map_or(Said::Nothing, Said::End)
            }
            Some(ToGuardian::GiveUp(code)) => Said::End(code),
            // The terminal has sent the signal to a command that had ended.
            Some(ToGuardian::Last) => Said::End(failure::SIGNAL + Signal::SIGINT as u8),
            Some(ToGuardian::Go | ToGuardian::Request(_)) => Said::Nothing,
        })
    }

    /// The lock is ours: runs the command under it.
    fn hold(
        &self,
        job: &Job<'_>,
        guard: LockSetGuard,
        ending: &mut Ending<'_>,
    ) -> Result<u8, Failure> {
        let ended = self.run_under(job, guard.status());
        // What was lost cannot be given back, and the loss was reported.
        if guard.check().is_ok() {
            if self.request.group.is_some() {
                // From here on Ctrl-C is for us: there is no command left that could get it.
                let _ = self.front.send(&ToFront::Ending);
            }
            if let Err(failure) = ending.give_back(job.tenure, &self.request.wanted, guard) {
                failure.tell();
            }
        }
        ended.map(|ended| ended.code)
    }

    /// Runs the command while the lock is held.
    pub(super) fn run_under(&self, job: &Job<'_>, held: LockStatus) -> Result<Ended, Failure> {
        if let Some(code) = self.may_start(job.tenure)? {
            return Ok(Ended { code, is_last: true });
        }
        let words = child::words(self.request, &held, job.owner)?;
        let pid = child::start(job.command, self.request, job.stdin, &words)?;
        Supervisor::new(self.front, self.reactor, self.request, held, pid).stay()
    }

    /// Tells the front of the grant and waits until it is ready. An exit code if it is not.
    fn may_start(&self, tenure: &Tenure) -> Result<Option<u8>, Failure> {
        let granted = ToFront::Granted { liveness: tenure.liveness_file() };
        if self.front.send(&granted).is_err() {
            return Ok(Some(failure::OWN));
        }
        // Only a user at a terminal can have suspended the front, and then the command must wait
        // for it. Otherwise we need not: the front takes its lock while the command starts.
        if self.request.group.is_none() {
            return Ok(None);
        }
        loop {
            match self.front.receive().map_err(trouble)? {
                Some(ToGuardian::Go) => return Ok(None),
                Some(ToGuardian::Signal(number)) => {
                    if let Some(code) = Signal::try_from(number).ok().and_then(ends_wait) {
                        return Ok(Some(code));
                    }
                }
                Some(ToGuardian::GiveUp(code)) => return Ok(Some(code)),
                Some(ToGuardian::Request(_) | ToGuardian::Last) => {}
                None => return Ok(Some(failure::OWN)),
            }
        }
    }
}
