//! The waiting claims of this engine, and which keys each of them watches.
//!
//! A waiting claim has a ticket in the store. No releasing process grants it: the waiter watches
//! the keys that block it, and when one of them changes it checks its turn and writes its own hold
//! (`grant.rs`). Which keys block it ([`Inner::watches_for`]):
//!
//! - Behind another ticket: that ticket being deleted. If both claims fit into the capacity, that
//!   claim's hold being written as well.
//! - First in the queue: the holds and the lock delays being deleted.
//! - With kin in the slot, ancestors, or a claim to replace: every change in the slot.
//! - Behind a claim of the same engine: nothing. That claim watches (`queue.rs`).
//!
//! So a release wakes one waiter, however many there are. A waiter is *plain* if it has one name
//! and nothing but the claims before it decides when it is granted: it may try to write its hold
//! without a read.
//!
//! # Why no wake-up is lost
//!
//! A watch begins when etcd creates it, which is after the read that chose it. When etcd confirms
//! the watch, [`Inner::verify_watch`] reads the watched key again and checks the turn if it is not
//! as expected. What changes later is an event. After a reconnect all watching claims are checked,
//! and every renewal checks the turn as well.
//!
//! # States of a waiter
//!
//! ```text
//! idle ──begin_check──> checking ──end_check──> idle
//!                         │  ▲
//!             begin_check ▼  │ end_check: check once more
//!                       recheck
//! ```
//!
//! One check runs at a time. An event during a check sets `recheck`, so that another read begins
//! after the event: the running check may have read before it. `end` and `end_granted` remove the
//! entry in any state; a check that is still running finds it gone. The mutex is never held across
//! a call to the store.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::Inner;
use super::client::{RangeRequest, ResponseOp};
use super::keys::KeyKind;
use super::leases::EtcdLease;
use super::queue::LocalQueue;
use super::snapshot::{FoundKey, SlotSnapshot, SnapshotLedger, part_of, queue_of};
use super::transaction::LocalClaim;
use super::watches::WatchSpec;
use crate::contract::{Arrival, ClaimId, IdMap, Name};
use crate::ledger::seam::{Line, Shelf};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The waiting claims of an engine.
#[derive(Default)]
pub(super) struct Waiters {
    state: Mutex<WaitersState>,
}

#[derive(Default)]
pub(super) struct WaitersState {
    pub(super) waiting: IdMap<ClaimId, WaitingClaim>,
    by_watch: HashMap<i64, ClaimId>,
    /// Claims that wait for the same name, one behind the other: `queue.rs`.
    pub(super) queues: HashMap<Name, LocalQueue>,
    /// Names whose slots a new claim reads, with the claims that wait for this read.
    pub(super) slot_reads: HashMap<Name, Vec<oneshot::Sender<()>>>,
}

/// One waiting claim.
pub(super) struct WaitingClaim {
    pub(super) local: LocalClaim,
    /// The revision that created its ticket.
    pub(super) arrival: u64,
    /// What it watches, with the ids of the watches.
    pub(super) watches: Vec<(WatchSpec, i64)>,
    /// The name of the local queue that it is in.
    pub(super) queue: Option<Name>,
    /// A check of its turn is running.
    busy: bool,
    /// An event came during the check: check once more.
    recheck: bool,
    /// Nothing but the claims before it decides: it may try to hold without a read.
    plain: bool,
}

impl WaitingClaim {
    pub(super) fn new(local: &LocalClaim, arrival: u64, plain: bool) -> Self {
        let (local, watches, queue) = (local.clone(), Vec::new(), None);
        Self { local, arrival, watches, queue, busy: false, recheck: false, plain }
    }
}

impl Waiters {
    /// The claim that a watch belongs to.
    pub(super) fn of_watch(&self, watch: i64) -> Option<ClaimId> {
        self.lock().by_watch.get(&watch).copied()
    }

    /// The claims that watch the store, rather than wait for another claim of this engine.
    pub(super) fn watching(&self) -> Vec<ClaimId> {
        let state = self.lock();
        let watches =
            |wait: &WaitingClaim| wait.queue.is_none() || !wait.watches.is_empty() || wait.busy;
        state.waiting.iter().filter(|(_, wait)| watches(wait)).map(|(id, _)| *id).collect()
    }

    /// Removes a claim that left the queue.
    pub(super) fn end(&self, inner: &Arc<Inner>, id: ClaimId) {
        self.finish(inner, id, false);
    }

    /// Removes a claim that was granted.
    pub(super) fn end_granted(&self, inner: &Arc<Inner>, id: ClaimId) {
        self.finish(inner, id, true);
    }

    fn finish(&self, inner: &Arc<Inner>, id: ClaimId, held: bool) {
        let mut state = self.lock();
        let Some(wait) = state.waiting.remove(&id) else { return };
        for (_, watch) in &wait.watches {
            state.by_watch.remove(watch);
            inner.watches.remove(*watch);
        }
        let name = wait.queue.as_ref();
        let next = name.and_then(|name| state.leave(name, wait.arrival, wait.local.tag));
        drop(state);
        if let Some(next) = next {
            inner.promote_next(next, &wait, held);
        }
    }

    /// Sets the leases that a claim's keys are attached to.
    pub(super) fn set_leases(
        &self,
        id: ClaimId,
        lease: &Arc<EtcdLease>,
        delay: Option<&Arc<EtcdLease>>,
    ) {
        if let Some(wait) = self.lock().waiting.get_mut(&id) {
            wait.local.lease = Arc::clone(lease);
            wait.local.delay = delay.cloned();
        }
    }

    pub(super) fn contains(&self, id: ClaimId) -> bool {
        self.lock().waiting.contains_key(&id)
    }

    /// Begins a check of a claim's turn. `None` if one is running, which will check again. Returns
    /// the arrival as well if the claim is plain.
    pub(super) fn begin_check(&self, id: ClaimId) -> Option<(LocalClaim, Option<u64>)> {
        let mut state = self.lock();
        let wait = state.waiting.get_mut(&id)?;
        if wait.busy {
            wait.recheck = true;
            return None;
        }
        wait.busy = true;
        Some((wait.local.clone(), wait.plain.then_some(wait.arrival)))
    }

    /// Ends a check. Returns true if the caller has to check once more.
    pub(super) fn end_check(&self, id: ClaimId) -> bool {
        let mut state = self.lock();
        let Some(wait) = state.waiting.get_mut(&id) else { return false };
        let recheck = std::mem::take(&mut wait.recheck);
        wait.busy = recheck;
        recheck
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WaitersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Begins to wait: adds a claim whose ticket is written, and watches what blocks it. `found` is
    /// the snapshot it was queued on, in which its own ticket need not be.
    pub(super) fn begin_wait(&self, local: &LocalClaim, arrival: Arrival, found: &SlotSnapshot) {
        let id = local.claim.id;
        let mut state = self.waiters.lock();
        state.waiting.entry(id).or_insert_with(|| WaitingClaim::new(local, arrival.0, false));
        drop(state);
        let now = self.now();
        let mut ledger = found.ledger(now, 0);
        let known = local.claim.parts.names().any(|name| found.ticket(name, id).is_some());
        if !known {
            ledger.claim(&local.claim, now);
        }
        let (specs, plain) = self.watches_for(local, found, &mut ledger);
        if plain && self.join_local_queue(local, arrival.0) {
            return;
        }
        self.set_watches(id, specs, plain);
    }

    /// Adds a plain claim to the local queue of its name. Returns true if another claim of this
    /// engine is before it, so that it has nothing to watch.
    fn join_local_queue(&self, local: &LocalClaim, arrival: u64) -> bool {
        let (id, name) = (local.claim.id, local.claim.parts.first_name());
        let mut state = self.waiters.lock();
        if state.waiting.get(&id).is_none_or(|wait| wait.arrival != arrival) {
            return false;
        }
        let first = state.join(name, arrival, id, local.tag);
        if let Some(wait) = state.waiting.get_mut(&id) {
            wait.queue = Some(name.clone());
            wait.plain = true;
        }
        !first
    }

    /// Replaces the watches of a claim, keeping those that stay the same.
    pub(super) fn set_watches(&self, id: ClaimId, specs: Vec<WatchSpec>, plain: bool) {
        let mut state = self.waiters.lock();
        let Some(wait) = state.waiting.get_mut(&id) else { return };
        wait.plain = plain;
        let (keep, drop): (Vec<_>, Vec<_>) = std::mem::take(&mut wait.watches)
            .into_iter()
            .partition(|(spec, _)| specs.contains(spec));
        wait.watches = keep;
        let fresh: Vec<WatchSpec> = specs
            .into_iter()
            .filter(|spec| !wait.watches.iter().any(|(known, _)| known == spec))
            .collect();
        for (_, watch) in drop {
            state.by_watch.remove(&watch);
            self.watches.remove(watch);
        }
        for spec in fresh {
            let watch = self.watches.add(spec.clone());
            state.by_watch.insert(watch, id);
            if let Some(wait) = state.waiting.get_mut(&id) {
                wait.watches.push((spec, watch));
            }
        }
    }

    /// Reads the watched key again after etcd has created the watch, and checks the turn if the key
    /// has changed since the watch was chosen.
    pub(super) async fn verify_watch(self: &Arc<Self>, watch: i64, id: ClaimId) {
        let spec = {
            let state = self.waiters.lock();
            let wait = state.waiting.get(&id);
            wait.and_then(|wait| wait.watches.iter().find(|(_, w)| *w == watch))
                .map(|w| w.0.clone())
        };
        let (key, expected) = match spec {
            None => return,
            Some(WatchSpec::KeyDeleted(key, created)) => (key, Some(created)),
            Some(WatchSpec::KeyWritten(key)) => (key, None),
            Some(WatchSpec::DeletedIn(_) | WatchSpec::AnyIn(_)) => {
                return self.check_turn(id).await;
            }
        };
        let wanted = RangeRequest { key, keys_only: true, ..RangeRequest::default() };
        let read = self.connection.read(vec![wanted.into()]).await;
        // By creation revision: another claim may use the same key by now.
        let there = read.map(|reply| {
            let found = reply.replies.into_iter().flat_map(ResponseOp::into_kvs).next();
            found.map(|found| u64::try_from(found.create_revision).unwrap_or(0))
        });
        if there.ok() != Some(expected) {
            self.check_turn(id).await;
        }
    }

    /// Returns what a claim has to watch, and whether it is plain. The list in the file's head
    /// says which keys these are.
    pub(super) fn watches_for(
        &self,
        local: &LocalClaim,
        found: &SlotSnapshot,
        ledger: &mut SnapshotLedger,
    ) -> (Vec<WatchSpec>, bool) {
        let (claim, mut specs) = (&local.claim, Vec::new());
        let single = claim.parts.as_slice().len() == 1;
        let mut plain = single && claim.replaces.is_none();
        for name in claim.parts.names() {
            let Some(slot) = ledger.shelf().peek(name) else { continue };
            let Some(ticket) = slot.line.get(claim.id) else { continue };
            let owner = claim.lineage.owner();
            let kin = !claim.lineage.ancestors().is_empty()
                || claim.replaces.is_some()
                || ticket.ahead()
                || slot.holds.iter().any(|hold| hold.claim.lineage.includes(owner))
                || slot.line.kin_of(owner).any(|other| other.claim.id != claim.id);
            if kin {
                plain = false;
                specs.push(WatchSpec::AnyIn(self.keys.slot(name)));
                continue;
            }
            let queue = queue_of(slot);
            let before = queue.iter().take_while(|other| **other != claim.id).last();
            if let Some(seen) = before.and_then(|id| found.ticket(name, *id)) {
                specs.push(WatchSpec::KeyDeleted(seen.key.clone(), seen.created));
                let weight = |of: &FoundKey| {
                    part_of(&of.record.claim, name).map_or(0, |part| u64::from(part.weight()))
                };
                let both = u64::from(ticket.weight) + weight(seen);
                if both <= u64::from(slot.shape.capacity()) {
                    // Both fit into the capacity: when that one holds, this one may be next.
                    specs.push(WatchSpec::KeyWritten(self.keys.claim(
                        name,
                        KeyKind::Hold,
                        seen.tag,
                    )));
                }
                continue;
            }
            let holds: SmallVec<[ClaimId; 2]> = slot.holds.iter().map(|h| h.claim.id).collect();
            let one = match holds.as_slice() {
                [one] => found.key_of(name, KeyKind::Hold, *one),
                _ => None,
            };
            specs.push(match one {
                Some(one) => WatchSpec::KeyDeleted(one.key.clone(), one.created),
                None => WatchSpec::DeletedIn(self.keys.kind(name, KeyKind::Hold)),
            });
            let delays = |seen: &FoundKey| seen.kind == KeyKind::Delay;
            if found.slots.get(name).is_some_and(|all| all.iter().any(delays)) {
                specs.push(WatchSpec::DeletedIn(self.keys.kind(name, KeyKind::Delay)));
            }
        }
        (specs, plain)
    }
}
