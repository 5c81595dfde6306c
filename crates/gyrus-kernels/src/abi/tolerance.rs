//! The tolerance of the published rope kernels.

use super::{Freqs, RopeCall, RopeKernel};
use crate::call::Storage;

/// The tolerance: one ulp of the storage, or the f32 rounding error of the pair; more only if frequencies are in f32.
pub(super) fn allowed(call: &RopeCall, expected: f64, magnitude: f64) -> f64 {
    let digits = match call.storage {
        Storage::F32 => 23,
        Storage::F16 => 10,
        Storage::Bf16 => 7,
    };
    let least = if call.storage == Storage::F16 { -14 } else { -126 };
    let exponent = if expected == 0.0 { least } else { (expected.abs().log2().floor() as i32).max(least) };
    let ulp = 2f64.powi(exponent - digits);
    let (last, scale) = match call.kernel {
        RopeKernel::InPlace { params: p, .. } => (f64::from(p.pos_offset) + f64::from(p.seq_len), 1.0),
        RopeKernel::QkvWrite { params: p, .. } | RopeKernel::HeadNorm { params: p, .. } => {
            (f64::from(p.pos) + 1.0, p.freq_scale)
        }
        RopeKernel::BatchKvWrite { params: p, .. } => {
            (f64::from(p.pos) + f64::from(p.k_elem_offset), p.freq_scale)
        }
        RopeKernel::X { dims, .. } => (f64::from(dims.pos_offset) + f64::from(dims.seq_len), 1.0),
        RopeKernel::Op { .. } => (0.0, 1.0),
    };
    // Position ids are below 100,000.
    let angle = if call.positions > 0 { 1e5 } else { last } * f64::from(scale);
    let frequency_error = match (call.kernel, call.freqs) {
        (RopeKernel::Op { .. }, _) | (_, Freqs::Turns) => 0.0,
        (_, Freqs::Divisors) => 3e-7 * angle,
        (_, Freqs::Inline) => 4e-6 * angle,
    };
    // Cosine and sine are within 1e-7, products and sums are rounded to f32; a norm adds its own error.
    let rotation = match (call.kernel, call.storage) {
        (RopeKernel::HeadNorm { .. }, _) => 2f64.powi(-20),
        (_, Storage::F32) => 2f64.powi(-21),
        _ => 2f64.powi(-22),
    };
    ulp.max(magnitude * (rotation + frequency_error))
}
