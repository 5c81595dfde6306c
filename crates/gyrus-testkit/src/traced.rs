//! An allocator that says where allocations come from, for tests of code that works on top of other people's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// The system's allocator, which can trace the allocations of a thread:
/// `#[global_allocator] static ALLOCATOR: Traced = Traced::new();`.
#[derive(Debug)]
pub struct Traced(Mutex<Vec<Backtrace>>);

thread_local! {
    /// Whether this thread's allocations are traced. Off while one is, since that allocates too.
    static ON: Cell<bool> = const { Cell::new(false) };
}

impl Traced {
    /// An allocator that traces nothing yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Traced {
        Traced(Mutex::new(Vec::new()))
    }

    /// Traces this thread's allocations from now on. One thread at a time may be traced, and it must not take
    /// backtraces of its own: the standard library takes one after the other.
    pub fn start(&self) {
        ON.set(true);
    }

    /// Stops, and says where this thread allocated meanwhile.
    pub fn stop(&self) -> Vec<Origin> {
        ON.set(false);
        let caught = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        caught.into_iter().map(Origin).collect()
    }

    fn catch(&self) {
        if ON.replace(false) {
            // Symbols are looked up when somebody asks.
            let trace = Backtrace::force_capture();
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(trace);
            ON.set(true);
        }
    }
}

// SAFETY: every call is passed on to the system's allocator; traces are only taken beside it, and what that allocates
// is not traced, so that it ends.
unsafe impl GlobalAlloc for Traced {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.catch();
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Where an allocation came from.
#[derive(Debug)]
pub struct Origin(Backtrace);

impl Origin {
    /// Functions that were running, innermost first, those of this crate left out.
    pub fn functions(&self) -> Vec<String> {
        functions(&self.0.to_string())
    }
}

/// Functions of a trace as [`Backtrace`] shows it: `  12: function`, and below it `at file:line`.
fn functions(trace: &str) -> Vec<String> {
    let name = |line: &str| {
        let (number, name) = line.trim_start().split_once(": ")?;
        number.parse::<usize>().ok()?;
        (crate_of(name) != "gyrus_testkit").then(|| name.to_owned())
    };
    trace.lines().filter_map(name).collect()
}

/// The crate that a function is of: of a method, the crate of its type.
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
    fn functions_are_of_crates() {
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
