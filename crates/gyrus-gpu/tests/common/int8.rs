//! The error of products of int8 activations.

/// The value that errors of a sum are relative to: a sum of magnitudes that no partial sum exceeds. Offsets and quants are
/// summed separately; as quants use most of their range, neither sum is more than a few times the largest value.
pub(crate) fn magnitude(w: &[f32], x: &[f32]) -> f64 {
    let largest = |w: &[f32]| w.iter().fold(0f32, |most, w| most.max(w.abs()));
    let chunks = w.chunks(16).zip(x.chunks(16));
    chunks.map(|(w, x)| f64::from(6.0 * largest(w) * x.iter().map(|x| x.abs()).sum::<f32>())).sum()
}
