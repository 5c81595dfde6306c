//! Rows that a device computes ahead of the step that samples from them, while masks are computed.
//!
//! A device that computes on its own is given the rows of the next step together with the last one
//! ([`Slots::compute_ahead`]). The step itself, which then only samples, is submitted when all masks have come, and at the
//! latest shortly before the device would have nothing to do. So a late mask makes its own sequence hold, and no other one
//! waits.

use std::time::{Duration, Instant};

use gyrus_kernels::{BackendError, Slots};

use super::scheduler::{Ahead, Scheduler};
use super::sequence::Sequence;

/// How long the host takes to wake.
const WAKE: Duration = Duration::from_micros(200);

/// How long before the rows of a step are complete it is submitted at the latest: the host wakes, and records the kernels
/// that sample and the rows of the step after it. Otherwise the device has nothing to do meanwhile.
#[derive(Debug)]
pub(super) struct Lead(Duration);

impl Default for Lead {
    fn default() -> Lead {
        Lead(Duration::from_micros(200))
    }
}

impl Lead {
    /// A step and the rows after it were recorded in this time. A longer time counts at once, since a late step costs more
    /// than a mask that holds.
    fn recorded(&mut self, time: Duration) {
        self.0 = time.max((self.0 * 15 + time) / 16);
    }

    fn time(&self) -> Duration {
        WAKE + self.0
    }
}

impl Scheduler {
    /// Lets the device compute the rows of the next step, if one of them waits for a mask.
    pub(super) fn compute_ahead(&mut self, slots: &mut dyn Slots) -> Result<(), BackendError> {
        let is_masked = |sequence: &Sequence| sequence.decodes() && sequence.mask.is_some();
        let is_useful = self.limits.asynchronous && self.sequences.iter().flatten().any(is_masked);
        self.ahead = is_useful && slots.compute_ahead()?;
        Ok(())
    }

    /// A step whose rows were computed ahead was recorded since this time, and the rows of the next one if they are.
    pub(super) fn recorded_ahead(&mut self, since: Instant) {
        if self.ahead {
            self.lead.recorded(since.elapsed());
        }
    }

    /// How long the next step can wait for a mask that is missing: until the rows that were computed ahead are nearly
    /// complete. `None`: no longer.
    pub(super) fn time_for_masks(&self, now: Instant) -> Option<Duration> {
        let is_missing = |s: &Sequence| s.decodes() && s.mask.as_ref().is_some_and(|mask| mask.is_away());
        if !self.ahead || !self.sequences.iter().flatten().any(is_missing) {
            return None;
        }
        let end = self.end_of_ahead()?.checked_sub(self.lead.time())?;
        end.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// When the rows that were computed ahead are complete, as far as is known: the device began with them when the step
    /// before them had landed.
    fn end_of_ahead(&self) -> Option<Instant> {
        let step = Duration::try_from_secs_f64(self.pace.step_seconds()?).ok()?;
        self.completed?.checked_add(step)
    }

    /// Whether the rows of a step that is about to be submitted were computed ahead. If the device has completed them, a
    /// step takes less time than has passed since the last one landed. It is important to notice: the next one would be
    /// submitted too late again, and would seem to take as long.
    pub(super) fn rows_of_next(&mut self, slots: &mut dyn Slots) -> Result<Ahead, BackendError> {
        if !self.ahead {
            return Ok(Ahead::No);
        }
        if !self.flights.is_empty() || !slots.is_idle()? {
            return Ok(Ahead::Yes);
        }
        if let Some(completed) = self.completed {
            self.pace.step_takes_at_most(completed.elapsed());
        }
        Ok(Ahead::Waited)
    }

    /// Waits for masks, where nothing else can be done.
    pub(crate) fn wait_for_masks(&mut self, wait: Duration) {
        let most = self.time_for_masks(Instant::now()).map_or(wait, |left| left.min(wait));
        self.masks.wait(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lead_follows_longer_times_at_once_and_shorter_ones_slowly() {
        let mut lead = Lead::default();
        lead.recorded(Duration::from_micros(500));
        assert_eq!(lead.time(), WAKE + Duration::from_micros(500));
        lead.recorded(Duration::from_micros(100));
        assert_eq!(lead.time(), WAKE + Duration::from_micros(475));
        (0..200).for_each(|_| lead.recorded(Duration::from_micros(100)));
        assert!(lead.time() < WAKE + Duration::from_micros(101));
    }
}
