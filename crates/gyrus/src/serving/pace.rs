//! How much to submit at once: rows of prompts beside decode steps, and steps in flight.

use std::time::Duration;

use gyrus_kernels::Limits;

/// The most device time that the steps in flight of a single sequence may take. A stop wastes up to this much work.
const ALONE: Duration = Duration::from_millis(64);
/// The same if several sequences run: a request that joins waits for it.
const TOGETHER: Duration = Duration::from_millis(16);
/// A chunk of prompts beside decode steps takes at most this many times the time of a step.
const CHUNK_STEPS: f64 = 3.0;
/// The part of a chunk between two steps takes at most this many times the time of a step.
const BETWEEN_STEPS: f64 = 2.0;
/// The most steps among the kernels of a chunk, and their number when no time is known yet.
const MOST_BETWEEN: usize = 24;
const UNMEASURED_BETWEEN: usize = 4;
/// Rows of a chunk beside steps when no time is known yet.
const UNMEASURED: usize = 64;
/// Chunk sizes whose times are measured.
const SIZES: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// Times of submissions, as measured.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Of a step without chunks.
    step: Mean,
    /// Of chunks of up to each size, without the step that came with them.
    chunks: [Mean; SIZES.len()],
    /// The present limit of steps in flight. It starts low, so that the first token comes early and a stop wastes little
    /// work, and doubles.
    limit: usize,
}

/// A mean in which recent values count most.
#[derive(Debug, Default, Clone, Copy)]
struct Mean(Option<f64>);

impl Mean {
    /// Adds a value. One that is far larger than those before counts as twice as large: something else held it up.
    fn add(&mut self, value: f64) {
        let before = self.0.unwrap_or(value);
        self.0 = Some(before + 0.2 * (value.min(2.0 * before) - before));
    }

    /// Adds a value, and follows larger ones sooner than smaller ones: a chunk that takes too long is felt.
    fn add_cautiously(&mut self, value: f64) {
        let before = self.0.unwrap_or(value);
        let weight = if value > before { 0.5 } else { 0.1 };
        self.0 = Some(before + weight * (value.min(3.0 * before) - before));
    }
}

impl Pace {
    /// Begins slowly again: a sequence has joined.
    pub(crate) fn restart(&mut self) {
        self.limit = 2;
    }

    /// A step without chunks took this long.
    pub(crate) fn step_took(&mut self, time: Duration) {
        self.step.add(time.as_secs_f64());
    }

    /// Chunks of this many rows took this long together with this many steps.
    pub(crate) fn chunk_took(&mut self, rows: usize, steps: usize, time: Duration) {
        let step = steps as f64 * self.step.0.unwrap_or(0.0);
        if let Some(at) = SIZES.iter().position(|size| rows <= *size) {
            self.chunks[at]
                .add_cautiously((time.as_secs_f64() - step).max(0.0) * SIZES[at] as f64 / rows.max(1) as f64);
        }
    }

    /// Rows of chunks for the next submission: all that are possible if nobody decodes, else as many as take the time of
    /// a few steps.
    pub(crate) fn chunk_rows(&self, decoding: bool, most: usize) -> usize {
        let (true, Some(step)) = (decoding, self.step.0) else {
            return if decoding { most.min(UNMEASURED) } else { most };
        };
        let budget = CHUNK_STEPS * step;
        // The largest size that is known to fit, and one more that may.
        let mut rows = 0.0f64;
        for (size, time) in SIZES.iter().zip(&self.chunks) {
            match time.0 {
                Some(time) if time <= budget => rows = rows.max(*size as f64),
                Some(time) => rows = rows.max((budget / time * *size as f64).min(*size as f64)),
                None => {}
            }
        }
        if self.chunks.iter().all(|time| time.0.is_none()) {
            return most.min(UNMEASURED);
        }
        // Sizes above the largest measured one are tried step by step.
        let next = SIZES.iter().find(|size| **size as f64 > rows).copied().unwrap_or(usize::MAX);
        let unknown =
            SIZES.iter().position(|size| *size == next).is_some_and(|at| self.chunks[at].0.is_none());
        let rows = if unknown && SIZES.contains(&(rows as usize)) { next } else { rows as usize };
        rows.max(SIZES[0]).min(most)
    }

    /// Steps to run among the kernels of chunks of this many rows, so that sequences that decode do not wait for all of
    /// them.
    pub(crate) fn steps_between(&self, rows: usize) -> usize {
        let at = SIZES.iter().position(|size| rows <= *size).unwrap_or(SIZES.len() - 1);
        let larger = self.chunks[at..].iter().chain(self.chunks[..at].iter().rev()).find_map(|mean| mean.0);
        match (self.step.0, larger) {
            (Some(step), Some(chunk)) if step > 0.0 => {
                let parts = (chunk / (BETWEEN_STEPS * step)).ceil();
                (parts as usize).saturating_sub(1).min(MOST_BETWEEN)
            }
            _ => UNMEASURED_BETWEEN,
        }
    }

    /// Steps to have in flight.
    pub(crate) fn steps_in_flight(&self, limits: Limits, most: usize, running: usize) -> usize {
        if !limits.asynchronous {
            return 1;
        }
        let time = if running > 1 { TOGETHER } else { ALONE };
        let step = self.step.0.unwrap_or(0.0).max(1e-9);
        let in_time = (time.as_secs_f64() / step) as usize;
        self.limit.max(1).min(most).min(limits.steps).min(in_time.max(2)).max(1)
    }

    /// Allows more steps in flight, since the sequences go on.
    pub(crate) fn submitted(&mut self) {
        self.limit = (2 * self.limit.max(1)).min(1 << 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_kernels::Limits;

    const LIMITS: Limits =
        Limits { slots: 4, rows: 512, logit_rows: 16, steps: 64, asynchronous: true, kinds_differ: true };

    fn measured(step: f64, row: f64) -> Pace {
        let mut pace = Pace::default();
        pace.step_took(Duration::from_secs_f64(step));
        for rows in SIZES {
            pace.chunk_took(rows, 0, Duration::from_secs_f64(row * rows as f64));
        }
        pace
    }

    #[test]
    fn chunks_beside_steps_take_the_time_of_a_few_steps() {
        assert_eq!(measured(0.01, 0.001).chunk_rows(false, 512), 512);
        let rows = measured(0.012, 0.0007).chunk_rows(true, 512);
        assert!((40..=64).contains(&rows), "{rows}");
        assert_eq!(measured(0.1, 0.0001).chunk_rows(true, 512), 512);
        assert_eq!(measured(0.0001, 0.1).chunk_rows(true, 512), 16);
        assert_eq!(Pace::default().chunk_rows(true, 512), 64);
    }

    /// Unknown sizes are tried while the known ones take less than the budget.
    #[test]
    fn larger_chunks_are_tried_while_there_is_time() {
        let mut pace = Pace::default();
        pace.step_took(Duration::from_millis(10));
        let mut tried = Vec::new();
        for _ in 0..6 {
            let rows = pace.chunk_rows(true, 512);
            tried.push(rows);
            pace.chunk_took(rows, 0, Duration::from_micros(100 * rows as u64));
        }
        assert_eq!(tried, [64, 128, 256, 512, 300, 300]);
    }

    #[test]
    fn steps_in_flight_start_low_double_and_are_limited_by_time() {
        let mut pace = Pace::default();
        pace.restart();
        let mut seen = Vec::new();
        for _ in 0..6 {
            seen.push(pace.steps_in_flight(LIMITS, 32, 1));
            pace.submitted();
        }
        assert_eq!(seen, [2, 4, 8, 16, 32, 32]);
        pace.step_took(Duration::from_millis(16));
        assert_eq!(pace.steps_in_flight(LIMITS, 32, 1), 4);
        assert_eq!(pace.steps_in_flight(LIMITS, 32, 3), 2);
        let one = Limits { asynchronous: false, ..LIMITS };
        assert_eq!(pace.steps_in_flight(one, 32, 3), 1);
    }
}
