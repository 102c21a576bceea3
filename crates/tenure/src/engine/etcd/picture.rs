//! What stands under some slots at one revision, as a ledger that the rules can be asked of, and
//! what a step of the rules has changed there. Knows both languages, makes no calls.
//!
//! Fences and arrivals are revisions, and the revision of a step is known only when it is written.
//! Until then the rules work with numbers above [`NEW`], which stand for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::client::KeyValue;
use super::keys::{Keys, Kind, Tag};
use super::record::{FenceAt, Group as Shared, Record};
use crate::contract::{
    Arrival, Claim, ClaimId, Error, ErrorKind, Fence, Grant, Name, Part, Renewed, Shape,
};
use crate::ledger::seam::{Group, Hold, Line, Mint, Shelf, Slot, Ticket, Tomb};
use crate::ledger::{Heap, Ledger, Now};
use crate::limits;
use crate::sync::random_bytes;
use crate::time::Tick;

/// Fences from here on stand for the revision of the step that gives them out. Those that are given
/// out stay below: they are not raised further than [`limits::FENCE_FLOOR`].
pub(super) const NEW: u64 = limits::FENCE - (1 << 32);

/// From how many tags a newcomer chooses, if nobody stands in the slot.
const SEATS: u32 = 64;

/// Most parts of a set whose keys have a number for their tag. etcd takes 128 comparisons, and each
/// part needs two of them.
const NUMBERED_PARTS: usize = 32;

/// How often a set tries to get a number.
const NUMBERED_ATTEMPTS: usize = 4;

/// How fences are made from revisions: a base is added. The base is the wall clock at the birth of
/// the namespace, in microseconds, so that a service that moves here from another store goes on
/// with larger fences. A new base, of a restored store, counts for revisions from the one on that
/// wrote it. By how much fences were raised is added too, and is told with each fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) base: u64,
    /// The base that counted before.
    pub(super) former: u64,
    /// The revision that wrote the base.
    pub(super) written: u64,
    /// By how much fences were raised.
    pub(super) raised: u64,
    /// The revision that last wrote the terms of the namespace, from which all this is known.
    pub(super) terms: u64,
}

impl Epoch {
    /// The largest base that a wall clock may give.
    pub(super) const MAX: u64 = (1 << 52) - (1 << 48);

    /// A number that grows with the revision, also when the store is restored.
    pub(super) fn version(self, revision: u64) -> u64 {
        revision + if revision >= self.written { self.base } else { self.former }
    }

    /// The fence that a step at this revision gives out.
    pub(super) fn fence(self, revision: u64) -> u64 {
        self.version(revision) + self.raised
    }

    /// The revision that a fence of this epoch was given out with.
    pub(super) fn revision(self, fence: Fence) -> u64 {
        let version = fence.get().saturating_sub(self.raised);
        let newer = version >= self.base + self.written;
        version.saturating_sub(if newer { self.base } else { self.former })
    }
}

/// One key under a slot, as it was read.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) key: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) tag: Tag,
    pub(super) id: ClaimId,
    pub(super) record: Record,
    pub(super) created: u64,
    pub(super) written: u64,
    pub(super) lease: i64,
}

/// What stands under some slots, all at one revision.
#[derive(Clone, Debug)]
pub(super) struct Picture {
    pub(super) revision: u64,
    pub(super) slots: BTreeMap<Name, Vec<Seen>>,
    /// Claims that must not come back, with the reason of a forced release.
    pub(super) tombs: HashMap<ClaimId, Option<Arc<str>>>,
    /// How long leases have left, where that was asked for.
    pub(super) left: HashMap<i64, Duration>,
    pub(super) epoch: Epoch,
}

/// The rules over a picture.
pub(super) type Rules = Ledger<Heap>;

impl Picture {
    pub(super) fn new(revision: u64, epoch: Epoch) -> Self {
        let (slots, tombs, left) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Self { revision, slots, tombs, left, epoch }
    }

    /// Adds a slot with the keys that were read of it.
    pub(super) fn add(
        &mut self,
        keys: &Keys,
        name: &Name,
        found: &[KeyValue],
    ) -> Result<(), Error> {
        let seen = found.iter().map(|one| see(keys, one).ok_or_else(|| damaged(name, one)));
        self.slots.insert(name.clone(), seen.collect::<Result<_, _>>()?);
        Ok(())
    }

    /// Adds a ticket that came to the line after the slot was read, unless it is this claim's own.
    pub(super) fn add_ticket(&mut self, keys: &Keys, name: &Name, found: &KeyValue, own: ClaimId) {
        let Some(seen) = see(keys, found).filter(|seen| seen.id != own) else { return };
        if self.ticket(name, seen.id).is_none() {
            self.slots.entry(name.clone()).or_default().push(seen);
        }
    }

    /// What was seen of a claim in a slot.
    pub(super) fn seen(&self, name: &Name, kind: Kind, id: ClaimId) -> Option<&Seen> {
        self.slots.get(name)?.iter().find(|seen| seen.kind == kind && seen.id == id)
    }

    /// The ticket of a claim in a slot, whether it still waits or holds by now.
    pub(super) fn ticket(&self, name: &Name, id: ClaimId) -> Option<&Seen> {
        self.seen(name, Kind::Wait, id).or_else(|| self.seen(name, Kind::Kin, id))
    }

    /// The tag for a claim's keys: the one it has, or the one of an earlier attempt, which may
    /// still arrive, or a number that no other claim has in any of the slots.
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
        // By chance, because others look for one at the same time and may have seen the same.
        let seats = SEATS + 4 * u32::try_from(all().count()).unwrap_or(u32::MAX / 8);
        let [a, b, c, d, ..] = random_bytes();
        let from = u32::from_le_bytes([a, b, c, d]) % seats;
        let free = |tag: &Tag| !all().any(|seen| seen.tag == *tag);
        let mut tags = (from..seats).chain(0..from).map(Tag::Seat);
        tags.find(free).unwrap_or(Tag::Claim(claim.id))
    }

    /// A ledger over it. At most `admissions` may come in from the line.
    pub(super) fn rules(&self, now: Now, admissions: usize) -> Rules {
        let mint = Mint {
            floor: NEW,
            arrivals: NEW,
            wall_micros: now.wall_micros,
            top: 0,
            admissions: Some(admissions),
        };
        let mut rules = Ledger::over(Heap::default(), mint);
        for (name, seen) in &self.slots {
            self.restore(rules.shelf(), name, seen, now);
        }
        for (id, reason) in &self.tombs {
            let tomb = Tomb { until: Tick::NEVER, reason: reason.clone() };
            rules.shelf().bury(*id, tomb, now.tick);
        }
        rules
    }

    fn restore(&self, heap: &mut Heap, name: &Name, all: &[Seen], now: Now) {
        if all.is_empty() {
            return;
        }
        let shape = shape_of(name, all).unwrap_or(Shape::Lock);
        let slot = heap.open(name, shape);
        let mut holds: Vec<&Seen> = all.iter().filter(|seen| seen.kind == Kind::Hold).collect();
        holds.sort_by_key(|seen| seen.created);
        for seen in &holds {
            if let Some(hold) = self.hold(name, seen, now) {
                slot.holds.insert(hold);
            }
        }
        slot.groups = self.groups(&holds);
        let holds = |id: ClaimId| holds.iter().any(|seen| seen.id == id);
        // What should be replaced has ended, and the ticket with it.
        let orphan = |seen: &Seen| {
            let old = seen.record.claim.replaces;
            seen.record.reserved && old.is_some_and(|old| !holds(old))
        };
        let ticket = |seen: &Seen| matches!(seen.kind, Kind::Wait | Kind::Kin);
        let waits = |seen: &&Seen| ticket(seen) && !holds(seen.id) && !orphan(seen);
        let mut tickets: Vec<&Seen> = all.iter().filter(waits).collect();
        tickets.sort_by_key(|seen| seen.created);
        for seen in tickets {
            if let Some(ticket) = self.wait(name, seen, now) {
                slot.put_back(ticket);
            }
        }
        let closes = |seen: &&Seen| seen.kind == Kind::Delay && !holds(seen.id);
        let until = |seen: &Seen| now.tick + self.left_of(seen, seen.record.claim.lock_delay);
        slot.closed_until = all.iter().filter(closes).map(until).max().unwrap_or(Tick::ZERO);
    }

    fn hold(&self, name: &Name, seen: &Seen, now: Now) -> Option<Hold> {
        let (record, weight) = (&seen.record, part_of(&seen.record.claim, name)?.weight());
        Some(Hold {
            claim: Arc::clone(&record.claim),
            weight,
            fence: Fence::new(self.number(record.fence, seen)),
            group: record.group.as_ref().map(|group| group.key),
            arrival: Arrival(record.arrival.unwrap_or(seen.created)),
            since: since(record.since, now),
            expires: now.tick + self.left_of(seen, record.claim.lease),
            reserved: record.reserved,
        })
    }

    fn wait(&self, name: &Name, seen: &Seen, now: Now) -> Option<Ticket> {
        let (record, weight) = (&seen.record, part_of(&seen.record.claim, name)?.weight());
        Some(Ticket {
            claim: Arc::clone(&record.claim),
            weight,
            arrival: Arrival(seen.created),
            since: since(record.since, now),
            expires: now.tick + self.left_of(seen, record.claim.lease),
            kin: 0,
        })
    }

    fn left_of(&self, seen: &Seen, otherwise: Duration) -> Duration {
        // What has ended is not there any more: whatever is there has an instant left.
        let left = self.left.get(&seen.lease).copied().unwrap_or(otherwise);
        left.max(Duration::from_nanos(1))
    }

    fn groups(&self, holds: &[&Seen]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for seen in holds {
            let Some(shared) = &seen.record.group else { continue };
            if let Some(known) = groups.iter_mut().find(|group| group.key == shared.key) {
                known.members += 1;
                continue;
            }
            // Whoever is named and gone did not take its name out: it ended by expiry.
            let lives = |id: &ClaimId| holds.iter().any(|other| other.id == *id);
            let spent = shared.spent || !shared.members.iter().all(lives);
            let fence = Fence::new(self.number(shared.fence, seen));
            groups.push(Group { key: shared.key, fence, spent, members: 1 });
        }
        groups
    }

    fn number(&self, at: FenceAt, seen: &Seen) -> u64 {
        match at {
            FenceAt::Created(raised) => self.epoch.version(seen.created) + raised,
            FenceAt::Written(raised) => self.epoch.version(seen.written) + raised,
            FenceAt::Known(fence) => fence,
        }
    }

    /// The record of what was seen, fit to be written once more: the revision that writes it is
    /// another one then.
    pub(super) fn rewritten(&self, seen: &Seen) -> Record {
        let settle = |at: FenceAt| match at {
            FenceAt::Written(_) => FenceAt::Known(self.number(at, seen)),
            at => at,
        };
        let mut record = seen.record.clone();
        record.fence = settle(record.fence);
        if let Some(group) = &mut record.group {
            group.fence = settle(group.fence);
        }
        record
    }

    /// The record of a hold as the rules have it now.
    pub(super) fn record_of(
        &self,
        name: &Name,
        slot: &Slot<<Heap as Shelf>::Line>,
        hold: &Hold,
        wall: u64,
    ) -> Record {
        let before = self.seen(name, Kind::Hold, hold.claim.id);
        let fresh = before.is_none();
        // Where it was found, if that is still where it is found when the key is written anew.
        let found = |number: u64| {
            let before = before.filter(|before| self.number(before.record.fence, before) == number);
            let at = before.map(|before| before.record.fence);
            at.filter(|at| matches!(at, FenceAt::Created(_)))
        };
        let group = hold.group.and_then(|key| slot.groups.iter().find(|group| group.key == key));
        let members = |key: u64| {
            let members = slot.holds.iter().filter(move |other| other.group == Some(key));
            members.map(|other| other.claim.id).collect()
        };
        Record {
            claim: Arc::clone(&hold.claim),
            since: before.map_or(wall, |before| before.record.since),
            arrival: Some(hold.arrival.0).filter(|arrival| *arrival < NEW),
            fence: match hold.fence.get() {
                NEW.. if fresh => FenceAt::Created(self.epoch.raised),
                NEW.. => FenceAt::Written(self.epoch.raised),
                number => found(number).unwrap_or(FenceAt::Known(number)),
            },
            reserved: hold.reserved,
            group: group.map(|group| Shared {
                key: group.key,
                fence: match group.fence.get() {
                    NEW.. => FenceAt::Written(self.epoch.raised),
                    number => FenceAt::Known(number),
                },
                spent: group.spent,
                members: members(group.key),
            }),
        }
    }
}

/// What can change of a hold while it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    fence: Fence,
    reserved: bool,
    /// The key, fence, state and members of its group.
    group: Option<(u64, Fence, bool, Vec<ClaimId>)>,
}

impl Mark {
    /// It is part of a set that still waits for other parts.
    pub(super) fn is_reserved(&self) -> bool {
        self.reserved
    }
}

/// The marks of all holds of a slot, to be compared with those after a step.
pub(super) fn marks(rules: &mut Rules, name: &Name) -> HashMap<ClaimId, Mark> {
    let Some(slot) = rules.shelf().peek(name) else { return HashMap::new() };
    let group = |key: u64| {
        let group = slot.groups.iter().find(|group| group.key == key)?;
        let members = slot.holds.iter().filter(|other| other.group == Some(key));
        let members = members.map(|other| other.claim.id).collect();
        Some((key, group.fence, group.spent, members))
    };
    let mark = |hold: &Hold| Mark {
        fence: hold.fence,
        reserved: hold.reserved,
        group: hold.group.and_then(group),
    };
    slot.holds.iter().map(|hold| (hold.claim.id, mark(hold))).collect()
}

/// Puts the revision of a step where the rules could not know it.
pub(super) fn settle_grant(grant: &Grant, epoch: Epoch, revision: u64) -> Grant {
    let fence = |fence: &Fence| match fence.get() {
        NEW.. => Fence::new(epoch.fence(revision)),
        _ => *fence,
    };
    let fences = grant.fences.as_slice().iter().map(fence).collect();
    Grant { fences, arrival: settle_arrival(grant.arrival, revision) }
}

pub(super) fn settle_arrival(arrival: Arrival, revision: u64) -> Arrival {
    if arrival.0 >= NEW { Arrival(revision) } else { arrival }
}

/// The same in an answer to a renewal.
pub(super) fn settle_renewed(answer: Renewed, epoch: Epoch, revision: u64) -> Renewed {
    match answer {
        Renewed::Held(grant) => Renewed::Held(settle_grant(&grant, epoch, revision)),
        Renewed::Waiting(mut queued) => {
            queued.arrival = settle_arrival(queued.arrival, revision);
            Renewed::Waiting(queued)
        }
        other @ (Renewed::Gone(_) | Renewed::Unanswered(_)) => other,
    }
}

/// The part of a claim on a slot.
pub(super) fn part_of<'a>(claim: &'a Claim, name: &Name) -> Option<&'a Part> {
    claim.parts.as_slice().iter().find(|part| part.name() == name)
}

/// The claims that wait in a slot, in order.
pub(super) fn line_of(slot: &Slot<<Heap as Shelf>::Line>) -> SmallVec<[ClaimId; 4]> {
    slot.line.iter().map(|ticket| ticket.claim.id).collect()
}

/// The shape that stands in a slot: that of anybody who holds or waits.
fn shape_of(name: &Name, all: &[Seen]) -> Option<Shape> {
    let mut standing = all.iter().filter(|seen| seen.kind != Kind::Delay);
    standing.find_map(|seen| part_of(&seen.record.claim, name).map(Part::shape))
}

/// When something began, on our clock; its client's wall clock may differ from ours.
fn since(wall: u64, now: Now) -> Tick {
    now.tick - Duration::from_micros(now.wall_micros.saturating_sub(wall))
}

/// What stands at a key; none if that is not ours.
pub(super) fn see(keys: &Keys, found: &KeyValue) -> Option<Seen> {
    let (_, kind, tag) = keys.read(&found.key)?;
    let record = Record::read(&found.value)?;
    Some(Seen {
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
    let what = format!("what stands at the key {key:?} is not ours or is damaged");
    Error::new(ErrorKind::Corrupt, what)
        .on(name)
        .with_help("look at it with etcdctl and delete it if nobody needs it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_base_counts_from_its_own_revision_on_and_a_raise_for_all() {
        let epoch = Epoch { base: 5_000, former: 1_000, written: 40, ..Epoch::default() };
        assert_eq!((epoch.fence(39), epoch.fence(40)), (1_039, 5_040));
        let raised = Epoch { raised: 100_000, ..epoch };
        assert_eq!((raised.version(41), raised.fence(41)), (5_041, 105_041));
        for (revision, epoch) in [1, 39, 40, 41, 1 << 30].into_iter().zip([epoch, raised].repeat(3))
        {
            assert_eq!(epoch.revision(Fence::new(epoch.fence(revision))), revision);
        }
        const { assert!(limits::FENCE_FLOOR < NEW) }
    }
}
