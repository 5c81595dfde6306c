//! Faults of the fake backend, at random or at a call that a test names, and counts of what its device was given.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gyrus_kernels::{BackendError, Work};

/// The text of a panic of the fake backend.
pub(super) const PANIC: &str = "the fake backend panicked";

/// How often the device fails, and in which way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    /// In ten thousand calls that use the device it is lost.
    pub(super) lost: u64,
    /// In ten thousand rows the logits are not finite.
    pub(super) not_finite: u64,
    /// In ten thousand calls the backend panics.
    pub(super) panics: u64,
}

/// Calls that tests make fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Open,
    Extend,
    Start,
    CopyState,
    Close,
    Submit,
    Poll,
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Lost,
    Unsound,
    Panic,
}

#[derive(Debug, thiserror::Error)]
#[error("the fake device was lost")]
pub(super) struct Lost;

/// What all backends of a test were given, and how their next calls fail.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Submissions, and those of them with chunks.
    pub(super) submissions: AtomicUsize,
    pub(super) chunked: AtomicUsize,
    /// Rows of chunks.
    pub(super) chunk_rows: AtomicUsize,
    /// Whether no device can be opened.
    pub(super) is_gone: AtomicBool,
    /// For each call named here, how it fails, in the order in which they come.
    next: Mutex<Vec<(Call, Fault)>>,
}

impl Log {
    /// The next call of this kind fails.
    pub(super) fn fail_next(&self, call: Call, fault: Fault) {
        self.next().push((call, fault));
    }

    /// Whether all calls that were to fail have been made.
    pub(super) fn has_failed(&self) -> bool {
        self.next().is_empty()
    }

    pub(super) fn take(&self, call: Call) -> Option<Fault> {
        let mut next = self.next();
        let at = next.iter().position(|(other, _)| *other == call)?;
        Some(next.remove(at).1)
    }

    pub(super) fn submitted(&self, work: &Work<'_>) {
        self.submissions.fetch_add(1, Ordering::Relaxed);
        if !work.chunks.is_empty() {
            let rows = work.chunks.iter().map(|chunk| chunk.tokens.len()).sum();
            self.chunked.fetch_add(1, Ordering::Relaxed);
            self.chunk_rows.fetch_add(rows, Ordering::Relaxed);
        }
    }

    fn next(&self) -> MutexGuard<'_, Vec<(Call, Fault)>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fault {
    /// Fails in this way.
    pub(super) fn happen(self) -> Result<(), BackendError> {
        match self {
            Fault::Lost => Err(BackendError::device(Lost)),
            Fault::Unsound => Err(BackendError::UnsoundBatch),
            // Without the hook, which would print it each time.
            Fault::Panic => std::panic::resume_unwind(Box::new(PANIC) as Box<dyn Any + Send>),
        }
    }
}
