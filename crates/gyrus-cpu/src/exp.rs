//! The exponential function by a polynomial. The error is at most 1.25 ULP wherever the result is a normal
//! number (tested). The result is zero below that range and infinity above it; NaN stays NaN.

use crate::simd::Registers;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts. The first has few bits, so its product with a small integer is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Outside these bounds the result is zero or infinite.
const LOWEST: f32 = -104.0;
const HIGHEST: f32 = 89.0;
/// `eʳ ≈ 1 + r + r²·(C0 + C1·r + …)` for `|r| ≤ ln 2 / 2`; minimax, relative error 3.1e-9.
const C: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_393, 0.008_368_781, 0.001_381_446_7];

/// `eˣ`. The SIMD form repeats these operations.
// Inlined into every caller, so `mul_add` is one instruction where the caller enables FMA.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // These comparisons leave a NaN unchanged.
    let x = if LOWEST > x { LOWEST } else { x };
    let x = if HIGHEST < x { HIGHEST } else { x };
    let n = (x * LOG2_E).round_ties_even();
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let q = C[4].mul_add(r, C[3]).mul_add(r, C[2]).mul_add(r, C[1]).mul_add(r, C[0]);
    let p = q.mul_add(r * r, r) + 1.0;
    // Two factors, because 2ⁿ alone may be subnormal or infinite.
    let n = n as i32;
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// [`exp`] of each lane.
///
/// # Safety
/// The contract of [`Registers`].
#[inline(always)]
pub(crate) unsafe fn exp_lanes<S: Registers>(x: S::F) -> S::F {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let x = S::max(S::splat(LOWEST), x);
        let x = S::min(S::splat(HIGHEST), x);
        let n = S::round(S::mul(x, S::splat(LOG2_E)));
        let r = S::fma(n, S::splat(-LN2_HIGH), x);
        let r = S::fma(n, S::splat(-LN2_LOW), r);
        let q = S::fma(S::splat(C[4]), r, S::splat(C[3]));
        let q = S::fma(q, r, S::splat(C[2]));
        let q = S::fma(q, r, S::splat(C[1]));
        let q = S::fma(q, r, S::splat(C[0]));
        let p = S::add(S::fma(q, S::mul(r, r), r), S::splat(1.0));
        let n = S::to_i(n);
        let half = S::scale_i(n, -1);
        S::mul(S::mul(p, S::power_of_two(half)), S::power_of_two(S::sub_i(n, half)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_error_is_below_1_25_ulp() {
        let mut worst: f64 = 0.0;
        let mut x = -87.3f32;
        while x < 88.7 {
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            // A unit in the last place of the true value.
            let ulp = 2f64.powi(want.log2().floor() as i32 - 23);
            worst = gyrus_testkit::largest([worst, (got - want).abs() / ulp]);
            x += 1.7e-4 + x.abs() * 1e-6;
        }
        assert!(worst < 1.25, "{worst}");
    }

    #[test]
    fn exp_is_exact_at_zero_infinity_and_nan() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert!(exp(88.72) < f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
