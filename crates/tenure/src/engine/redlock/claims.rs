//! The claims of this client: the latest attempt of each, and the fence with which it holds.
//!
//! An entry is made before the first attempt is sent and removed before a release is sent. A result
//! counts only if its attempt is the latest one of a claim that is still here, so an attempt that
//! wins after its claim was released or tried again is not taken for a grant.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rules::AttemptId;
use crate::contract::{Claim, ClaimId, IdMap};

/// The claims of this client.
#[derive(Default)]
pub(super) struct Claims(Mutex<IdMap<ClaimId, ClaimState>>);

/// The state of one claim.
#[derive(Clone, Debug)]
pub(super) struct ClaimState {
    pub(super) claim: Arc<Claim>,
    /// The number of its latest attempt; 0 if nothing was sent yet.
    pub(super) attempt: u32,
    /// The fence with which it holds, if that attempt was won.
    pub(super) fence: Option<u64>,
}

impl ClaimState {
    fn new(claim: &Arc<Claim>) -> Self {
        Self { claim: Arc::clone(claim), attempt: 0, fence: None }
    }

    pub(super) fn token(&self) -> AttemptId {
        AttemptId { claim: self.claim.id, attempt: self.attempt }
    }
}

impl Claims {
    /// Begins the next attempt of a claim.
    pub(super) fn begin(&self, claim: &Arc<Claim>) -> AttemptId {
        let mut claims = self.lock();
        let state = claims.entry(claim.id).or_insert_with(|| ClaimState::new(claim));
        state.attempt += 1;
        state.fence = None;
        state.token()
    }

    /// The claim waits for its turn. Returns its latest attempt.
    pub(super) fn wait(&self, claim: &Arc<Claim>) -> u32 {
        self.lock().entry(claim.id).or_insert_with(|| ClaimState::new(claim)).attempt
    }

    /// Records that an attempt was won. Returns `false` if the claim was released or tried again
    /// meanwhile.
    pub(super) fn won(&self, token: AttemptId, fence: u64) -> bool {
        let mut claims = self.lock();
        let state = claims.get_mut(&token.claim).filter(|one| one.attempt == token.attempt);
        state.map(|state| state.fence = Some(fence)).is_some()
    }

    pub(super) fn get(&self, claim: ClaimId) -> Option<ClaimState> {
        self.lock().get(&claim).cloned()
    }

    /// Removes a claim.
    pub(super) fn end(&self, claim: ClaimId) -> Option<ClaimState> {
        self.lock().remove(&claim)
    }

    fn lock(&self) -> MutexGuard<'_, IdMap<ClaimId, ClaimState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
