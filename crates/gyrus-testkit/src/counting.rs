//! A counting allocator, for tests that code does not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system allocator with a counter:
/// `#[global_allocator] static ALLOCATOR: Counting = Counting::new();`.
#[derive(Debug)]
pub struct Counting(AtomicUsize);

impl Counting {
    /// A counter at zero.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Counting {
        Counting(AtomicUsize::new(0))
    }

    /// Allocations of all threads so far.
    pub fn allocations(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

// SAFETY: every call is forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}
