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
use super::leases::Lease;
use super::step::Own;
use crate::contract::{Claim, ClaimId, ClaimRef, IdMap, Name, OwnerId};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::{Alarm, Tick};

/// How soon an ending that got no answer is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(250);

/// How a claim stands, as far as this engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It was or is being sent.
    Asked,
    /// It waits.
    Waiting,
    /// It holds. If all its holds were made by one revision, this one; and whether it had waited.
    Held { by: Option<u64>, waited: bool },
    /// Its time is up, or it is being given back.
    Ended,
}

/// One claim.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) own: Own,
    pub(super) phase: Phase,
    /// How its keys ended in earlier attempts, of which something may still arrive.
    tried: SmallVec<[Tag; 1]>,
    expires: Tick,
}

/// The claims of an engine.
pub(super) struct Roll {
    state: Mutex<State>,
    alarm: Arc<dyn Alarm>,
}

#[derive(Default)]
struct State {
    claims: IdMap<ClaimId, Entry>,
    /// The claims in whose lineage an owner is.
    owners: IdMap<OwnerId, SmallVec<[ClaimId; 1]>>,
    due: BTreeSet<(Tick, ClaimId)>,
    keys: BTreeSet<(Tick, DueKey)>,
    closed: bool,
}

/// What has to be ended now.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) claims: Vec<Entry>,
    pub(super) keys: Vec<DueKey>,
    pub(super) closed: bool,
}

/// A key that is to be deleted at an instant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DueKey {
    /// A tombstone or a letter, which no other claim will write.
    Own(Vec<u8>),
    /// A lock delay that this revision wrote. Another claim may stand at the same key by then.
    Delay(Vec<u8>, u64),
}

impl Roll {
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
    pub(super) fn enter(&self, own: &Own, now: Tick) -> bool {
        let mut state = self.lock();
        let id = own.claim.id;
        if state.claims.get(&id).is_some_and(|entry| entry.phase == Phase::Ended) {
            return false;
        }
        // A claim without a session lives by its lease alone, which is its own.
        let lasts = own.claim.session.is_none();
        let expires = if lasts { Tick::NEVER } else { now + own.claim.lease };
        let before = state.claims.get(&id);
        let phase = before.map_or(Phase::Asked, |entry| entry.phase);
        let tried = before.map(|entry| entry.tried.clone()).unwrap_or_default();
        state.remove(id);
        state.due.insert((expires, id));
        for owner in own.claim.lineage.all() {
            state.owners.entry(owner).or_default().push(id);
        }
        state.claims.insert(id, Entry { own: own.clone(), phase, tried, expires });
        self.set(&state);
        true
    }

    /// Puts off the ending of claims that are being renewed. Those that have ended stay so.
    pub(super) fn extend(&self, batch: &[ClaimRef], now: Tick) {
        let mut state = self.lock();
        for claim in batch {
            let Some(entry) = state.claims.get_mut(&claim.id) else { continue };
            if entry.phase == Phase::Ended || entry.expires == Tick::NEVER {
                continue;
            }
            let before = entry.expires;
            entry.expires = now + claim.lease;
            let after = entry.expires;
            state.due.remove(&(before, claim.id));
            state.due.insert((after, claim.id));
        }
        self.set(&state);
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<Entry> {
        self.lock().claims.get(&id).cloned()
    }

    /// When a claim ends that is not renewed; none if it is not known here or has ended.
    pub(super) fn expires(&self, id: ClaimId) -> Option<Tick> {
        let state = self.lock();
        let entry = state.claims.get(&id).filter(|entry| entry.phase != Phase::Ended);
        entry.map(|entry| entry.expires)
    }

    /// Ends all claims of a session here, as the death of its process would. Returns them.
    #[cfg(feature = "conformance")]
    pub(super) fn end_session(&self, session: crate::contract::SessionId) -> Vec<ClaimId> {
        let mut state = self.lock();
        let mut ended = Vec::new();
        for (id, entry) in &mut state.claims {
            if entry.own.claim.session == Some(session) {
                entry.phase = Phase::Ended;
                ended.push(*id);
            }
        }
        ended
    }

    /// Whether a claim's own time is up, if it is known here: it must not be served any more.
    pub(super) fn is_over(&self, id: ClaimId, now: Tick) -> bool {
        let state = self.lock();
        let entry = state.claims.get(&id);
        entry.is_some_and(|entry| entry.phase == Phase::Ended || entry.expires <= now)
    }

    /// Whether a claim holds, as far as is known.
    pub(super) fn holds(&self, id: ClaimId) -> bool {
        self.lock().claims.get(&id).is_some_and(|one| matches!(one.phase, Phase::Held { .. }))
    }

    /// Says how a claim stands; not if it has ended.
    pub(super) fn stands(&self, id: ClaimId, phase: Phase) {
        let mut state = self.lock();
        if let Some(entry) = state.claims.get_mut(&id)
            && entry.phase != Phase::Ended
        {
            entry.phase = phase;
        }
    }

    /// Says on which leases a claim's keys hang now.
    pub(super) fn hang(&self, id: ClaimId, lease: &Arc<Lease>, delay: Option<&Arc<Lease>>) {
        if let Some(entry) = self.lock().claims.get_mut(&id) {
            entry.own.lease = Arc::clone(lease);
            entry.own.delay = delay.cloned();
        }
    }

    /// A revision has written a hold of this claim once more.
    pub(super) fn rewritten(&self, id: ClaimId, revision: u64) {
        if let Some(entry) = self.lock().claims.get_mut(&id)
            && let Phase::Held { by, .. } = &mut entry.phase
        {
            // Those of a set may be written by several.
            let alone = entry.own.claim.parts.as_slice().len() == 1;
            *by = by.filter(|_| alone).map(|_| revision);
        }
    }

    /// Says how a claim's keys end.
    pub(super) fn tag(&self, id: ClaimId, tag: Tag) {
        if let Some(entry) = self.lock().claims.get_mut(&id)
            && entry.own.tag != tag
        {
            let former = std::mem::replace(&mut entry.own.tag, tag);
            entry.tried.push(former);
        }
    }

    /// Whether another claim of the same owner is known here that wants or holds the name.
    pub(super) fn knows_owner(&self, name: &Name, claim: &Claim) -> bool {
        let state = self.lock();
        let known = state.owners.get(&claim.lineage.owner()).into_iter().flatten();
        let mut others = known.filter(|id| **id != claim.id).filter_map(|id| state.claims.get(id));
        others.any(|other| other.own.claim.parts.names().any(|one| one == name))
    }

    /// The claim is in the store no more, or never was.
    pub(super) fn leave(&self, id: ClaimId) {
        self.lock().remove(id);
    }

    /// Remembers to delete a key at an instant.
    pub(super) fn delete_at(&self, at: Tick, key: DueKey) {
        let mut state = self.lock();
        state.keys.insert((at, key));
        self.set(&state);
    }

    /// An ending got no answer: again soon.
    pub(super) fn again(&self, id: ClaimId, now: Tick) {
        let mut state = self.lock();
        if state.claims.contains_key(&id) {
            state.due.insert((now + AGAIN, id));
            self.set(&state);
        }
    }

    /// What is due at `now`. Claims are marked as ended, and stay until they are left.
    pub(super) fn due(&self, now: Tick) -> Due {
        let mut state = self.lock();
        let mut due = Due { closed: state.closed, ..Due::default() };
        while let Some((_, id)) = state.due.first().copied().filter(|(at, _)| *at <= now) {
            state.due.pop_first();
            if let Some(entry) = state.claims.get_mut(&id) {
                due.claims.push(entry.clone());
                entry.phase = Phase::Ended;
            }
        }
        while state.keys.first().is_some_and(|(at, _)| *at <= now) {
            due.keys.extend(state.keys.pop_first().map(|(_, key)| key));
        }
        self.set(&state);
        due
    }

    fn set(&self, state: &State) {
        let claims = state.due.first().map(|(at, _)| *at);
        let keys = state.keys.first().map(|(at, _)| *at);
        self.alarm.set(claims.into_iter().chain(keys).min().unwrap_or(Tick::NEVER));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// How its keys may end: as now, and as in every attempt before.
    pub(super) fn tags(&self) -> impl Iterator<Item = Tag> {
        self.tried.iter().copied().chain([self.own.tag])
    }

    /// When it would have ended by itself.
    pub(super) fn expires(&self) -> Tick {
        self.expires
    }
}

impl State {
    fn remove(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.remove(&id) else { return };
        self.due.remove(&(entry.expires, id));
        for owner in entry.own.claim.lineage.all() {
            if let Some(claims) = self.owners.get_mut(&owner) {
                claims.retain(|claim| *claim != id);
                if claims.is_empty() {
                    self.owners.remove(&owner);
                }
            }
        }
    }
}
