//! Every claim that was made through this engine, and until when it lives by its renewals. Knows
//! what is due when, not how it is ended.
//!
//! The claims of a session share a lease in etcd, which lives as long as any of them is renewed. So
//! a claim that nobody renews any more, because it was given up or its release got no answer, would
//! live for ever beside its sisters. The engine ends it when its own time is up.

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

/// How soon an ending that got no answer is tried again.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(250);

/// How a claim stands, as far as this engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimPhase {
    /// It was or is being sent.
    Sent,
    /// It waits.
    Waiting,
    /// It holds. If all its holds were made by one revision, this one; and whether it had waited.
    Held { by: Option<u64>, waited: bool },
    /// Its time is up, or it is being given back.
    Ended,
}

/// One claim.
#[derive(Clone, Debug)]
pub(super) struct ClaimEntry {
    pub(super) local: LocalClaim,
    pub(super) phase: ClaimPhase,
    /// How its keys ended in earlier attempts, of which something may still arrive.
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
    /// The claims in whose lineage an owner is.
    owners: IdMap<OwnerId, SmallVec<[ClaimId; 1]>>,
    due: BTreeSet<(Tick, ClaimId)>,
    keys: BTreeSet<(Tick, ExpiringKey)>,
    closed: bool,
}

/// What has to be ended now.
#[derive(Debug, Default)]
pub(super) struct Expired {
    pub(super) claims: Vec<ClaimEntry>,
    pub(super) keys: Vec<ExpiringKey>,
    pub(super) closed: bool,
}

/// A key that is to be deleted at an instant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ExpiringKey {
    /// A tombstone or a letter, which no other claim will write.
    Unique(Vec<u8>),
    /// A lock delay that this revision wrote. Another claim may stand at the same key by then.
    LockDelay(Vec<u8>, u64),
}

impl Claims {
    pub(super) fn new(alarm: Arc<dyn Alarm>) -> Self {
        Self { state: Mutex::default(), alarm }
    }

    /// Blocks until something may be due.
    pub(super) fn wait(&self) {
        self.alarm.wait();
    }

    /// Ends the thread that waits.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.alarm.ring();
    }

    /// A claim is about to be sent, perhaps once more. False if it has just ended and may still
    /// stand in the store.
    pub(super) fn insert(&self, local: &LocalClaim, now: Tick) -> bool {
        let mut state = self.lock();
        let id = local.claim.id;
        if state.claims.get(&id).is_some_and(|entry| entry.phase == ClaimPhase::Ended) {
            return false;
        }
        // A claim without a session lives by its lease alone, which is its own.
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

    /// Puts off the ending of claims that are being renewed. Those that have ended stay so.
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

    /// When a claim ends that is not renewed; none if it is not known here or has ended.
    pub(super) fn expires(&self, id: ClaimId) -> Option<Tick> {
        let state = self.lock();
        let entry = state.claims.get(&id).filter(|entry| entry.phase != ClaimPhase::Ended);
        entry.map(|entry| entry.expires)
    }

    /// Ends all claims of a session here, as the death of its process would. Returns them.
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

    /// Whether a claim's own time is up, if it is known here: it must not be served any more.
    pub(super) fn is_expired(&self, id: ClaimId, now: Tick) -> bool {
        let state = self.lock();
        let entry = state.claims.get(&id);
        entry.is_some_and(|entry| entry.phase == ClaimPhase::Ended || entry.expires <= now)
    }

    /// Whether a claim holds, as far as is known.
    pub(super) fn holds(&self, id: ClaimId) -> bool {
        self.lock().claims.get(&id).is_some_and(|one| matches!(one.phase, ClaimPhase::Held { .. }))
    }

    /// Says how a claim stands; not if it has ended.
    pub(super) fn set_phase(&self, id: ClaimId, phase: ClaimPhase) {
        let mut state = self.lock();
        if let Some(entry) = state.claims.get_mut(&id)
            && entry.phase != ClaimPhase::Ended
        {
            entry.phase = phase;
        }
    }

    /// Says on which leases a claim's keys hang now.
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

    /// A revision has written a hold of this claim once more.
    pub(super) fn hold_rewritten(&self, id: ClaimId, revision: u64) {
        if let Some(entry) = self.lock().claims.get_mut(&id)
            && let ClaimPhase::Held { by, .. } = &mut entry.phase
        {
            // Those of a set may be written by several.
            let alone = entry.local.claim.parts.as_slice().len() == 1;
            *by = by.filter(|_| alone).map(|_| revision);
        }
    }

    /// Says how a claim's keys end.
    pub(super) fn set_tag(&self, id: ClaimId, tag: Tag) {
        if let Some(entry) = self.lock().claims.get_mut(&id)
            && entry.local.tag != tag
        {
            let former = std::mem::replace(&mut entry.local.tag, tag);
            entry.former_tags.push(former);
        }
    }

    /// Whether another claim of the same owner is known here that wants or holds the name.
    pub(super) fn has_other_of_owner(&self, name: &Name, claim: &Claim) -> bool {
        let state = self.lock();
        let known = state.owners.get(&claim.lineage.owner()).into_iter().flatten();
        let mut others = known.filter(|id| **id != claim.id).filter_map(|id| state.claims.get(id));
        others.any(|other| other.local.claim.parts.names().any(|one| one == name))
    }

    /// The claim is in the store no more, or never was.
    pub(super) fn remove(&self, id: ClaimId) {
        self.lock().remove(id);
    }

    /// Remembers to delete a key at an instant.
    pub(super) fn delete_at(&self, at: Tick, key: ExpiringKey) {
        let mut state = self.lock();
        state.keys.insert((at, key));
        self.arm(&state);
    }

    /// An ending got no answer: again soon.
    pub(super) fn retry_expiry(&self, id: ClaimId, now: Tick) {
        let mut state = self.lock();
        if state.claims.contains_key(&id) {
            state.due.insert((now + RETRY_AFTER, id));
            self.arm(&state);
        }
    }

    /// What is due at `now`. Claims are marked as ended, and stay until they are left.
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
    /// How its keys may end: as now, and as in every attempt before.
    pub(super) fn tags(&self) -> impl Iterator<Item = Tag> {
        self.former_tags.iter().copied().chain([self.local.tag])
    }

    /// When it would have ended by itself.
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
