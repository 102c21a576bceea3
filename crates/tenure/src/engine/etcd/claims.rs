//! The claims that this engine has in flight, waiting or held, and when each of them expires.
//!
//! The claims of a session share a lease in etcd, which lives as long as any of them is renewed. So
//! etcd does not expire a single claim that is no longer renewed, because it was given up or its
//! release got no reply. The engine does: `take_due` returns claims whose own lease has passed, and
//! `expiry.rs` removes their keys from the store.
//!
//! ```text
//! insert ──> Sent ──> Waiting ──> Held ──> remove (released, refused, gone)
//!              └────────┴──────────┴─────> Ended ──> remove (keys removed from the store)
//! ```
//!
//! Invariants:
//!
//! - A claim is inserted before its first request, and removed when no key of it is left.
//! - `Ended` is final. A renewal or a late reply does not revive the entry; the same claim can be
//!   inserted again only after `remove`.
//! - Every claim that has not ended has one element in `due`, at its `expires`. An ended claim
//!   whose removal failed has one at the time of the next attempt; it may outlive the entry, which
//!   `take_due` ignores.
//! - The alarm is set to the first instant of `due` and `keys`, whenever one of them changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::keys::Tag;
use super::leases::EtcdLease;
use super::transaction::LocalClaim;
use crate::contract::{Claim, ClaimId, ClaimRef, IdMap, Name, OwnerId};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::{Alarm, Tick};

/// When to retry the removal of expired keys after a call that failed.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(250);

/// The state of a claim, as far as this engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimPhase {
    /// A request was or is being sent; the verdict is not known.
    Sent,
    /// It has a ticket.
    Waiting,
    /// It holds. `by` is the revision that last wrote its holds, if it is one for all of them and
    /// they share no fence: the fast release compares it. `waited`: it has tickets beside its
    /// holds.
    Held { by: Option<u64>, waited: bool },
    /// Its lease has passed, and its keys are being removed.
    Ended,
}

/// One claim of this engine.
#[derive(Clone, Debug)]
pub(super) struct ClaimEntry {
    pub(super) local: LocalClaim,
    pub(super) phase: ClaimPhase,
    /// The tags of earlier attempts, whose requests may still arrive.
    former_tags: SmallVec<[Tag; 1]>,
    expires: Tick,
}

/// The claims of an engine.
pub(super) struct Claims {
    state: Mutex<ClaimsState>,
    alarm: Arc<dyn Alarm>,
}

#[derive(Default)]
struct ClaimsState {
    claims: IdMap<ClaimId, ClaimEntry>,
    /// The claims whose lineage contains an owner.
    owners: IdMap<OwnerId, SmallVec<[ClaimId; 1]>>,
    due: BTreeSet<(Tick, ClaimId)>,
    keys: BTreeSet<(Tick, ExpiringKey)>,
    closed: bool,
}

/// What has expired.
#[derive(Debug, Default)]
pub(super) struct Expired {
    pub(super) claims: Vec<ClaimEntry>,
    pub(super) keys: Vec<ExpiringKey>,
    pub(super) closed: bool,
}

/// A key that is deleted at an instant, because the lease it is attached to may live longer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ExpiringKey {
    /// A tombstone or an eviction notice: no other claim writes this key.
    Unique(Vec<u8>),
    /// A lock delay and the revision that wrote it. Deleted only if the key is unchanged: by then
    /// another claim may use the same tag.
    LockDelay(Vec<u8>, u64),
}

impl Claims {
    pub(super) fn new(alarm: Arc<dyn Alarm>) -> Self {
        Self { state: Mutex::default(), alarm }
    }

    /// Blocks until a claim or key may be due.
    pub(super) fn wait(&self) {
        self.alarm.wait();
    }

    /// Ends the thread that calls `wait`.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.alarm.ring();
    }

    /// Records a claim that is about to be sent, perhaps again. Returns false if it has ended, and
    /// its keys may still be in the store.
    pub(super) fn insert(&self, local: &LocalClaim, now: Tick) -> bool {
        let mut state = self.lock();
        let id = local.claim.id;
        if state.claims.get(&id).is_some_and(|entry| entry.phase == ClaimPhase::Ended) {
            return false;
        }
        // A claim without a session has an etcd lease of its own: etcd ends it, not this process.
        let lasts = local.claim.session.is_none();
        let expires = if lasts { Tick::NEVER } else { now + local.claim.lease };
        let before = state.claims.get(&id);
        let phase = before.map_or(ClaimPhase::Sent, |entry| entry.phase);
        let former_tags = before.map(|entry| entry.former_tags.clone()).unwrap_or_default();
        state.remove(id);
        state.due.insert((expires, id));
        for owner in local.claim.lineage.all() {
            state.owners.entry(owner).or_default().push(id);
        }
        state.claims.insert(id, ClaimEntry { local: local.clone(), phase, former_tags, expires });
        self.arm(&state);
        true
    }

    /// Extends the leases of claims that are being renewed. Claims that have ended stay so.
    pub(super) fn extend(&self, batch: &[ClaimRef], now: Tick) {
        let mut state = self.lock();
        for claim in batch {
            let Some(entry) = state.claims.get_mut(&claim.id) else { continue };
            if entry.phase == ClaimPhase::Ended || entry.expires == Tick::NEVER {
                continue;
            }
            let before = entry.expires;
            entry.expires = now + claim.lease;
            let after = entry.expires;
            state.due.remove(&(before, claim.id));
            state.due.insert((after, claim.id));
        }
        self.arm(&state);
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<ClaimEntry> {
        self.lock().claims.get(&id).cloned()
    }

    /// When a claim expires if it is not renewed. `None` if it is not known here or has ended.
    pub(super) fn expires(&self, id: ClaimId) -> Option<Tick> {
        let state = self.lock();
        let entry = state.claims.get(&id).filter(|entry| entry.phase != ClaimPhase::Ended);
        entry.map(|entry| entry.expires)
    }

    /// Marks all claims of a session as ended, as the death of its process would. Returns them.
    #[cfg(feature = "conformance")]
    pub(super) fn end_session(&self, session: crate::contract::SessionId) -> Vec<ClaimId> {
        let mut state = self.lock();
        let mut ended = Vec::new();
        for (id, entry) in &mut state.claims {
            if entry.local.claim.session == Some(session) {
                entry.phase = ClaimPhase::Ended;
                ended.push(*id);
            }
        }
        ended
    }

    /// Whether a claim that is known here has expired: it must not be granted any more.
    pub(super) fn is_expired(&self, id: ClaimId, now: Tick) -> bool {
        let state = self.lock();
        let entry = state.claims.get(&id);
        entry.is_some_and(|entry| entry.phase == ClaimPhase::Ended || entry.expires <= now)
    }

    /// Whether a claim holds, as far as this engine knows.
    pub(super) fn holds(&self, id: ClaimId) -> bool {
        self.lock().claims.get(&id).is_some_and(|one| matches!(one.phase, ClaimPhase::Held { .. }))
    }

    /// Sets the phase of a claim, unless it has ended.
    pub(super) fn set_phase(&self, id: ClaimId, phase: ClaimPhase) {
        let mut state = self.lock();
        if let Some(entry) = state.claims.get_mut(&id)
            && entry.phase != ClaimPhase::Ended
        {
            entry.phase = phase;
        }
    }

    /// Sets the leases that a claim's keys are attached to.
    pub(super) fn set_leases(
        &self,
        id: ClaimId,
        lease: &Arc<EtcdLease>,
        delay: Option<&Arc<EtcdLease>>,
    ) {
        if let Some(entry) = self.lock().claims.get_mut(&id) {
            entry.local.lease = Arc::clone(lease);
            entry.local.delay = delay.cloned();
        }
    }

    /// Records that a revision has rewritten a hold of this claim.
    pub(super) fn hold_rewritten(&self, id: ClaimId, revision: u64) {
        if let Some(entry) = self.lock().claims.get_mut(&id)
            && let ClaimPhase::Held { by, .. } = &mut entry.phase
        {
            // The holds of a set may be rewritten by several revisions.
            let alone = entry.local.claim.parts.as_slice().len() == 1;
            *by = by.filter(|_| alone).map(|_| revision);
        }
    }

    /// Sets the tag of a claim's keys and remembers the former one.
    pub(super) fn set_tag(&self, id: ClaimId, tag: Tag) {
        if let Some(entry) = self.lock().claims.get_mut(&id)
            && entry.local.tag != tag
        {
            let former = std::mem::replace(&mut entry.local.tag, tag);
            entry.former_tags.push(former);
        }
    }

    /// Whether this engine has another claim of the same owner on the name.
    pub(super) fn has_other_of_owner(&self, name: &Name, claim: &Claim) -> bool {
        let state = self.lock();
        let known = state.owners.get(&claim.lineage.owner()).into_iter().flatten();
        let mut others = known.filter(|id| **id != claim.id).filter_map(|id| state.claims.get(id));
        others.any(|other| other.local.claim.parts.names().any(|one| one == name))
    }

    /// Removes the entry of a claim of which no key is in the store.
    pub(super) fn remove(&self, id: ClaimId) {
        self.lock().remove(id);
    }

    /// Schedules the deletion of a key.
    pub(super) fn delete_at(&self, at: Tick, key: ExpiringKey) {
        let mut state = self.lock();
        state.keys.insert((at, key));
        self.arm(&state);
    }

    /// Schedules another attempt to remove the keys of an ended claim.
    pub(super) fn retry_expiry(&self, id: ClaimId, now: Tick) {
        let mut state = self.lock();
        if state.claims.contains_key(&id) {
            state.due.insert((now + RETRY_AFTER, id));
            self.arm(&state);
        }
    }

    /// Returns what is due at `now`. Claims are marked as ended, and stay until `remove`.
    pub(super) fn take_due(&self, now: Tick) -> Expired {
        let mut state = self.lock();
        let mut due = Expired { closed: state.closed, ..Expired::default() };
        while let Some((_, id)) = state.due.first().copied().filter(|(at, _)| *at <= now) {
            state.due.pop_first();
            if let Some(entry) = state.claims.get_mut(&id) {
                due.claims.push(entry.clone());
                entry.phase = ClaimPhase::Ended;
            }
        }
        while state.keys.first().is_some_and(|(at, _)| *at <= now) {
            due.keys.extend(state.keys.pop_first().map(|(_, key)| key));
        }
        self.arm(&state);
        due
    }

    fn arm(&self, state: &ClaimsState) {
        let claims = state.due.first().map(|(at, _)| *at);
        let keys = state.keys.first().map(|(at, _)| *at);
        self.alarm.set(claims.into_iter().chain(keys).min().unwrap_or(Tick::NEVER));
    }

    fn lock(&self) -> MutexGuard<'_, ClaimsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClaimEntry {
    /// The tags that its keys may have: of all attempts.
    pub(super) fn tags(&self) -> impl Iterator<Item = Tag> {
        self.former_tags.iter().copied().chain([self.local.tag])
    }

    /// When its lease ends.
    pub(super) fn expires(&self) -> Tick {
        self.expires
    }
}

impl ClaimsState {
    fn remove(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.remove(&id) else { return };
        self.due.remove(&(entry.expires, id));
        for owner in entry.local.claim.lineage.all() {
            if let Some(claims) = self.owners.get_mut(&owner) {
                claims.retain(|claim| *claim != id);
                if claims.is_empty() {
                    self.owners.remove(&owner);
                }
            }
        }
    }
}
