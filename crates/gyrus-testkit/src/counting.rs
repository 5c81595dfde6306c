//! A counting allocator, for tests that code does not allocate, or not too much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system allocator with counters:
/// `#[global_allocator] static ALLOCATOR: Counting = Counting::new();`.
#[derive(Debug)]
pub struct Counting {
    allocations: AtomicUsize,
    bytes: AtomicUsize,
    peak: AtomicUsize,
}

impl Counting {
    /// Counters at zero.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Counting {
        let (allocations, bytes, peak) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Counting { allocations, bytes, peak }
    }

    /// Allocations of all threads so far.
    pub fn allocations(&self) -> usize {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Bytes that were allocated and not freed. What the system's allocator keeps of freed memory does not count.
    pub fn live(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The most bytes that `run` has allocated at once, beside those allocated before.
    pub fn peak<T>(&self, run: impl FnOnce() -> T) -> (T, usize) {
        let before = self.live();
        self.peak.store(before, Ordering::Relaxed);
        let result = run();
        (result, self.peak.load(Ordering::Relaxed) - before)
    }

    fn count(&self, bytes: usize) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    // Of large buffers the system does not touch the pages.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}
