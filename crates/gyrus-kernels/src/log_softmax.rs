use crate::draw::{CHUNK, largest_of};

/// What turns a row's logits into log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogSoftmax {
    /// The largest logit.
    pub largest: f32,
    /// The natural logarithm of `Σ exp(logit − largest)`.
    pub log_sum: f64,
}

impl LogSoftmax {
    /// Of all logits: exponentials in f32, their sum in f64.
    pub fn new(logits: &[f32]) -> LogSoftmax {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from((l - largest).exp())).sum();
        LogSoftmax { largest, log_sum: sum.ln() }
    }

    /// The same, and the largest logits, in descending order, and of equals the lowest token first. `top` has at most as
    /// many places as there are logits; further ones are not filled.
    pub fn with_top(logits: &[f32], top: &mut [(u32, f32)]) -> LogSoftmax {
        top_tokens(logits, top);
        LogSoftmax::new(logits)
    }

    /// The natural logarithm of the probability of a token with this logit.
    pub fn of(&self, logit: f32) -> f32 {
        (f64::from(logit - self.largest) - self.log_sum) as f32
    }
}

/// Replaces the largest logits so far, which are sorted, by those of a chunk that are larger. The chunk's first token is
/// `first`, and all so far are before it. `largest`: the largest logit of the chunk, or more.
pub fn add_to_top(chunk: &[f32], first: u32, largest: f32, top: &mut [(u32, f32)]) {
    let Some(last) = top.len().checked_sub(1) else { return };
    // Most chunks have none of the largest.
    if largest <= top[last].1 {
        return;
    }
    for (&logit, id) in chunk.iter().zip(first..) {
        if logit > top[last].1 {
            let at = top.partition_point(|(_, other)| *other >= logit);
            top[at..].rotate_right(1);
            top[at] = (id, logit);
        }
    }
}

fn top_tokens(logits: &[f32], top: &mut [(u32, f32)]) {
    top.fill((0, f32::NEG_INFINITY));
    let (chunks, rest) = logits.as_chunks::<CHUNK>();
    for (chunk, first) in chunks.iter().zip((0u32..).step_by(CHUNK)) {
        add_to_top(chunk, first, largest_of(chunk), top);
    }
    add_to_top(rest, (logits.len() - rest.len()) as u32, f32::INFINITY, top);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random;
    use crate::select::log_softmax_at;

    #[test]
    fn the_top_tokens_are_those_of_a_sort() {
        for vocab in [1, 5, 31, 32, 33, 1000] {
            // Many are equal.
            let logits: Vec<f32> = (0..vocab).map(|i| (random(1, i) % 40) as f32 - 20.0).collect();
            let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            for n in [0, 1, 3, 20] {
                let mut top = vec![(7, 0.0); n];
                top_tokens(&logits, &mut top);
                let n = n.min(logits.len());
                assert_eq!(top[..n], sorted[..n], "{n} of {vocab}");
            }
        }
    }

    #[test]
    fn log_probabilities_are_those_of_a_softmax() {
        let logits: Vec<f32> = (0..500).map(|i| (random(2, i) % 1000) as f32 / 100.0).collect();
        let all = LogSoftmax::new(&logits);
        for (&logit, id) in logits.iter().zip(0..) {
            assert_eq!(all.of(logit).to_bits(), log_softmax_at(&logits, id).to_bits());
        }
        let total: f64 = logits.iter().map(|&logit| f64::from(all.of(logit)).exp()).sum();
        assert!((total - 1.0).abs() < 1e-5, "{total}");
    }
}
