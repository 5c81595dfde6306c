//! Activations, plain and gated (SwiGLU, GeGLU), in `f32`.
//!
//! The SIMD form performs the scalar operations in the same order, so results are bit-equal.

use gyrus_kernels::Activation;

use crate::elementwise::{self, capped, capped_lanes};
use crate::exp::{exp, exp_lanes};
use crate::pool::Pool;
use crate::simd::{LANES, Registers, Simd, dispatch};
use crate::storage::Disjoint;

const TWO_SQRT_2_PI: f32 = 1.595_769_2;
const CUBIC: f32 = 0.044_715;

/// The activation of one element. The SIMD form repeats these operations.
#[inline(always)]
fn apply(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + exp(-x)),
        // `x / (1 + e⁻²ᵘ)` with `u = √(2/π)·(x + 0.044715·x³)`.
        Activation::GeluTanh => {
            let cubic = (CUBIC * x).mul_add(x * x, x);
            x / (1.0 + exp(-TWO_SQRT_2_PI * cubic))
        }
        Activation::Gelu => {
            // The tail of the normal distribution is a polynomial times e^(−x²/2), within 1e-7 (Abramowitz and Stegun,
            // 7.1.26).
            let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
            let t = 1.0 / (1.0 + 0.327_591_1 * z);
            let sum = TAIL.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
            let tail = 0.5 * sum * exp(-z * z);
            let positive = if x > 0.0 { x } else { 0.0 };
            (-x.abs()).mul_add(tail, positive)
        }
        Activation::SquaredRelu => {
            // The comparison leaves a NaN unchanged.
            let positive = if x < 0.0 { 0.0 } else { x };
            positive * positive
        }
        Activation::ClampedSwish => {
            let x = if x > CLAMP { CLAMP } else { x };
            x / (1.0 + exp(-SWISH * x))
        }
        Activation::Sigmoid => 1.0 / (1.0 + exp(-x)),
        // The comparison leaves a NaN unchanged.
        Activation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::Tanh => capped(x, 1.0),
    }
}

/// A gate's function times the factor that it gates.
#[inline(always)]
fn gated(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::ClampedSwish => {
            // These comparisons leave a NaN unchanged.
            let up = if up < -CLAMP { -CLAMP } else { up };
            apply(activation, gate) * (if up > CLAMP { CLAMP } else { up } + 1.0)
        }
        other => apply(other, gate) * up,
    }
}

/// The largest gate, and the largest magnitude of its factor, in [`Activation::ClampedSwish`].
const CLAMP: f32 = 7.0;
const SWISH: f32 = 1.702;

/// The polynomial of [`Activation::Gelu`].
const TAIL: [f32; 5] = [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152_1, 1.061_405_4];

/// [`apply`] of each lane.
///
/// # Safety
/// The contract of [`Registers`].
#[inline(always)]
unsafe fn apply_lanes<S: Registers>(activation: Activation, x: S::F) -> S::F {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let mut x = x;
        let e = match activation {
            Activation::ClampedSwish => {
                x = S::min(S::splat(CLAMP), x);
                exp_lanes::<S>(S::mul(S::splat(-SWISH), x))
            }
            Activation::Silu | Activation::Sigmoid => exp_lanes::<S>(S::neg(x)),
            Activation::GeluTanh => {
                let cubic = S::fma(S::mul(S::splat(CUBIC), x), S::mul(x, x), x);
                exp_lanes::<S>(S::mul(S::splat(-TWO_SQRT_2_PI), cubic))
            }
            Activation::Gelu => {
                let size = S::max(x, S::neg(x));
                let z = S::mul(size, S::splat(std::f32::consts::FRAC_1_SQRT_2));
                let one = S::splat(1.0);
                let t = S::div(one, S::add(one, S::mul(S::splat(0.327_591_1), z)));
                let mut sum = S::splat(0.0);
                for c in TAIL.iter().rev() {
                    sum = S::mul(S::add(sum, S::splat(*c)), t);
                }
                let tail = S::mul(S::mul(S::splat(0.5), sum), exp_lanes::<S>(S::mul(S::neg(z), z)));
                let positive = S::max(x, S::splat(0.0));
                return S::fma(S::neg(size), tail, positive);
            }
            Activation::Relu => return S::max(S::splat(0.0), x),
            Activation::SquaredRelu => {
                let positive = S::max(S::splat(0.0), x);
                return S::mul(positive, positive);
            }
            Activation::Tanh => return capped_lanes::<S>(x, 1.0),
        };
        let numerator = if activation == Activation::Sigmoid { S::splat(1.0) } else { x };
        S::div(numerator, S::add(S::splat(1.0), e))
    }
}

/// `x = activation(x)` for each element.
pub(crate) fn activate(pool: &Pool, activation: Activation, x: &mut [f32]) {
    elementwise::parts(pool, x, |_, x| activate_part(pool.isa(), activation, x));
}

dispatch! {
    wide fn activate_part(activation: Activation, x: &mut [f32]) { portable_activate, simd_activate }
}

#[inline(always)]
fn portable_activate(activation: Activation, x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = apply(activation, *x));
}

/// # Safety
/// The contract of [`Registers`].
#[inline(always)]
unsafe fn simd_activate<S: Registers>(activation: Activation, x: &mut [f32]) {
    let mut chunks = x.chunks_exact_mut(S::N);
    for x in &mut chunks {
        // SAFETY: reads and writes the elements of a chunk.
        unsafe { S::store(x.as_mut_ptr(), apply_lanes::<S>(activation, S::load(x.as_ptr()))) };
    }
    portable_activate(activation, chunks.into_remainder());
}

/// The gated activation of a feed-forward layer: `out = activation(gate) · up`. A row of `gate_up`
/// (`[m, 2n]`) holds `n` gates and then `n` ups; `out` is `[m, n]`.
///
/// # Panics
/// If `out` is not whole rows of `n`, or `gate_up` is not twice as long.
pub fn gate(pool: &Pool, activation: Activation, gate_up: &[f32], n: usize, out: &mut [f32]) {
    assert!(n > 0 && out.len().is_multiple_of(n), "{} outputs are not rows of {n}", out.len());
    assert_eq!(gate_up.len(), 2 * out.len(), "a gate and an up for each output");
    let rows = out.len() / n;
    let elems = out.len();
    let parts = Disjoint::new(out);
    pool.run_rows(rows, elems, |row| {
        let (gate, up) = gate_up[2 * row * n..][..2 * n].split_at(n);
        // SAFETY: each task writes its own rows only.
        let out = unsafe { parts.part(row * n..(row + 1) * n) };
        gate_row(pool.isa(), activation, gate, up, out);
    });
}

dispatch! {
    wide fn gate_row(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) { portable_gate, simd_gate }
}

#[inline(always)]
fn portable_gate(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
        *out = gated(activation, *g, *u);
    }
}

/// # Safety
/// The contract of [`Registers`].
#[inline(always)]
unsafe fn simd_gate<S: Registers>(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let whole = out.len() / S::N * S::N;
    let (gate, gate_tail) = gate.split_at(whole);
    let (up, up_tail) = up.split_at(whole);
    let (out, out_tail) = out.split_at_mut(whole);
    let chunks = out.chunks_exact_mut(S::N).zip(gate.chunks_exact(S::N)).zip(up.chunks_exact(S::N));
    for ((out, g), u) in chunks {
        // SAFETY: reads and writes the elements of a chunk.
        unsafe {
            let v = apply_lanes::<S>(activation, S::load(g.as_ptr()));
            let mut u = S::load(u.as_ptr());
            if activation == Activation::ClampedSwish {
                u = S::min(S::splat(CLAMP), S::max(S::splat(-CLAMP), u));
                u = S::add(u, S::splat(1.0));
            }
            S::store(out.as_mut_ptr(), S::mul(v, u));
        }
    }
    portable_gate(activation, gate_tail, up_tail, out_tail);
}

/// `x[r][i] = activation(x[r][i]) · by[r][first + i]` for rows of `n` and of `width` elements.
///
/// # Panics
/// If the columns exceed a row of `by`, or one buffer has fewer rows than the other.
pub(crate) fn gate_by(
    pool: &Pool,
    activation: Activation,
    x: &mut [f32],
    n: usize,
    by: &[f32],
    width: usize,
    first: usize,
) {
    assert!(first + n <= width, "columns {first} to {} of rows of {width}", first + n);
    let (rows, elems) = (x.len() / n, x.len());
    let parts = Disjoint::new(x);
    pool.run_rows(rows, elems, |row| {
        // SAFETY: each task writes its own rows only.
        let x = unsafe { parts.part(row * n..(row + 1) * n) };
        let by = &by[row * width + first..][..n];
        x.iter_mut().zip(by).for_each(|(x, by)| *x = gated(activation, *x, *by));
    });
}

/// `x[r][i] *= activation(by[r][first + i])` for rows of `n` and of `width` elements.
///
/// # Panics
/// If the columns exceed a row of `by`, or one buffer has fewer rows than the other.
pub(crate) fn mul_by(
    pool: &Pool,
    activation: Activation,
    x: &mut [f32],
    n: usize,
    by: &[f32],
    width: usize,
    first: usize,
) {
    assert!(first + n <= width, "columns {first} to {} of rows of {width}", first + n);
    let (rows, elems) = (x.len() / n, x.len());
    let parts = Disjoint::new(x);
    pool.run_rows(rows, elems, |row| {
        // SAFETY: each task writes its own rows only.
        let x = unsafe { parts.part(row * n..(row + 1) * n) };
        mul_row(pool.isa(), activation, &by[row * width + first..][..n], x);
    });
}

dispatch! {
    fn mul_row(activation: Activation, by: &[f32], x: &mut [f32]) { portable_mul, simd_mul }
}

#[inline(always)]
fn portable_mul(activation: Activation, by: &[f32], x: &mut [f32]) {
    x.iter_mut().zip(by).for_each(|(x, by)| *x *= apply(activation, *by));
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_mul<S: Simd>(activation: Activation, by: &[f32], x: &mut [f32]) {
    let ((by, by_tail), (x, x_tail)) = (by.as_chunks::<LANES>(), x.as_chunks_mut::<LANES>());
    for (x, by) in x.iter_mut().zip(by) {
        // SAFETY: reads and writes eight elements.
        unsafe {
            let factor = apply_lanes::<S>(activation, S::load(by.as_ptr()));
            S::store(x.as_mut_ptr(), S::mul(S::load(x.as_ptr()), factor));
        }
    }
    portable_mul(activation, by_tail, x_tail);
}

/// Multiplies every element by `factor`.
pub(crate) fn scale(out: &mut [f32], factor: f32) {
    out.iter_mut().for_each(|v| *v *= factor);
}

#[cfg(test)]
mod tests {
    use gyrus_kernels::scalar;
    use gyrus_testkit::Rng;

    use super::*;
    use crate::Isa;

    const ALL: [Activation; 8] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::SquaredRelu,
        Activation::ClampedSwish,
        Activation::Sigmoid,
        Activation::Relu,
        Activation::Tanh,
    ];

    #[test]
    fn activations_match_f64() {
        for i in -120_000..=120_000 {
            let x = i as f32 * 1e-4;
            let wide = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
            let cases = [
                (Activation::Silu, wide / (1.0 + (-wide).exp())),
                (Activation::GeluTanh, 0.5 * wide * (1.0 + u.tanh())),
                (Activation::Gelu, scalar::activate(Activation::Gelu, x).into()),
                (Activation::ClampedSwish, scalar::activate(Activation::ClampedSwish, x).into()),
                (Activation::Sigmoid, 1.0 / (1.0 + (-wide).exp())),
                (Activation::Relu, wide.max(0.0)),
            ];
            assert!((f64::from(apply(Activation::Tanh, x)) - wide.tanh()).abs() <= 2e-7, "tanh {x}");
            for (activation, want) in cases {
                let got = f64::from(apply(activation, x));
                let size = if activation == Activation::Sigmoid { want } else { wide.abs().max(1e-3) };
                assert!((got - want).abs() <= 4e-7 * size, "{activation:?}({x}): {got} {want}");
            }
        }
    }

    #[test]
    fn large_inputs_stay_finite_and_nan_stays_nan() {
        for activation in ALL {
            for x in [1e4, 1e12, 3e38] {
                let large = match activation {
                    Activation::SquaredRelu => x * x,
                    Activation::ClampedSwish => apply(activation, 7.0),
                    Activation::Sigmoid | Activation::Tanh => 1.0,
                    _ => x,
                };
                let small = if activation == Activation::Tanh { 1.0 } else { 0.0 };
                assert_eq!(apply(activation, x), large, "{activation:?}");
                assert_eq!(apply(activation, -x).abs(), small, "{activation:?}");
            }
            assert!(apply(activation, f32::NAN).is_nan(), "{activation:?}");
        }
    }

    #[test]
    fn gate_is_bit_equal_on_all_instruction_sets_and_thread_counts() {
        let mut rng = Rng::new(5);
        for n in [1, 7, 8, 9, 100, 1536] {
            for m in [1, 3, 20] {
                let x: Vec<f32> = (0..2 * m * n).map(|_| 8.0 * rng.gaussian() as f32).collect();
                for activation in ALL {
                    let run = |pool: &Pool| {
                        let mut gated = vec![0.0f32; m * n];
                        gate(pool, activation, &x, n, &mut gated);
                        mul_by(pool, activation, &mut gated, n, &x, 2 * n, n);
                        activate(pool, activation, &mut gated);
                        gated.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
                    };
                    let portable = run(&Pool::with_isa(1, Isa::PORTABLE));
                    for isa in Isa::supported() {
                        for threads in [1, 3] {
                            let pool = Pool::with_isa(threads, isa);
                            assert_eq!(run(&pool), portable, "{activation:?} {m}×{n} {isa:?}");
                        }
                    }
                }
            }
        }
    }
}
