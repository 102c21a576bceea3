//! The process that people know: passes signals on, stops and goes on with the command, and exits
//! as it did. Knows the guardian, not the store.

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgrp};
use rustix::fs::{FlockOperation, OFlags, fcntl_lock, open};

use super::words::{self, Line, Request, Rules, ToFront, ToGuardian};
use super::{ARGV0, tree};
use crate::failure::{self, Failure};
use crate::reactor::{Reactor, Woken};
use crate::settings::Settings;
use crate::signals::{Caught, Signals};
use crate::wanted::Wanted;

/// Starts the guardian and stays until it is done. The answer is the exit code.
pub(super) fn run(
    settings: Settings,
    wanted: Wanted,
    rules: Rules,
    command: &[OsString],
) -> Result<u8, Failure> {
    let name = wanted.name().to_owned();
    let failed = |error: io::Error| {
        Failure::new(failure::OWN, format!("cannot watch over a command: {error}"))
    };
    let signals = Signals::catch().map_err(failed)?;
    // If the guardian is killed, what it guarded comes to us.
    set_child_subreaper(true).map_err(|error| failed(error.into()))?;
    let (line, theirs) = words::pair().map_err(failed)?;
    let on_terminal = has_terminal();
    let request = Request {
        settings,
        wanted,
        front: std::process::id(),
        // On a terminal the command stays in the job that the shell made: Ctrl-C, Ctrl-Z and the
        // other members of a pipeline meet it as if we were not there.
        group: on_terminal.then(|| getpgrp().as_raw()),
        blocked: signals.before().iter().map(|signal| signal as i32).collect(),
        rules,
    };
    let lost_exit_code = request.rules.lost_exit_code;
    let request = ToGuardian::Request(Box::new(request));
    // Before it is there, so that it need not wait for us once it is.
    line.send_with(&request, &[rustix::stdio::stdin()]).map_err(failed)?;
    let guardian = start_guardian(&theirs, &name, command).map_err(failed)?;
    drop(theirs);
    let reactor = Reactor::new(signals).map_err(failed)?;
    let front = Front {
        line,
        reactor,
        guardian,
        on_terminal,
        lost_exit_code,
        running: false,
        ending: false,
        liveness: None,
    };
    front.stay().map_err(failed)
}

struct Front {
    line: Line<OwnedFd>,
    reactor: Reactor,
    guardian: Pid,
    on_terminal: bool,
    lost_exit_code: u8,
    /// The command runs, or is about to.
    running: bool,
    /// The command has ended, and signals are for the guardian.
    ending: bool,
    /// Its lock says that the session lives.
    liveness: Option<File>,
}

impl Front {
    fn stay(mut self) -> io::Result<u8> {
        loop {
            let mut nothing = pin!(pending::<Infallible>());
            match self.reactor.next(nothing.as_mut(), Some(self.line.as_fd()), None)? {
                Woken::Signal(caught) => self.caught(caught),
                Woken::Readable => match self.line.receive()? {
                    Some(message) => {
                        if let Some(code) = self.told(message) {
                            self.see_guardian_off()?;
                            return Ok(code);
                        }
                    }
                    None => return Ok(self.guardian_is_gone()),
                },
                Woken::Late => {}
                Woken::Done(never) => match never {},
            }
        }
    }

    /// Passes a signal on, unless the command got it from where we got it.
    fn caught(&self, Caught { signal, by_kernel }: Caught) {
        let running = self.running && !self.ending;
        match signal {
            Signal::SIGCHLD => self.let_guardian_go_on(),
            Signal::SIGTTIN | Signal::SIGTTOU => {}
            // While the command runs it decides itself whether it stops, and the guardian tells.
            Signal::SIGTSTP if running && self.on_terminal => {}
            Signal::SIGTSTP if !running => stop(),
            _ if by_kernel && running && self.on_terminal => {
                if ends_run(signal) {
                    let _ = self.line.send(&ToGuardian::Last);
                }
            }
            _ => {
                let _ = self.line.send(&ToGuardian::Signal(signal as i32));
            }
        }
    }

    /// Does what the guardian says. The answer, if there is one, is the exit code.
    fn told(&mut self, message: ToFront) -> Option<u8> {
        match message {
            ToFront::Granted { liveness } => {
                (self.running, self.ending) = (true, false);
                match liveness.as_deref().map(share_liveness).transpose() {
                    Ok(file) => self.liveness = file.flatten(),
                    Err(error) => {
                        eprintln!("tenure: cannot lock the session's liveness file: {error}");
                        let _ = self.line.send(&ToGuardian::GiveUp(failure::OWN));
                        return None;
                    }
                }
                let _ = self.line.send(&ToGuardian::Go);
            }
            ToFront::Stopped if self.on_terminal => stop(),
            ToFront::Stopped => {}
            ToFront::Ending => self.ending = true,
            ToFront::Waiting => self.running = false,
            ToFront::Exit(code) => return Some(code),
        }
        None
    }

    /// The guardian only cleans up and ends. If that takes longer than a moment, its new parent
    /// reaps it, so that this process need not wait.
    fn see_guardian_off(&self) -> io::Result<()> {
        let until = Instant::now() + Duration::from_millis(2);
        while let Ok(WaitStatus::StillAlive) = waitpid(self.guardian, Some(WaitPidFlag::WNOHANG)) {
            let mut nothing = pin!(pending::<Infallible>());
            if let Woken::Late = self.reactor.next(nothing.as_mut(), None, Some(until))? {
                break;
            }
        }
        Ok(())
    }

    /// A guardian that is stopped renews nothing while its command runs on, so it is continued. To
    /// suspend the command, suspend this process or the command.
    fn let_guardian_go_on(&self) {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        if let Ok(WaitStatus::Stopped(..)) = waitpid(self.guardian, Some(flags)) {
            let _ = kill(self.guardian, Signal::SIGCONT);
        }
    }

    /// The guardian was killed: nothing that it guarded may go on.
    fn guardian_is_gone(&self) -> u8 {
        end_everything();
        if self.running {
            eprintln!("tenure: the guardian was killed; the command was stopped");
            return self.lost_exit_code;
        }
        eprintln!("tenure: the guardian ended before the command could start");
        failure::OWN
    }
}

/// Whether a signal to the command also means that no other shall follow.
pub(super) fn ends_run(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT)
}

/// Kills all that is below us and returns when it is gone.
fn end_everything() {
    loop {
        tree::kill_children();
        match tree::reap() {
            tree::Reaped::NoChildren => return,
            tree::Reaped::Child(_) => {}
            tree::Reaped::Nothing => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Stops this process, as Ctrl-Z does, until it is continued.
fn stop() {
    let _ = kill(Pid::this(), Signal::SIGSTOP);
}

/// Whether there is a terminal that controls us, whatever standard input is.
fn has_terminal() -> bool {
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    open("/dev/tty", flags, rustix::fs::Mode::empty()).is_ok()
}

/// Takes a shared lock on the file whose lock says that the session lives. If it is gone, the
/// session is over already.
fn share_liveness(path: &Path) -> io::Result<Option<File>> {
    let gone = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    let file = match File::open(path) {
        Err(error) if gone.contains(&error.kind()) => return Ok(None),
        file => file?,
    };
    fcntl_lock(&file, FlockOperation::NonBlockingLockShared)?;
    Ok(Some(file))
}

/// Starts this same program as the guardian, in a process group of its own, so that a signal to
/// our group cannot take both of us.
fn start_guardian(line: &OwnedFd, name: &str, command: &[OsString]) -> io::Result<Pid> {
    let mut actions = PosixSpawnFileActions::init()?;
    actions.add_dup2(line.as_raw_fd(), 0)?;
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETPGROUP | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF,
    )?;
    attributes.set_pgroup(Pid::from_raw(0))?;
    // Our parent may have set SIGCHLD to be ignored, and then no command could be waited for.
    attributes.set_sigdefault(&[Signal::SIGCHLD].into_iter().collect::<SigSet>())?;
    let words = [OsString::from(ARGV0), name.into(), "--".into()];
    let words = words.iter().chain(command).map(|word| CString::new(word.as_bytes()));
    let words = words.collect::<Result<Vec<CString>, _>>()?;
    let path = c"/proc/self/exe";
    Ok(posix_spawn(path, &actions, &attributes, &words, &environment())?)
}

/// Our environment, as the system wants it.
pub(super) fn environment() -> Vec<CString> {
    let line = |(name, value): (OsString, OsString)| {
        let mut line = name.into_vec();
        line.push(b'=');
        line.extend(value.into_vec());
        CString::new(line).ok()
    };
    std::env::vars_os().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that vanished is a loss, which the guardian finds: no failure of ours.
    #[test]
    fn a_liveness_file_that_is_gone_is_no_failure() {
        let folder = std::env::temp_dir().join(format!("tenure-front-{}", std::process::id()));
        std::fs::write(&folder, "a file where the store was").unwrap();
        for path in [folder.join("sessions/1"), folder.with_extension("nowhere").join("1")] {
            assert!(share_liveness(&path).unwrap().is_none(), "{}", path.display());
        }
        assert!(share_liveness(&folder).unwrap().is_some(), "what is there is locked");
        std::fs::remove_file(&folder).unwrap();
    }
}
