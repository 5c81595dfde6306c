//! Least-squares fits of the scales of K-quant blocks.
//!
//! Mapping the largest value to the last quant gives a good initial scale, but a slightly different scale often
//! has less error. Both fits try a range of initial scales. For each they round, solve for the scale that is
//! best for those integers, and return the one with the least error.

/// The search range around the initial scale, in steps of `STEP` quants.
const REACH: i32 = 10;
const STEP: f32 = 0.1;

/// The value of largest magnitude, with its sign.
pub(crate) fn peak(x: &[f32]) -> f32 {
    x.iter().copied().fold(0.0, |a: f32, v| if v.abs() > a.abs() { v } else { a })
}

/// Fits `x ≈ scale·q` with `q` in `-bound..bound`. Returns the scale, 0 if all values are 0.
///
/// The sign of the scale maps the value of largest magnitude to `-bound`, the one quant without a positive
/// counterpart.
pub(crate) fn symmetric(x: &[f32], bound: f32) -> f32 {
    let peak = peak(x);
    if peak.abs() < f32::MIN_POSITIVE {
        return 0.0;
    }
    let mut best = (f32::NEG_INFINITY, 0.0);
    for step in -REACH..=REACH {
        let inverse = -(bound + STEP * step as f32) / peak;
        let (mut xq, mut qq) = (0.0, 0.0);
        for &v in x {
            let q = (v * inverse).round_ties_even().clamp(-bound, bound - 1.0);
            xq += v * q;
            qq += q * q;
        }
        // With the best scale xq/qq the error is Σx² − xq²/qq, so the largest xq²/qq has the least error.
        let gain = if qq > 0.0 { xq * xq / qq } else { f32::NEG_INFINITY };
        if gain > best.0 {
            best = (gain, xq / qq);
        }
    }
    best.1
}

/// Fits `x ≈ scale·q − min` with `q` in `0..=last` and `min ≥ 0`. Returns `(scale, min)`.
pub(crate) fn affine(x: &[f32], last: f32) -> (f32, f32) {
    let low = x.iter().copied().fold(0.0f32, f32::min);
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if high - low < f32::MIN_POSITIVE {
        return (0.0, -low);
    }
    let mut best = (f32::INFINITY, 0.0, 0.0);
    for step in -REACH..=REACH {
        let inverse = (last + STEP * step as f32) / (high - low);
        let (mut n, mut q1, mut q2, mut x1, mut xq) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for &v in x {
            let q = ((v - low) * inverse).round_ties_even().clamp(0.0, last);
            n += 1.0;
            q1 += q;
            q2 += q * q;
            x1 += v;
            xq += v * q;
        }
        let determinant = n * q2 - q1 * q1;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (n * xq - q1 * x1) / determinant;
        let mut min = (q1 * xq - q2 * x1) / determinant;
        if min < 0.0 {
            // The format can only subtract an offset.
            (scale, min) = (xq / q2, 0.0);
        }
        if scale <= 0.0 {
            continue;
        }
        let error: f32 = x
            .iter()
            .map(|&v| {
                let q = ((v + min) / scale).round_ties_even().clamp(0.0, last);
                (scale * q - min - v).powi(2)
            })
            .sum();
        if error < best.0 {
            best = (error, scale, min);
        }
    }
    if best.0.is_finite() { (best.1, best.2) } else { ((high - low) / last, -low) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_multiples_recover_their_scale() {
        let x: Vec<f32> = (-32..32).map(|q| q as f32 * 0.25).collect();
        assert!((symmetric(&x, 32.0).abs() - 0.25).abs() < 1e-6);
        let x: Vec<f32> = (0..16).map(|q| q as f32 * 0.5 - 3.0).collect();
        let (scale, min) = affine(&x, 15.0);
        assert!((scale - 0.5).abs() < 1e-6 && (min - 3.0).abs() < 1e-5);
    }

    #[test]
    fn degenerate_inputs_have_finite_fits() {
        assert_eq!(symmetric(&[0.0; 16], 32.0), 0.0);
        assert_eq!(affine(&[0.0; 32], 15.0), (0.0, 0.0));
        // A constant positive block cannot be an offset, so it must be a scale.
        let (scale, min) = affine(&[2.0; 32], 15.0);
        assert!((scale * (2.0 / scale).round() - min - 2.0).abs() < 1e-5);
        assert_eq!(affine(&[-2.0; 32], 15.0).1, 2.0);
        for tiny in [1e-40, 1e-38, 1e-30] {
            let (scale, min) = affine(&[tiny, -tiny, 0.0, tiny], 15.0);
            assert!(scale.is_finite() && min.is_finite());
        }
    }
}
