//! An allocator that records backtraces, for tests that must tell our allocations from those of dependencies.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// The system allocator, which can trace the allocations of a thread:
/// `#[global_allocator] static ALLOCATOR: Traced = Traced::new();`.
#[derive(Debug)]
pub struct Traced(Mutex<Vec<Backtrace>>);

thread_local! {
    /// Whether the allocations of this thread are traced. Off while a backtrace is taken, because that allocates.
    static ON: Cell<bool> = const { Cell::new(false) };
}

impl Traced {
    /// An allocator with tracing off.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Traced {
        Traced(Mutex::new(Vec::new()))
    }

    /// Starts to trace the allocations of this thread. Only one thread may be traced at a time, and it must not take
    /// backtraces itself: the standard library holds a lock while it takes one.
    pub fn start(&self) {
        ON.set(true);
    }

    /// Stops tracing and returns the origins of the allocations.
    pub fn stop(&self) -> Vec<Origin> {
        ON.set(false);
        let caught = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        caught.into_iter().map(Origin).collect()
    }

    fn catch(&self) {
        if ON.replace(false) {
            // Symbols are resolved when the trace is printed.
            let trace = Backtrace::force_capture();
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(trace);
            ON.set(true);
        }
    }
}

// SAFETY: every call is forwarded to the system allocator. Tracing is off while a backtrace is taken, so it does not
// recurse.
unsafe impl GlobalAlloc for Traced {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.catch();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The origin of an allocation.
#[derive(Debug)]
pub struct Origin(Backtrace);

impl Origin {
    /// The functions of the backtrace, innermost first, without those of this crate.
    pub fn functions(&self) -> Vec<String> {
        functions(&self.0.to_string())
    }
}

/// Parses the display form of a [`Backtrace`]: `  12: function`, then `at file:line`.
fn functions(trace: &str) -> Vec<String> {
    let name = |line: &str| {
        let (number, name) = line.trim_start().split_once(": ")?;
        number.parse::<usize>().ok()?;
        (crate_of(name) != "gyrus_testkit").then(|| name.to_owned())
    };
    trace.lines().filter_map(name).collect()
}

/// The crate of a function; for a method, the crate of its type.
pub fn crate_of(function: &str) -> &str {
    let path = function.trim_start_matches(['<', '&', '*', '[', '(']);
    let path = ["mut ", "const ", "dyn "].iter().fold(path, |path, word| path.trim_start_matches(word));
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
    &path[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crate_of_finds_the_crate_of_functions_and_methods() {
        let crates = [
            ("wgpu_core::device::queue::Queue::submit", "wgpu_core"),
            ("<gyrus_gpu::Backend as gyrus_kernels::Chain>::submit", "gyrus_gpu"),
            ("<alloc::vec::Vec<gyrus_gpu::Flight>>::push", "alloc"),
            ("<&mut dyn gyrus::Engine as core::fmt::Debug>::fmt", "gyrus"),
            ("main", "main"),
            ("__rust_alloc", "__rust_alloc"),
        ];
        for (function, of) in crates {
            assert_eq!(crate_of(function), of, "{function}");
        }
        let trace = "   0: gyrus_testkit::traced::Traced::catch\n             at ./traced.rs:1:2\n   1: a::b\n  \
                     12: <c::D<T> as e::F>::g\n             at /x/y: z.rs:3:4\n";
        assert_eq!(functions(trace), ["a::b", "<c::D<T> as e::F>::g"]);
    }
}
