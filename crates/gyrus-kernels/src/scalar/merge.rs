/// Merges the splits of one row's attention: for each head and split `head_dim` sums of weighted values, the running
/// max, the sum of exponentials, and two padding values, with `most_splits` allocated and `splits` in use. `out` is
/// `[heads·head_dim]`.
pub fn merge(partials: &[f32], head_dim: usize, splits: usize, most_splits: usize, out: &mut [f32]) {
    let of_head = partials.chunks_exact(most_splits * (head_dim + 4));
    for (out, parts) in out.chunks_exact_mut(head_dim).zip(of_head) {
        let parts: Vec<&[f32]> = parts.chunks_exact(head_dim + 4).take(splits).collect();
        let most = parts.iter().fold(f64::NEG_INFINITY, |most, part| most.max(part[head_dim].into()));
        let weights: Vec<f64> = parts.iter().map(|part| (f64::from(part[head_dim]) - most).exp()).collect();
        let sum_of = |i: usize| -> f64 {
            parts.iter().zip(&weights).map(|(part, weight)| f64::from(part[i]) * weight).sum()
        };
        let total = sum_of(head_dim + 1);
        for (i, out) in out.iter_mut().enumerate() {
            *out = (sum_of(i) / total) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two merged splits equal the whole softmax.
    #[test]
    fn splits_are_put_together() {
        let (scores, values) = ([1.0f32, -2.0, 700.0, 699.0], [3.0f32, 5.0, 7.0, 11.0]);
        let mut partials = Vec::new();
        for split in 0..2 {
            let (scores, values) = (&scores[2 * split..][..2], &values[2 * split..][..2]);
            let most = scores[0].max(scores[1]);
            let weights = [0, 1].map(|i| (scores[i] - most).exp());
            let sum = weights[0] * values[0] + weights[1] * values[1];
            partials.extend([sum, -sum, most, weights[0] + weights[1], f32::NAN, f32::NAN]);
        }
        partials.extend([f32::NAN; 6]);
        let mut out = [0.0; 2];
        merge(&partials, 2, 2, 3, &mut out);
        let e = (-1f32).exp();
        let expected = (7.0 + 11.0 * e) / (1.0 + e);
        assert!((out[0] - expected).abs() < 1e-6 && out[1] == -out[0], "{out:?}");
        merge(&partials, 2, 1, 3, &mut out);
        assert!((out[0] - 3.0 - 2.0 * 0.047_425_87).abs() < 1e-6, "{out:?}");
    }
}
