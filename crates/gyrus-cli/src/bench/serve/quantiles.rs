//! Percentiles of measured times.

use std::time::Duration;

use serde::Serialize;

/// Times in seconds. All are zero if none was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Quantiles {
    pub(super) count: usize,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Quantiles {
    pub(super) fn new(times: &[f64]) -> Quantiles {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let Some(&max) = sorted.last() else { return Quantiles::default() };
        Quantiles {
            count: sorted.len(),
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
            p50: percentile(&sorted, 50),
            p90: percentile(&sorted, 90),
            p99: percentile(&sorted, 99),
            max,
        }
    }
}

/// The least of the sorted values that at least `percent` of them do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

/// The times between tokens that came at these times.
pub(super) fn gaps(tokens: &[Duration]) -> impl Iterator<Item = f64> + '_ {
    tokens.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let all = Quantiles::new(&hundred);
        assert_eq!(
            (all.count, all.mean, all.p50, all.p90, all.p99, all.max),
            (100, 50.5, 50.0, 90.0, 99.0, 100.0)
        );
        // With few values a high percentile is the largest.
        let few = Quantiles::new(&[3.0, 1.0, 2.0]);
        assert_eq!((few.p50, few.p90, few.p99, few.max), (2.0, 3.0, 3.0, 3.0));
        assert_eq!(Quantiles::new(&[5.0]).p50, 5.0);
        assert_eq!(Quantiles::new(&[1.0, 2.0]).p50, 1.0);
        assert_eq!(Quantiles::new(&[]), Quantiles::default());
    }

    #[test]
    fn gaps_lie_between_tokens() {
        let at = [1.0, 1.5, 3.5].map(Duration::from_secs_f64);
        assert_eq!(gaps(&at).collect::<Vec<_>>(), [0.5, 2.0]);
        assert_eq!(gaps(&at[..1]).count() + gaps(&[]).count(), 0);
    }
}
