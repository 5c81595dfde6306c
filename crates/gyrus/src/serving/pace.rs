//! How much to submit at once: rows of prompts beside decode steps, and steps in flight.

use std::time::Duration;

use gyrus_kernels::Limits;

use super::row_times::RowTimes;

/// The most device time that the steps in flight of a single sequence may take. A stop wastes up to this much work.
const ALONE: Duration = Duration::from_millis(64);
/// The same if several sequences run: a request that joins waits for it.
const TOGETHER: Duration = Duration::from_millis(16);
/// The part of a chunk between two steps takes at most this many times the time of a step.
const BETWEEN_STEPS: f64 = 1.75;
/// On a backend that computes when it is called, tokens come after this many times the time of a step while a prompt is read.
/// Such a backend keeps to the time itself.
const HOST_GAP: f64 = 3.9;
/// Steps that it may take among a chunk, for each that is expected.
const HOST_SPARE: f64 = 1.25;
/// The least time of a part, on a device and on the host: where steps are shorter than anybody notices, prompts that wait
/// come first.
const SHORTEST_PART: Duration = Duration::from_millis(2);
const SHORTEST_HOST_PART: Duration = Duration::from_millis(30);
/// The most steps among the kernels of a chunk, and their number when no time is known yet.
const MOST_BETWEEN: usize = 24;
const UNMEASURED_BETWEEN: usize = 4;
/// The most by which a chunk may take longer than expected and be believed.
const MOST_GROWTH: f64 = 0.5;
/// Chunks before this position tell what a chunk takes without positions before it.
const NEAR: usize = 256;
/// Chunk sizes whose times are measured.
const SIZES: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// Times of submissions, as measured.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Of a step without chunks.
    step: Mean,
    /// Of chunks of up to each size, without the step that came with them.
    chunks: [Line; SIZES.len()],
    /// Of passes of a few rows: on a device that computes on its own those of drafts, otherwise those of steps, too.
    pub(crate) rows: RowTimes,
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
}

/// The time of chunks of a size by their position: each position before a chunk adds the same.
#[derive(Debug, Default, Clone, Copy)]
struct Line {
    /// At position 0.
    base: Option<f64>,
    slope: f64,
}

impl Line {
    /// Adds the time of a chunk. One that is far longer than expected counts as half as much again: something else held it
    /// up.
    fn add(&mut self, position: usize, value: f64) {
        let Some(base) = self.base else {
            self.base = Some(value);
            return;
        };
        let value = value.min((1.0 + MOST_GROWTH) * (base + self.slope * position as f64));
        // Where few positions are before it, the time is that of the chunk itself.
        let own = self.slope * position as f64;
        if position < NEAR {
            self.base = Some(base + 0.5 * (value - own - base));
        } else {
            self.slope += 0.5 * ((value - base).max(0.0) / position as f64 - self.slope);
        }
    }

    fn at(&self, position: usize) -> Option<f64> {
        Some(self.base? + self.slope * position as f64)
    }
}

impl Pace {
    /// Begins slowly again: a sequence has joined.
    pub(crate) fn restart(&mut self) {
        self.limit = 2;
    }

    /// A step without chunks, of this many sequences, took this long.
    pub(crate) fn step_took(&mut self, time: Duration, sequences: usize, limits: Limits) {
        self.step.add(time.as_secs_f64());
        self.rows.stepped();
        if !limits.asynchronous {
            self.rows.took(sequences, time);
        }
    }

    /// A step takes less time than this.
    pub(crate) fn step_takes_at_most(&mut self, time: Duration) {
        let most = time.as_secs_f64();
        self.step.0 = self.step.0.map(|step| step.min(most));
    }

    /// Drafts of this many rows took this long, together with steps of this many sequences.
    pub(crate) fn drafts_took(
        &mut self,
        rows: usize,
        steps: usize,
        sequences: usize,
        limits: Limits,
        time: Duration,
    ) {
        if limits.asynchronous {
            let step = Duration::from_secs_f64(steps as f64 * self.step.0.unwrap_or(0.0));
            self.rows.took(rows, time.saturating_sub(step));
        } else {
            // One pass computes all rows.
            self.rows.took(rows + steps.min(1) * sequences, time);
        }
    }

    /// Seconds of a step without chunks, if one was measured.
    pub(crate) fn step_seconds(&self) -> Option<f64> {
        self.step.0
    }

    /// Chunks of this many rows from this position on took this long together with this many steps.
    pub(crate) fn chunk_took(&mut self, (rows, position): (usize, usize), steps: usize, time: Duration) {
        let seconds = time.as_secs_f64() - steps as f64 * self.step.0.unwrap_or(0.0);
        // If the steps took less than expected, nothing is left to learn from.
        if let Some(at) = SIZES.iter().position(|size| rows <= *size).filter(|_| seconds > 0.0) {
            self.chunks[at].add(position, seconds * SIZES[at] as f64 / rows.max(1) as f64);
        }
    }

    /// Rows of chunks for the next submission, from this position on: all that are possible if nobody decodes or the device
    /// computes on its own. Else only as many as steps can be between.
    pub(crate) fn chunk_rows(&self, decoding: bool, limits: Limits, most: usize, position: usize) -> usize {
        let mut rows = most;
        if decoding && !limits.asynchronous {
            let too_many =
                |rows| self.parts((rows, position), limits).is_some_and(|parts| parts > MOST_BETWEEN + 1);
            while rows > SIZES[0] && too_many(rows) {
                rows /= 2;
            }
        }
        rows
    }

    /// Steps to run among the kernels of chunks of this many rows from this position on, so that sequences that decode do
    /// not wait for all of them.
    pub(crate) fn steps_between(&self, chunks: (usize, usize), limits: Limits) -> usize {
        match self.parts(chunks, limits) {
            Some(parts) => parts.saturating_sub(1).min(MOST_BETWEEN),
            None => UNMEASURED_BETWEEN,
        }
    }

    /// Into how many parts chunks of this many rows from this position on are divided, if times are known. On a backend that
    /// ends parts by itself, the most.
    fn parts(&self, (rows, position): (usize, usize), limits: Limits) -> Option<usize> {
        let at = SIZES.iter().position(|size| rows <= *size).unwrap_or(SIZES.len() - 1);
        let nearest = (at..SIZES.len()).chain((0..at).rev());
        let row = nearest.filter_map(|at| Some(self.chunks[at].at(position)? / SIZES[at] as f64)).next()?;
        let step = self.step.0.filter(|step| *step > 0.0)?;
        let seconds = row * rows as f64;
        match limits.asynchronous {
            // A part that is a little longer is better than another step.
            true => {
                let part = (BETWEEN_STEPS * step).max(SHORTEST_PART.as_secs_f64());
                Some((seconds / part - 0.25).ceil() as usize)
            }
            false => {
                let part = self.gap(limits)?.as_secs_f64() - step;
                Some(if seconds <= part { 1 } else { (HOST_SPARE * seconds / part).ceil() as usize })
            }
        }
    }

    /// The time from the end of a step to that of the next one while a prompt is read, for a backend that computes when it is
    /// called.
    pub(crate) fn gap(&self, limits: Limits) -> Option<Duration> {
        let step = self.step.0.filter(|step| *step > 0.0 && !limits.asynchronous)?;
        Some(Duration::from_secs_f64((HOST_GAP * step).max(SHORTEST_HOST_PART.as_secs_f64() + step)))
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

    const LIMITS: Limits = Limits {
        slots: 4,
        rows: 512,
        logit_rows: 16,
        steps: 64,
        draft_rows: 16,
        asynchronous: true,
        kinds_differ: true,
    };

    /// Chunks become slower with the position: the parts between steps stay near the time that they should
    /// have, although two chunks are in flight.
    #[test]
    fn steps_between_follow_the_time_of_chunks() {
        let (mut pace, step) = (Pace::default(), 0.001);
        pace.step_took(Duration::from_secs_f64(step), 1, LIMITS);
        let chunk = |position: usize| 0.013 + 0.002 * (position / 512) as f64;
        // Another prompt came before.
        let mut flying: Vec<(usize, usize)> = Vec::new();
        for (chunks, position) in (0..4096).step_by(512).chain((0..8192).step_by(512)).enumerate() {
            let steps = pace.steps_between((512, position), LIMITS);
            if flying.len() == 2 {
                let (position, steps) = flying.remove(0);
                pace.chunk_took(
                    (512, position),
                    steps,
                    Duration::from_secs_f64(chunk(position) + steps as f64 * step),
                );
            }
            let part = chunk(position) / (steps + 1) as f64;
            assert!(chunks < 8 || part < 2.75 * step, "{steps} steps at {position}");
            flying.push((position, steps));
        }
    }

    /// A backend that computes when it is called divides chunks into no more parts than steps can be between them.
    #[test]
    fn chunks_on_the_host_are_short_where_they_take_long() {
        let host = Limits { asynchronous: false, ..LIMITS };
        let (mut pace, step) = (Pace::default(), 0.020);
        assert_eq!(pace.chunk_rows(true, host, 512, 0), 512, "no time is known");
        pace.step_took(Duration::from_secs_f64(step), 8, host);
        for seconds in [0.3, 1.0, 2.0, 4.0, 8.0] {
            let mut pace = Pace { step: pace.step, ..Pace::default() };
            pace.chunk_took((512, 0), 0, Duration::from_secs_f64(seconds));
            let rows = pace.chunk_rows(true, host, 512, 0);
            let part = seconds * rows as f64 / 512.0 / (pace.steps_between((rows, 0), host) + 1) as f64;
            assert!(part < 3.5 * step, "{rows} rows of {seconds} s: parts of {part} s");
            assert_eq!(rows == 512, seconds <= 1.0, "{rows} rows of {seconds} s");
            assert_eq!(pace.chunk_rows(false, host, 512, 0), 512);
            assert_eq!(pace.chunk_rows(true, LIMITS, 512, 0), 512);
        }
    }

    /// A chunk whose steps took less than expected does not make all later ones look free.
    #[test]
    fn a_chunk_that_seems_to_take_no_time_is_not_learned_from() {
        let mut pace = Pace::default();
        pace.step_took(Duration::from_millis(10), 1, LIMITS);
        pace.chunk_took((512, 0), 4, Duration::from_millis(30));
        assert_eq!(pace.steps_between((512, 0), LIMITS), UNMEASURED_BETWEEN);
        pace.chunk_took((512, 0), 4, Duration::from_millis(340));
        assert!(pace.steps_between((512, 0), LIMITS) > UNMEASURED_BETWEEN);
    }

    #[test]
    fn a_step_that_was_submitted_late_bounds_the_time_of_steps() {
        let mut pace = Pace::default();
        pace.step_takes_at_most(Duration::from_millis(1));
        assert_eq!(pace.step_seconds(), None, "nothing was measured");
        pace.step_took(Duration::from_millis(12), 1, LIMITS);
        pace.step_takes_at_most(Duration::from_millis(15));
        assert_eq!(pace.step_seconds(), Some(0.012));
        pace.step_takes_at_most(Duration::from_millis(9));
        assert_eq!(pace.step_seconds(), Some(0.009));
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
        pace.step_took(Duration::from_millis(16), 1, LIMITS);
        assert_eq!(pace.steps_in_flight(LIMITS, 32, 1), 4);
        assert_eq!(pace.steps_in_flight(LIMITS, 32, 3), 2);
        let one = Limits { asynchronous: false, ..LIMITS };
        assert_eq!(pace.steps_in_flight(one, 32, 3), 1);
    }
}
