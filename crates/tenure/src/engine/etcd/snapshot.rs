//! The keys of some slots at one revision, and the ledger that is built from them. Makes no calls.
//!
//! ```text
//! keys ──add──> SlotSnapshot ──ledger()──> SnapshotLedger ──(a verb)──> LedgerDiff ──> keys
//! ```
//!
//! Each key of a slot is one [`FoundKey`]: a hold, a ticket, or a lock delay, with the claim's
//! record as its value. [`SlotSnapshot::ledger`] rebuilds from them what the rules need: holds by
//! creation revision, tickets in the order of the queue, groups of holds that share a fence, and
//! until when lock delays close the slot. What the keys do not say is derived:
//!
//! - The ticket of a claim that holds is not in the queue; it stays until the release.
//! - A lock delay counts when the hold of its claim is gone.
//! - Expiries are unknown: everything that exists is alive, because etcd deletes the keys of leases
//!   that end. Remaining times are read only to show them (`remaining`).
//! - A group member that is named and has no hold expired, because a release takes its name out.
//! - Fences and arrivals are revisions. Those of the change itself are placeholders until it is
//!   written (`fences.rs`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::client::KeyValue;
use super::fences::{Epoch, PLACEHOLDER};
use super::keys::{KeyKind, Keys, Tag};
use super::record::{ClaimRecord, FenceGroup, FenceSource};
use crate::contract::{Arrival, Claim, ClaimId, Error, ErrorKind, Fence, Name, Part, Shape};
use crate::ledger::seam::{Group, Hold, Line, Mint, Shelf, Slot, Ticket, Tomb};
use crate::ledger::{Heap, Ledger, Now};
use crate::sync::random_bytes;
use crate::time::Tick;

/// From how many tags a new claim chooses, if the slot has no keys.
const MIN_TAGS: u32 = 64;

/// Most parts of a set whose keys have a number as their tag. etcd takes 128 comparisons in a
/// transaction, and each part needs two of them.
const NUMBERED_PARTS: usize = 32;

/// How many attempts a set makes with a number as its tag.
const NUMBERED_ATTEMPTS: usize = 4;

/// One key of a slot, as it was read.
#[derive(Clone, Debug)]
pub(super) struct FoundKey {
    pub(super) key: Vec<u8>,
    pub(super) kind: KeyKind,
    pub(super) tag: Tag,
    pub(super) id: ClaimId,
    pub(super) record: ClaimRecord,
    pub(super) created: u64,
    pub(super) written: u64,
    pub(super) lease: i64,
}

/// The keys of some slots at one revision.
#[derive(Clone, Debug)]
pub(super) struct SlotSnapshot {
    pub(super) revision: u64,
    pub(super) slots: BTreeMap<Name, Vec<FoundKey>>,
    /// Claims with a tombstone, and the reason if they were evicted.
    pub(super) tombstones: HashMap<ClaimId, Option<Arc<str>>>,
    /// How long leases have left, where that was read.
    pub(super) remaining: HashMap<i64, Duration>,
    pub(super) epoch: Epoch,
}

/// The ledger over a snapshot.
pub(super) type SnapshotLedger = Ledger<Heap>;

impl SlotSnapshot {
    pub(super) fn new(revision: u64, epoch: Epoch) -> Self {
        let (slots, tombstones, remaining) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Self { revision, slots, tombstones, remaining, epoch }
    }

    /// Adds a slot with its keys. Fails if one of them is not a key of a claim.
    pub(super) fn add(
        &mut self,
        keys: &Keys,
        name: &Name,
        found: &[KeyValue],
    ) -> Result<(), Error> {
        let seen = found.iter().map(|one| decode_key(keys, one).ok_or_else(|| damaged(name, one)));
        self.slots.insert(name.clone(), seen.collect::<Result<_, _>>()?);
        Ok(())
    }

    /// Adds a ticket that was written after the slot was read, unless it is this claim's own.
    pub(super) fn add_ticket(&mut self, keys: &Keys, name: &Name, found: &KeyValue, own: ClaimId) {
        let Some(seen) = decode_key(keys, found).filter(|seen| seen.id != own) else { return };
        if self.ticket(name, seen.id).is_none() {
            self.slots.entry(name.clone()).or_default().push(seen);
        }
    }

    /// The key of a claim in a slot.
    pub(super) fn key_of(&self, name: &Name, kind: KeyKind, id: ClaimId) -> Option<&FoundKey> {
        self.slots.get(name)?.iter().find(|seen| seen.kind == kind && seen.id == id)
    }

    /// The ticket of a claim in a slot, whether it waits or holds.
    pub(super) fn ticket(&self, name: &Name, id: ClaimId) -> Option<&FoundKey> {
        self.key_of(name, KeyKind::Wait, id).or_else(|| self.key_of(name, KeyKind::Kin, id))
    }

    /// Chooses the tag for a claim's keys: the one it has, or the one of an earlier attempt, which
    /// may still arrive, or a number that no other claim has in any of the slots.
    ///
    /// For a set, that the number is still free can be compared only by comparing that nothing was
    /// written to its slots at all. If that fails a few times, or the set is so large that etcd
    /// would refuse the comparisons, it is tagged with the claim's own id.
    pub(super) fn tag_for(&self, claim: &Claim, tried: Tag, attempt: usize) -> Tag {
        let all = || self.slots.values().flatten();
        if let Some(seen) = all().find(|seen| seen.id == claim.id) {
            return seen.tag;
        }
        let parts = claim.parts.as_slice().len();
        if parts > 1 && (parts > NUMBERED_PARTS || attempt >= NUMBERED_ATTEMPTS) {
            return Tag::Claim(claim.id);
        }
        if tried != Tag::FIRST && !all().any(|seen| seen.tag == tried) {
            return tried;
        }
        // At random, because other clients that read the same snapshot choose at the same time.
        let choices = MIN_TAGS + 4 * u32::try_from(all().count()).unwrap_or(u32::MAX / 8);
        let [a, b, c, d, ..] = random_bytes();
        let from = u32::from_le_bytes([a, b, c, d]) % choices;
        let free = |tag: &Tag| !all().any(|seen| seen.tag == *tag);
        let mut tags = (from..choices).chain(0..from).map(Tag::Number);
        tags.find(free).unwrap_or(Tag::Claim(claim.id))
    }

    /// Builds the ledger. It admits at most `admissions` claims from queues.
    pub(super) fn ledger(&self, now: Now, admissions: usize) -> SnapshotLedger {
        let mint = Mint {
            floor: PLACEHOLDER,
            arrivals: PLACEHOLDER,
            wall_micros: now.wall_micros,
            top: 0,
            admissions: Some(admissions),
        };
        let mut ledger = Ledger::over(Heap::default(), mint);
        for (name, seen) in &self.slots {
            self.rebuild_slot(ledger.shelf(), name, seen, now);
        }
        for (id, reason) in &self.tombstones {
            let tomb = Tomb { until: Tick::NEVER, reason: reason.clone() };
            ledger.shelf().bury(*id, tomb, now.tick);
        }
        ledger
    }

    fn rebuild_slot(&self, heap: &mut Heap, name: &Name, all: &[FoundKey], now: Now) {
        if all.is_empty() {
            return;
        }
        let shape = shape_of(name, all).unwrap_or(Shape::Lock);
        let slot = heap.open(name, shape);
        let mut holds: Vec<&FoundKey> =
            all.iter().filter(|seen| seen.kind == KeyKind::Hold).collect();
        holds.sort_by_key(|seen| seen.created);
        for seen in &holds {
            if let Some(hold) = self.hold(name, seen, now) {
                slot.holds.insert(hold);
            }
        }
        slot.groups = self.groups(&holds);
        let holds = |id: ClaimId| holds.iter().any(|seen| seen.id == id);
        // The claim to be replaced has ended, and this ticket with it.
        let orphan = |seen: &FoundKey| {
            let old = seen.record.claim.replaces;
            seen.record.reserved && old.is_some_and(|old| !holds(old))
        };
        let ticket = |seen: &FoundKey| matches!(seen.kind, KeyKind::Wait | KeyKind::Kin);
        let waits = |seen: &&FoundKey| ticket(seen) && !holds(seen.id) && !orphan(seen);
        let mut tickets: Vec<&FoundKey> = all.iter().filter(waits).collect();
        tickets.sort_by_key(|seen| seen.created);
        for seen in tickets {
            if let Some(ticket) = self.wait(name, seen, now) {
                slot.put_back(ticket);
            }
        }
        let closes = |seen: &&FoundKey| seen.kind == KeyKind::Delay && !holds(seen.id);
        let until =
            |seen: &FoundKey| now.tick + self.remaining_of(seen, seen.record.claim.lock_delay);
        slot.closed_until = all.iter().filter(closes).map(until).max().unwrap_or(Tick::ZERO);
    }

    fn hold(&self, name: &Name, seen: &FoundKey, now: Now) -> Option<Hold> {
        let (record, weight) = (&seen.record, part_of(&seen.record.claim, name)?.weight());
        Some(Hold {
            claim: Arc::clone(&record.claim),
            weight,
            fence: Fence::new(self.fence_of(record.fence, seen)),
            group: record.group.as_ref().map(|group| group.key),
            arrival: Arrival(record.arrival.unwrap_or(seen.created)),
            since: since(record.since, now),
            expires: now.tick + self.remaining_of(seen, record.claim.lease),
            reserved: record.reserved,
        })
    }

    fn wait(&self, name: &Name, seen: &FoundKey, now: Now) -> Option<Ticket> {
        let (record, weight) = (&seen.record, part_of(&seen.record.claim, name)?.weight());
        Some(Ticket {
            claim: Arc::clone(&record.claim),
            weight,
            arrival: Arrival(seen.created),
            since: since(record.since, now),
            expires: now.tick + self.remaining_of(seen, record.claim.lease),
            kin: 0,
        })
    }

    fn remaining_of(&self, seen: &FoundKey, otherwise: Duration) -> Duration {
        // Keys of leases that ended do not exist: every key that was found has time left.
        let left = self.remaining.get(&seen.lease).copied().unwrap_or(otherwise);
        left.max(Duration::from_nanos(1))
    }

    fn groups(&self, holds: &[&FoundKey]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for seen in holds {
            let Some(shared) = &seen.record.group else { continue };
            if let Some(known) = groups.iter_mut().find(|group| group.key == shared.key) {
                known.members += 1;
                continue;
            }
            // A member that is named but has no hold expired: a release takes its name out.
            let lives = |id: &ClaimId| holds.iter().any(|other| other.id == *id);
            let spent = shared.spent || !shared.members.iter().all(lives);
            let fence = Fence::new(self.fence_of(shared.fence, seen));
            groups.push(Group { key: shared.key, fence, spent, members: 1 });
        }
        groups
    }

    fn fence_of(&self, at: FenceSource, seen: &FoundKey) -> u64 {
        match at {
            FenceSource::Created(raised) => self.epoch.version(seen.created) + raised,
            FenceSource::Written(raised) => self.epoch.version(seen.written) + raised,
            FenceSource::Known(fence) => fence,
        }
    }

    /// The record of a key that is about to be rewritten: a fence that is found by the revision of
    /// the last write is replaced by its number.
    pub(super) fn record_to_rewrite(&self, seen: &FoundKey) -> ClaimRecord {
        let settle = |at: FenceSource| match at {
            FenceSource::Written(_) => FenceSource::Known(self.fence_of(at, seen)),
            at => at,
        };
        let mut record = seen.record.clone();
        record.fence = settle(record.fence);
        if let Some(group) = &mut record.group {
            group.fence = settle(group.fence);
        }
        record
    }

    /// The record of a hold as the ledger has it now.
    pub(super) fn record_of(
        &self,
        name: &Name,
        slot: &Slot<<Heap as Shelf>::Line>,
        hold: &Hold,
        wall: u64,
    ) -> ClaimRecord {
        let before = self.key_of(name, KeyKind::Hold, hold.claim.id);
        let fresh = before.is_none();
        // The source of the fence, if it stays valid when the key is rewritten.
        let found = |number: u64| {
            let before =
                before.filter(|before| self.fence_of(before.record.fence, before) == number);
            let at = before.map(|before| before.record.fence);
            at.filter(|at| matches!(at, FenceSource::Created(_)))
        };
        let group = hold.group.and_then(|key| slot.groups.iter().find(|group| group.key == key));
        let members = |key: u64| {
            let members = slot.holds.iter().filter(move |other| other.group == Some(key));
            members.map(|other| other.claim.id).collect()
        };
        ClaimRecord {
            claim: Arc::clone(&hold.claim),
            since: before.map_or(wall, |before| before.record.since),
            arrival: Some(hold.arrival.0).filter(|arrival| *arrival < PLACEHOLDER),
            fence: match hold.fence.get() {
                PLACEHOLDER.. if fresh => FenceSource::Created(self.epoch.raised),
                PLACEHOLDER.. => FenceSource::Written(self.epoch.raised),
                number => found(number).unwrap_or(FenceSource::Known(number)),
            },
            reserved: hold.reserved,
            group: group.map(|group| FenceGroup {
                key: group.key,
                fence: match group.fence.get() {
                    PLACEHOLDER.. => FenceSource::Written(self.epoch.raised),
                    number => FenceSource::Known(number),
                },
                spent: group.spent,
                members: members(group.key),
            }),
        }
    }
}

/// What the ledger can change of a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HoldState {
    fence: Fence,
    reserved: bool,
    /// The key, fence, state and members of its group.
    group: Option<(u64, Fence, bool, Vec<ClaimId>)>,
}

impl HoldState {
    /// Whether it is part of a set that waits for other parts.
    pub(super) fn is_reserved(&self) -> bool {
        self.reserved
    }
}

/// The states of all holds of a slot, to be compared before and after a change.
pub(super) fn hold_states(ledger: &mut SnapshotLedger, name: &Name) -> HashMap<ClaimId, HoldState> {
    let Some(slot) = ledger.shelf().peek(name) else { return HashMap::new() };
    let group = |key: u64| {
        let group = slot.groups.iter().find(|group| group.key == key)?;
        let members = slot.holds.iter().filter(|other| other.group == Some(key));
        let members = members.map(|other| other.claim.id).collect();
        Some((key, group.fence, group.spent, members))
    };
    let mark = |hold: &Hold| HoldState {
        fence: hold.fence,
        reserved: hold.reserved,
        group: hold.group.and_then(group),
    };
    slot.holds.iter().map(|hold| (hold.claim.id, mark(hold))).collect()
}

/// The part of a claim on a slot.
pub(super) fn part_of<'a>(claim: &'a Claim, name: &Name) -> Option<&'a Part> {
    claim.parts.as_slice().iter().find(|part| part.name() == name)
}

/// The claims in the queue of a slot, in order.
pub(super) fn queue_of(slot: &Slot<<Heap as Shelf>::Line>) -> SmallVec<[ClaimId; 4]> {
    slot.line.iter().map(|ticket| ticket.claim.id).collect()
}

/// The shape of a slot: that of any claim that holds or waits.
fn shape_of(name: &Name, all: &[FoundKey]) -> Option<Shape> {
    let mut standing = all.iter().filter(|seen| seen.kind != KeyKind::Delay);
    standing.find_map(|seen| part_of(&seen.record.claim, name).map(Part::shape))
}

/// When something began, on the local clock. The wall clocks of clients may differ.
fn since(wall: u64, now: Now) -> Tick {
    now.tick - Duration::from_micros(now.wall_micros.saturating_sub(wall))
}

/// Decodes a key of a slot; `None` if it is damaged or not a key of Tenure.
pub(super) fn decode_key(keys: &Keys, found: &KeyValue) -> Option<FoundKey> {
    let (_, kind, tag) = keys.parse(&found.key)?;
    let record = ClaimRecord::decode(&found.value)?;
    Some(FoundKey {
        key: found.key.clone(),
        kind,
        tag,
        id: record.claim.id,
        record,
        created: u64::try_from(found.create_revision).ok()?,
        written: u64::try_from(found.mod_revision).ok()?,
        lease: found.lease,
    })
}

fn damaged(name: &Name, found: &KeyValue) -> Error {
    let key = String::from_utf8_lossy(&found.key).replace('\t', "\\t");
    let what = format!("the value of the key {key:?} is not ours or is damaged");
    Error::new(ErrorKind::Corrupt, what)
        .on(name)
        .with_help("inspect it with etcdctl and delete it if it is not needed")
}
