//! What may end a wait before its time: signals and, in the guardian of `tenure run`, its front.
//! Knows when to stop waiting, not what is waited for.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::asking::trouble;
use crate::failure::{self, Failure};
use crate::reactor::{Reactor, Woken};

/// The signals of this process, and another process that may end its waits.
pub(crate) struct Interrupts<'a> {
    reactor: &'a Reactor,
    other: Option<Other<'a>>,
    /// The other process is gone: nothing more can be read from it.
    gone: Cell<bool>,
}

/// Another process that may end a wait.
pub(crate) struct Other<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    /// Reads what it says.
    pub(crate) read: &'a dyn Fn() -> Result<Said, Failure>,
}

/// What another process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing that concerns the wait.
    Nothing,
    /// End the wait with this exit code.
    End(u8),
    /// It is gone.
    Gone,
}

/// What ended a wait.
#[derive(Debug)]
pub(crate) enum Waited<T> {
    /// The future is done. It must not be waited for again.
    Done(T),
    /// A signal or the other process ends it, with this exit code.
    Interrupted(u8),
    /// The other process is gone.
    Gone,
    /// The time has passed.
    Late,
}

impl<'a> Interrupts<'a> {
    /// Signals alone.
    pub(crate) fn new(reactor: &'a Reactor) -> Self {
        Self { reactor, other: None, gone: Cell::new(false) }
    }

    /// Signals, and another process.
    pub(crate) fn from(reactor: &'a Reactor, other: Other<'a>) -> Self {
        Self { other: Some(other), ..Self::new(reactor) }
    }

    /// Sleeps until the future is done, something interrupts it, or `until` has passed.
    pub(crate) fn wait<T>(
        &self,
        mut future: Pin<&mut dyn Future<Output = T>>,
        until: Option<Instant>,
    ) -> Result<Waited<T>, Failure> {
        loop {
            let other = self.other.as_ref().filter(|_| !self.gone.get());
            let fd = other.map(|other| other.fd);
            match self.reactor.next(future.as_mut(), fd, until).map_err(trouble)? {
                Woken::Done(value) => return Ok(Waited::Done(value)),
                Woken::Late => return Ok(Waited::Late),
                Woken::Signal(caught) => {
                    if let Some(code) = ends_wait(caught.signal) {
                        return Ok(Waited::Interrupted(code));
                    }
                }
                Woken::Readable => match other.map(|other| (other.read)()).transpose()? {
                    Some(Said::End(code)) => return Ok(Waited::Interrupted(code)),
                    Some(Said::Gone) => {
                        self.gone.set(true);
                        return Ok(Waited::Gone);
                    }
                    Some(Said::Nothing) | None => {}
                },
            }
        }
    }
}

impl fmt::Debug for Interrupts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupts").field("gone", &self.gone).finish_non_exhaustive()
    }
}

/// The exit code of a wait that this signal ends, if it does.
pub(crate) fn ends_wait(signal: Signal) -> Option<u8> {
    let ends = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];
    ends.contains(&signal).then(|| failure::SIGNAL + u8::try_from(signal as i32).unwrap_or(0))
}
