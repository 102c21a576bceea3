//! Slots and tombstones as rows of one namespace, within one transaction.
//!
//! A slot is read when the step first asks for it, cached, and written back when the step ends or
//! the cache is full. Only slots that were changed are written, and only if their bytes differ.
//!
//! ```text
//! S namespace name         -> slot: shape, holders if they are few, and its queue if that is short
//! Q namespace name         -> nothing        slots that have a queue
//! T namespace claim        -> tombstone
//! U namespace until claim  -> nothing        tombstones by when they expire
//! N name                   -> a namespace: its number, and the longest lease
//! M                        -> the last number of a namespace
//! ```
//!
//! Names are in their keys as they are, so that a page of them is read in order. A `Q` row is
//! written when a queue begins and deleted when it ends; in between, and for slots without a queue,
//! it is not touched. Implements the trait [`Shelf`], by which the ledger asks for slots.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::codec::{self, Writer};
use super::gate::Counters;
use super::holders::StoredHolders;
use super::queue::StoredQueue;
use super::sizes::Sizes;
use super::txn::{Key, Txn};
use crate::contract::{ClaimId, Name, Namespace, Pattern, Shape};
use crate::ledger::seam::{Line as _, Shelf, Slot, Tomb};
use crate::time::Tick;

/// How many slots a step caches before it writes them back.
const MAX_CACHED: usize = 64;
/// How many expired tombstones are deleted for each new one.
const CLEARED: usize = 2;

/// What queues and holders need to read and write rows of their own.
#[derive(Clone, Copy)]
pub(super) struct RowContext<'t, 'e> {
    pub(super) txn: &'t Txn<'e>,
    pub(super) counters: &'t Counters,
    pub(super) sizes: &'t Sizes,
}

/// The slots of one namespace within one transaction.
pub(super) struct SlotRows<'t, 'e> {
    context: RowContext<'t, 'e>,
    namespace: u32,
    cached: Vec<CachedSlot<'t, 'e>>,
    /// The index of the slot that was asked for last: nearly always the next one too.
    latest: usize,
}

struct CachedSlot<'t, 'e> {
    name: Name,
    slot: Option<Box<Slot<StoredQueue<'t, 'e>, StoredHolders<'t, 'e>>>>,
    /// The store has a row for it.
    stored: bool,
    /// The store has a row that says that it has a queue.
    queued: bool,
    changed: bool,
}

/// Which names a page of an inspection asks for.
#[derive(Clone, Debug)]
pub(super) struct NameRange {
    pub(super) pattern: Pattern,
    pub(super) after: Option<Name>,
    /// Only slots with a queue.
    pub(super) contended: bool,
    /// At most so many.
    pub(super) most: usize,
}

impl<'t, 'e> SlotRows<'t, 'e> {
    pub(super) fn new(context: RowContext<'t, 'e>, namespace: u32) -> Self {
        Self { context, namespace, cached: Vec::new(), latest: 0 }
    }

    /// Returns the transaction, for rows beside the slots.
    pub(super) fn txn(&self) -> &'t Txn<'e> {
        self.context.txn
    }

    /// The transaction and the number of the namespace, for what is not in slots.
    pub(super) fn rows(&self) -> (&'t Txn<'e>, u32) {
        (self.context.txn, self.namespace)
    }

    /// Writes back what has changed.
    pub(super) fn flush(&mut self) {
        for cached in std::mem::take(&mut self.cached) {
            let key = self.slot_key(&cached.name);
            let queued = cached.slot.as_ref().is_some_and(|slot| !slot.line.is_empty());
            if queued != cached.queued {
                self.index_queue(&cached.name, queued);
            }
            match cached.slot {
                _ if !cached.changed => {}
                Some(slot) => {
                    // A slot with one holder fits on the stack.
                    let waiting: usize = slot.line.short().map(|ticket| ticket.len() + 4).sum();
                    let mut writer =
                        Writer::with_capacity(if waiting > 0 { waiting + 512 } else { 0 });
                    let head = (slot.shape, slot.closed_until, slot.last_fence);
                    let queue = slot.line.head();
                    let short = slot.line.short();
                    let holds = slot.holds.row();
                    codec::write_slot(&mut writer, head, &slot.groups, holds, queue, short);
                    if cached.stored {
                        self.context.txn.put_if_changed(&key, writer.bytes());
                    } else {
                        self.context.txn.put(&key, writer.bytes());
                    }
                }
                None if cached.stored => self.context.txn.delete(&key),
                None => {}
            }
        }
        self.latest = 0;
    }

    /// Notes that a slot has a queue now, or none any more.
    fn index_queue(&self, name: &Name, queued: bool) {
        let key = self.name_key(b'Q', name);
        if queued { self.context.txn.put(&key, &[]) } else { self.context.txn.delete(&key) }
    }

    /// Returns up to `most` names after this one; `None` begins at the first name.
    pub(super) fn names_after(&self, name: Option<&Name>, most: usize) -> Vec<Name> {
        self.walk_names(b'S', "", name).take(most).collect()
    }

    /// Returns the first names of a range, having passed over `passed` others at most, and after
    /// which name to go on if there may be more.
    pub(super) fn matching_names(
        &self,
        range: &NameRange,
        passed: usize,
    ) -> (Vec<Name>, Option<Name>) {
        let kind = if range.contended { b'Q' } else { b'S' };
        let literal = range.pattern.literal_prefix();
        let (mut names, mut left) = (Vec::new(), passed);
        for name in self.walk_names(kind, &literal, range.after.as_ref()) {
            if range.pattern.matches(name.as_str()) {
                names.push(name);
                if names.len() == range.most {
                    let last = names.last().cloned();
                    return (names, last);
                }
            } else if left == 0 {
                return (names, Some(name));
            } else {
                left -= 1;
            }
        }
        (names, None)
    }

    /// Returns the number of a namespace, which is assigned at its first use, and its longest
    /// lease. `replace` sets the longest lease: the caller knows that no client relies on the old
    /// one.
    pub(super) fn namespace(
        &mut self,
        namespace: &Namespace,
        max_lease: Duration,
        replace: bool,
    ) -> (u32, Duration) {
        let mut key = Key::from_slice(b"N");
        key.extend_from_slice(namespace.as_str().as_bytes());
        let current = self.context.txn.get(&key, "a namespace", |bytes| {
            let mut reader = codec::Reader::new(bytes);
            let (number, nanos) = (reader.u32()?, reader.u64()?);
            reader.end()?;
            Ok((number, Duration::from_nanos(nanos)))
        });
        let number = match current {
            Some(current) if current.1 == max_lease || !replace => return current,
            Some((number, _)) => number,
            None => {
                let last = self
                    .context
                    .txn
                    .get(b"M", "the last namespace", |bytes| codec::Reader::new(bytes).u32());
                let number = last.unwrap_or(0) + 1;
                self.context.txn.put(b"M", &number.to_le_bytes());
                number
            }
        };
        let mut writer = Writer::default();
        writer.u32(number);
        writer.u64(u64::try_from(max_lease.as_nanos()).unwrap_or(u64::MAX));
        self.context.txn.put(&key, writer.bytes());
        (number, max_lease)
    }

    /// Returns the names in the rows of a kind that begin with `literal` and come after a name.
    fn walk_names(
        &self,
        kind: u8,
        literal: &str,
        after: Option<&Name>,
    ) -> impl Iterator<Item = Name> {
        let space = self.key(kind);
        let mut prefix = space.clone();
        prefix.extend_from_slice(literal.as_bytes());
        let mut at = after.map(|name| self.name_key(kind, name)).filter(|key| *key >= prefix);
        std::iter::from_fn(move || {
            let key = |key: &[u8], _: &[u8]| Key::from(key);
            let next = match &at {
                Some(at) => self.context.txn.after(at, &prefix, key)?,
                None => self.context.txn.from(&prefix, &prefix, key)?,
            };
            let text = next.get(space.len()..).and_then(|name| std::str::from_utf8(name).ok());
            let name = text.and_then(|text| Name::from_store(text).ok());
            at = Some(next);
            self.context.txn.checked("the name of a slot", name.ok_or(codec::Damaged))
        })
    }

    fn key(&self, kind: u8) -> Key {
        let mut key = Key::new();
        key.push(kind);
        key.extend_from_slice(&self.namespace.to_be_bytes());
        key
    }

    fn name_key(&self, kind: u8, name: &Name) -> Key {
        let mut key = self.key(kind);
        key.extend_from_slice(name.as_str().as_bytes());
        key
    }

    fn slot_key(&self, name: &Name) -> Key {
        self.name_key(b'S', name)
    }

    fn tomb_key(&self, id: ClaimId) -> Key {
        let mut key = self.key(b'T');
        key.extend_from_slice(&id.as_u128().to_be_bytes());
        key
    }

    fn until_key(&self, until: Tick, id: ClaimId) -> Key {
        let mut key = self.key(b'U');
        key.extend_from_slice(&until.as_nanos().to_be_bytes());
        key.extend_from_slice(&id.as_u128().to_be_bytes());
        key
    }

    /// Returns the cached slot of this name, reading it first if needed.
    fn cached(&mut self, name: &Name) -> &mut CachedSlot<'t, 'e> {
        let latest = self.cached.get(self.latest).is_some_and(|cached| cached.name == *name);
        if !latest {
            let found = self.cached.iter().position(|cached| cached.name == *name);
            self.latest = found.unwrap_or_else(|| self.load(name));
        }
        &mut self.cached[self.latest]
    }

    fn load(&mut self, name: &Name) -> usize {
        if self.cached.len() >= MAX_CACHED {
            self.flush();
        }
        let context = self.context;
        let slot = self.context.txn.get(&self.slot_key(name), "a slot", |bytes| {
            let row = codec::read_slot(bytes)?;
            Ok(Box::new(Slot {
                shape: row.shape,
                holds: StoredHolders::new(context, row.holds, !row.shape.reentrant()),
                line: StoredQueue::new(context, row.queue, &row.short),
                closed_until: row.closed_until,
                last_fence: row.last_fence,
                groups: row.groups,
            }))
        });
        let stored = slot.is_some();
        let queued = slot.as_ref().is_some_and(|slot| !slot.line.is_empty());
        let name = name.clone();
        self.cached.push(CachedSlot { name, slot, stored, queued, changed: false });
        self.cached.len() - 1
    }

    /// Deletes a few expired tombstones.
    fn clear(&mut self, now: Tick) {
        let prefix = self.key(b'U');
        for _ in 0..CLEARED {
            let first = self.context.txn.from(&prefix, &prefix, |key, _| {
                let until = key.get(prefix.len()..)?.first_chunk::<8>()?;
                let id = key.get(prefix.len() + 8..)?.first_chunk::<16>()?;
                let until = Tick::from_nanos(u64::from_be_bytes(*until));
                Some((until, ClaimId::from_u128(u128::from_be_bytes(*id))))
            });
            let Some(Some((until, id))) = first else { return };
            if now < until {
                return;
            }
            self.context.txn.delete(&self.until_key(until, id));
            // The claim may have a newer tombstone since, which lives longer.
            if self.read_tomb(id).is_some_and(|tomb| tomb.until <= now) {
                self.context.txn.delete(&self.tomb_key(id));
            }
        }
    }

    fn read_tomb(&self, id: ClaimId) -> Option<Tomb> {
        self.context.txn.get(&self.tomb_key(id), "a tombstone", codec::read_tomb)
    }
}

impl<'t, 'e> Shelf for SlotRows<'t, 'e> {
    type Line = StoredQueue<'t, 'e>;
    type Holds = StoredHolders<'t, 'e>;

    fn slot(&mut self, name: &Name) -> Option<&mut Slot<Self::Line, Self::Holds>> {
        let cached = self.cached(name);
        cached.changed |= cached.slot.is_some();
        cached.slot.as_deref_mut()
    }

    fn peek(&mut self, name: &Name) -> Option<&Slot<Self::Line, Self::Holds>> {
        self.cached(name).slot.as_deref()
    }

    fn open(&mut self, name: &Name, shape: Shape) -> &mut Slot<Self::Line, Self::Holds> {
        let context = self.context;
        let cached = self.cached(name);
        cached.changed = true;
        let empty = || {
            let holds = StoredHolders::empty(context);
            Box::new(Slot::new(shape, StoredQueue::empty(context), holds))
        };
        let slot = cached.slot.get_or_insert_with(empty);
        slot.take_shape(shape);
        slot
    }

    fn forget(&mut self, name: &Name) -> u64 {
        let cached = self.cached(name);
        cached.changed = true;
        cached.slot.take().map_or(0, |slot| slot.last_fence)
    }

    fn names(&mut self) -> Vec<Name> {
        self.flush();
        self.walk_names(b'S', "", None).collect()
    }

    fn queued_names(&mut self) -> Vec<Name> {
        self.flush();
        self.walk_names(b'Q', "", None).collect()
    }

    fn tomb(&mut self, id: ClaimId, now: Tick) -> Option<Tomb> {
        if self.context.counters.tombs.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.read_tomb(id).filter(|tomb| now < tomb.until)
    }

    fn bury(&mut self, id: ClaimId, tomb: Tomb, now: Tick) {
        self.clear(now);
        let mut writer = Writer::default();
        codec::write_tomb(&mut writer, &tomb);
        self.context.txn.put(&self.tomb_key(id), writer.bytes());
        self.context.txn.put(&self.until_key(tomb.until, id), &[]);
        self.context.counters.tombs.fetch_add(1, Ordering::Relaxed);
    }

    fn tombs(&mut self, now: Tick) -> usize {
        let prefix = self.key(b'T');
        let mut at = prefix.clone();
        let mut standing = 0;
        while let Some((key, tomb)) = self
            .context
            .txn
            .after(&at, &prefix, |key, value| (Key::from(key), codec::read_tomb(value)))
        {
            let tomb = self.context.txn.checked("a tombstone", tomb);
            standing += usize::from(tomb.is_some_and(|tomb| now < tomb.until));
            at = key;
        }
        standing
    }

    fn crowded(&mut self) -> bool {
        // The engine sweeps a few slots now and then instead: a sweep of all of them would block
        // every other process.
        false
    }

    fn swept(&mut self) {}
}
