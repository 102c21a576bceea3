//! Claims in flight: limits how many are sent at a time, merges copies, and stops withdrawn ones.
//!
//! A claim waits for one of [`MAX_IN_FLIGHT`] permits before any request of it is sent
//! ([`InFlightGuard::acquire_permit`]). A copy of a claim that is in flight sends nothing; it gets
//! the result of the first one.
//!
//! ```text
//! begin ──> Queued ──> Sending ──> complete (or dropped)
//!              └──────────┴─────> Withdrawn
//! ```
//!
//! A withdrawal of a queued claim needs no request: nothing was sent, and nothing will be, because
//! the change to `Sending` happens under the same mutex. A claim that is being sent checks before
//! each further request whether it was withdrawn ([`InFlightClaims::check_wanted`]): its tombstone
//! refuses what was sent, but is deleted after the length of a lease. For the same reason a claim
//! whose lease has passed while it was queued is never sent: the session gives up a withdrawal
//! after a lease, so the claim would take the lock for a caller that left long ago.

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::contract::{ClaimId, Error, ErrorKind, IdMap, Verdict};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// How many claims are sent at a time. With more, none is answered sooner, and the last ones would
/// exceed the timeout of a call.
pub(super) const MAX_IN_FLIGHT: usize = 64;

/// The claims that callers wait for.
pub(super) struct InFlightClaims {
    permits: Semaphore,
    claims: Mutex<IdMap<ClaimId, InFlightClaim>>,
}

/// One claim in flight.
#[derive(Default)]
struct InFlightClaim {
    state: SendState,
    /// Dropped when the claim is withdrawn, which ends its wait for a permit.
    stop: Option<oneshot::Sender<()>>,
    /// Copies of the claim that wait for its result.
    copies: Vec<oneshot::Sender<Result<Verdict, Error>>>,
}

/// Whether requests of a claim were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SendState {
    /// It waits for a permit: nothing was sent.
    #[default]
    Queued,
    /// It has a permit: requests may have been sent.
    Sending,
    /// Its caller withdrew it.
    Withdrawn,
}

impl Default for InFlightClaims {
    fn default() -> Self {
        Self { permits: Semaphore::new(MAX_IN_FLIGHT), claims: Mutex::default() }
    }
}

impl InFlightClaims {
    /// Begins a claim. If it is in flight already, returns the channel of its result instead.
    pub(super) fn begin(
        &self,
        id: ClaimId,
    ) -> Result<InFlightGuard<'_>, oneshot::Receiver<Result<Verdict, Error>>> {
        let mut claims = self.lock();
        if let Some(claim) = claims.get_mut(&id) {
            let (sender, receiver) = oneshot::channel();
            claim.copies.push(sender);
            return Err(receiver);
        }
        claims.insert(id, InFlightClaim::default());
        Ok(InFlightGuard { in_flight: self, id })
    }

    /// Stops a claim. Returns true if nothing of it was sent.
    pub(super) fn withdraw(&self, id: ClaimId) -> bool {
        let mut claims = self.lock();
        let Some(claim) = claims.get_mut(&id) else { return false };
        claim.stop = None;
        std::mem::replace(&mut claim.state, SendState::Withdrawn) == SendState::Queued
    }

    /// Fails if the claim was withdrawn: no more of it may be sent. The tombstone refuses what was
    /// sent before, but only for the length of a lease.
    pub(super) fn check_wanted(&self, id: ClaimId) -> Result<(), Error> {
        match self.lock().get(&id) {
            Some(claim) if claim.state == SendState::Withdrawn => Err(withdrawn()),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, IdMap<ClaimId, InFlightClaim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a claim in flight until it is completed or dropped.
pub(super) struct InFlightGuard<'a> {
    in_flight: &'a InFlightClaims,
    id: ClaimId,
}

impl<'a> InFlightGuard<'a> {
    /// Waits for a permit to send. Fails if the claim is withdrawn before.
    pub(super) async fn acquire_permit(&self) -> Result<Option<SemaphorePermit<'a>>, Error> {
        let permit = if let Ok(permit) = self.in_flight.permits.try_acquire() {
            Some(permit)
        } else {
            let (stop, stopped) = oneshot::channel();
            if let Some(claim) = self.in_flight.lock().get_mut(&self.id) {
                claim.stop = (claim.state == SendState::Queued).then_some(stop);
            }
            tokio::select! {
                biased;
                // The semaphore is never closed.
                permit = self.in_flight.permits.acquire() => permit.ok(),
                _ = stopped => return Err(withdrawn()),
            }
        };
        match self.in_flight.lock().get_mut(&self.id) {
            Some(claim) if claim.state == SendState::Withdrawn => Err(withdrawn()),
            Some(claim) => {
                (claim.state, claim.stop) = (SendState::Sending, None);
                Ok(permit)
            }
            None => Ok(permit),
        }
    }

    /// Sends the result to all copies of the claim.
    pub(super) fn complete(self, result: &Result<Verdict, Error>) {
        let claim = self.in_flight.lock().remove(&self.id);
        for copy in claim.into_iter().flat_map(|claim| claim.copies) {
            let _ = copy.send(result.clone());
        }
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.in_flight.lock().remove(&self.id);
    }
}

fn withdrawn() -> Error {
    Error::new(ErrorKind::Unavailable, "the claim was withdrawn while it was in flight")
        .with_help("claim again")
}
