//! Token buckets: so many a minute, at most a minute's worth at once.

use std::time::Instant;

/// A bucket that fills up steadily.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_minute: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(per_minute: f64) -> Bucket {
        Bucket { per_minute, level: per_minute, at: Instant::now() }
    }

    fn fill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + seconds * self.per_minute / 60.0).min(self.per_minute);
        self.at = now;
    }

    /// Takes one, or says in how many seconds there is one.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), u64> {
        self.fill(now);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return Ok(());
        }
        Err(self.seconds(1.0 - self.level))
    }

    /// In how many seconds there is something; `None` if there is now.
    pub(crate) fn wait(&mut self, now: Instant) -> Option<u64> {
        self.fill(now);
        (self.level <= 0.0).then(|| self.seconds(1.0 - self.level))
    }

    /// Takes this much, even if there is less: what was used is known afterwards only.
    pub(crate) fn spend(&mut self, now: Instant, amount: f64) {
        self.fill(now);
        self.level -= amount;
    }

    fn seconds(&self, missing: f64) -> u64 {
        (missing * 60.0 / self.per_minute.max(1e-3)).ceil().clamp(1.0, 3600.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn sixty_pass_and_the_next_one_waits_a_second() {
        let mut bucket = Bucket::new(60.0);
        let start = bucket.at;
        assert!((0..60).all(|_| bucket.take(start).is_ok()));
        assert_eq!(bucket.take(start), Err(1));
        let later = start + Duration::from_millis(1001);
        assert_eq!(bucket.take(later), Ok(()));
        assert_eq!(bucket.take(later), Err(1));
        assert!((0..60).all(|_| bucket.take(later + Duration::from_secs(3600)).is_ok()));
    }

    #[test]
    fn debts_are_paid_first() {
        let mut bucket = Bucket::new(60.0);
        let start = bucket.at;
        assert_eq!(bucket.wait(start), None);
        bucket.spend(start, 100.0);
        assert_eq!(bucket.wait(start), Some(41));
        assert_eq!(bucket.wait(start + Duration::from_secs(41)), None);
    }
}
