//! The session's table of claims, with one ordered set of deadlines over all of them. Pure
//! bookkeeping: makes no calls, waits for nothing, and wakes no caller itself.
//!
//! Invariants, for every method that is called under the session's lock:
//!
//! 1. **`due` agrees with `entries`.** An entry is in `due` at exactly its `next_due()`, or not at
//!    all if that is [`Tick::NEVER`]. Hence entries are only changed through [`Table::update`],
//!    which compares the deadline before and after.
//! 2. **`held` is the index of `Phase::Held`** by name: `update` adds, `remove` takes out.
//! 3. **The alarm is never late.** `armed` is what the alarm is set to, and no deadline of an
//!    entry, a sleeping caller or a release to be retried is before it. The keeper may wake too
//!    early, and then computes the next instant in [`Table::collect`].
//! 4. **No release is lost.** A claim that leaves the table and may be known to the store is
//!    counted in `in_flight` from the same critical section on, until the store confirms its
//!    release or its lease has ended. The keeper ends, and `close` returns, only when that count is
//!    zero and `releases` is empty.
//! 5. **Effects come last.** Wakers, losses and releases are collected in [`Effects`] and carried
//!    out after the lock was dropped: the hold ends first, then the release is sent. A holder that
//!    asks in between reads the clock itself, and the claim is not renewed any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use super::deadlock::WatchedWait;
use super::due_times::DueTimes;
use super::effects::{Effects, PendingRelease};
use super::entry::{EndReason, Entry, Phase};
use super::release::LastShare;
use crate::contract::{ClaimId, IdMap, Loss, NameMap, OwnerId};
use crate::time::{Alarm, Tick};

/// All claims of a session.
#[derive(Debug)]
pub(super) struct Table {
    /// Boxed: a map has spare capacity, and an entry is large.
    entries: IdMap<ClaimId, Box<Place>>,
    /// Places of entries that are gone, for the next ones.
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<Place>>,
    due: DueTimes,
    /// The claims that hold, by name: for re-entry, and to recognize a task that waits for itself.
    pub(super) held: NameMap<SmallVec<[ClaimId; 1]>>,
    /// The waits of owners that look for deadlocks, see `deadlock.rs`.
    pub(super) watched: IdMap<OwnerId, SmallVec<[WatchedWait; 1]>>,
    /// The wakers of callers with a timeout, by when it expires.
    sleepers: BTreeMap<(Tick, u64), Waker>,
    next_sleeper: u64,
    alarm: Arc<dyn Alarm>,
    /// When the alarm rings at the latest.
    armed: Tick,
    /// The alarm was rung for a release, and the keeper has not collected it yet.
    rung: bool,
    /// Releases that the keeper has to send.
    pub(super) releases: Vec<PendingRelease>,
    /// How many releases were sent, by the keeper or by a guard, and have no reply yet.
    in_flight: usize,
    /// When the leases of all claims that are being released have ended.
    leases_end_at: Tick,
    /// The wakers of callers that wait until every release is confirmed.
    pub(super) drained: Vec<Waker>,
    pub(super) closed: bool,
    /// Every handle of the session was dropped: the keeper ends when the last guard is gone.
    pub(super) orphaned: bool,
}

/// The memory of one entry.
#[derive(Debug)]
struct Place {
    /// None only while the place is spare.
    entry: Option<Entry>,
    /// The entry's deadline.
    due: Tick,
}

/// How many places are kept for the next entries.
const SPARE_PLACES: usize = 32;

impl Table {
    pub(super) fn new(alarm: Arc<dyn Alarm>) -> Self {
        Self {
            entries: IdMap::default(),
            spare: Vec::new(),
            due: DueTimes::default(),
            held: NameMap::default(),
            watched: IdMap::default(),
            sleepers: BTreeMap::new(),
            next_sleeper: 0,
            alarm,
            armed: Tick::NEVER,
            rung: false,
            releases: Vec::new(),
            in_flight: 0,
            leases_end_at: Tick::ZERO,
            drained: Vec::new(),
            closed: false,
            orphaned: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether every release was confirmed.
    pub(super) fn is_drained(&self) -> bool {
        self.unconfirmed() == 0
    }

    /// Returns how many releases are not confirmed yet.
    pub(super) fn unconfirmed(&self) -> usize {
        PendingRelease::count(&self.releases) + self.in_flight
    }

    /// Returns when the leases of all claims that are being released have ended.
    pub(super) fn leases_end_at(&self) -> Tick {
        self.leases_end_at
    }

    /// Counts the release of a claim as in flight, before it is sent.
    pub(super) fn begin_release(&mut self, lease: Duration, now: Tick) {
        self.in_flight += 1;
        self.leases_end_at = self.leases_end_at.max(now + lease);
    }

    /// Drops all releases. Returns the wakers of the callers that waited for them.
    pub(super) fn abandon(&mut self) -> Vec<Waker> {
        self.releases.clear();
        self.in_flight = 0;
        std::mem::take(&mut self.drained)
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<&Entry> {
        self.entries.get(&id)?.entry.as_ref()
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let (id, due) = (entry.claim.id, entry.next_due());
        let place = match self.spare.pop() {
            Some(mut place) => {
                (place.entry, place.due) = (Some(entry), due);
                place
            }
            None => Box::new(Place { entry: Some(entry), due }),
        };
        self.entries.insert(id, place);
        self.schedule(due, id);
    }

    /// Changes an entry, and its deadline and index with it.
    pub(super) fn update<T>(
        &mut self,
        id: ClaimId,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let place = self.entries.get_mut(&id)?;
        let entry = place.entry.as_mut()?;
        // The index of holds by name follows the phase: only the step into `Held` adds to it, and
        // `remove` takes out.
        let was_held = matches!(entry.phase, Phase::Held { .. });
        let changed = change(entry);
        let (old, new) = (place.due, entry.next_due());
        place.due = new;
        if !was_held && matches!(entry.phase, Phase::Held { .. }) {
            for name in entry.claim.parts.names() {
                self.held.entry(name.clone()).or_default().push(id);
            }
        }
        if old != new {
            self.unschedule(old, id);
            self.schedule(new, id);
        }
        Some(changed)
    }

    /// Removes one guard's share of a hold. If that was the last share, removes the claim and
    /// returns what its release has to know. Not by `update`: no deadline depends on the number of
    /// guards.
    pub(super) fn drop_share(&mut self, id: ClaimId) -> Option<LastShare> {
        let entry = self.entries.get_mut(&id)?.entry.as_mut()?;
        let Phase::Held { guards, .. } = &mut entry.phase else { return None };
        *guards -= 1;
        if *guards > 0 {
            return None;
        }
        let last = LastShare::of(entry);
        let mut place = self.take_out(id)?;
        // Where it stands: an entry is large. It owns no code of users; its extras might.
        place.entry = None;
        self.keep_place(place);
        Some(last)
    }

    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Entry> {
        let mut place = self.take_out(id)?;
        let entry = place.entry.take();
        self.keep_place(place);
        entry
    }

    /// Takes an entry out of the table and its indexes.
    fn take_out(&mut self, id: ClaimId) -> Option<Box<Place>> {
        let place = self.entries.remove(&id)?;
        self.unschedule(place.due, id);
        let entry = place.entry.as_ref()?;
        if matches!(entry.phase, Phase::Held { .. }) {
            for name in entry.claim.parts.names() {
                let Some(ids) = self.held.get_mut(name) else { continue };
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.held.remove(name);
                }
            }
        }
        Some(place)
    }

    fn keep_place(&mut self, place: Box<Place>) {
        if self.spare.len() < SPARE_PLACES {
            self.spare.push(place);
        }
    }

    /// Whether any entry is such.
    pub(super) fn any_entry(&self, is_such: impl Fn(&Entry) -> bool) -> bool {
        self.entries.values().filter_map(|place| place.entry.as_ref()).any(is_such)
    }

    pub(super) fn ids(&self) -> Vec<ClaimId> {
        self.entries.keys().copied().collect()
    }

    /// Queues a release for the keeper and wakes it.
    pub(super) fn push_release(&mut self, pending: PendingRelease) {
        self.releases.push(pending);
        // Rung once until `collect` runs: a thousand dropped guards wake the keeper once.
        if !self.rung {
            self.rung = true;
            self.alarm.ring();
        }
    }

    /// Records that `count` releases have a reply. Returns the wakers of the callers that waited
    /// for the last of them.
    pub(super) fn releases_done(&mut self, count: usize) -> Vec<Waker> {
        // Saturating: `abandon` has set the count to zero while calls were in flight.
        self.in_flight = self.in_flight.saturating_sub(count);
        if !self.is_drained() {
            return Vec::new();
        }
        self.leases_end_at = Tick::ZERO;
        if self.orphaned {
            // The keeper may be waiting for this to end its thread.
            self.alarm.ring();
        }
        std::mem::take(&mut self.drained)
    }

    /// Collects everything that is due at `now`, and sets the alarm for the next deadline.
    pub(super) fn collect(&mut self, now: Tick, at_latest: Tick) -> Effects {
        self.rung = false;
        let mut effects = Effects::default();
        // Renewals that are due within a second go into this batch; `Entry::due` decides which of
        // these entries really are.
        let horizon = now + Duration::from_secs(1);
        for id in self.due.until(horizon) {
            self.collect_one(id, now, &mut effects);
        }
        while let Some(first) = self.sleepers.first_entry()
            && first.key().0 <= now
        {
            effects.wake.push(first.remove());
        }
        let (mut ready, later): (Vec<_>, Vec<_>) =
            self.releases.drain(..).partition(|pending| pending.not_before <= now);
        // Retries of a release end with the lease: then the store has ended the claim by itself.
        for pending in &mut ready {
            pending.until = pending.until.min(now + pending.release.claim.lease);
        }
        self.releases = later;
        // Counted here, under the lock, and not when the call is made: `close` must not find the
        // queue empty in between.
        self.in_flight += PendingRelease::count(&ready);
        effects.release = ready;
        let first = self.due.first().unwrap_or(Tick::NEVER);
        let retry = self.releases.iter().map(|pending| pending.not_before).min();
        let sleeper = self.sleepers.first_key_value().map(|((at, _), _)| *at);
        let next = [retry, sleeper].into_iter().flatten().min().unwrap_or(Tick::NEVER);
        self.armed = first.min(next).min(at_latest);
        self.alarm.set(self.armed);
        effects
    }

    fn collect_one(&mut self, id: ClaimId, now: Tick, effects: &mut Effects) {
        // A set is lost as a whole, first: what is left of this entry's own deadlines then belongs
        // to no set.
        while let Some((joint, loss)) = self.get(id).and_then(|entry| entry.joint_over(now)) {
            self.lose_joint(&joint, None, &loss, now, effects);
        }
        let Some(due) = self.get(id).map(|entry| entry.due(now)) else { return };
        if let Some(loss) = due.lose {
            self.lose(id, loss, now, effects);
            return;
        }
        self.update(id, |entry| {
            if due.renew {
                entry.renewing = true;
                effects.renew.push(entry.claim.to_ref());
            }
            if due.wake {
                effects.wake.extend(entry.waker.take());
            }
        });
    }

    /// Ends a grant: its guards are notified and the claim is released. If the grant was not picked
    /// up yet, its caller's wait ends, and the caller claims again.
    pub(super) fn lose(&mut self, id: ClaimId, loss: Loss, now: Tick, effects: &mut Effects) {
        let Some(entry) = self.get(id) else { return };
        let mut pending = PendingRelease::of(entry);
        // The store may have another view of the claim: a late copy must be refused.
        pending.release.uncertain = true;
        match &entry.phase {
            Phase::Held { hold, .. } => {
                let hold = Arc::clone(hold);
                effects.lost.push((Arc::clone(&hold), loss.clone()));
                let entry = self.remove(id);
                for joint in entry.iter().flat_map(Entry::joints) {
                    self.lose_joint(joint, Some(&hold), &loss, now, effects);
                }
            }
            Phase::Granted { hold, .. } => {
                let hold = Arc::clone(hold);
                effects.lost.push((Arc::clone(&hold), loss.clone()));
                let behind = entry
                    .extras()
                    .and_then(|extras| extras.behind.clone())
                    .filter(|_| loss == Loss::NotPickedUp);
                if let Some(joint) = behind {
                    // The caller does not poll, so the rest of the set ends too.
                    self.lose_joint(&joint, Some(&hold), &loss, now, effects);
                }
                let reason = match loss {
                    Loss::Evicted { .. } | Loss::Deadlock { .. } => EndReason::Revoked(loss),
                    _ => EndReason::TicketExpired,
                };
                self.end_wait(id, reason, now, effects);
            }
            _ => return,
        }
        // The release is sent after the holder was notified; until then it counts as in flight.
        self.begin_release(pending.release.claim.lease, now);
        effects.give_back.push(pending);
    }

    /// Removes the claim that a granted one replaces: the store ended it in the same step.
    pub(super) fn retire_replaced(&mut self, id: ClaimId, effects: &mut Effects) {
        let old = self.get(id).and_then(|entry| entry.claim.replaces);
        let old = old.and_then(|old| self.remove(old));
        if let Some(Entry { phase: Phase::Held { hold, .. }, .. }) = old {
            effects.replaced.push(hold);
        }
    }

    /// Returns whether a successor of this claim (upgrade, downgrade) is pending. The store is then
    /// asked about the successor before this claim is declared lost.
    pub(super) fn asks_successor(&mut self, id: ClaimId, now: Tick) -> bool {
        let Some(next) = self.get(id).and_then(|entry| entry.extras()?.successor) else {
            return false;
        };
        let pending = self.update(next, |entry| match entry.phase {
            Phase::Sent => true,
            Phase::Waiting { .. } => {
                entry.renew_at = now;
                true
            }
            _ => false,
        });
        if pending != Some(true) {
            return false;
        }
        // If the successor is not granted, the hold ends with its safe-until.
        self.update(id, |entry| entry.renew_at = Tick::NEVER);
        true
    }

    /// Ends a wait without a grant. Its caller is woken and reads the reason.
    pub(super) fn end_wait(
        &mut self,
        id: ClaimId,
        reason: EndReason,
        now: Tick,
        effects: &mut Effects,
    ) {
        let replaces = self.update(id, |entry| {
            entry.phase = Phase::Ended(reason);
            effects.wake.extend(entry.waker.take());
            entry.claim.replaces
        });
        // The store may have made the exchange before the wait ended.
        if let Some(old) = replaces.flatten() {
            self.lose(old, Loss::ExchangeGivenUp, now, effects);
        }
    }

    /// Wakes a caller at `at`. Returns the key with which [`awake`](Self::awake) cancels that.
    pub(super) fn sleep(&mut self, at: Tick, waker: Waker) -> (Tick, u64) {
        self.next_sleeper += 1;
        let key = (at, self.next_sleeper);
        self.sleepers.insert(key, waker);
        self.alarm_by(at);
        key
    }

    /// Returns the wakers of all that sleep: they look again, and sleep on or not.
    pub(super) fn wake_sleepers(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.sleepers).into_values()
    }

    /// Cancels a `sleep`.
    pub(super) fn awake(&mut self, key: (Tick, u64)) {
        self.sleepers.remove(&key);
    }

    /// Makes sure that the keeper wakes at `at`, or earlier.
    pub(super) fn alarm_by(&mut self, at: Tick) {
        // A later instant needs nothing: the alarm rings before, and the keeper computes the next.
        if at < self.armed {
            self.armed = at;
            self.alarm.set(at);
        }
    }

    fn schedule(&mut self, due: Tick, id: ClaimId) {
        if due != Tick::NEVER {
            self.due.insert(due, id);
            self.alarm_by(due);
        }
    }

    fn unschedule(&mut self, due: Tick, id: ClaimId) {
        if due != Tick::NEVER {
            self.due.remove(due, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Part, samples};
    use crate::time::{Clock, ManualClock};

    #[test]
    fn a_claim_that_never_held_leaves_nothing_behind() {
        let claim = Arc::new(samples::claim(Part::write("a".parse().unwrap())));
        let clock = ManualClock::new();
        let mut table = Table::new(clock.alarm());
        table.insert(Entry::new(Arc::clone(&claim), false, None, clock.now()));
        table.update(claim.id, |entry| entry.phase = Phase::Waiting { place: 1 });
        table.update(claim.id, |entry| entry.renew_at = clock.now());
        assert!(table.remove(claim.id).is_some());
        assert!(table.is_empty() && table.due.is_empty() && table.held.is_empty());
    }
}
