//! How the ops of a batch are divided into parts of equal time.

use std::ops::Range;

use gyrus_kernels::{Op, Plan};

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
    pub(super) fn end(plan: &Plan) -> Mark {
        Mark { op: plan.forward.len(), slice: 0 }
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

/// The division of a batch into parts.
#[derive(Debug)]
pub(super) struct Parts {
    /// The seconds that each op takes, once it has run in a part.
    times: Vec<Option<f64>>,
    /// Slices of each op in this batch.
    slices: Vec<usize>,
    /// Whether attention is divided.
    divided: Vec<bool>,
    /// What has not run.
    next: Mark,
    /// Seconds of the slices of an op that have run.
    of_slices: f64,
}

impl Parts {
    pub(super) fn new(plan: &Plan) -> Parts {
        let ops = plan.forward.len();
        let divided = plan.forward.iter().map(is_divided).collect();
        Parts { times: vec![None; ops], slices: vec![1; ops], divided, next: Mark::default(), of_slices: 0.0 }
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
        (self.next, self.of_slices) = (Mark::default(), 0.0);
    }

    /// The beginning and the end of the next part.
    pub(super) fn advance(&mut self, part: usize, parts: usize) -> (Mark, Mark) {
        let from = self.next;
        self.next = self.end_of(part, parts);
        (from, self.next)
    }

    /// The end of a part: where the time since its beginning is next to its share of the time that is left. What the parts
    /// before it took does not count, so that a batch that takes longer than the last one makes every part longer, not only
    /// the last.
    fn end_of(&self, part: usize, parts: usize) -> Mark {
        let end = Mark { op: self.times.len(), slice: 0 };
        let parts_left = parts.saturating_sub(part);
        if parts_left <= 1 {
            return end;
        }
        let share = self.seconds_left() / parts_left as f64;
        let (mut mark, mut seconds) = (self.next, 0.0);
        while mark < end {
            let time = self.seconds(mark.op) / self.slices[mark.op] as f64;
            if seconds + 0.5 * time >= share {
                break;
            }
            seconds += time;
            mark = mark.next(self.slices[mark.op]);
        }
        mark
    }

    /// The seconds of an op. Ops run in order: either all that are left have a time, or none.
    fn seconds(&self, op: usize) -> f64 {
        self.times[op].unwrap_or(1.0)
    }

    /// The seconds of all that has not run.
    fn seconds_left(&self) -> f64 {
        let whole: f64 = (self.next.op..self.times.len()).map(|op| self.seconds(op)).sum();
        let begun = match self.slices.get(self.next.op) {
            Some(slices) => self.seconds(self.next.op) * self.next.slice as f64 / *slices as f64,
            None => 0.0,
        };
        whole - begun
    }

    /// A slice took this many seconds. The time of an op counts half, because other processes may have held it up.
    pub(super) fn took(&mut self, mark: Mark, seconds: f64) {
        self.of_slices += seconds;
        if mark.slice + 1 == self.slices[mark.op] {
            let before = self.times[mark.op].unwrap_or(self.of_slices);
            self.times[mark.op] = Some(0.5 * (before + self.of_slices));
            self.of_slices = 0.0;
        }
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
    use super::*;

    /// Ten layers of a product and an attention op.
    fn parts(rows: usize) -> Parts {
        let mut parts = Parts {
            times: vec![None; 20],
            slices: vec![1; 20],
            divided: (0..20).map(|op| op % 2 == 1).collect(),
            next: Mark::default(),
            of_slices: 0.0,
        };
        parts.begin(rows);
        parts
    }

    /// Runs a batch in parts and returns the time of each; every slice runs once, in order.
    fn run(parts: &mut Parts, rows: usize, count: usize, seconds: impl Fn(usize) -> f64) -> Vec<f64> {
        parts.begin(rows);
        let mut expected = Mark::default();
        let mut times = Vec::new();
        for part in 0..count {
            let (mut mark, to) = parts.advance(part, count);
            assert_eq!(mark, expected);
            let mut time = 0.0;
            while mark < to {
                let slices = parts.slices[mark.op];
                time += seconds(mark.op) / slices as f64;
                parts.took(mark, seconds(mark.op) / slices as f64);
                mark = mark.next(slices);
            }
            expected = to;
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

    /// Parts have equal times once the ops' times are known, also while each batch takes longer than the one before.
    #[test]
    fn parts_take_equal_times() {
        for rows in [40, 64, 256, 512] {
            for count in 1..12 {
                let mut parts = parts(rows);
                for depth in 0..8 {
                    let attention = 1.0 + 2.0 * f64::from(depth);
                    let seconds = |op: usize| if op % 2 == 1 { attention } else { 1.0 };
                    let times = run(&mut parts, rows, count, seconds);
                    let mean = times.iter().sum::<f64>() / count as f64;
                    let slice = (attention / slices_of(true, rows) as f64).max(1.0);
                    let most = times.iter().copied().fold(0.0, f64::max);
                    // The parts' ends are at slices; the ratio of the ops' times changes from batch to batch.
                    assert!(depth < 2 || most <= 1.15 * mean + slice, "{rows} rows in {count}: {times:?}");
                }
            }
        }
    }
}
