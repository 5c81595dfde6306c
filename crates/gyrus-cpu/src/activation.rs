//! Element-wise functions: activations, gates, softmax, addition.
//!
//! `f32` throughout. SIMD forms repeat the scalar ones operation by operation, so results are bit-equal.

use crate::exp::exp;
use crate::float::{LANES, add_lanes};
use crate::isa::{Isa, Level};
use crate::pool::Pool;
use crate::storage::Disjoint;

/// Elements below which more threads cost more than they save.
const ALONE: usize = 16 << 10;

/// The non-linear function of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `x / (1 + e⁻ˣ)`.
    Silu,
    /// `x / (1 + e⁻²ᵘ)` with `u = √(2/π)·(x + 0.044715·x³)`: GELU by its hyperbolic-tangent form.
    GeluTanh,
    /// `x·Φ(x)`, Φ being the normal distribution: GELU itself.
    GeluErf,
    /// `max(x, 0)`.
    Relu,
}

const TWO_SQRT_2_PI: f32 = 1.595_769_2;
const CUBIC: f32 = 0.044_715;

/// `ln(Φ(−y) / t) + y²/2 ≈ Σ PHI[i]·tⁱ` with `t = 1 / (1 + 0.375·y)`, `y` in 0..14, within 6.4e-8.
const PHI: [f32; 10] = [
    -1.899_643_4,
    0.997_045_8,
    0.388_714,
    -0.106_198_095,
    0.378_560_5,
    -1.082_082_4,
    0.743_924_9,
    0.064_894_184,
    -0.255_451_5,
    0.077_088_89,
];
const PHI_STEP: f32 = 0.375;

impl Activation {
    /// The function of one number: the definition that the SIMD form repeats.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x / (1.0 + exp(-x)),
            Activation::GeluTanh => {
                let cubic = (CUBIC * x).mul_add(x * x, x);
                x / (1.0 + exp(-TWO_SQRT_2_PI * cubic))
            }
            Activation::GeluErf => {
                let y = x.abs();
                let t = 1.0 / PHI_STEP.mul_add(y, 1.0);
                let mut log = PHI[9];
                for i in (0..9).rev() {
                    log = log.mul_add(t, PHI[i]);
                }
                let below = t * exp((-0.5 * y).mul_add(y, log));
                x * if x < 0.0 { below } else { 1.0 - below }
            }
            // A NaN stays.
            Activation::Relu => {
                if 0.0 > x {
                    0.0
                } else {
                    x
                }
            }
        }
    }
}

/// Applies an activation in place.
pub fn activate(pool: &Pool, activation: Activation, x: &mut [f32]) {
    let isa = pool.isa();
    split(pool, x.len(), LANES, x, &|_, out| match isa.level() {
        Level::Portable => out.iter_mut().for_each(|v| *v = activation.apply(*v)),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only where the instructions do.
        Level::Avx2 | Level::Avx512Vnni => unsafe { avx2::activate(activation, out) },
    });
}

/// A gated feed-forward's middle: `out = activation(gate) · up`, with `gate_up` `[m, 2n]` holding `n` gates
/// and then `n` ups in each row, and `out` `[m, n]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn gate(pool: &Pool, activation: Activation, gate_up: &[f32], n: usize, out: &mut [f32]) {
    assert!(n > 0 && out.len().is_multiple_of(n), "{} outputs are not rows of {n}", out.len());
    assert_eq!(gate_up.len(), 2 * out.len(), "a gate and an up for each output");
    let isa = pool.isa();
    split(pool, out.len(), n, out, &|first, out| {
        for (row, out) in out.chunks_exact_mut(n).enumerate() {
            let (gate, up) = gate_up[2 * (first + row * n)..][..2 * n].split_at(n);
            match isa.level() {
                Level::Portable => {
                    for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
                        *out = activation.apply(*g) * u;
                    }
                }
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this level exists only where the instructions do.
                Level::Avx2 | Level::Avx512Vnni => unsafe { avx2::gate(activation, gate, up, out) },
            }
        }
    });
}

/// Adds `x` to `out`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn add(out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len());
    out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
}

/// Multiplies every element.
pub fn scale(out: &mut [f32], factor: f32) {
    out.iter_mut().for_each(|v| *v *= factor);
}

/// `x ← e^(x − max) / Σ e^(x − max)`, in place. Lane `l` of eight sums the elements `≡ l (mod 8)`.
///
/// If the largest is +∞ or any is NaN, the result is NaN; an empty slice is left alone.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |max, &v| if v > max { v } else { max });
    let sum = match isa.level() {
        Level::Portable => {
            let mut lanes = [0.0; LANES];
            for (i, v) in x.iter_mut().enumerate() {
                *v = exp(*v - max);
                lanes[i % LANES] += *v;
            }
            add_lanes(lanes)
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only where the instructions do.
        Level::Avx2 | Level::Avx512Vnni => unsafe { avx2::exp_sum(x, max) },
    };
    scale(x, 1.0 / sum);
}

/// Runs `body(first, part)` over parts of `out`, cut at multiples of `unit`.
fn split(pool: &Pool, len: usize, unit: usize, out: &mut [f32], body: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    if len <= ALONE {
        return body(0, out);
    }
    let step = len.div_ceil(pool.threads() * 4).next_multiple_of(unit);
    let parts = Disjoint::new(out);
    pool.run(len.div_ceil(step), &|task| {
        let range = task * step..len.min((task + 1) * step);
        // SAFETY: ranges of different tasks are disjoint.
        body(range.start, unsafe { parts.part(range) });
    });
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::exp::avx2::exp;
    use crate::float::avx2::sum;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn apply(activation: Activation, x: __m256) -> __m256 {
        let one = _mm256_set1_ps(1.0);
        let minus = |v: __m256| _mm256_xor_ps(v, _mm256_set1_ps(-0.0));
        match activation {
            Activation::Silu => _mm256_div_ps(x, _mm256_add_ps(one, exp(minus(x)))),
            Activation::GeluTanh => {
                let cubic = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(CUBIC), x), _mm256_mul_ps(x, x), x);
                let e = exp(_mm256_mul_ps(_mm256_set1_ps(-TWO_SQRT_2_PI), cubic));
                _mm256_div_ps(x, _mm256_add_ps(one, e))
            }
            Activation::GeluErf => {
                let y = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
                let t = _mm256_div_ps(one, _mm256_fmadd_ps(_mm256_set1_ps(PHI_STEP), y, one));
                let mut log = _mm256_set1_ps(PHI[9]);
                for i in (0..9).rev() {
                    log = _mm256_fmadd_ps(log, t, _mm256_set1_ps(PHI[i]));
                }
                let log = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(-0.5), y), y, log);
                let below = _mm256_mul_ps(t, exp(log));
                let negative = _mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_setzero_ps());
                _mm256_mul_ps(x, _mm256_blendv_ps(_mm256_sub_ps(one, below), below, negative))
            }
            Activation::Relu => _mm256_max_ps(_mm256_setzero_ps(), x),
        }
    }

    /// # Safety
    /// The processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn activate(activation: Activation, x: &mut [f32]) {
        let (whole, tail) = x.as_chunks_mut::<LANES>();
        for v in whole {
            // SAFETY: eight numbers in, eight out.
            unsafe { _mm256_storeu_ps(v.as_mut_ptr(), apply(activation, _mm256_loadu_ps(v.as_ptr()))) };
        }
        tail.iter_mut().for_each(|v| *v = activation.apply(*v));
    }

    /// # Safety
    /// The processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn gate(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
        let ((gate, gate_tail), (up, up_tail)) = (gate.as_chunks::<LANES>(), up.as_chunks::<LANES>());
        let (out, out_tail) = out.as_chunks_mut::<LANES>();
        for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
            // SAFETY: eight numbers in, eight out.
            unsafe {
                let v = apply(activation, _mm256_loadu_ps(g.as_ptr()));
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(v, _mm256_loadu_ps(u.as_ptr())));
            }
        }
        for ((out, g), u) in out_tail.iter_mut().zip(gate_tail).zip(up_tail) {
            *out = activation.apply(*g) * u;
        }
    }

    /// # Safety
    /// The processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn exp_sum(x: &mut [f32], max: f32) -> f32 {
        let shift = _mm256_set1_ps(max);
        let mut lanes = _mm256_setzero_ps();
        let (whole, tail) = x.as_chunks_mut::<LANES>();
        for v in whole {
            // SAFETY: eight numbers in, eight out.
            unsafe {
                let e = exp(_mm256_sub_ps(_mm256_loadu_ps(v.as_ptr()), shift));
                _mm256_storeu_ps(v.as_mut_ptr(), e);
                lanes = _mm256_add_ps(lanes, e);
            }
        }
        let mut last = [0.0; LANES];
        for (v, last) in tail.iter_mut().zip(&mut last) {
            *v = crate::exp::exp(*v - max);
            *last = *v;
        }
        // SAFETY: the array has eight numbers.
        sum(_mm256_add_ps(lanes, unsafe { _mm256_loadu_ps(last.as_ptr()) }))
    }
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::Rng;

    use super::*;

    const ALL: [Activation; 4] =
        [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Relu];

    /// The error function by its series and its continued fraction, in double precision.
    fn normal(x: f64) -> f64 {
        let z = x.abs() / std::f64::consts::SQRT_2;
        let below = if z < 3.0 {
            let (mut term, mut sum) = (z, z);
            for n in 1..200 {
                term *= -z * z / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            0.5 - sum / std::f64::consts::PI.sqrt()
        } else {
            let mut f = z;
            for n in (1..200).rev() {
                f = z + f64::from(n) / 2.0 / f;
            }
            (-z * z).exp() / f / std::f64::consts::PI.sqrt() / 2.0
        };
        if x < 0.0 { below } else { 1.0 - below }
    }

    #[test]
    fn activations_are_right() {
        for i in -120_000..=120_000 {
            let x = i as f32 * 1e-4;
            let wide = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
            let cases = [
                (Activation::Silu, wide / (1.0 + (-wide).exp())),
                (Activation::GeluTanh, 0.5 * wide * (1.0 + u.tanh())),
                (Activation::GeluErf, wide * normal(wide)),
                (Activation::Relu, wide.max(0.0)),
            ];
            for (activation, want) in cases {
                let got = f64::from(activation.apply(x));
                assert!(
                    (got - want).abs() <= 4e-7 * wide.abs().max(1e-3),
                    "{activation:?}({x}): {got} {want}"
                );
            }
        }
    }

    #[test]
    fn extremes_stay_finite_and_nan_stays_nan() {
        for activation in ALL {
            for x in [1e4, 1e12, 3e38] {
                assert_eq!(activation.apply(x), x, "{activation:?}");
                assert_eq!(activation.apply(-x).abs(), 0.0, "{activation:?}");
            }
            assert!(activation.apply(f32::NAN).is_nan(), "{activation:?}");
        }
    }

    #[test]
    fn all_rungs_and_thread_counts_agree_bit_for_bit() {
        let mut rng = Rng::new(5);
        for n in [1, 7, 8, 9, 100, 1536] {
            for m in [1, 3, 20] {
                let x: Vec<f32> = (0..2 * m * n).map(|_| 8.0 * rng.gaussian() as f32).collect();
                for activation in ALL {
                    let run = |pool: &Pool| {
                        let (mut gated, mut plain) = (vec![0.0; m * n], x.clone());
                        gate(pool, activation, &x, n, &mut gated);
                        activate(pool, activation, &mut plain);
                        let mut soft = x.clone();
                        softmax(pool.isa(), &mut soft);
                        [gated, plain, soft].map(|v| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
                    };
                    let plain = run(&Pool::with_isa(1, Isa::PORTABLE));
                    assert_eq!(run(&Pool::new(1)), plain, "{activation:?} {m}×{n}");
                    assert_eq!(run(&Pool::new(3)), plain, "{activation:?} {m}×{n}");
                }
            }
        }
    }

    #[test]
    fn softmax_sums_to_one_and_keeps_ratios() {
        let mut x: Vec<f32> = (0..37).map(|i| (i as f32 * 0.7).sin() * 20.0).collect();
        let before = x.clone();
        softmax(Isa::detect(), &mut x);
        assert!((x.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        for i in 0..37 {
            let ratio = f64::from(before[i] - before[3]).exp();
            assert!((f64::from(x[i]) / f64::from(x[3]) / ratio - 1.0).abs() < 1e-5);
        }
        let mut masked = [1.0, f32::NEG_INFINITY, 1.0];
        softmax(Isa::detect(), &mut masked);
        assert_eq!(masked, [0.5, 0.0, 0.5]);
    }
}
