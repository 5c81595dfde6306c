//! How much to submit at once: rows of prompts beside decode steps, and steps in flight.

use std::time::Duration;

use gyrus_kernels::Limits;

/// The most device time that the steps in flight of a single sequence may take. A stop wastes up to this much work.
const ALONE: Duration = Duration::from_millis(64);
/// The same if several sequences run: a request that joins waits for it.
const TOGETHER: Duration = Duration::from_millis(16);
/// Chunks of prompts and the step that is computed with them take this many times the time of a step alone.
const WITH_CHUNKS: f64 = 4.0;
/// The fewest rows of chunks with a step, and their number when no time is known yet.
const FEWEST: usize = 16;
const UNMEASURED: usize = 64;
/// The part of a chunk between two steps takes at most this many times the time of a step.
const BETWEEN_STEPS: f64 = 2.0;
/// The most steps among the kernels of a chunk, and their number when no time is known yet.
const MOST_BETWEEN: usize = 24;
const UNMEASURED_BETWEEN: usize = 4;
/// Chunk sizes whose times are measured.
const SIZES: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// Times of submissions, as measured.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Of a step without chunks.
    step: Mean,
    /// Of chunks of up to each size, without the step that came with them.
    chunks: [Mean; SIZES.len()],
    /// Of a row of the chunks that were computed with a step, which is counted in, and how many rows they had.
    row: Mean,
    rows: usize,
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
        let weight = if value > before { 0.5 } else { 0.2 };
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
        if steps == 1 && rows >= FEWEST {
            self.row.add_cautiously(time.as_secs_f64() / rows as f64);
            self.rows = rows;
        }
        let step = steps as f64 * self.step.0.unwrap_or(0.0);
        if let Some(at) = SIZES.iter().position(|size| rows <= *size) {
            self.chunks[at]
                .add_cautiously((time.as_secs_f64() - step).max(0.0) * SIZES[at] as f64 / rows.max(1) as f64);
        }
    }

    /// Rows of chunks for the next submission: all that are possible if nobody decodes, else as many as take the time of
    /// a few steps together with the step that is computed with them.
    ///
    /// The time of a row grows with its position, slowly from chunk to chunk. So the times of the last chunks tell how
    /// many rows fit, and the number at most doubles.
    pub(crate) fn chunk_rows(&self, decoding: bool, most: usize) -> usize {
        if !decoding {
            return most;
        }
        let (Some(step), Some(row)) = (self.step.0, self.row.0) else { return most.min(UNMEASURED) };
        let rows = WITH_CHUNKS * step / row.max(1e-12);
        (rows as usize).min(2 * self.rows).max(FEWEST).min(most)
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

    /// A backend whose rows take `row` and whose steps take half of `step` when they are computed with chunks.
    fn settled(step: f64, row: f64) -> usize {
        let mut pace = Pace::default();
        pace.step_took(Duration::from_secs_f64(step));
        for _ in 0..20 {
            let rows = pace.chunk_rows(true, 512);
            pace.chunk_took(rows, 1, Duration::from_secs_f64(0.5 * step + row * rows as f64));
        }
        pace.chunk_rows(true, 512)
    }

    #[test]
    fn chunks_with_a_step_take_the_time_of_a_few_steps() {
        // (4 - 0.5) x 12 ms at 0.7 ms each are 60 rows.
        let rows = settled(0.012, 0.0007);
        assert!((57..=60).contains(&rows), "{rows}");
        assert_eq!(settled(0.1, 0.0001), 512);
        assert_eq!(settled(0.0001, 0.1), FEWEST);
        assert_eq!(Pace::default().chunk_rows(true, 512), UNMEASURED);
        assert_eq!(Pace::default().chunk_rows(false, 512), 512);
    }

    /// Rows become slower with the position: the time of a submission stays below five steps.
    #[test]
    fn chunks_become_shorter_as_rows_become_slower() {
        let (mut pace, step) = (Pace::default(), 0.02);
        pace.step_took(Duration::from_secs_f64(step));
        let mut position = 0;
        while position < 8_000 {
            let rows = pace.chunk_rows(true, 512);
            let row = 0.0007 * (1.0 + position as f64 / 1_500.0);
            let time = 0.5 * step + row * rows as f64;
            assert!(time < 5.0 * step, "{rows} rows at {position} take {time}");
            pace.chunk_took(rows, 1, Duration::from_secs_f64(time));
            position += rows;
        }
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
