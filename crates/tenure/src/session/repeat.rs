//! Repeated tries for a set, which hold nothing while they pause.
//!
//! Each round is one try: it acquires every name of the set or releases what it got, so that
//! between two rounds nothing is held and no claim waits in a queue. The pauses grow as those of a
//! store that is away do, with jitter, so that two callers who want overlapping sets do not collide
//! at the same instants for ever. The last round begins at the deadline, and a round that has begun
//! is finished: cutting it short could leave a grant to be released in the background while the
//! caller believes that nothing is held.

use std::sync::Arc;
use std::time::Duration;

use super::park::sleep_until;
use super::{AcquireRequest, Core, Outcome};
use crate::contract::{Error, ErrorKind, Loss};
use crate::time::back_off;

impl Core {
    /// Tries until all of `ask` is granted, `limit` has passed or so many `tries` were made.
    pub(crate) async fn try_repeatedly(
        self: Arc<Self>,
        ask: AcquireRequest,
        limit: Duration,
        tries: Option<u32>,
    ) -> Result<Outcome, Error> {
        let deadline = self.clock.now() + limit;
        let mut made = 0_u32;
        loop {
            let round = match self.acquire(ask.clone()).await {
                Err(error) if !may_pass(&error) => return Err(error),
                Ok(Outcome::Held(lease)) => return Ok(Outcome::Held(lease)),
                round => round,
            };
            made = made.saturating_add(1);
            let now = self.clock.now();
            if now >= deadline || tries.is_some_and(|most| made >= most) {
                return round;
            }
            sleep_until(&self, (now + back_off(made, self.jitter())).min(deadline)).await;
        }
    }
}

/// Whether another round may succeed: the store was away, or a name was lost before the last one of
/// the set was granted. A forced release is an order, and ends the tries.
fn may_pass(error: &Error) -> bool {
    let forced = matches!(error.loss(), Some(Loss::Evicted { .. }));
    error.kind() == ErrorKind::Unavailable || error.kind() == ErrorKind::Lost && !forced
}
