use std::time::Duration;

/// How fast a device reads and writes memory, by the size of what is read and written repeatedly: what fits in a cache is
/// faster.
#[derive(Debug, Clone, PartialEq)]
pub struct Bandwidth {
    /// Bytes of a working set, ascending, and the bytes per second that were measured with it.
    points: Vec<(u64, f64)>,
}

/// Which memory limits a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Memory beyond all caches.
    Memory,
    /// A cache: what is read again and again fits in it.
    Cache,
}

/// What kernels read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// All bytes.
    pub bytes: u64,
    /// Of these, the bytes that only one of the kernels reads or writes: weights and KV cache, but not activations, which
    /// the kernel before has written.
    pub own: u64,
    /// Bytes of its own that were read in one repetition of the measurement.
    pub working_set: u64,
}

impl Traffic {
    /// The traffic of kernels that are measured together.
    #[must_use]
    pub fn with(self, other: Traffic) -> Traffic {
        Traffic {
            bytes: self.bytes + other.bytes,
            own: self.own + other.own,
            working_set: self.working_set + other.working_set,
        }
    }

    /// The traffic of the same kernels in two measurements.
    #[must_use]
    pub fn then(self, other: Traffic) -> Traffic {
        Traffic { working_set: self.working_set.max(other.working_set), ..self.with(other) }
    }
}

impl Bandwidth {
    /// A cache is told from memory if it is at least this many times as fast.
    const CACHE_GAIN: f64 = 1.1;

    /// From measurements: bytes of a working set, and bytes per second.
    pub fn new(mut points: Vec<(u64, f64)>) -> Bandwidth {
        points.retain(|(_, speed)| speed.is_finite() && *speed > 0.0);
        points.sort_unstable_by_key(|(bytes, _)| *bytes);
        Bandwidth { points }
    }

    /// Bytes per second of the largest working set; 0 if nothing was measured.
    pub fn memory(&self) -> f64 {
        self.points.last().map_or(0.0, |(_, speed)| *speed)
    }

    /// The most bytes per second of any working set.
    pub fn peak(&self) -> f64 {
        self.of(0)
    }

    /// The most bytes per second of a working set of at least this size. Small ones are slow, since kernels take longer to
    /// begin and end than to read them.
    fn of(&self, working_set: u64) -> f64 {
        let below = self.points.iter().rposition(|(bytes, _)| *bytes <= working_set).unwrap_or(0);
        self.points.iter().skip(below).map(|(_, speed)| *speed).fold(0.0, f64::max)
    }

    /// The least time that this traffic takes, and what limits it. All bytes pass the caches; a kernel's own bytes come from
    /// memory if they do not fit.
    pub fn least(&self, traffic: Traffic) -> (Duration, Level) {
        let seconds = |bytes: u64, speed: f64| if speed > 0.0 { bytes as f64 / speed } else { 0.0 };
        let (all, speed) = (seconds(traffic.bytes, self.peak()), self.of(traffic.working_set));
        let own = seconds(traffic.own, speed);
        let from_memory = own >= all && traffic.own > 0 && speed < Self::CACHE_GAIN * self.memory();
        let level = if from_memory { Level::Memory } else { Level::Cache };
        (Duration::from_secs_f64(own.max(all)), level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    /// A device with a cache of 50 MB: 8 TB/s in it, 4 TB/s beyond.
    fn bandwidth() -> Bandwidth {
        Bandwidth::new(vec![
            (256 * MB, 4e12),
            (MB, 1e12),
            (16 * MB, 8e12),
            (32 * MB, 7e12),
            (64 * MB, 4.1e12),
        ])
    }

    #[test]
    fn a_working_set_is_compared_with_one_of_its_size() {
        let bandwidth = bandwidth();
        assert_eq!((bandwidth.memory(), bandwidth.peak()), (4e12, 8e12));
        let found =
            [0, MB, 20 * MB, 40 * MB, 63 * MB, 64 * MB, 255 * MB, 1 << 40].map(|set| bandwidth.of(set));
        assert_eq!(found, [8e12, 8e12, 8e12, 7e12, 7e12, 4.1e12, 4.1e12, 4e12]);
    }

    #[test]
    fn the_slower_of_cache_and_memory_limits() {
        let least = |bytes, own, working_set| bandwidth().least(Traffic { bytes, own, working_set });
        let micros = Duration::from_micros;
        // Weights from memory; activations pass the cache meanwhile.
        assert_eq!(least(440_000_000, 400_000_000, 400_000_000), (micros(100), Level::Memory));
        // The weights of all layers fit in the cache.
        assert_eq!(least(40_000_000, 40_000_000, 20 * MB), (micros(5), Level::Cache));
        // Activations alone, and mostly activations.
        assert_eq!(least(8_000_000, 0, 0), (micros(1), Level::Cache));
        assert_eq!(least(1_600_000_000, 400_000_000, 400_000_000), (micros(200), Level::Cache));
        let none = Bandwidth::new(vec![(1, f64::NAN), (2, 0.0), (3, f64::INFINITY)]);
        assert_eq!(none.least(Traffic { bytes: 9, own: 9, working_set: 9 }).0, Duration::ZERO);
        assert_eq!((none.memory(), none.peak()), (0.0, 0.0));
    }

    #[test]
    fn traffic_adds_up() {
        let one = Traffic { bytes: 10, own: 6, working_set: 6 };
        let other = Traffic { bytes: 5, own: 2, working_set: 2 };
        assert_eq!(one.with(other), Traffic { bytes: 15, own: 8, working_set: 8 });
        assert_eq!(one.then(other), Traffic { bytes: 15, own: 8, working_set: 6 });
    }
}
