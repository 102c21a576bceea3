//! Slots of shared memory through which a process hands writes of cells to the process that
//! commits, and gets its replies.
//!
//! The file `writes` of a file set has [`SLOTS`] slots. A slot has a robust mutex, a state, an area
//! for the request and an area for the reply.
//!
//! ```text
//! free ── post ──> posted ── take ──> taken ── reply ──> done ── the owner has read it ──> free
//!                    │ withdraw        ▲ │
//!                    ▼                 └─┘ a committer died: the next one takes it again
//!                   free
//! ```
//!
//! The *owner* of a slot is the thread that holds its mutex. The *committer* is the thread inside
//! the durable mutex of the gate, of which there is one.
//!
//! 1. The owner changes a slot that is `free` or `done`; the committer changes one that is `posted`
//!    or `taken`. The owner's one change of a `posted` slot, to withdraw it, and the committer's to
//!    take it are compare-and-swaps from `posted`: one of them succeeds.
//! 2. The request stays as it is until the slot is `done`. So when a committer dies, the next one
//!    reads the same requests with the same ids, and tells by these ids which of them the dead one
//!    has committed (`commit.rs`).
//! 3. An owner that dies, or that gives up a slot which is `taken`, leaves the mutex to the next
//!    owner, who passes over the slot until a committer has replied.
//!
//! Nothing here has to survive a crash of the machine: requests without a reply are lost with the
//! processes that wait for one.

#![allow(unsafe_code, reason = "shared memory has no safe wrapper; each use is argued")]

use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::munmap;

use super::gate::{GateGuard, GateMutex, map_shared};

/// How many processes can hand over at the same time. Others wait for the gate.
const SLOTS: usize = 24;
/// The longest request, in bytes.
pub(super) const REQUEST: usize = 20 << 10;
/// The longest reply, in bytes.
pub(super) const REPLY: usize = 4 << 10;

const FREE: u32 = 0;
const POSTED: u32 = 1;
const TAKEN: u32 = 2;
const DONE: u32 = 3;

#[repr(C)]
struct HandoverSlot {
    mutex: GateMutex,
    state: AtomicU32,
    request_len: AtomicU32,
    reply_len: AtomicU32,
    /// How many writes the request has.
    writes: AtomicU32,
    id: AtomicU64,
    request: UnsafeCell<[u8; REQUEST]>,
    reply: UnsafeCell<[u8; REPLY]>,
}

type Slots = [HandoverSlot; SLOTS];

/// The mapped slots.
pub(super) struct Handover {
    slots: NonNull<Slots>,
    pid: u32,
}

// SAFETY: shared memory that outlives the value. All fields are atomics or mutexes made to be used
// by several processes, and areas of bytes that one thread at a time uses (invariant 1).
unsafe impl Send for Handover {}
// SAFETY: as above.
unsafe impl Sync for Handover {}

/// A request that was posted. Dropping it lets go of the slot.
pub(super) struct Posted<'a> {
    slot: &'a HandoverSlot,
    /// Unlocks the mutex when it is dropped.
    _owner: GateGuard<'a>,
}

/// A request as the committer reads it.
pub(super) struct TakenRequest {
    /// Which slot.
    pub(super) slot: usize,
    /// The id that the owner gave to it.
    pub(super) id: u64,
    pub(super) bytes: Vec<u8>,
}

/// What has become of a request that is not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// No committer has seen it, and none will.
    Unseen,
    /// A committer has taken it.
    Taken,
}

impl Handover {
    /// Maps the slots of this file. If `fresh`, initializes them first; the caller must be the only
    /// user of the file then.
    pub(super) fn open(file: &File, fresh: bool) -> io::Result<Self> {
        let bytes = size_of::<Slots>() as u64;
        if fresh {
            file.set_len(0)?;
            rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
        } else if file.metadata()?.len() < bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too short"));
        }
        let slots = map_shared(file, size_of::<Slots>())?.cast();
        let handover = Self { slots, pid: std::process::id() };
        if fresh {
            handover.slots().iter().try_for_each(|slot| slot.mutex.make())?;
        }
        Ok(handover)
    }

    /// Posts a request of so many writes with an id of its own. Returns `None` if it is too long or
    /// no slot is free.
    pub(super) fn post(&self, id: u64, request: &[u8], writes: usize) -> Option<Posted<'_>> {
        let len = u32::try_from(request.len()).ok().filter(|_| request.len() <= REQUEST)?;
        let writes = u32::try_from(writes).ok()?;
        self.slots().iter().find_map(|slot| {
            let owner = slot.mutex.try_lock(self.pid)?;
            if !matches!(slot.state.load(Ordering::Acquire), FREE | DONE) {
                // Invariant 3.
                return None;
            }
            // SAFETY: we own the slot and it is free, so no committer reads it (invariant 1); the
            // length was checked.
            unsafe {
                let area = slot.request.get().cast::<u8>();
                std::ptr::copy_nonoverlapping(request.as_ptr(), area, request.len());
            }
            slot.request_len.store(len, Ordering::Relaxed);
            slot.writes.store(writes, Ordering::Relaxed);
            slot.id.store(id, Ordering::Relaxed);
            slot.state.store(POSTED, Ordering::Release);
            Some(Posted { slot, _owner: owner })
        })
    }

    /// Takes all requests that are posted, and those of committers that have died. The caller is
    /// inside the durable mutex.
    pub(super) fn take(&self) -> Vec<TakenRequest> {
        let mut taken = Vec::new();
        for (at, slot) in self.slots().iter().enumerate() {
            let state = &slot.state;
            let swapped =
                state.compare_exchange(POSTED, TAKEN, Ordering::Acquire, Ordering::Acquire);
            if !matches!(swapped, Ok(_) | Err(TAKEN)) {
                continue;
            }
            let len = slot.request_len.load(Ordering::Relaxed) as usize;
            let mut bytes = vec![0; len.min(REQUEST)];
            // SAFETY: the owner does not change a slot that is taken (invariant 1).
            unsafe {
                let area = slot.request.get().cast::<u8>();
                std::ptr::copy_nonoverlapping(area, bytes.as_mut_ptr(), bytes.len());
            }
            taken.push(TakenRequest { slot: at, id: slot.id.load(Ordering::Relaxed), bytes });
        }
        taken
    }

    /// Replies to a request that the caller has taken; `reply` has at most [`REPLY`] bytes.
    pub(super) fn reply(&self, slot: usize, reply: &[u8]) {
        let Some(slot) = self.slots().get(slot) else { return };
        let reply = &reply[..reply.len().min(REPLY)];
        // SAFETY: the owner does not read the reply before the slot is done (invariant 1).
        unsafe {
            let area = slot.reply.get().cast::<u8>();
            std::ptr::copy_nonoverlapping(reply.as_ptr(), area, reply.len());
        }
        slot.reply_len.store(u32::try_from(reply.len()).unwrap_or(0), Ordering::Relaxed);
        slot.state.store(DONE, Ordering::Release);
    }

    /// Counts the writes of the requests that are posted or taken.
    pub(super) fn pending_writes(&self) -> usize {
        let pending =
            |slot: &&HandoverSlot| matches!(slot.state.load(Ordering::Acquire), POSTED | TAKEN);
        let writes = |slot: &HandoverSlot| slot.writes.load(Ordering::Relaxed) as usize;
        self.slots().iter().filter(pending).map(writes).sum()
    }

    fn slots(&self) -> &Slots {
        // SAFETY: mapped for as long as the value lives, large enough by the check in `open`, and
        // aligned because mappings start at a page of the machine. Every bit pattern is valid; what
        // changes under us are atomics and cells.
        unsafe { self.slots.as_ref() }
    }
}

impl Posted<'_> {
    /// Returns the reply, if there is one.
    pub(super) fn reply(&self) -> Option<Vec<u8>> {
        if self.slot.state.load(Ordering::Acquire) != DONE {
            return None;
        }
        let len = self.slot.reply_len.load(Ordering::Relaxed) as usize;
        let mut bytes = vec![0; len.min(REPLY)];
        // SAFETY: the committer does not change a slot that is done (invariant 1).
        unsafe {
            let area = self.slot.reply.get().cast::<u8>();
            std::ptr::copy_nonoverlapping(area, bytes.as_mut_ptr(), bytes.len());
        }
        Some(bytes)
    }

    /// Stops waiting.
    pub(super) fn withdraw(self) -> Withdrawal {
        let state = &self.slot.state;
        match state.compare_exchange(POSTED, FREE, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Withdrawal::Unseen,
            Err(_) => Withdrawal::Taken,
        }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.slots.as_ptr().cast(), size_of::<Slots>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_processes() -> (Handover, Handover) {
        let file = tempfile::tempfile().unwrap();
        let one = Handover::open(&file, true).unwrap();
        // As another process maps it.
        (one, Handover::open(&file, false).unwrap())
    }

    #[test]
    fn a_request_is_taken_and_its_reply_comes_back() {
        let (owner, committer) = two_processes();
        let posted = owner.post(7, b"request", 3).unwrap();
        assert_eq!((posted.reply(), committer.pending_writes()), (None, 3));
        let taken = committer.take();
        assert_eq!((taken.len(), taken[0].id, taken[0].bytes.as_slice()), (1, 7, &b"request"[..]));
        // The next committer reads the same, if this one has died.
        assert_eq!(committer.take()[0].bytes, b"request");
        committer.reply(taken[0].slot, b"reply");
        assert!(committer.take().is_empty());
        assert_eq!(posted.reply().unwrap(), b"reply");
        drop(posted);
        assert_eq!(committer.pending_writes(), 0);
    }

    #[test]
    fn a_request_can_be_withdrawn_until_it_is_taken() {
        let (owner, committer) = two_processes();
        assert_eq!(owner.post(1, b"one", 1).unwrap().withdraw(), Withdrawal::Unseen);
        assert!(committer.take().is_empty());
        let posted = owner.post(2, b"two", 1).unwrap();
        let taken = committer.take();
        assert_eq!(posted.withdraw(), Withdrawal::Taken);
        // The slot is passed over until the committer has replied, and then used again.
        let next = owner.post(3, b"three", 1).unwrap();
        assert_ne!(committer.take()[1].slot, taken[0].slot);
        committer.reply(taken[0].slot, b"");
        assert_eq!(owner.post(4, b"four", 1).map(|_| ()), Some(()));
        drop(next);
    }

    #[test]
    fn what_is_too_long_or_too_much_is_not_posted() {
        let (owner, _committer) = two_processes();
        assert!(owner.post(1, &vec![0; REQUEST + 1], 1).is_none());
        let all: Vec<_> =
            (0..SLOTS).map(|id| owner.post(id as u64, &vec![0; REQUEST], 1)).collect();
        assert!(all.iter().all(Option::is_some) && owner.post(99, b"x", 1).is_none());
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Handover::open(&file, false).err().unwrap().kind(), io::ErrorKind::InvalidData);
    }
}
