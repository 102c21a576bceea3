//! Counts heap bytes. Knows sizes as they were asked for, not what the allocator adds to them.
#![expect(unsafe_code, reason = "an allocator cannot be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counting costs a shared write for each allocation, so it is off while times are measured.
static ON: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Runs `work` and returns how many more bytes live after it than before, on all threads together.
pub(crate) fn grown_by<T>(work: impl FnOnce() -> T) -> (T, i64) {
    LIVE.store(0, Ordering::SeqCst);
    ON.store(true, Ordering::SeqCst);
    let output = work();
    ON.store(false, Ordering::SeqCst);
    (output, LIVE.load(Ordering::SeqCst))
}

/// How many allocations there were since counting began, on all threads together.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Begins to count allocations.
pub(crate) fn start_counting() -> u64 {
    ON.store(true, Ordering::SeqCst);
    MADE.load(Ordering::SeqCst)
}

/// Ends counting. Returns how many allocations were made since it began with `before`.
pub(crate) fn stop_counting(before: u64) -> u64 {
    ON.store(false, Ordering::SeqCst);
    MADE.load(Ordering::SeqCst) - before
}

/// The system's allocator, with a counter beside it.
struct Counting;

// SAFETY: every call goes to `System` unchanged, and its answer goes back unchanged; the counter
// beside it touches neither memory nor layouts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: our caller keeps the promises of `GlobalAlloc::alloc`, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: our caller got `memory` from us with this layout, and we got it from `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as for `dealloc`; our caller promises that `size` is a legal one.
        unsafe { System.realloc(memory, layout, size) }
    }
}

fn count(more: usize, less: usize) {
    if ON.load(Ordering::Relaxed) {
        MADE.fetch_add(u64::from(more > 0), Ordering::Relaxed);
        // No allocation is larger than `isize::MAX`, so neither number wraps.
        LIVE.fetch_add(more.cast_signed() as i64, Ordering::Relaxed);
        LIVE.fetch_sub(less.cast_signed() as i64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_again_does_not_count() {
        // Other tests run beside this one, so the figure is only about right.
        let (kept, grown) = grown_by(|| {
            drop(vec![0_u8; 50_000_000]);
            vec![0_u8; 10_000_000]
        });
        assert!((9_000_000..11_000_000).contains(&grown), "{grown} for {}", kept.len());
    }
}
