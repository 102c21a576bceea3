//! What the engine remembers of claims that are in flight, wait, or were seen to wait. All of it is
//! bounded, and none of it decides who holds a lock: that is in the database.
//!
//! **Unsent claims.** A claim waits for a permit before it is sent. A caller that is dropped
//! meanwhile has left nothing in the database, so there is nothing to withdraw and no late copy to
//! refuse. The release needs to know that: withdrawing thousands of claims that were never sent
//! would keep the server from the calls that were. An entry is made when a claim attempt ends
//! without a reply, and is removed by the release that follows. A claim of which any copy was sent
//! never counts as unsent again.
//!
//! **Contended names** are a hint for the release: whether to write `notify_later` behind it.
//!
//! **Waiting claims** are counted behind a pooler only, where waiters have to poll.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::contract::{ClaimId, IdMap, Name};

/// Limit of unsent claims. Claims beyond it count as sent.
const MAX_UNSENT: usize = 100_000;
/// Limit of contended names. Beyond it all are forgotten at once.
const MAX_CONTENDED: usize = 1_024;

/// Claims whose attempt ended without a reply, and whether none of their copies was sent.
#[derive(Debug, Default)]
pub(super) struct UnsentClaims(Mutex<IdMap<ClaimId, bool>>);

impl UnsentClaims {
    /// Begins an attempt to claim.
    pub(super) fn begin(&self, claim: ClaimId) -> ClaimAttempt<'_> {
        ClaimAttempt { unsent: self, claim, sent: AtomicBool::new(false), answered: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Removes a claim that is released. Returns whether it was never sent.
    pub(super) fn take(&self, claim: ClaimId) -> bool {
        self.lock().remove(&claim).unwrap_or(false)
    }

    fn ended(&self, claim: ClaimId, sent: bool) {
        let mut claims = self.lock();
        if sent {
            claims.insert(claim, false);
        } else if claims.len() < MAX_UNSENT {
            claims.entry(claim).or_insert(true);
        }
    }

    fn lock(&self) -> MutexGuard<'_, IdMap<ClaimId, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim in flight. If it is dropped without a reply, it is entered in [`UnsentClaims`].
#[derive(Debug)]
pub(super) struct ClaimAttempt<'a> {
    unsent: &'a UnsentClaims,
    claim: ClaimId,
    sent: AtomicBool,
    answered: bool,
}

impl ClaimAttempt<'_> {
    /// Records that the claim is sent now. An earlier attempt may have ended before it was.
    pub(super) fn sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
        if let Some(unsent) = self.unsent.lock().get_mut(&self.claim) {
            *unsent = false;
        }
    }

    /// Ends the attempt with a reply.
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for ClaimAttempt<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.unsent.ended(self.claim, *self.sent.get_mut());
        }
    }
}

/// Names on which a waiter was seen.
#[derive(Default)]
pub(super) struct ContendedNames(Mutex<HashSet<Name>>);

impl ContendedNames {
    /// Returns whether a waiter was seen on this name.
    pub(super) fn contains(&self, name: &Name) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Records whether the name had a waiter.
    pub(super) fn record(&self, name: &Name, contended: bool) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !contended {
            names.remove(name);
            return;
        }
        if names.len() >= MAX_CONTENDED {
            names.clear();
        }
        names.insert(name.clone());
    }
}

/// Claims of this engine that wait.
#[derive(Default)]
pub(super) struct WaitingClaims(Mutex<BTreeSet<ClaimId>>);

impl WaitingClaims {
    pub(super) fn set(&self, claim: ClaimId, waits: bool) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waits {
            waiting.insert(claim);
        } else {
            waiting.remove(&claim);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_was_never_sent_is_known_until_its_release() {
        let (unsent, claim) = (UnsentClaims::default(), ClaimId::new());
        drop(unsent.begin(claim));
        assert!(unsent.take(claim));
        assert!(!unsent.take(claim));
    }

    #[test]
    fn a_claim_whose_first_copy_was_sent_is_not_unsent() {
        let (unsent, claim) = (UnsentClaims::default(), ClaimId::new());
        let first = unsent.begin(claim);
        first.sent();
        drop(first);
        drop(unsent.begin(claim));
        assert!(!unsent.take(claim));
    }

    #[test]
    fn a_claim_whose_second_copy_was_sent_is_not_unsent() {
        let (unsent, claim) = (UnsentClaims::default(), ClaimId::new());
        drop(unsent.begin(claim));
        let second = unsent.begin(claim);
        second.sent();
        second.answered();
        assert!(!unsent.take(claim));
    }

    #[test]
    fn a_claim_that_was_answered_leaves_nothing_behind() {
        let (unsent, claim) = (UnsentClaims::default(), ClaimId::new());
        let only = unsent.begin(claim);
        only.sent();
        only.answered();
        assert!(unsent.is_empty());
    }

    #[test]
    fn a_name_is_contended_until_no_waiter_was_seen_and_all_are_bounded() {
        let (contended, name) = (ContendedNames::default(), Name::try_from("a").unwrap());
        assert!(!contended.contains(&name));
        contended.record(&name, true);
        assert!(contended.contains(&name));
        contended.record(&name, false);
        assert!(!contended.contains(&name));
        for number in 0..=MAX_CONTENDED {
            contended.record(&Name::try_from(&*format!("n{number}")).unwrap(), true);
        }
        assert!(contended.0.lock().unwrap().len() <= MAX_CONTENDED);
    }
}
