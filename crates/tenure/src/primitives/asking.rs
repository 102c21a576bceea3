//! From a lock's options to its guard: the same few lines for every kind of lock.

use std::panic::Location;
use std::sync::Arc;

use super::guard::AnyGuard;
use super::options::Options;
use crate::contract::{Error, ErrorKind, Parts};
use crate::session::{Ask, Outcome, Session};

/// A checked request, ready to be awaited. Made where the caller stands, so that the place in the
/// code and the surrounding scope are theirs.
pub(super) struct Asking {
    session: Session,
    ask: Result<Ask, Error>,
}

impl Asking {
    #[track_caller]
    pub(super) fn new(session: &Session, options: &Options, parts: Parts, may_wait: bool) -> Self {
        let ask = options.ask(session.core(), parts, may_wait, Location::caller());
        Self { session: session.clone(), ask }
    }

    /// A request that failed before it could be made.
    pub(super) fn failed(session: &Session, error: Error) -> Self {
        Self { session: session.clone(), ask: Err(error) }
    }

    /// Waits for the guard.
    pub(super) async fn wait<G: AnyGuard>(self) -> Result<G, Error> {
        let guard = self.attempt().await?;
        // Only a try may hear "no", and this was none.
        guard.ok_or_else(|| Error::new(ErrorKind::TimedOut, "it is held"))
    }

    /// Takes the guard if it is to be had.
    pub(super) async fn attempt<G: AnyGuard>(self) -> Result<Option<G>, Error> {
        match Arc::clone(self.session.core()).acquire(self.ask?).await? {
            Outcome::Held(lease) => Ok(Some(G::new(lease))),
            Outcome::No => Ok(None),
        }
    }
}
