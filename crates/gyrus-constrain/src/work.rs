//! Work of a compilation: when it must end, and how many run at once.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Error, Limits};

/// Steps between two looks at the clock: a fraction of a millisecond.
const STEPS_PER_LOOK: usize = 1 << 14;

/// The limits of a compilation and the time that it must end at. Loops whose time may grow faster than the source
/// count their steps here, so that a compilation that nobody waits for any longer ends.
pub(crate) struct Work<'a> {
    pub(crate) limits: &'a Limits,
    end: Instant,
    steps: Cell<usize>,
}

impl<'a> Work<'a> {
    /// Work that begins now.
    pub(crate) fn new(limits: &'a Limits) -> Work<'a> {
        Work { limits, end: Instant::now() + limits.compile_time, steps: Cell::new(0) }
    }

    /// Counts steps, and refuses to go on when the time is over.
    pub(crate) fn spend(&self, steps: usize) -> Result<(), Error> {
        let steps = self.steps.get().saturating_add(steps);
        if steps < STEPS_PER_LOOK {
            self.steps.set(steps);
            return Ok(());
        }
        self.steps.set(0);
        if Instant::now() < self.end { Ok(()) } else { Err(self.limits.late()) }
    }
}

/// Counts the compilations that run.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Count>);

#[derive(Default)]
struct Count {
    now: Mutex<usize>,
    fewer: Condvar,
}

/// One of the compilations that run, until it is dropped.
pub(crate) struct Permit(Running);

impl Running {
    /// Waits until fewer than `most` compilations run. `None` if that takes longer than `patience`.
    pub(crate) fn enter(&self, most: usize, patience: Duration) -> Option<Permit> {
        let now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |now: &mut usize| *now >= most;
        let waited = self.0.fewer.wait_timeout_while(now, patience, full);
        let (mut now, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        *now += 1;
        Some(Permit(self.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.0.now.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.0.fewer.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_when_its_time_is_over() {
        let limits = Limits { compile_time: Duration::from_millis(20), ..Limits::default() };
        let work = Work::new(&limits);
        assert_eq!(work.spend(STEPS_PER_LOOK), Ok(()));
        std::thread::sleep(Duration::from_millis(25));
        assert_eq!(work.spend(1), Ok(()), "the clock is read now and then only");
        let late = work.spend(STEPS_PER_LOOK).unwrap_err();
        assert!(matches!(late, Error::Limit { limit: "compile_time", allowed: 20, .. }), "{late}");
    }

    #[test]
    fn no_more_run_than_are_allowed() {
        let (running, short) = (Running::default(), Duration::from_millis(5));
        let first = running.enter(2, short);
        let second = running.enter(2, short);
        assert!(first.is_some() && second.is_some() && running.enter(2, short).is_none());
        // One that waits gets the place of one that ends.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| running.enter(2, Duration::from_secs(60)).is_some());
            drop(first);
            assert!(waits.join().unwrap());
        });
        assert!(running.enter(2, short).is_some(), "it has left, too");
    }
}
