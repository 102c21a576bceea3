//! The guardian: takes the lock, starts the command, and stays until its whole tree may go. Knows
//! the order of things; `supervise` knows what can happen while the command runs.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::prctl::{set_child_subreaper, set_name};
use nix::sys::signal::Signal;
use tenure::{Owner, SetGuard, Tenure};

use super::child;
use super::supervise::Supervisor;
use super::words::{self, Line, Request, ToFront, ToGuardian};
use crate::asking::{Asking, Meanwhile, ends_wait, trouble};
use crate::failure::{self, Failure};
use crate::reactor::Reactor;
use crate::signals::Signals;

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

/// Tells the front the exit code, and whoever reads standard error why.
fn finish(front: &Front, done: Result<u8, Failure>) -> u8 {
    let code = done.unwrap_or_else(|failure| {
        failure.tell();
        failure.code
    });
    // If the front is gone, nobody needs to know.
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

struct Guardian<'a> {
    front: &'a Front,
    reactor: &'a Reactor,
    request: &'a Request,
}

impl Guardian<'_> {
    fn run(&self, command: &[OsString], stdin: &OwnedFd) -> Result<u8, Failure> {
        let owner = Owner::from_env()?.unwrap_or_else(Owner::new);
        self.request.settings.session(self.request.front, |tenure| {
            let done = self.obtain(tenure, &owner).and_then(|obtained| match obtained {
                Ok(guard) => self.hold(command, stdin, tenure, &owner, guard),
                Err(code) => Ok(code),
            });
            // The lock is free; what is left to tidy up need not keep anybody waiting.
            Ok(finish(self.front, done.map_err(|failure| self.as_of_run(failure))))
        })
    }

    fn as_of_run(&self, failure: Failure) -> Failure {
        let Request { wanted, settings, .. } = self.request;
        failure.conflict(wanted.conflict, settings.quiet).of_run()
    }

    /// Waits for the lock. Without it, the answer is an exit code.
    fn obtain(&self, tenure: &Tenure, owner: &Owner) -> Result<Result<SetGuard, u8>, Failure> {
        let Request { settings, wanted, rules, .. } = self.request;
        // The session ends what nobody else ended, so much later than we do that what is left of
        // the lease does not look short meanwhile.
        let backstop = wanted.max_hold.map(|most| most + rules.kill_after + wanted.lease);
        let asking = Asking { tenure, settings, wanted, owner, backstop };
        let mut readable = || self.told_to_give_up();
        let meanwhile = Meanwhile { fd: self.front.as_fd(), readable: &mut readable };
        asking.obtain(self.reactor, Some(meanwhile))
    }

    /// Whether the front wants no lock any more, and the exit code then.
    fn told_to_give_up(&self) -> Result<Option<u8>, Failure> {
        Ok(match self.front.receive().map_err(trouble)? {
            None => Some(failure::OWN),
            Some(ToGuardian::Signal(number)) => Signal::try_from(number).ok().and_then(ends_wait),
            Some(ToGuardian::GiveUp(code)) => Some(code),
            Some(ToGuardian::Go | ToGuardian::Request(_)) => None,
        })
    }

    /// The lock is ours: runs the command under it.
    fn hold(
        &self,
        command: &[OsString],
        stdin: &OwnedFd,
        tenure: &Tenure,
        owner: &Owner,
        guard: SetGuard,
    ) -> Result<u8, Failure> {
        let held = guard.held();
        let code = match self.may_start(tenure)? {
            Some(code) => Ok(code),
            None => {
                child::words(self.request, &held, owner).map_err(Failure::from).and_then(|words| {
                    let pid = child::start(command, self.request, stdin, &words)?;
                    let (front, reactor) = (self.front, self.reactor);
                    Supervisor::new(front, reactor, self.request, held, pid).stay()
                })
            }
        };
        // What was lost cannot be given back, and the loss was reported.
        if guard.check().is_ok()
            && let Err(error) = tenure::blocking::wait(guard.release())
        {
            eprintln!("tenure: {error}");
        }
        code
    }

    /// Tells the front of the grant and waits until it is ready. An exit code if it is not.
    fn may_start(&self, tenure: &Tenure) -> Result<Option<u8>, Failure> {
        let granted = ToFront::Granted { liveness: tenure.liveness_file() };
        if self.front.send(&granted).is_err() {
            return Ok(Some(failure::OWN));
        }
        // Only somebody at a terminal can have suspended the front, and then the command must wait
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
                Some(ToGuardian::Request(_)) => {}
                None => return Ok(Some(failure::OWN)),
            }
        }
    }
}
