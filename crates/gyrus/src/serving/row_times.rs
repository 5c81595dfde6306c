//! The time of a pass by its number of rows, as measured.

use std::time::Duration;

/// The largest number of rows of each class.
const CLASSES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// After so many steps the time of a class is measured again: something else may have slowed it down.
const STEPS_KNOWN: u32 = 2000;
/// By which part of a step a further row is expected to slow a pass down before it is measured.
const HOST_ROW: f64 = 0.3;
const DEVICE_ROW: f64 = 0.07;
/// The same of a pass of a device that is waited for.
const WAIT: f64 = 0.15;

/// Times of passes of a few rows.
#[derive(Debug, Default)]
pub(crate) struct RowTimes {
    classes: [Class; CLASSES.len()],
}

#[derive(Debug, Default, Clone, Copy)]
struct Class {
    /// Means in which recent values count most.
    rows: f64,
    seconds: f64,
    measured: u32,
    /// Steps since it was measured.
    age: u32,
}

impl RowTimes {
    /// A pass of this many rows took this long.
    pub(crate) fn took(&mut self, rows: usize, time: Duration) {
        let Some(at) = CLASSES.iter().position(|most| rows <= *most) else { return };
        let (class, value) = (&mut self.classes[at], time.as_secs_f64());
        class.measured = class.measured.saturating_add(1);
        class.age = 0;
        // The first one of a class may have compiled kernels or touched new memory, and one that is far longer than the
        // mean was held up by something else.
        match class.measured {
            1 | 2 => (class.rows, class.seconds) = (rows as f64, value),
            _ => {
                class.rows += 0.2 * (rows as f64 - class.rows);
                class.seconds += 0.2 * (value.min(2.0 * class.seconds) - class.seconds);
            }
        }
    }

    /// A step was made.
    pub(crate) fn stepped(&mut self) {
        for class in &mut self.classes {
            class.age += 1;
            if class.age > STEPS_KNOWN {
                *class = Class::default();
            }
        }
    }

    /// The expected seconds of a pass of this many rows, where a step of one row takes `step`.
    pub(crate) fn seconds(&self, rows: usize, step: f64, asynchronous: bool) -> f64 {
        let (row, first) = if asynchronous { (DEVICE_ROW, (1.0 + WAIT) * step) } else { (HOST_ROW, step) };
        let mut before = (1.0, first);
        let known = self.classes.iter().filter(|class| class.measured > 1);
        for point in known.map(|class| (class.rows, class.seconds)) {
            if point.0 >= rows as f64 {
                let width = (point.0 - before.0).max(1e-9);
                let part = ((rows as f64 - before.0) / width).clamp(0.0, 1.0);
                return before.1 + part * (point.1 - before.1);
            }
            before = point;
        }
        before.1 + (rows as f64 - before.0).max(0.0) * row * step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_interpolated_and_forgotten() {
        let mut times = RowTimes::default();
        let seconds = |times: &RowTimes, rows| (times.seconds(rows, 1.0, false) * 1e6).round() / 1e6;
        assert_eq!([1, 2, 5].map(|rows| seconds(&times, rows)), [1.0, 1.3, 2.2]);
        // The first pass does not count.
        for time in [90.0, 2.0, 2.0] {
            times.took(5, Duration::from_secs_f64(time));
        }
        assert_eq!([1, 3, 5, 6].map(|rows| seconds(&times, rows)), [1.0, 1.5, 2.0, 2.3]);
        (0..=STEPS_KNOWN).for_each(|_| times.stepped());
        assert_eq!(seconds(&times, 5), 2.2);
        assert!(times.seconds(16, 1.0, true) > times.seconds(2, 1.0, true));
    }
}
