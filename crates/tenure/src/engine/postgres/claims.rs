//! Claims that were given up before they went out. Knows ids, not connections.
//!
//! A claim waits for room on its connection. A caller that leaves meanwhile leaves nothing in the
//! database, so there is nothing to withdraw and no late copy to refuse. A release has to know: to
//! withdraw thousands of claims that never went out would keep the database from what was asked of
//! it since.
//!
//! An entry is made when a claim ends without an answer, and goes with the release that follows. A
//! claim of which any copy went out is never unsent again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::contract::{ClaimId, IdMap};

/// So many are known at most. What is not known counts as having gone out.
const MOST: usize = 100_000;

/// Claims that ended without an answer, and whether they never went out.
#[derive(Debug, Default)]
pub(super) struct Unsent(Mutex<IdMap<ClaimId, bool>>);

impl Unsent {
    /// A claim begins.
    pub(super) fn begin(&self, claim: ClaimId) -> Sending<'_> {
        Sending { unsent: self, claim, sent: AtomicBool::new(false), answered: false }
    }

    /// Whether nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// A claim is released. Returns whether it never went out.
    pub(super) fn take(&self, claim: ClaimId) -> bool {
        self.lock().remove(&claim).unwrap_or(false)
    }

    fn ended(&self, claim: ClaimId, sent: bool) {
        let mut claims = self.lock();
        if sent {
            claims.insert(claim, false);
        } else if claims.len() < MOST {
            claims.entry(claim).or_insert(true);
        }
    }

    fn lock(&self) -> MutexGuard<'_, IdMap<ClaimId, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim under way. Dropped without an answer, it is remembered.
#[derive(Debug)]
pub(super) struct Sending<'a> {
    unsent: &'a Unsent,
    claim: ClaimId,
    sent: AtomicBool,
    answered: bool,
}

impl Sending<'_> {
    /// The claim goes out. An earlier copy may have ended before it did.
    pub(super) fn sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
        if let Some(unsent) = self.unsent.lock().get_mut(&self.claim) {
            *unsent = false;
        }
    }

    /// The store has answered.
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.unsent.ended(self.claim, *self.sent.get_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_never_went_out_is_known_until_its_release() {
        let (unsent, claim) = (Unsent::default(), ClaimId::new());
        drop(unsent.begin(claim));
        assert!(unsent.take(claim));
        assert!(!unsent.take(claim));
    }

    #[test]
    fn a_claim_whose_first_copy_went_out_is_not_unsent() {
        let (unsent, claim) = (Unsent::default(), ClaimId::new());
        let first = unsent.begin(claim);
        first.sent();
        drop(first);
        drop(unsent.begin(claim));
        assert!(!unsent.take(claim));
    }

    #[test]
    fn a_claim_whose_second_copy_went_out_is_not_unsent() {
        let (unsent, claim) = (Unsent::default(), ClaimId::new());
        drop(unsent.begin(claim));
        let second = unsent.begin(claim);
        second.sent();
        second.answered();
        assert!(!unsent.take(claim));
    }

    #[test]
    fn a_claim_that_was_answered_leaves_nothing_behind() {
        let (unsent, claim) = (Unsent::default(), ClaimId::new());
        let only = unsent.begin(claim);
        only.sent();
        only.answered();
        assert!(unsent.is_empty());
    }
}
