//! An allocator that counts, for tests of what must not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator with a counter:
/// `#[global_allocator] static ALLOCATOR: Counting = Counting::new();`.
#[derive(Debug)]
pub struct Counting(AtomicUsize);

impl Counting {
    /// A counter at zero.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Counting {
        Counting(AtomicUsize::new(0))
    }

    /// Allocations so far, of all threads.
    pub fn allocations(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

// SAFETY: every call is passed on to the system's allocator; calls are only counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}
