//! Counts allocations, and the heap bytes that are in use. Knows sizes as they were requested, not
//! what the allocator adds to them.
#![expect(unsafe_code, reason = "an allocator cannot be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MADE: AtomicUsize = AtomicUsize::new(0);

/// How many bytes are allocated and not freed, on all threads together.
pub(crate) fn live_bytes() -> usize {
    LIVE.load(Ordering::SeqCst)
}

/// How many allocations were made, on all threads together.
pub(crate) fn allocations() -> usize {
    MADE.load(Ordering::SeqCst)
}

/// The system's allocator, with counters beside it.
struct Counting;

fn count(size: usize) {
    LIVE.fetch_add(size, Ordering::Relaxed);
    MADE.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call goes to `System` unchanged, and its result is returned unchanged; the counters
// touch neither memory nor layouts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: our caller keeps the promises of `GlobalAlloc::alloc`, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: our caller got `memory` from us with this layout, and we got it from `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as for `dealloc`; our caller promises that `size` is a legal one.
        unsafe { System.realloc(memory, layout, size) }
    }
}
