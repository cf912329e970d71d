//! Counting allocations.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count for each thread. A test binary that makes it its global allocator can show that something allocates nothing:
///
/// ```
/// use adverb_testing::{CountingAllocator, allocations};
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
///
/// let mut numbers = Vec::with_capacity(1);
/// let before = allocations();
/// numbers.push(1);
/// assert_eq!(allocations(), before);
/// numbers.push(2);
/// assert_eq!(allocations(), before + 1);
/// ```
#[derive(Debug)]
pub struct CountingAllocator;

/// How often this thread allocated, or reallocated, so far. Always 0 if [`CountingAllocator`] is not the global allocator.
pub fn allocations() -> u64 {
    COUNT.get()
}

fn count() {
    // At the end of a thread there may be no counter any more.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged, which keeps the promises; the count is a thread-local that allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps to the contract of this very method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps to the contract of this very method.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps to the contract of this very method, and the memory is the system allocator's, as all from here is.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as for `realloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}
