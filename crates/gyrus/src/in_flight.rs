//! How many decode steps run on the device before the caller has read their tokens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Decode steps that were submitted to the device and whose tokens were not read yet.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// The generation that they belong to.
    pub(crate) generation: Option<GenerationId>,
    /// The present limit. It starts low, so that the first token comes early and a stop wastes little work, and
    /// doubles.
    pub(crate) limit: usize,
    /// The highest limit.
    pub(crate) max: usize,
    /// Time spent waiting for tokens, and the number of tokens. Their quotient estimates the time of a step when the
    /// device is slower than the caller.
    pub(crate) wait_time: Duration,
    pub(crate) tokens_read: u32,
}

/// The most device time that steps in flight may take. A stop wastes up to this much work, and the next request may
/// wait this long.
const MAX_LATENCY: Duration = Duration::from_millis(64);

impl InFlight {
    /// How many steps to have in flight now, when at most `remaining` more tokens are needed.
    pub(crate) fn target(&self, remaining: usize) -> usize {
        let step = self.wait_time.as_nanos() / u128::from(self.tokens_read.max(1));
        let in_time = usize::try_from(MAX_LATENCY.as_nanos() / step.max(1)).unwrap_or(usize::MAX);
        self.limit.min(self.max).min(remaining.max(1)).min(in_time.max(2))
    }
}

/// Identifies a generation within this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GenerationId(u64);

impl GenerationId {
    pub(crate) fn new() -> GenerationId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        GenerationId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps in flight are limited by `max` and by `MAX_LATENCY`.
    #[test]
    fn slow_steps_reduce_the_steps_in_flight() {
        let in_flight = |step: u64, tokens_read: u32| InFlight {
            limit: 32,
            max: 32,
            wait_time: tokens_read * Duration::from_millis(step),
            tokens_read,
            ..InFlight::default()
        };
        assert_eq!(in_flight(0, 0).target(100), 32);
        assert_eq!(in_flight(0, 50).target(100), 32);
        assert_eq!(in_flight(2, 50).target(100), 32);
        assert_eq!(in_flight(20, 50).target(100), 3);
        assert_eq!(in_flight(500, 3).target(100), 2);
        assert_eq!(in_flight(500, 3).target(1), 1);
        assert_eq!(in_flight(0, 0).target(0), 1);
    }
}
