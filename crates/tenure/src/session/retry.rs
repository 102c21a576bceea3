//! How long an acquisition goes on while the store is away. Knows limits and errors, not calls.
//!
//! A store that restarts or fails over is away for seconds, and a caller that is ready to wait for
//! the lock is ready to wait for that too. So an attempt that fails with `Unavailable` is repeated,
//! with exponential back-off and jitter, until
//!
//! - the wait limit has passed, if there is one;
//! - one `max_lease` has passed without any answer, if there is none: by then whatever the store
//!   knew of this session has expired;
//! - a few quick attempts have failed, if it is a try.
//!
//! Any other error is returned at once: it would be the same the next time. An answer of the store
//! starts the count anew. The error that is returned in the end is that of the last attempt. Its
//! effect is unknown if that of any attempt since the last answer was.

use super::{Core, Wait};
use crate::contract::{Effect, Error, ErrorKind};
use crate::limits;
use crate::time::{Tick, back_off};

/// The state of one acquisition's retries.
#[derive(Debug)]
pub(super) struct Retry {
    wait: Wait,
    deadline: Tick,
    /// When the last call was sent that the store answered; at first, when the acquisition began.
    since: Tick,
    /// Attempts that failed since then.
    failures: u32,
    /// Whether the store may have acted on one of them.
    unknown: bool,
    last: Option<Error>,
}

impl Retry {
    /// For an acquisition that begins now, and ends at `deadline` if its wait has a limit.
    pub(super) fn new(wait: Wait, deadline: Tick, now: Tick) -> Self {
        Self { wait, deadline, since: now, failures: 0, unknown: false, last: None }
    }

    /// When the wait limit passes.
    pub(super) fn deadline(&self) -> Tick {
        self.deadline
    }

    /// The store answered what was sent at `sent`.
    pub(super) fn answered(&mut self, sent: Tick) {
        self.since = self.since.max(sent);
        self.failures = 0;
        self.unknown = false;
    }

    /// A claim waited in the queue and was not renewed for a lease: so many renewals failed since
    /// the one that was sent at `since`. Its ticket may have been granted before it expired.
    pub(super) fn cut_off(&mut self, since: Tick, failures: u32) {
        self.answered(since);
        self.failures = failures;
        self.unknown = true;
    }

    /// The wait limit cut an attempt short. An attempt before it that failed by itself knows more
    /// of what is wrong, so its error is the one to return.
    pub(super) fn cut_short(&mut self, error: Error) -> Error {
        self.last.take().unwrap_or(error).effect_unknown()
    }

    /// An attempt failed. Returns when to try again, or the error to give up with.
    pub(super) fn failed(&mut self, core: &Core, error: Error) -> Result<Tick, Error> {
        let now = core.clock.now();
        let away = error.kind() == ErrorKind::Unavailable;
        self.failures = self.failures.saturating_add(1);
        self.unknown |= error.effect() == Effect::Unknown;
        self.last = Some(error);
        let end = self.end(core);
        if !away || now >= end {
            return Err(self.give_up(now));
        }
        tracing::debug!(failures = self.failures, "the store is away; trying again");
        Ok((now + back_off(self.failures, core.jitter())).min(end))
    }

    /// An error if it is too late for another attempt.
    pub(super) fn check(&mut self, core: &Core) -> Result<(), Error> {
        let now = core.clock.now();
        if now >= self.end(core) { Err(self.give_up(now)) } else { Ok(()) }
    }

    /// The error of the last attempt, with the effect of all of them.
    pub(super) fn give_up(&mut self, now: Tick) -> Error {
        let gone = || Error::new(ErrorKind::Unavailable, "the store does not answer");
        let error = self.last.take().unwrap_or_else(gone);
        let error = error.tried(self.failures, now.since(self.since));
        if self.unknown { error.effect_unknown() } else { error }
    }

    /// No attempt begins at this instant or later.
    fn end(&self, core: &Core) -> Tick {
        match self.wait {
            Wait::Try if self.failures >= limits::CLAIM_TRIES => Tick::ZERO,
            Wait::Try => Tick::NEVER,
            Wait::Limit(_) | Wait::TryFor(_) => self.deadline,
            Wait::Unlimited => self.since + core.settings.max_lease,
        }
    }
}
