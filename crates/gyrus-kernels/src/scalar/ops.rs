use std::f64::consts::SQRT_2;

use super::conv::erf;
use crate::op::Activation;

/// `out = x / √(mean(x²) + eps) · weight` for one row. The sum is in `f64`, so that its order does not matter.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = inverse_rms(x, eps) as f32;
    for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * w;
    }
}

/// `1 / √(mean(x²) + eps)`. A mat-vec multiplies its results by it if its int8 input was not.
pub fn inverse_rms(x: &[f32], eps: f32) -> f64 {
    let sum: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    1.0 / (sum / x.len() as f64 + f64::from(eps)).sqrt()
}

/// `out[n] (+)= Σ_k weight[n, k]·x[k]` for one row.
pub fn matmul(weight: &[f32], x: &[f32], accumulate: bool, out: &mut [f32]) {
    for (out, row) in out.iter_mut().zip(weight.chunks_exact(x.len())) {
        let sum: f64 = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
        *out = if accumulate { *out + sum as f32 } else { sum as f32 };
    }
}

/// `out[i] = f(x[i])·x[n + i]` for one row, `x: [2n]`.
pub fn gate(activation: Activation, x: &[f32], out: &mut [f32]) {
    let (gate, up) = x.split_at(out.len());
    for ((out, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        *out = gated(activation, g, u);
    }
}

/// A gate's function times the factor that it gates.
pub fn gated(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::ClampedSwish => activate(activation, gate) * (clamp(up, -CLAMP) + 1.0),
        other => activate(other, gate) * up,
    }
}

/// The largest gate, and the largest magnitude of its factor, in [`Activation::ClampedSwish`].
const CLAMP: f32 = 7.0;

/// `x` from `least` to [`CLAMP`]. A NaN stays NaN.
fn clamp(x: f32, least: f32) -> f32 {
    x.clamp(least, CLAMP)
}

/// `cap·tanh(x / cap)`.
pub fn soft_cap(x: f32, cap: f32) -> f32 {
    let cap = f64::from(cap);
    (cap * (f64::from(x) / cap).tanh()) as f32
}

/// The function of a feed-forward layer.
pub fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            const SQRT_2_OVER_PI: f32 = 0.797_884_6;
            0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)).tanh())
        }
        Activation::Gelu => {
            let x = f64::from(x);
            (0.5 * x * (1.0 + erf(x / SQRT_2))) as f32
        }
        Activation::SquaredRelu => x.max(0.0) * x.max(0.0),
        Activation::ClampedSwish => {
            let x = clamp(x, f32::NEG_INFINITY);
            x / (1.0 + (-1.702 * x).exp())
        }
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::Tanh => f64::from(x).tanh() as f32,
    }
}

/// Sums of the words of `x` modulo 2³², one for each 32 KiB.
pub fn read_sums(x: &[u32]) -> Vec<u32> {
    x.chunks(8192).map(|words| words.iter().fold(0, |sum: u32, word| sum.wrapping_add(*word))).collect()
}
