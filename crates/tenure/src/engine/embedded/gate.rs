//! The gate before LMDB's writer lock: one process at a time, with a timeout, and with the pid of
//! the process inside.
//!
//! LMDB's own writer lock waits without limit. A process that is stopped inside a transaction (by
//! `SIGSTOP`, by a debugger) would block every other process for ever, and none of them could name
//! it. So every write transaction first locks a mutex of ours, which has a timeout and a record of
//! its holder. LMDB's lock of the table of readers has no timeout either; a read transaction holds
//! it while it takes its place in that table, so the beginning of a read of the synced environment
//! has a mutex of ours too.
//!
//! The file `guard` of a file set is one page that every process of the store maps as shared
//! memory: a magic number, counters, and robust, process-shared pthread mutexes: one for each of
//! the two LMDB environments, and one for the readers of the synced one. Behind them is the board
//! for writes of cells.
//!
//! # States of a mutex
//!
//! ```text
//! free ── lock ──> held by a thread ── unlock ──> free
//!                   │ the thread ends, or its process dies
//!                   ▼
//!                  owner dead ── next lock: EOWNERDEAD, marked consistent ──> held
//! ```
//!
//! A waiter either holds the mutex in the end or gets [`GateBusy`] after its timeout.
//!
//! # Invariants, and why this is correct
//!
//! 1. **A page with the magic number is whole.** One process makes it, under the setup lock, in a
//!    directory that is not in its final place yet, and stores `magic` last. `MAGIC` contains the
//!    size of the mutex and the C library, so a build whose mutex looks different refuses the page.
//! 2. **Mutual exclusion is that of the mutex.** Every write transaction and every change of the
//!    map happens while a [`GateGuard`] exists, and a `GateGuard` cannot leave its thread.
//! 3. **A holder that dies leaves nothing to repair.** All it can leave is an unfinished
//!    transaction, which LMDB discards. So `EOWNERDEAD` is followed by `pthread_mutex_consistent`.
//! 4. **`holder` decides nothing.** It is written after the lock and cleared before the unlock, for
//!    error messages; a reader may see the pid of a process that has left meanwhile.
//! 5. **Counters only grow.** They are changed without a transaction, so a step that is rolled back
//!    may leave them ahead of the rows, never behind. Ahead costs a gap in the numbers.
//! 6. **The order is `Locks` before `Durable`.** A step inside `Locks` may enter `Durable` to
//!    reserve fences, and nothing enters `Locks` from inside `Durable`. `Readers` comes last:
//!    nothing is entered from inside it.
//!
//! The kernel finds the owner of a robust mutex by its thread id, which means nothing in another
//! pid namespace: `files::check_namespace` refuses to share a file set between two of them.

#![allow(unsafe_code, reason = "a mutex in shared memory has no safe wrapper; each use is argued")]

use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::contract::SessionId;
#[cfg(target_env = "gnu")]
use crate::time::steady_deadline;
#[cfg(not(target_env = "gnu"))]
use crate::time::{Clock, SystemClock};

/// How the page and the rows look: the format number of a file set. Differs where a mutex looks
/// different.
const MAGIC: u64 = 0x7465_6e75_7265_0005
    ^ ((size_of::<libc::pthread_mutex_t>() as u64) << 16)
    ^ if cfg!(target_env = "musl") { 1 << 32 } else { 0 };

/// The size of the page's file, in bytes.
const SIZE: usize = 4096;

/// How often a busy mutex is tried before the thread sleeps on it, and how many spin hints lie
/// between two tries: together a few transactions, and less than it takes to be woken.
const SPINS: u32 = 64;
const SPIN_HINTS: u32 = 8;

/// How long `try_enter` sleeps on a busy mutex before the caller hands its step to the worker
/// thread: less than it costs to wake that thread.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// What a mutex protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Environment {
    /// Slots, queues and tombstones; not synced.
    Locks,
    /// Cells, jobs and the reserve of fences; synced.
    Durable,
    /// The table of readers of the synced environment.
    Readers,
}

#[repr(C)]
struct SharedPage {
    /// Stored last: a page without it was never finished.
    magic: AtomicU64,
    counters: Counters,
    mutexes: [GateMutex; 3],
    board: CellBoard,
}

/// Numbers that all processes of the store share, and that only grow.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// The latest number of an arrival, of a long queue or of many holders.
    pub(super) arrivals: AtomicU64,
    /// Every new fence is greater: at least the largest fence of any slot that was deleted.
    pub(super) floor: AtomicU64,
    /// Fences up to here are reserved in the synced environment.
    pub(super) reserved: AtomicU64,
    /// How large the map of the lock environment is.
    pub(super) map_size: AtomicU64,
    /// Not 0 once the file set was found damaged: no process may go on using it.
    pub(super) closed: AtomicU64,
    /// How many tombstones were ever written; while it is 0 no step looks for one.
    pub(super) tombs: AtomicU64,
}

/// What processes tell each other about writes of cells (`commit.rs`, `cell_watches.rs`).
#[repr(C)]
#[derive(Debug)]
pub(super) struct CellBoard {
    /// Grows when a process has left the durable mutex. Processes that wait for that sleep on it.
    rounds: AtomicU32,
    /// 1 from before a commit until its signals were sent.
    pub(super) unsignalled: AtomicU32,
    /// Grows when a process has changed the ranges that it watches.
    pub(super) registrations: AtomicU32,
    /// Each watching process has one of these, by its id: how many datagrams did not reach it. Two
    /// processes may share one.
    missed: [AtomicU32; MISSED],
}

/// How many counters of missed datagrams there are.
const MISSED: usize = 128;

/// A robust, process-shared mutex in shared memory.
#[repr(C)]
pub(super) struct GateMutex {
    raw: UnsafeCell<libc::pthread_mutex_t>,
    /// The pid of the holder, for error messages; 0 if the mutex is free.
    holder: AtomicU32,
}

const _: () = assert!(size_of::<SharedPage>() <= SIZE);

/// The mapped page.
pub(super) struct Gate {
    page: NonNull<SharedPage>,
    pid: u32,
}

// SAFETY: the page is shared memory that outlives the value; all its fields are atomics or mutexes
// made to be used by several processes, hence also by several threads.
unsafe impl Send for Gate {}
// SAFETY: as above.
unsafe impl Sync for Gate {}

/// The gate was not entered: another thread or process is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GateBusy {
    /// The process inside, if it has recorded its pid.
    pub(super) pid: Option<u32>,
}

impl Gate {
    /// Maps the page of this file. If `fresh`, initializes it first; the caller must be the only
    /// user of the file then.
    pub(super) fn open(file: &File, fresh: bool) -> io::Result<Self> {
        if fresh {
            file.set_len(0)?;
            rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, SIZE as u64)?;
        } else if file.metadata()?.len() < SIZE as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the page is too short"));
        }
        let gate = Self { page: map_shared(file, SIZE)?.cast(), pid: std::process::id() };
        if fresh {
            gate.page().mutexes.iter().try_for_each(GateMutex::make)?;
            // Release: a process that reads the magic number sees the mutexes that were made before
            // it.
            gate.page().magic.store(MAGIC, Ordering::Release);
        } else if gate.page().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the page has another magic number",
            ));
        }
        Ok(gate)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.page().counters
    }

    pub(super) fn board(&self) -> &CellBoard {
        &self.page().board
    }

    /// Enters if the gate is free now.
    pub(super) fn enter_now(&self, environment: Environment) -> Option<GateGuard<'_>> {
        self.mutex(environment).try_lock(self.pid)
    }

    /// Enters if the gate is free, or becomes free within a few transactions.
    pub(super) fn try_enter(&self, environment: Environment) -> Result<GateGuard<'_>, GateBusy> {
        let mutex = self.mutex(environment);
        // A transaction takes a few microseconds, less than a sleep in the kernel and its wake-up.
        for _ in 0..SPINS {
            if let Some(inside) = mutex.try_lock(self.pid) {
                return Ok(inside);
            }
            for _ in 0..SPIN_HINTS {
                std::hint::spin_loop();
            }
        }
        mutex.lock_within(self.pid, SHORT_WAIT).ok_or_else(|| mutex.busy())
    }

    /// Enters, waiting for `limit` at most. Blocks the thread.
    pub(super) fn enter(
        &self,
        environment: Environment,
        limit: Duration,
    ) -> Result<GateGuard<'_>, GateBusy> {
        let mutex = self.mutex(environment);
        match mutex.try_lock(self.pid) {
            Some(inside) => Ok(inside),
            None => mutex.lock_within(self.pid, limit).ok_or_else(|| mutex.busy()),
        }
    }

    /// Returns the process inside the durable mutex, if it has recorded its pid.
    pub(super) fn durable_holder(&self) -> GateBusy {
        self.mutex(Environment::Durable).busy()
    }

    fn mutex(&self, environment: Environment) -> &GateMutex {
        &self.page().mutexes[environment as usize]
    }

    fn page(&self) -> &SharedPage {
        // SAFETY: mapped for as long as the value lives, large enough by the check in `open`, and
        // aligned because mappings start at a page of the machine. Every bit pattern is a valid
        // `SharedPage`; what changes under us are atomics and cells.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), SIZE) };
    }
}

/// Maps the first bytes of a file as memory that all processes share.
pub(super) fn map_shared(file: &File, bytes: usize) -> io::Result<NonNull<libc::c_void>> {
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
    let at =
        unsafe { mmap(std::ptr::null_mut(), bytes, flags, MapFlags::SHARED, file.as_fd(), 0) }?;
    NonNull::new(at).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl CellBoard {
    /// Returns the number of the current round, for [`wait_for_round`](Self::wait_for_round).
    pub(super) fn round(&self) -> u32 {
        self.rounds.load(Ordering::SeqCst)
    }

    /// Ends a round: wakes all processes that wait for it.
    pub(super) fn end_round(&self) {
        self.rounds.fetch_add(1, Ordering::SeqCst);
        let all = i32::MAX.cast_unsigned();
        let _ = futex::wake(&self.rounds, futex::Flags::empty(), all);
    }

    /// Blocks the thread until this round has ended, for `limit` at most.
    pub(super) fn wait_for_round(&self, round: u32, limit: Duration) {
        let limit = Timespec::try_from(limit).ok();
        // Ends early if the round has ended already, or by a signal: the caller checks again.
        let _ = futex::wait(&self.rounds, futex::Flags::empty(), round, limit.as_ref());
    }

    /// Returns the counter of missed datagrams of the process with this id.
    pub(super) fn missed(&self, id: SessionId) -> &AtomicU32 {
        let at = id.as_u128() % MISSED as u128;
        &self.missed[usize::try_from(at).unwrap_or(0)]
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("counters", self.counters()).finish_non_exhaustive()
    }
}

impl GateMutex {
    /// Initializes the mutex: process-shared and robust.
    pub(super) fn make(&self) -> io::Result<()> {
        // SAFETY: no other process uses this page yet (see `Gate::open`), and zeroed attributes are
        // initialised before use and destroyed after it.
        unsafe {
            let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
            check(libc::pthread_mutexattr_init(&raw mut attributes))?;
            let at = &raw mut attributes;
            check(libc::pthread_mutexattr_setpshared(at, libc::PTHREAD_PROCESS_SHARED))?;
            check(libc::pthread_mutexattr_setrobust(at, libc::PTHREAD_MUTEX_ROBUST))?;
            let made = check(libc::pthread_mutex_init(self.raw.get(), at));
            libc::pthread_mutexattr_destroy(at);
            made
        }
    }

    /// Locks the mutex if it is free.
    pub(super) fn try_lock(&self, pid: u32) -> Option<GateGuard<'_>> {
        // SAFETY: the mutex was made before the page got its magic number.
        let answer = unsafe { libc::pthread_mutex_trylock(self.raw.get()) };
        self.entered(answer, pid)
    }

    fn lock_within(&self, pid: u32, limit: Duration) -> Option<GateGuard<'_>> {
        // SAFETY: as in `try_lock`; the instant is a plain value.
        let answer = unsafe { lock_until(self.raw.get(), limit) };
        self.entered(answer, pid)
    }

    fn entered(&self, answer: libc::c_int, pid: u32) -> Option<GateGuard<'_>> {
        match answer {
            0 => {}
            // Its owner died inside: invariant 3.
            // SAFETY: we own the mutex, which is what the call asks for.
            libc::EOWNERDEAD => unsafe {
                libc::pthread_mutex_consistent(self.raw.get());
            },
            _ => return None,
        }
        self.holder.store(pid, Ordering::Relaxed);
        Some(GateGuard { mutex: self, _thread: PhantomData })
    }

    fn busy(&self) -> GateBusy {
        let pid = self.holder.load(Ordering::Relaxed);
        GateBusy { pid: (pid != 0).then_some(pid) }
    }
}

/// Proof of being alone inside the gate; dropping it unlocks the mutex. Stays on its thread.
pub(super) struct GateGuard<'a> {
    mutex: &'a GateMutex,
    _thread: PhantomData<*const ()>,
}

#[cfg(any(test, feature = "test-util"))]
impl GateGuard<'_> {
    /// Stops this process while it is inside the gate.
    #[allow(clippy::unused_self, reason = "only the holder may stop there")]
    pub(super) fn stop(&self) {
        // SAFETY: sends a signal that has no handler. To this thread, so that it stops here.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        self.mutex.holder.store(0, Ordering::Relaxed);
        // SAFETY: this thread locked it, and `GateGuard` cannot leave the thread.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}

/// Locks with a timeout on the monotonic clock.
#[cfg(target_env = "gnu")]
unsafe fn lock_until(mutex: *mut libc::pthread_mutex_t, limit: Duration) -> libc::c_int {
    unsafe extern "C" {
        // In glibc since 2.30; the `libc` crate does not have it.
        fn pthread_mutex_clocklock(
            mutex: *mut libc::pthread_mutex_t,
            clock: libc::clockid_t,
            until: *const libc::timespec,
        ) -> libc::c_int;
    }
    let until = timespec(steady_deadline(limit));
    // SAFETY: the caller's promise about the mutex; the instant lives through the call.
    unsafe { pthread_mutex_clocklock(mutex, libc::CLOCK_MONOTONIC, &raw const until) }
}

/// Locks with a timeout on the wall clock: other C libraries have no clock to choose.
#[cfg(not(target_env = "gnu"))]
unsafe fn lock_until(mutex: *mut libc::pthread_mutex_t, limit: Duration) -> libc::c_int {
    let until = timespec(Duration::from_micros(SystemClock.wall_micros()) + limit);
    // SAFETY: the caller's promise about the mutex; the instant lives through the call.
    unsafe { libc::pthread_mutex_timedlock(mutex, &raw const until) }
}

fn timespec(since_origin: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(since_origin.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: since_origin.subsec_nanos().into(),
    }
}

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(answer)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(10);

    fn page() -> (File, Gate) {
        let file = tempfile::tempfile().unwrap();
        let gate = Gate::open(&file, true).unwrap();
        (file, gate)
    }

    #[test]
    fn the_gate_keeps_a_second_process_out_and_names_the_first() {
        let (file, one) = page();
        // As another process maps it.
        let other = Gate::open(&file, false).unwrap();
        let inside = one.try_enter(Environment::Locks).expect("it is empty");
        let busy = std::thread::scope(|scope| {
            let tries = || {
                let tried = other.try_enter(Environment::Locks).err();
                assert!(other.try_enter(Environment::Durable).is_ok(), "another environment");
                (tried, other.enter(Environment::Locks, SOON).err())
            };
            scope.spawn(tries).join().unwrap()
        });
        let by_us = Some(GateBusy { pid: Some(std::process::id()) });
        assert_eq!(busy, (by_us, by_us));
        drop(inside);
        assert!(other.enter(Environment::Locks, SOON).is_ok());
    }

    #[test]
    fn the_gate_of_a_thread_that_ended_inside_opens_again() {
        let (_file, gate) = page();
        std::thread::scope(|scope| {
            let dies = || std::mem::forget(gate.try_enter(Environment::Locks).expect("empty"));
            scope.spawn(dies).join().unwrap();
        });
        drop(gate.try_enter(Environment::Locks).expect("the kernel has let go of it"));
        assert!(gate.enter(Environment::Locks, SOON).is_ok(), "and it is whole again");
    }

    #[test]
    fn a_page_that_was_never_finished_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE as u64).unwrap();
        assert_eq!(Gate::open(&file, false).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
