//! What products with activations as bytes may be off by.

/// What errors of a sum are relative to: a sum of magnitudes that no partial sum exceeds. Offsets are summed apart from
/// quants; where those of a scale take up most of their range, neither is more than a few times the largest value.
pub(crate) fn magnitude(w: &[f32], x: &[f32]) -> f64 {
    let largest = |w: &[f32]| w.iter().fold(0f32, |most, w| most.max(w.abs()));
    let chunks = w.chunks(16).zip(x.chunks(16));
    chunks.map(|(w, x)| f64::from(6.0 * largest(w) * x.iter().map(|x| x.abs()).sum::<f32>())).sum()
}
