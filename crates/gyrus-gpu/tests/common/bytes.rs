//! What activations as bytes, and products with them, may be off by.

use half::f16;

/// Whether this is the scale of a block with this largest magnitude: the nearest half to a 127th of it, where that may
/// be off by `precision` of itself.
pub(crate) fn is_scale(scale: f32, largest: f32, precision: f32) -> bool {
    let nearest = |v: f32| f16::from_f32(v / 127.0).min(f16::MAX).to_f32();
    let (least, most) = (nearest(largest * (1.0 - precision)), nearest(largest * (1.0 + precision)));
    (least..=most).contains(&scale) && f16::from_f32(scale).to_f32() == scale
}

/// What a value is in bytes of a block with this largest magnitude, before it is rounded.
pub(crate) fn exact_byte(value: f32, largest: f32) -> f32 {
    let scale = (largest / 127.0).min(f16::MAX.to_f32());
    if scale > 0.0 { (value / scale).clamp(-127.0, 127.0) } else { 0.0 }
}

/// What errors of a sum are relative to: a sum of magnitudes that no partial sum exceeds. Offsets are summed apart from
/// quants; where those of a scale take up most of their range, neither is more than a few times the largest value.
pub(crate) fn magnitude(w: &[f32], x: &[f32]) -> f64 {
    let largest = |w: &[f32]| w.iter().fold(0f32, |most, w| most.max(w.abs()));
    let chunks = w.chunks(16).zip(x.chunks(16));
    chunks.map(|(w, x)| f64::from(6.0 * largest(w) * x.iter().map(|x| x.abs()).sum::<f32>())).sum()
}
