//! Facts about the calling process and thread that no argument carries: how often the process was
//! forked, and whether the thread is blocked on a future.
//!
//! **Forks.** A child that was forked without `exec` has its parent's memory, but none of its
//! threads: no keeper renews, no task reads a socket, and a mutex that another thread held stays
//! locked for ever. [`forks`] is a counter that a handler of `pthread_atfork` increments in the
//! child. Whatever was made in a process remembers the count ([`Birth`]) and compares it, one
//! atomic load, **before** it takes a lock, writes to a socket or removes a file.
//!
//! **Blocked threads.** [`blocking`] marks the thread while it sleeps until a future is ready. The
//! thread may be the one that runs the tasks of an async runtime; then nothing that this future
//! waits for may be a task there. Engines ask [`is_blocked`] before they use the caller's runtime.
#![allow(unsafe_code, reason = "pthread_atfork has no safe wrapper; its one use is argued")]

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between this process and the one that loaded this code.
pub(crate) fn forks() -> u32 {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        extern "C" fn in_the_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the handler only increments an atomic, which is safe in a child of any process.
        // It is never unregistered: this code lives as long as the process.
        unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// The process in which a value was made. Two bytes: there may be many thousands of holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth(u16);

impl Birth {
    /// This process.
    pub(crate) fn here() -> Self {
        Self::after(forks())
    }

    /// Whether the value was inherited by a fork: its threads are another process's.
    pub(crate) fn is_inherited(self) -> bool {
        // The handler is installed since `here`. Only chains of 65,536 forks look like none.
        self != Self::after(FORKS.load(Ordering::Relaxed))
    }

    #[allow(clippy::cast_possible_truncation, reason = "compared only with itself")]
    fn after(forks: u32) -> Self {
        Self(forks as u16)
    }
}

thread_local! {
    static BLOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread sleeps while the future that it runs has nothing to do.
pub(crate) fn is_blocked() -> bool {
    BLOCKED.get()
}

/// Does work that blocks this thread on a future.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            BLOCKED.set(self.0);
        }
    }
    let _restore = Restore(BLOCKED.replace(true));
    work()
}
