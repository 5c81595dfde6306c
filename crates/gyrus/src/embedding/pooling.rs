//! How the hidden rows of a text become one vector. All sums are in f64 and in the order of rows, so that a text's vector
//! depends on its rows alone.

use std::str::FromStr;

/// How the hidden rows of a text become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The first row, that of a CLS token.
    First,
    /// The last row.
    Last,
}

impl Pooling {
    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Last => "last",
        }
    }

    /// The rows of a text of this many that it reads.
    pub(crate) fn rows(self, count: usize) -> std::ops::Range<usize> {
        match self {
            Pooling::Mean => 0..count,
            Pooling::First => 0..count.min(1),
            Pooling::Last => count.saturating_sub(1)..count,
        }
    }
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(name: &str) -> Result<Pooling, String> {
        let all = [Pooling::Mean, Pooling::First, Pooling::Last];
        all.into_iter()
            .find(|pooling| pooling.name() == name)
            .ok_or_else(|| format!("'{name}' is no pooling: mean, cls or last"))
    }
}

/// The mean of rows, `[n, width]`, without the first `skipped` ones if others are left.
pub(super) fn mean(rows: &[f32], width: usize, skipped: usize) -> Vec<f32> {
    let count = rows.len() / width.max(1);
    let skipped = if skipped < count { skipped } else { 0 };
    let mut sums = vec![0.0f64; width];
    for row in rows.chunks_exact(width.max(1)).skip(skipped) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    let count = (count - skipped).max(1) as f64;
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// Scales a vector to length 1. A vector of zeros stays one.
pub(super) fn normalize(vector: &mut [f32]) {
    let squares: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    if squares > 0.0 {
        let factor = 1.0 / squares.sqrt();
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_skip_the_rows_of_a_prompt() {
        let rows = [1.0, 2.0, 3.0, 4.0, 8.0, 9.0];
        assert_eq!(mean(&rows, 2, 0), [4.0, 5.0]);
        assert_eq!(mean(&rows, 2, 1), [5.5, 6.5]);
        assert_eq!(mean(&rows, 2, 3), [4.0, 5.0]);
    }

    #[test]
    fn vectors_have_length_one() {
        let mut vector = [3.0, 0.0, -4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.0, -0.8]);
        let mut zeros = [0.0; 3];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }

    #[test]
    fn names_are_those_of_options() {
        for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
            assert_eq!(pooling.name().parse(), Ok(pooling));
        }
        assert!("max".parse::<Pooling>().unwrap_err().contains("'max'"));
    }
}
