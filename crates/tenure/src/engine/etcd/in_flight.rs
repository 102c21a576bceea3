//! Claims in flight.

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::contract::{ClaimId, Error, ErrorKind, IdMap, Verdict};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// How many claims are made at a time. More of them at once are not made sooner, and the last of
/// them would not be answered within the time of a call.
pub(super) const MAX_IN_FLIGHT: usize = 64;

/// The claims that are being made.
pub(super) struct InFlightClaims {
    permits: Semaphore,
    claims: Mutex<IdMap<ClaimId, InFlightClaim>>,
}

/// A claim that is being made.
#[derive(Default)]
struct InFlightClaim {
    state: SendState,
    /// Dropped when the claim is withdrawn: ends its wait for a turn.
    stop: Option<oneshot::Sender<()>>,
    /// Copies of the claim that wait for its answer.
    copies: Vec<oneshot::Sender<Result<Verdict, Error>>>,
}

/// How far a claim has come that is being made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SendState {
    /// It waits for its turn: nothing was sent.
    #[default]
    Queued,
    /// It has its turn: requests may have been sent.
    Sending,
    /// Its caller gave it up.
    Withdrawn,
}

impl Default for InFlightClaims {
    fn default() -> Self {
        Self { permits: Semaphore::new(MAX_IN_FLIGHT), claims: Mutex::default() }
    }
}

impl InFlightClaims {
    /// Begins a claim; or, if it is under way already, tells where its answer will come.
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

    /// Stops a claim that is being made, because its caller gave it up. True if nothing was sent.
    pub(super) fn withdraw(&self, id: ClaimId) -> bool {
        let mut claims = self.lock();
        let Some(claim) = claims.get_mut(&id) else { return false };
        claim.stop = None;
        std::mem::replace(&mut claim.state, SendState::Withdrawn) == SendState::Queued
    }

    /// An error if the caller of a claim gave it up: no more of it is sent. The tombstone keeps out
    /// what was sent before, but it stands for the length of a lease only.
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

/// A claim that is being made, until it is dropped.
pub(super) struct InFlightGuard<'a> {
    in_flight: &'a InFlightClaims,
    id: ClaimId,
}

impl<'a> InFlightGuard<'a> {
    /// Waits until not too many claims are being made. An error if the claim is withdrawn before.
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

    /// Tells the answer to all copies of the claim.
    pub(super) fn complete(self, answer: &Result<Verdict, Error>) {
        let claim = self.in_flight.lock().remove(&self.id);
        for copy in claim.into_iter().flat_map(|claim| claim.copies) {
            let _ = copy.send(answer.clone());
        }
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.in_flight.lock().remove(&self.id);
    }
}

fn withdrawn() -> Error {
    Error::new(ErrorKind::Unavailable, "the claim was withdrawn while it was being made")
        .with_help("claim anew")
}
