//! The claims that this client has with the quorum: which attempt each is at, and with which fence
//! it holds. Knows claims, not nodes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rules::AttemptId;
use crate::contract::{Claim, ClaimId, IdMap};

/// The claims of this client.
#[derive(Default)]
pub(super) struct Claims(Mutex<IdMap<ClaimId, ClaimState>>);

/// How a claim stands.
#[derive(Clone, Debug)]
pub(super) struct ClaimState {
    pub(super) claim: Arc<Claim>,
    /// Its latest attempt; 0 if nothing was sent yet.
    pub(super) attempt: u32,
    /// The fence it holds with, if that attempt was won.
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
    /// Begins another attempt.
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

    /// An attempt was won. Not if the claim was given back or tried anew meanwhile.
    pub(super) fn won(&self, token: AttemptId, fence: u64) -> bool {
        let mut claims = self.lock();
        let state = claims.get_mut(&token.claim).filter(|one| one.attempt == token.attempt);
        state.map(|state| state.fence = Some(fence)).is_some()
    }

    pub(super) fn get(&self, claim: ClaimId) -> Option<ClaimState> {
        self.lock().get(&claim).cloned()
    }

    /// The claim has ended.
    pub(super) fn end(&self, claim: ClaimId) -> Option<ClaimState> {
        self.lock().remove(&claim)
    }

    fn lock(&self) -> MutexGuard<'_, IdMap<ClaimId, ClaimState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
