//! What each flow of control of this process holds at this moment: the only state that every lock
//! under the checker writes.
//!
//! A flow is an owner (inside a scope, or given to the lock), or outside of scopes a task or a
//! thread. Async tasks move between threads, so the table is shared; it has 256 shards, chosen by
//! the flow, each with a mutex and a count. A flow that holds nothing usually meets a shard whose
//! count is zero: then acquiring looks at one atomic and takes no mutex. The count may be read
//! relaxed: what this very flow holds was counted by itself, earlier, wherever it ran.
//!
//! Each hold has a slot in its shard, and its guard has the [`HoldMark`]: eight bytes that name
//! fork, shard and slot. Dropping the mark frees the slot; slots are reused, so that in the long
//! run nothing is allocated. The locks of a flow are found by a scan over the keys of its shard:
//! even with 10,000 held locks these are 40 numbers side by side, which is faster than a map.
//!
//! A forked child inherits the memory but not the threads, and a mutex may be locked for ever: so a
//! child uses a table of its own, and drops the marks of its parent without a look.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::habits::HoldTimer;
use crate::contract::{Claim, IdHasher, Lineage, OwnerId};
use crate::process::{forks, is_blocked};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError, thread};

const SHARDS: usize = 256;
/// The key of a lock whose guard has left its flow: no flow has it, since the lowest two bits of a
/// [`FlowKey`] are never both zero.
const AWAY: u64 = 4;
/// Tables, one for each fork in a chain of them.
const TABLES: usize = 16;
// A mark has eight bits for the shard, and a shard is chosen by eight bits.
const _: () = assert!(SHARDS == 1 << 8);

/// The flow of control that a lock belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey(u64);

impl FlowKey {
    /// The flow of an owner.
    pub(crate) fn of_owner(owner: OwnerId) -> Self {
        let id = owner.as_u128();
        #[allow(clippy::cast_possible_truncation, reason = "folded: ids are random")]
        let folded = (id ^ (id >> 64)) as u64;
        Self((folded << 2) | 3)
    }

    /// The task or thread that runs now, if what runs now stays with it: a future under a foreign
    /// executor without tasks of tokio does not.
    pub(crate) fn current() -> Option<Self> {
        let thread = || Self((number(thread::current().id()) << 2) | 2);
        if is_blocked() {
            return Some(thread());
        }
        if let Some(task) = tokio::task::try_id() {
            return Some(Self((number(task) << 2) | 1));
        }
        tokio::runtime::Handle::try_current().is_ok().then(thread)
    }

    /// The number of its shard: the upper bits of a product, which depend on all bits of the key.
    fn shard(self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
    }
}

/// One lock that a flow holds.
#[derive(Clone, Debug)]
pub(super) struct HeldLock {
    /// Which checker keeps it; 0 for what a parent process holds.
    pub(super) checker: u64,
    pub(super) claim: Arc<Claim>,
    /// The level that the lock itself named.
    pub(super) level: Option<Arc<str>>,
    /// Measures the hold, if long ones are told.
    pub(super) timer: Option<Arc<HoldTimer>>,
}

/// A place in the table, freed when it is dropped. Every guard has one, so it is small.
#[derive(Debug)]
pub(crate) struct HoldMark(NonZeroU64);

/// The holds of all flows of one process.
struct HoldTable {
    shards: [HoldShard; SHARDS],
}

#[derive(Default)]
struct HoldShard {
    /// How many locks are held. Written under the mutex alone.
    count: AtomicUsize,
    state: Mutex<HoldShardState>,
}

/// Two vectors of the same length, and the slots of them that are free.
#[derive(Default)]
struct HoldShardState {
    /// The flow of each slot; 0 if it is free.
    keys: Vec<u64>,
    held: Vec<Option<HeldLock>>,
    free: Vec<u32>,
}

impl HoldMark {
    /// Notes that a flow holds a lock.
    pub(super) fn new(flow: FlowKey, held: HeldLock) -> Self {
        let (table, forks) = current_table();
        let (index, shard) = (flow.shard(), table.shard(flow));
        let mut state = shard.lock();
        let slot = if let Some(slot) = state.free.pop() {
            state.keys[slot as usize] = flow.0;
            state.held[slot as usize] = Some(held);
            slot
        } else {
            state.keys.push(flow.0);
            state.held.push(Some(held));
            u32::try_from(state.held.len() - 1).unwrap_or(u32::MAX)
        };
        shard.count.store(shard.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        drop(state);
        let bits =
            (1 << 63) | ((u64::from(forks) & 0x7fff) << 40) | (index << 32) | u64::from(slot);
        Self(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MAX))
    }

    /// The lock is now held by another claim: after an upgrade or a downgrade.
    pub(crate) fn replace_claim(&self, claim: &Arc<Claim>) {
        let Some((shard, slot)) = self.place() else { return };
        let mut state = shard.lock();
        if let Some(Some(held)) = state.held.get_mut(slot) {
            held.claim = Arc::clone(claim);
        }
    }

    /// The guard leaves its flow, which does not hold the lock any more. It is still measured.
    pub(crate) fn leave_flow(&self) {
        let Some((shard, slot)) = self.place() else { return };
        let mut state = shard.lock();
        if let Some(key) = state.keys.get_mut(slot).filter(|key| **key != 0) {
            *key = AWAY;
        }
    }

    /// What is held, and whether the guard is still in its flow.
    pub(super) fn held(&self) -> Option<(HeldLock, bool)> {
        let (shard, slot) = self.place()?;
        let state = shard.lock();
        let held = state.held.get(slot)?.clone()?;
        Some((held, state.keys.get(slot).is_some_and(|key| *key != AWAY)))
    }

    /// Where it is, unless a parent process made it.
    fn place(&self) -> Option<(&'static HoldShard, usize)> {
        let bits = self.0.get();
        let (table, forks) = current_table();
        if (bits >> 40) & 0x7fff != u64::from(forks) & 0x7fff {
            return None;
        }
        let index = usize::try_from((bits >> 32) & 0xff).ok()?;
        Some((&table.shards[index], usize::try_from(bits & 0xffff_ffff).ok()?))
    }
}

impl Drop for HoldMark {
    fn drop(&mut self) {
        let Some((shard, slot)) = self.place() else { return };
        let mut state = shard.lock();
        let Some(held) = state.held.get_mut(slot).and_then(Option::take) else { return };
        state.keys[slot] = 0;
        state.free.push(u32::try_from(slot).unwrap_or(u32::MAX));
        shard.count.store(shard.count.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        drop(state);
        // Outside the lock: the last reference to a claim frees it.
        drop(held);
    }
}

impl HoldTable {
    fn shard(&self, flow: FlowKey) -> &HoldShard {
        &self.shards[usize::try_from(flow.shard()).unwrap_or(0)]
    }
}

impl HoldShard {
    fn lock(&self) -> MutexGuard<'_, HoldShardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The locks that the flows of a request hold: its owner, the owner's ancestors, and the task or
/// thread outside of scopes. Of one checker, or of all; what a parent process holds is always
/// counted.
pub(super) fn held_by(
    lineage: Option<&Lineage>,
    task: Option<FlowKey>,
    checker: Option<u64>,
) -> SmallVec<[HeldLock; 4]> {
    let mut found = SmallVec::new();
    if let Some(lineage) = lineage {
        for owner in lineage.all() {
            collect(FlowKey::of_owner(owner), checker, &mut found);
        }
    }
    if let Some(task) = task {
        collect(task, checker, &mut found);
    }
    found
}

/// Whether a look for the locks of these flows finds none: one number for each flow is read, and no
/// lock is taken. A flow may hold nothing although this returns false.
pub(super) fn hold_nothing(lineage: Option<&Lineage>, task: Option<FlowKey>) -> bool {
    let (table, _) = current_table();
    let none = |flow: FlowKey| table.shard(flow).count.load(Ordering::Relaxed) == 0;
    let mut owners = lineage.into_iter().flat_map(Lineage::all);
    task.is_none_or(none) && owners.all(|owner| none(FlowKey::of_owner(owner)))
}

fn collect(flow: FlowKey, checker: Option<u64>, found: &mut SmallVec<[HeldLock; 4]>) {
    let (table, _) = current_table();
    let shard = table.shard(flow);
    if shard.count.load(Ordering::Relaxed) == 0 {
        return;
    }
    let state = shard.lock();
    for slot in (0..state.keys.len()).filter(|slot| state.keys[*slot] == flow.0) {
        if let Some(Some(held)) = state.held.get(slot)
            && (held.checker == 0 || checker.is_none_or(|checker| held.checker == checker))
        {
            found.push(held.clone());
        }
    }
}

/// The timers of a checker's locks that are held for too long, and were not told of.
pub(super) fn overdue(checker: u64) -> Vec<Arc<HoldTimer>> {
    let (table, _) = current_table();
    let mut timers = Vec::new();
    for shard in table.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) != 0) {
        let state = shard.lock();
        let held = state.held.iter().flatten().filter(|held| held.checker == checker);
        let overdue = held.filter_map(|held| held.timer.as_ref().filter(|timer| timer.is_due()));
        timers.extend(overdue.cloned());
    }
    timers
}

fn current_table() -> (&'static HoldTable, u32) {
    static ALL: [OnceLock<HoldTable>; TABLES] = [const { OnceLock::new() }; TABLES];
    let forks = forks();
    let table = &ALL[forks as usize % TABLES];
    let empty = || HoldTable { shards: std::array::from_fn(|_| HoldShard::default()) };
    (table.get_or_init(empty), forks)
}

/// The number inside an id that has no accessor: its hash is that number.
fn number(id: impl Hash) -> u64 {
    let mut hasher = IdHasher::default();
    id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Name, Part, samples};

    fn held(name: &str) -> HeldLock {
        let claim = samples::claim(Part::write(Name::try_from(name).unwrap()));
        HeldLock { checker: 7, claim: Arc::new(claim), level: None, timer: None }
    }

    fn names(lineage: &Lineage) -> Vec<String> {
        let all = held_by(Some(lineage), None, Some(7));
        all.iter().map(|held| held.claim.parts.first_name().to_string()).collect()
    }

    #[test]
    fn a_flow_sees_what_it_and_its_ancestors_hold_until_the_mark_is_dropped() {
        let (outer, inner) = (OwnerId::new(), OwnerId::new());
        let nested = Lineage::nested(inner, &[outer]).unwrap();
        let first = HoldMark::new(FlowKey::of_owner(outer), held("a"));
        let second = HoldMark::new(FlowKey::of_owner(inner), held("b"));
        assert_eq!(names(&nested), ["b", "a"]);
        assert_eq!(names(&Lineage::root(outer)), ["a"]);
        assert_eq!(names(&Lineage::root(OwnerId::new())), [""; 0]);
        drop(first);
        assert_eq!(names(&nested), ["b"]);
        drop(second);
        assert_eq!(names(&nested), [""; 0]);
    }

    #[test]
    fn what_another_checker_keeps_is_not_seen_and_what_a_parent_holds_is() {
        let owner = OwnerId::new();
        let mut foreign = held("foreign");
        foreign.checker = 8;
        let mut parent = held("parent");
        parent.checker = 0;
        let _marks = [foreign, parent].map(|one| HoldMark::new(FlowKey::of_owner(owner), one));
        assert_eq!(names(&Lineage::root(owner)), ["parent"]);
    }

    #[test]
    fn many_threads_that_hold_and_release_leave_nothing_behind() {
        let owners: Vec<OwnerId> = (0..8).map(|_| OwnerId::new()).collect();
        std::thread::scope(|scope| {
            for owner in &owners {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let marks: Vec<_> = (0..5)
                            .map(|_| HoldMark::new(FlowKey::of_owner(*owner), held("a")))
                            .collect();
                        assert_eq!(names(&Lineage::root(*owner)).len(), 5);
                        drop(marks);
                    }
                });
            }
        });
        for owner in owners {
            assert_eq!(names(&Lineage::root(owner)), [""; 0]);
        }
    }
}
