//! How the ops of a batch are divided into parts, by time.

use std::ops::Range;

use gyrus_kernels::{Op, PartEnd, Plan};

/// Rows of a slice of attention. At depth 4,000 the attention of 512 rows of a small model takes as long as two decode
/// steps of eight sequences, so a part must be able to end within it.
const SLICE_ROWS: usize = 64;

/// The beginning of an op, or of a slice of its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub(super) op: usize,
    slice: usize,
}

impl Mark {
    /// After the last op.
    pub(super) fn end(ops: &[Op]) -> Mark {
        Mark { op: ops.len(), slice: 0 }
    }

    /// What follows this slice of an op that has so many.
    pub(super) fn next(self, slices: usize) -> Mark {
        match self.slice + 1 {
            slice if slice < slices => Mark { slice, ..self },
            _ => Mark { op: self.op + 1, slice: 0 },
        }
    }

    /// The rows of this slice.
    pub(super) fn rows(self, slices: usize, rows: usize) -> Range<usize> {
        self.slice * rows / slices..(self.slice + 1) * rows / slices
    }
}

/// A part that is this much longer is better than a short one more, with its step; the last part may be longer still.
const LONGER: f64 = 1.04;
const LAST_LONGER: f64 = 1.15;
/// By how much a batch may take longer or shorter than expected.
const MOST_DRIFT: f64 = 1.5;

/// The division of a batch into parts.
#[derive(Debug)]
pub(super) struct Parts {
    /// The seconds that a row of each op takes, once it has run in a part.
    times: Vec<Option<f64>>,
    /// Slices of each op in this batch.
    slices: Vec<usize>,
    /// Whether attention is divided.
    divided: Vec<bool>,
    /// Rows of this batch.
    rows: usize,
    /// What has not run.
    next: Mark,
    /// Seconds of the slices of an op that have run.
    of_slices: f64,
    /// Seconds of this batch so far, as measured and as expected: it may take longer than the one before as a whole.
    batch: (f64, f64),
    part: Part,
}

/// The part that runs.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    /// The time after which it ends, and the time that was spent: in seconds as measured, or as expected of its ops.
    most: f64,
    spent: f64,
    is_measured: bool,
}

impl Parts {
    pub(super) fn new(plan: &Plan) -> Parts {
        Parts::of(plan.forward.iter().map(is_divided).collect())
    }

    fn of(divided: Vec<bool>) -> Parts {
        let ops = divided.len();
        Parts {
            times: vec![None; ops],
            slices: vec![1; ops],
            divided,
            rows: 0,
            next: Mark::default(),
            of_slices: 0.0,
            batch: (0.0, 0.0),
            part: Part::default(),
        }
    }

    /// Into how many slices an op of a batch of so many rows is divided.
    pub(super) fn slices(op: &Op, rows: usize) -> usize {
        slices_of(is_divided(op), rows)
    }

    /// A batch of so many rows begins.
    pub(super) fn begin(&mut self, rows: usize) {
        for (slices, divided) in self.slices.iter_mut().zip(&self.divided) {
            *slices = slices_of(*divided, rows);
        }
        (self.rows, self.next, self.of_slices, self.batch) = (rows, Mark::default(), 0.0, (0.0, 0.0));
    }

    /// Begins the next part, and returns its first slice.
    pub(super) fn begin_part(&mut self, end: PartEnd) -> Mark {
        self.part = Part { is_measured: matches!(end, PartEnd::Time(_)), ..Part::default() };
        let left = self.seconds_left();
        self.part.most = match end {
            PartEnd::Share(parts @ 2..) => left / parts as f64,
            PartEnd::Share(_) => f64::INFINITY,
            // What is left in parts of the same time, so that the last one is not short.
            PartEnd::Time(time) if self.is_known() => {
                let (time, left) = (time.as_secs_f64(), left * self.drift());
                match (left / (LONGER * time)).ceil() {
                    ..=1.0 => LAST_LONGER * time,
                    parts => left / parts,
                }
            }
            PartEnd::Time(time) => time.as_secs_f64(),
        };
        self.next
    }

    /// A slice took this many seconds. Returns whether the part goes on: until the time that was spent is next to that of
    /// the part. The time of an op counts half, because other processes may have held it up.
    pub(super) fn took(&mut self, mark: Mark, seconds: f64) -> bool {
        let expected = self.slice_seconds(mark.op);
        self.part.spent += if self.part.is_measured { seconds } else { expected };
        self.batch = (self.batch.0 + seconds, self.batch.1 + expected);
        self.of_slices += seconds;
        if mark.slice + 1 == self.slices[mark.op] {
            let now = self.of_slices / self.rows.max(1) as f64;
            self.times[mark.op] = Some(0.5 * (self.times[mark.op].unwrap_or(now) + now));
            self.of_slices = 0.0;
        }
        self.next = mark.next(self.slices[mark.op]);
        !self.is_complete() && self.part.spent + 0.5 * self.slice_seconds(self.next.op) < self.part.most
    }

    /// Whether all ops have run.
    pub(super) fn is_complete(&self) -> bool {
        self.next.op == self.times.len()
    }

    /// How many times longer than expected this batch takes.
    fn drift(&self) -> f64 {
        let (measured, expected) = self.batch;
        if expected > 0.0 { (measured / expected).clamp(1.0 / MOST_DRIFT, MOST_DRIFT) } else { 1.0 }
    }

    /// Whether all ops that are left have a time. Ops run in order: either all have one, or none.
    fn is_known(&self) -> bool {
        self.times[self.next.op..].iter().all(Option::is_some)
    }

    /// The seconds of an op. Before they are known, ops take the same.
    fn seconds(&self, op: usize) -> f64 {
        match (self.times[op], self.part.is_measured) {
            (Some(row), _) => row * self.rows as f64,
            (None, true) => 0.0,
            (None, false) => 1.0,
        }
    }

    fn slice_seconds(&self, op: usize) -> f64 {
        self.seconds(op) / self.slices[op] as f64
    }

    /// The seconds of all that has not run.
    fn seconds_left(&self) -> f64 {
        let whole: f64 = (self.next.op..self.times.len()).map(|op| self.seconds(op)).sum();
        let begun = match self.slices.get(self.next.op) {
            Some(_) => self.slice_seconds(self.next.op) * self.next.slice as f64,
            None => 0.0,
        };
        whole - begun
    }
}

/// Rows of attention do not depend on each other, and their time grows with the depth.
fn is_divided(op: &Op) -> bool {
    matches!(op, Op::Attention { .. })
}

fn slices_of(divided: bool, rows: usize) -> usize {
    if divided { rows.div_ceil(SLICE_ROWS).max(1) } else { 1 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Ten layers of a product and an attention op.
    fn parts() -> Parts {
        Parts::of((0..20).map(|op| op % 2 == 1).collect())
    }

    /// Runs a batch in parts and returns the time of each; every slice runs once, in order.
    fn run(
        parts: &mut Parts,
        rows: usize,
        end: impl Fn(usize) -> PartEnd,
        seconds: impl Fn(usize) -> f64,
    ) -> Vec<f64> {
        parts.begin(rows);
        let mut expected = Mark::default();
        let mut times = Vec::new();
        while !parts.is_complete() {
            let mut mark = parts.begin_part(end(times.len()));
            let (mut time, mut goes_on) = (0.0, true);
            while goes_on {
                assert_eq!(mark, expected);
                let slices = parts.slices[mark.op];
                time += seconds(mark.op) / slices as f64;
                goes_on = parts.took(mark, seconds(mark.op) / slices as f64);
                mark = mark.next(slices);
                expected = mark;
            }
            times.push(time);
        }
        assert_eq!(expected, Mark { op: 20, slice: 0 });
        times
    }

    #[test]
    fn the_slices_of_an_op_are_all_rows() {
        for rows in 1..600 {
            let slices = slices_of(true, rows);
            let mut mark = Mark::default();
            let mut end = 0;
            while mark.op == 0 {
                let slice = mark.rows(slices, rows);
                assert_eq!(slice.start, end);
                assert!(!slice.is_empty() && slice.len() <= SLICE_ROWS, "{rows} rows: {slice:?}");
                end = slice.end;
                mark = mark.next(slices);
            }
            assert_eq!(end, rows);
        }
    }

    /// Shares have equal times once the ops' times are known, also while each batch takes longer than the one before.
    #[test]
    fn shares_take_equal_times() {
        for rows in [40, 64, 256, 512] {
            for count in 1..12 {
                let mut parts = parts();
                for depth in 0..8 {
                    let attention = 1.0 + 2.0 * f64::from(depth);
                    let seconds = |op: usize| if op % 2 == 1 { attention } else { 1.0 };
                    let times = run(&mut parts, rows, |part| PartEnd::Share(count - part), seconds);
                    assert_eq!(times.len(), count);
                    let mean = times.iter().sum::<f64>() / count as f64;
                    let slice = (attention / slices_of(true, rows) as f64).max(1.0);
                    let most = times.iter().copied().fold(0.0, f64::max);
                    // The parts' ends are at slices; the ratio of the ops' times changes from batch to batch.
                    assert!(depth < 2 || most <= 1.15 * mean + slice, "{rows} rows in {count}: {times:?}");
                }
            }
        }
    }

    /// Parts by time keep to it, also in the first batch, in one that becomes slower, and in one of fewer rows.
    #[test]
    fn parts_take_the_time_they_are_given() {
        let mut parts = parts();
        for (batch, rows) in [512, 512, 512, 512, 416, 512].into_iter().enumerate() {
            let slower = if batch == 3 { 1.7 } else { 1.0 };
            let seconds = |op: usize| slower * rows as f64 / 512.0 * if op % 2 == 1 { 4.0 } else { 1.0 };
            let times = run(&mut parts, rows, |_| PartEnd::Time(Duration::from_secs(6)), seconds);
            let most = times.iter().copied().fold(0.0, f64::max);
            // An op is not divided further.
            assert!(most <= LAST_LONGER * 6.0 + slower, "batch {batch}: {times:?}");
            let shortest = times.iter().copied().fold(f64::INFINITY, f64::min);
            assert!(batch == 0 || slower > 1.0 || shortest > 4.0, "batch {batch}: {times:?}");
        }
    }
}
