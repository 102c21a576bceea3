//! Why a command did not do what it was asked, and the exit code that says so. Knows numbers and
//! sentences.

use std::fmt;
use std::io;
use std::time::Duration;

use tenure::{Error, ErrorKind};

/// The answer is no: the lock is not held, the handle is stale, the name is bad.
pub(crate) const NO: u8 = 1;
/// The command makes no sense.
pub(crate) const USAGE: u8 = 2;
/// The store cannot be reached (`EX_UNAVAILABLE`).
pub(crate) const UNREACHABLE: u8 = 69;
/// The lock was not obtained (`EX_TEMPFAIL`).
pub(crate) const NOT_OBTAINED: u8 = 75;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 123;
/// `--max-hold` passed.
pub(crate) const MAX_HOLD: u8 = 124;
/// `tenure run` itself failed.
pub(crate) const OWN: u8 = 125;
/// The command was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// A signal ended the command: its number is added.
pub(crate) const SIGNAL: u8 = 128;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What to print; nothing if it is empty.
    pub(crate) message: String,
    /// The exit code.
    pub(crate) code: u8,
    /// The reader of our output has closed the pipe.
    pub(crate) broken_pipe: bool,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), code, broken_pipe: false }
    }

    /// A command that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// A failure of `tenure run`: no code below may be mistaken for one of the command's own.
    pub(crate) fn of_run(self) -> Self {
        let own = matches!(self.code, NO | USAGE);
        Self { code: if own { OWN } else { self.code }, ..self }
    }

    /// Uses `code` where the lock was not obtained; with `--quiet` the code is all that is said.
    pub(crate) fn conflict(self, code: u8, quiet: bool) -> Self {
        if self.code != NOT_OBTAINED {
            return self;
        }
        let message = if quiet { String::new() } else { self.message };
        Self { message, code, ..self }
    }

    /// Says how often it was tried, and for how long.
    pub(crate) fn after(self, tries: u32, took: Duration) -> Self {
        Self { message: format!("{} ({tries} attempts in {took:.1?})", self.message), ..self }
    }

    /// Prints the message on standard error.
    pub(crate) fn tell(&self) {
        if !self.message.is_empty() && !self.broken_pipe {
            anstream::eprintln!("tenure: {}", self.message);
        }
    }

    /// Prints the message now, before something that may take time, and not again.
    pub(crate) fn told(self) -> Self {
        self.tell();
        Self { message: String::new(), ..self }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        use ErrorKind as K;
        let code = match error.kind() {
            K::InvalidName | K::InvalidOption | K::Unsupported => USAGE,
            K::Unavailable => UNREACHABLE,
            K::TimedOut | K::Limit | K::Deadlock => NOT_OBTAINED,
            _ => NO,
        };
        Self::new(code, error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Self { message: format!("cannot write: {error}"), code: NO, broken_pipe }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
