//! The gate before the store's writer lock: one process at a time, with a time limit, and a name
//! for whoever stands in it. Knows shared memory and a robust mutex, not what they protect.
//!
//! LMDB's own writer lock waits without limit. A process that is stopped inside would hold
//! everybody for ever and nobody could say who it is; so everybody passes this gate first.
//!
//! The page is a file that every process of the store maps. Counters that need no transaction stand
//! in it too: they only grow, so a step that is given up may leave them ahead, never behind.

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

#[cfg(target_env = "gnu")]
use crate::time::steady_deadline;
#[cfg(not(target_env = "gnu"))]
use crate::time::{Clock, SystemClock};

/// How the page and the rows look: the format number of a file set. Differs where a mutex looks
/// different.
const MAGIC: u64 = 0x7465_6e75_7265_0002
    ^ ((size_of::<libc::pthread_mutex_t>() as u64) << 16)
    ^ if cfg!(target_env = "musl") { 1 << 32 } else { 0 };

/// How large the page's file is.
const SIZE: usize = 4096;

/// How often a busy gate is tried again before anybody goes to sleep before it, and how long the
/// pauses are: together a few transactions long, and less than it takes to be woken.
const TRIES: u32 = 64;
const PAUSE: u32 = 8;

/// How long a caller stands at a busy gate itself before it leaves the waiting to a worker: less
/// than it costs to wake one.
const LINGER: Duration = Duration::from_micros(100);

/// What is behind the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Environment {
    /// The lock environment.
    Locks,
    /// The synced environment.
    Durable,
}

#[repr(C)]
struct SharedPage {
    /// Written last: a page without it was never finished.
    magic: AtomicU64,
    counters: Counters,
    mutexes: [GateMutex; 2],
}

/// Numbers that all processes of the store share, and that only grow.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// The number of the latest arrival, and of the latest line.
    pub(super) arrivals: AtomicU64,
    /// The largest fence of any slot that was forgotten.
    pub(super) floor: AtomicU64,
    /// Fences up to here are reserved in the synced environment.
    pub(super) reserved: AtomicU64,
    /// How large the map of the lock environment is.
    pub(super) map_size: AtomicU64,
    /// Not 0 once the file set was found damaged: nobody may go on in it.
    pub(super) closed: AtomicU64,
    /// How many tombstones were ever written; while it is 0 nobody needs to look for one.
    pub(super) tombs: AtomicU64,
}

#[repr(C)]
struct GateMutex {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// The process inside, for people; 0 if nobody is.
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

/// Nobody came in: somebody else stands in the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GateBusy {
    /// The process inside, as far as it is known.
    pub(super) pid: Option<u32>,
}

impl Gate {
    /// Maps the page of this file, and makes it first if `fresh`. Only one process at a time may
    /// call this for a file.
    pub(super) fn open(file: &File, fresh: bool) -> io::Result<Self> {
        if fresh {
            file.set_len(0)?;
            rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, SIZE as u64)?;
        } else if file.metadata()?.len() < SIZE as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the page is too short"));
        }
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let at =
            unsafe { mmap(std::ptr::null_mut(), SIZE, flags, MapFlags::SHARED, file.as_fd(), 0) }?;
        let page = NonNull::new(at.cast::<SharedPage>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let gate = Self { page, pid: std::process::id() };
        if fresh {
            gate.page().mutexes.iter().try_for_each(GateMutex::make)?;
            gate.page().magic.store(MAGIC, Ordering::Release);
        } else if gate.page().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the page is not ours"));
        }
        Ok(gate)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.page().counters
    }

    /// Comes in if nobody is inside, or will be out in a moment.
    pub(super) fn try_enter(&self, room: Environment) -> Result<GateGuard<'_>, GateBusy> {
        let gate = self.gate(room);
        for _ in 0..TRIES {
            if let Some(inside) = gate.try_lock(self.pid) {
                return Ok(inside);
            }
            for _ in 0..PAUSE {
                std::hint::spin_loop();
            }
        }
        gate.lock_within(self.pid, LINGER).ok_or_else(|| gate.busy())
    }

    /// Waits for at most this long. Blocks the thread.
    pub(super) fn enter(
        &self,
        room: Environment,
        limit: Duration,
    ) -> Result<GateGuard<'_>, GateBusy> {
        let gate = self.gate(room);
        match gate.try_lock(self.pid) {
            Some(inside) => Ok(inside),
            None => gate.lock_within(self.pid, limit).ok_or_else(|| gate.busy()),
        }
    }

    fn gate(&self, room: Environment) -> &GateMutex {
        &self.page().mutexes[room as usize]
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
        // SAFETY: our own mapping, and nobody borrows from it any more.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), SIZE) };
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("counters", self.counters()).finish_non_exhaustive()
    }
}

impl GateMutex {
    /// Makes the mutex: for several processes, and released by the kernel when its owner dies.
    fn make(&self) -> io::Result<()> {
        // SAFETY: nobody else uses this page yet (see `Gate::open`), and zeroed attributes are
        // initialised before use and destroyed after it.
        unsafe {
            let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
            check(libc::pthread_mutexattr_init(&raw mut attributes))?;
            let at = &raw mut attributes;
            check(libc::pthread_mutexattr_setpshared(at, libc::PTHREAD_PROCESS_SHARED))?;
            check(libc::pthread_mutexattr_setrobust(at, libc::PTHREAD_MUTEX_ROBUST))?;
            let made = check(libc::pthread_mutex_init(self.mutex.get(), at));
            libc::pthread_mutexattr_destroy(at);
            made
        }
    }

    fn try_lock(&self, pid: u32) -> Option<GateGuard<'_>> {
        // SAFETY: the mutex was made before the page got its magic number.
        let answer = unsafe { libc::pthread_mutex_trylock(self.mutex.get()) };
        self.entered(answer, pid)
    }

    fn lock_within(&self, pid: u32, limit: Duration) -> Option<GateGuard<'_>> {
        // SAFETY: as in `try_lock`; the instant is a plain value.
        let answer = unsafe { lock_until(self.mutex.get(), limit) };
        self.entered(answer, pid)
    }

    fn entered(&self, answer: libc::c_int, pid: u32) -> Option<GateGuard<'_>> {
        match answer {
            0 => {}
            // Its owner died inside. What it left half done was a transaction, which LMDB drops.
            // SAFETY: we own the mutex, which is what the call asks for.
            libc::EOWNERDEAD => unsafe {
                libc::pthread_mutex_consistent(self.mutex.get());
            },
            _ => return None,
        }
        self.holder.store(pid, Ordering::Relaxed);
        Some(GateGuard { gate: self, _thread: PhantomData })
    }

    fn busy(&self) -> GateBusy {
        let pid = self.holder.load(Ordering::Relaxed);
        GateBusy { pid: (pid != 0).then_some(pid) }
    }
}

/// Whoever has this is alone inside. Stays on its thread.
pub(super) struct GateGuard<'a> {
    gate: &'a GateMutex,
    _thread: PhantomData<*const ()>,
}

#[cfg(any(test, feature = "test-util"))]
impl GateGuard<'_> {
    /// Stops this process while it is inside.
    #[allow(clippy::unused_self, reason = "only whoever is inside may stop there")]
    pub(super) fn stop(&self) {
        // SAFETY: sends a signal that has no handler. To this thread, so that it stops here.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        self.gate.holder.store(0, Ordering::Relaxed);
        // SAFETY: this thread locked it, and `GateGuard` cannot leave the thread.
        unsafe { libc::pthread_mutex_unlock(self.gate.mutex.get()) };
    }
}

/// Locks within a time, on a clock that nobody sets back.
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

/// Where the C library can only wait on the wall clock.
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
                assert!(other.try_enter(Environment::Durable).is_ok(), "another room");
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
