//! The session's table of claims, with one queue of deadlines over all of them. Knows what is due
//! when; makes no calls and waits for nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use super::entry::{Entry, Flow, Over, Phase};
use super::hold::Hold;
use crate::contract::{Claim, ClaimId, ClaimRef, IdMap, Loss, Name, OwnerId, Part, Release};
use crate::limits;
use crate::time::{Alarm, Tick};

/// All claims of a session.
#[derive(Debug)]
pub(super) struct Table {
    /// Boxed: a map has room to spare, and an entry is large.
    entries: IdMap<ClaimId, Box<(Entry, Tick)>>,
    due: BTreeSet<(Tick, ClaimId)>,
    /// The claims that hold, by name: for re-entry, and to tell a task that waits for itself.
    pub(super) held: HashMap<Name, SmallVec<[ClaimId; 1]>>,
    /// Callers with a time limit, by when it passes.
    sleepers: BTreeMap<(Tick, u64), Waker>,
    next_sleeper: u64,
    alarm: Arc<dyn Alarm>,
    /// The alarm rings at this instant at the latest.
    armed: Tick,
    /// The keeper was rung for a release and has not looked yet.
    rung: bool,
    /// Claims to be given back in the background.
    pub(super) releases: Vec<Giving>,
    /// Releases that were sent, by the keeper or a guard, and are not answered yet.
    giving: usize,
    /// When the leases of all that is on its way back have ended.
    forgotten_at: Tick,
    /// Who waits until everything is given back.
    pub(super) drained: Vec<Waker>,
    pub(super) closed: bool,
    /// Nobody but guards is left: end when they are gone.
    pub(super) orphaned: bool,
}

/// A claim on its way back to the store.
#[derive(Debug)]
pub(super) struct Giving {
    pub(super) release: Release,
    /// When the lease has ended it in the store anyway. The keeper says so when it first takes the
    /// claim up: the thread that let it go may have been stopped after it read the clock, while
    /// the keeper went on renewing.
    pub(super) until: Tick,
    pub(super) not_before: Tick,
    /// The store never got the claim. The release is sent once, so that the engine can drop what it
    /// remembers of the claim; it is not counted as on its way, and not sent again.
    pub(super) void: bool,
}

impl Giving {
    /// A claim to be given back at once.
    pub(super) fn of(entry: &Entry) -> Self {
        Self::new(entry.to_release())
    }

    /// A release to be sent at once.
    pub(super) fn new(release: Release) -> Self {
        Self { release, until: Tick::NEVER, not_before: Tick::ZERO, void: false }
    }

    /// How many of these count as on their way.
    pub(super) fn count(givings: &[Self]) -> usize {
        givings.iter().filter(|giving| !giving.void).count()
    }
}

/// What the keeper has to do now.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) wake: Vec<Waker>,
    pub(super) renew: Vec<ClaimRef>,
    pub(super) release: Vec<Giving>,
    /// What was lost and has to go back to the store, once its holder knows.
    pub(super) give_back: Vec<Giving>,
    pub(super) lost: Vec<(Arc<Hold>, Loss)>,
    /// What the guards of joints see, which are lost with the first of their members.
    pub(super) joints: Vec<(Arc<Hold>, Loss)>,
    /// Grants whose place another grant of the same owner has taken.
    pub(super) replaced: Vec<Arc<Hold>>,
}

impl Table {
    pub(super) fn new(alarm: Arc<dyn Alarm>) -> Self {
        Self {
            entries: IdMap::default(),
            due: BTreeSet::new(),
            held: HashMap::new(),
            sleepers: BTreeMap::new(),
            next_sleeper: 0,
            alarm,
            armed: Tick::NEVER,
            rung: false,
            releases: Vec::new(),
            giving: 0,
            forgotten_at: Tick::ZERO,
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

    /// Nothing is on its way back to the store.
    pub(super) fn is_drained(&self) -> bool {
        self.unconfirmed() == 0
    }

    /// How many claims are on their way back to the store.
    pub(super) fn unconfirmed(&self) -> usize {
        Giving::count(&self.releases) + self.giving
    }

    /// When the store has forgotten, by their leases, all claims that are on their way back.
    pub(super) fn forgotten_at(&self) -> Tick {
        self.forgotten_at
    }

    /// Counts a claim as on its way back, from before its release is sent.
    pub(super) fn on_its_way(&mut self, lease: Duration, now: Tick) {
        self.giving += 1;
        self.forgotten_at = self.forgotten_at.max(now + lease);
    }

    /// Forgets all that is on its way back. Returns the wakers of those that waited for it.
    pub(super) fn abandon(&mut self) -> Vec<Waker> {
        self.releases.clear();
        self.giving = 0;
        std::mem::take(&mut self.drained)
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<&Entry> {
        self.entries.get(&id).map(|both| &both.0)
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let (id, due) = (entry.claim.id, entry.next_due());
        self.entries.insert(id, Box::new((entry, due)));
        self.schedule(due, id);
    }

    /// Changes an entry and keeps the queue of deadlines true.
    pub(super) fn update<T>(
        &mut self,
        id: ClaimId,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let (entry, due) = self.entries.get_mut(&id)?.as_mut();
        let was_held = matches!(entry.phase, Phase::Held { .. });
        let changed = change(entry);
        let (old, new) = (*due, entry.next_due());
        *due = new;
        let index = !was_held && matches!(entry.phase, Phase::Held { .. });
        let claim = index.then(|| Arc::clone(&entry.claim));
        if old != new {
            self.unschedule(old, id);
            self.schedule(new, id);
        }
        if let Some(claim) = claim {
            for name in claim.parts.names() {
                self.held.entry(name.clone()).or_default().push(id);
            }
        }
        Some(changed)
    }

    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Entry> {
        let (entry, due) = *self.entries.remove(&id)?;
        self.unschedule(due, id);
        if matches!(entry.phase, Phase::Held { .. }) {
            for name in entry.claim.parts.names() {
                if let Some(ids) = self.held.get_mut(name) {
                    ids.retain(|other| *other != id);
                    if ids.is_empty() {
                        self.held.remove(name);
                    }
                }
            }
        }
        Some(entry)
    }

    pub(super) fn ids(&self) -> Vec<ClaimId> {
        self.entries.keys().copied().collect()
    }

    /// A hold of this owner that a claim for `part` may simply enter again, if its terms fit.
    pub(super) fn reenter(
        &mut self,
        owner: OwnerId,
        part: &Part,
        now: Tick,
        terms_fit: impl Fn(&Claim) -> bool,
    ) -> Option<Arc<Hold>> {
        if !part.shape().reentrant() {
            return None;
        }
        let fits = |entry: &Entry| {
            // Neither a hold that is being exchanged, nor a set, which has other names and fences.
            let plain = entry.rare().is_none_or(|rare| rare.successor.is_none())
                && entry.claim.parts.as_slice().len() == 1;
            if entry.claim.lineage.owner() != owner || !plain || !terms_fit(&entry.claim) {
                return false;
            }
            let weight = entry.weight_on(part.name(), part.shape());
            let living = matches!(&entry.phase,
                Phase::Held { hold, .. } if hold.loss_at(now).is_none());
            living && weight.is_some_and(|weight| weight >= part.weight())
        };
        let ids = self.held.get(part.name())?;
        let id = *ids.iter().find(|id| self.get(**id).is_some_and(fits))?;
        self.update(id, Entry::reenter)?
    }

    /// The hold of the same task or thread on this name under another owner, if there is one: a
    /// flow that waits for it waits for itself.
    pub(super) fn own_hold(&self, flow: Flow, name: &Name, owner: OwnerId) -> Option<Arc<Hold>> {
        let mut entries = self.held.get(name)?.iter().filter_map(|id| self.get(*id));
        entries.find_map(|entry| match &entry.phase {
            Phase::Held { hold, .. }
                if entry.flow == Some(flow) && entry.claim.lineage.owner() != owner =>
            {
                Some(Arc::clone(hold))
            }
            _ => None,
        })
    }

    /// Puts a claim on its way back to the store.
    pub(super) fn push_release(&mut self, giving: Giving) {
        self.releases.push(giving);
        if !self.rung {
            self.rung = true;
            self.alarm.ring();
        }
    }

    /// So many releases have been answered. Returns who waited for the last of them.
    pub(super) fn given(&mut self, count: usize) -> Vec<Waker> {
        // Saturating: a session whose keeper is gone has stopped counting.
        self.giving = self.giving.saturating_sub(count);
        if !self.is_drained() {
            return Vec::new();
        }
        self.forgotten_at = Tick::ZERO;
        if self.orphaned {
            // The keeper may have waited for just this to end.
            self.alarm.ring();
        }
        std::mem::take(&mut self.drained)
    }

    /// Takes out everything that is due at `now`, and sets the alarm for what comes next.
    pub(super) fn collect(&mut self, now: Tick, at_latest: Tick) -> Work {
        self.rung = false;
        let mut work = Work::default();
        let horizon = now + Duration::from_secs(1);
        let soon: Vec<ClaimId> =
            self.due.iter().take_while(|(due, _)| *due <= horizon).map(|(_, id)| *id).collect();
        for id in soon {
            self.collect_one(id, now, &mut work);
        }
        while let Some(first) = self.sleepers.first_entry()
            && first.key().0 <= now
        {
            work.wake.push(first.remove());
        }
        let (mut ready, later): (Vec<_>, Vec<_>) =
            self.releases.drain(..).partition(|giving| giving.not_before <= now);
        for giving in &mut ready {
            giving.until = giving.until.min(now + giving.release.claim.lease);
        }
        self.releases = later;
        self.giving += Giving::count(&ready);
        work.release = ready;
        let first = self.due.first().map_or(Tick::NEVER, |(due, _)| *due);
        let retry = self.releases.iter().map(|giving| giving.not_before).min();
        let sleeper = self.sleepers.first_key_value().map(|((at, _), _)| *at);
        let next = [retry, sleeper].into_iter().flatten().min().unwrap_or(Tick::NEVER);
        self.armed = first.min(next).min(at_latest);
        self.alarm.set(self.armed);
        work
    }

    fn collect_one(&mut self, id: ClaimId, now: Tick, work: &mut Work) {
        while let Some((joint, loss)) = self.get(id).and_then(|entry| entry.joint_over(now)) {
            self.lose_joint(&joint, None, &loss, now, work);
        }
        let Some(due) = self.get(id).map(|entry| entry.due(now)) else { return };
        if let Some(loss) = due.lose {
            self.lose(id, loss, now, work);
            return;
        }
        self.update(id, |entry| {
            if due.renew {
                entry.renewing = true;
                work.renew.push(entry.claim.to_ref());
            }
            if due.wake {
                work.wake.extend(entry.waker.take());
            }
        });
    }

    /// Ends a grant: the guard hears of it, and the claim goes back to the store. A grant that was
    /// not picked up leaves its caller's wait behind, which then claims anew.
    pub(super) fn lose(&mut self, id: ClaimId, loss: Loss, now: Tick, work: &mut Work) {
        let Some(entry) = self.get(id) else { return };
        let mut giving = Giving::of(entry);
        // The store and we may disagree on what became of it: no late copy may come back.
        giving.release.uncertain = true;
        match &entry.phase {
            Phase::Held { hold, .. } => {
                let hold = Arc::clone(hold);
                work.lost.push((Arc::clone(&hold), loss.clone()));
                let entry = self.remove(id);
                for joint in entry.iter().flat_map(Entry::joints) {
                    self.lose_joint(joint, Some(&hold), &loss, now, work);
                }
            }
            Phase::Granted { hold, .. } => {
                let hold = Arc::clone(hold);
                work.lost.push((Arc::clone(&hold), loss.clone()));
                let behind = entry
                    .rare()
                    .and_then(|rare| rare.behind.clone())
                    .filter(|_| loss == Loss::NotPickedUp);
                if let Some(joint) = behind {
                    // Nobody looks after the rest of the set either.
                    self.lose_joint(&joint, Some(&hold), &loss, now, work);
                }
                let over = match loss {
                    Loss::Evicted { .. } => Over::Ended(loss),
                    _ => Over::Lapsed,
                };
                self.wait_over(id, over, now, work);
            }
            _ => return,
        }
        // It goes back only after its holder was told; until then it counts as on its way.
        self.on_its_way(giving.release.claim.lease, now);
        work.give_back.push(giving);
    }

    /// A claim is granted: what it replaces has ended in the same step, and is not lost.
    pub(super) fn retire_replaced(&mut self, id: ClaimId, work: &mut Work) {
        let old = self.get(id).and_then(|entry| entry.claim.replaces);
        let old = old.and_then(|old| self.remove(old));
        if let Some(Entry { phase: Phase::Held { hold, .. }, .. }) = old {
            work.replaced.push(hold);
        }
    }

    /// Whether another claim is about to take this one's place; it is then asked about first.
    pub(super) fn asks_successor(&mut self, id: ClaimId, now: Tick) -> bool {
        let Some(next) = self.get(id).and_then(|entry| entry.rare()?.successor) else {
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
        // If the successor knows nothing better, the hold ends with its safe-until.
        self.update(id, |entry| entry.renew_at = Tick::NEVER);
        true
    }

    /// Ends a wait: its caller is woken and reads why.
    pub(super) fn wait_over(&mut self, id: ClaimId, over: Over, now: Tick, work: &mut Work) {
        let replaces = self.update(id, |entry| {
            entry.phase = Phase::Over(over);
            work.wake.extend(entry.waker.take());
            entry.claim.replaces
        });
        // The store may have made the exchange before the wait was over.
        if let Some(old) = replaces.flatten() {
            self.lose(old, Loss::ExchangeGivenUp, now, work);
        }
    }

    /// Wakes a caller at `at`. Returns what `awake` needs to take it back.
    pub(super) fn sleep(&mut self, at: Tick, waker: Waker) -> (Tick, u64) {
        self.next_sleeper += 1;
        let key = (at, self.next_sleeper);
        self.sleepers.insert(key, waker);
        self.alarm_by(at);
        key
    }

    /// The caller needs no waking any more.
    pub(super) fn awake(&mut self, key: (Tick, u64)) {
        self.sleepers.remove(&key);
    }

    /// Makes sure that the keeper looks again at `at`, or earlier.
    pub(super) fn alarm_by(&mut self, at: Tick) {
        // Later than what the alarm is set to needs nothing: it rings, and the keeper looks again.
        if at < self.armed {
            self.armed = at;
            self.alarm.set(at);
        }
    }

    fn schedule(&mut self, due: Tick, id: ClaimId) {
        if due != Tick::NEVER {
            self.due.insert((due, id));
            self.alarm_by(due);
        }
    }

    fn unschedule(&mut self, due: Tick, id: ClaimId) {
        if due != Tick::NEVER {
            self.due.remove(&(due, id));
        }
    }
}

impl Work {
    /// Cuts claims into calls of at most a batch each.
    pub(super) fn batches<T>(items: Vec<T>) -> Vec<Vec<T>> {
        let mut batches = Vec::with_capacity(items.len().div_ceil(limits::BATCH));
        let mut items = items.into_iter();
        loop {
            let batch: Vec<T> = items.by_ref().take(limits::BATCH).collect();
            if batch.is_empty() {
                return batches;
            }
            batches.push(batch);
        }
    }

    /// Tells everybody concerned. Never under the table's lock: wakers may run anything.
    pub(super) fn announce(&mut self) {
        for (hold, loss) in self.lost.drain(..) {
            tracing::warn!(name = %hold.claim().parts.first_name(), %loss, "lock lost");
            hold.end(loss);
        }
        for (hold, loss) in self.joints.drain(..) {
            hold.end(loss);
        }
        for hold in self.replaced.drain(..) {
            hold.end(Loss::Released);
        }
        self.wake.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{About, Lineage, Parts, Patience};
    use crate::time::{Clock, ManualClock};

    #[test]
    fn a_claim_that_never_held_leaves_nothing_behind() {
        let claim = Arc::new(Claim {
            id: ClaimId::new(),
            session: None,
            lineage: Lineage::root(OwnerId::new()),
            parts: Parts::one(Part::write("a".parse().unwrap())),
            lease: Duration::from_secs(1),
            lock_delay: Duration::ZERO,
            patience: Patience::Wait,
            replaces: None,
            about: About { host: "host".into(), pid: 1, place: None, label: None },
        });
        let clock = ManualClock::new();
        let mut table = Table::new(clock.alarm());
        table.insert(Entry::new(Arc::clone(&claim), false, None, clock.now()));
        table.update(claim.id, |entry| entry.phase = Phase::Waiting { place: 1 });
        table.update(claim.id, |entry| entry.renew_at = clock.now());
        assert!(table.remove(claim.id).is_some());
        assert!(table.is_empty() && table.due.is_empty() && table.held.is_empty());
    }
}
