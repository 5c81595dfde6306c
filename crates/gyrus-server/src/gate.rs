//! The bounded queue: how many sequences are in the server, running or waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts sequences. Those beyond its capacity are refused before any work.
#[derive(Debug)]
pub(crate) struct Gate {
    capacity: usize,
    taken: AtomicUsize,
}

/// A place for some sequences, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    gate: Arc<Gate>,
    sequences: usize,
}

impl Gate {
    pub(crate) fn new(capacity: usize) -> Arc<Gate> {
        Arc::new(Gate { capacity: capacity.max(1), taken: AtomicUsize::new(0) })
    }

    pub(crate) fn is_full(&self) -> bool {
        self.taken() >= self.capacity
    }

    /// The most sequences that can be in the server at once.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// Places for some sequences, if there are enough.
    pub(crate) fn enter(self: &Arc<Gate>, sequences: usize) -> Option<Ticket> {
        let fits = |taken: usize| Some(taken + sequences).filter(|taken| *taken <= self.capacity);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        Some(Ticket { gate: Arc::clone(self), sequences })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.gate.taken.fetch_sub(self.sequences, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_and_given_back() {
        let gate = Gate::new(3);
        let two = gate.enter(2).unwrap();
        assert!(gate.enter(2).is_none());
        let one = gate.enter(1).unwrap();
        assert!(gate.is_full());
        drop(two);
        assert_eq!(gate.taken(), 1);
        drop(one);
        assert_eq!(gate.taken(), 0);
    }
}
