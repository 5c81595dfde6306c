//! The log-softmax of a row of logits.
//!
//! Exponentials are in f32. Eight sums of [`BLOCK`] elements each run in f32 and are added in f64, so that the error does
//! not grow with the vocabulary.

use gyrus_kernels::{LogSoftmax, add_to_top};

use crate::exp::{exp, exp_lanes};
use crate::isa::Isa;
use crate::simd::{LANES, Simd, dispatch};

/// Elements that are summed in f32.
const BLOCK: usize = 32 * LANES;

/// [`LogSoftmax::with_top`] with the exponential function of this crate. No logit is NaN.
pub(crate) fn log_softmax(isa: Isa, logits: &[f32], top: &mut [(u32, f32)]) -> LogSoftmax {
    top.fill((0, f32::NEG_INFINITY));
    let mut all = f32::NEG_INFINITY;
    for (block, first) in logits.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
        let of_block = largest(isa, block);
        add_to_top(block, first, of_block, top);
        all = all.max(of_block);
    }
    let largest = all;
    let sum: f64 = logits.chunks(BLOCK).map(|block| f64::from(sum_of_exp(isa, block, largest))).sum();
    LogSoftmax { largest, log_sum: sum.ln() }
}

dispatch! {
    /// The largest value; −∞ if there is none.
    fn largest(values: &[f32]) -> f32 { largest_portable, largest_simd }
}

dispatch! {
    /// `Σ exp(value − shift)` of at most [`BLOCK`] values.
    fn sum_of_exp(values: &[f32], shift: f32) -> f32 { sum_portable, sum_simd }
}

fn largest_portable(values: &[f32]) -> f32 {
    values.iter().fold(f32::NEG_INFINITY, |most, value| most.max(*value))
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn largest_simd<S: Simd>(values: &[f32]) -> f32 {
    let (vectors, rest) = values.as_chunks::<LANES>();
    // SAFETY: the caller upholds the contract; each array has eight elements.
    let most = unsafe {
        let first = S::splat(f32::NEG_INFINITY);
        S::reduce_max(vectors.iter().fold(first, |most, v| S::max(most, S::load(v.as_ptr()))))
    };
    most.max(largest_portable(rest))
}

fn sum_portable(values: &[f32], shift: f32) -> f32 {
    let (vectors, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for vector in vectors {
        sums.iter_mut().zip(vector).for_each(|(sum, value)| *sum += exp(value - shift));
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h)) + sum_of_rest(rest, shift)
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn sum_simd<S: Simd>(values: &[f32], shift: f32) -> f32 {
    let (vectors, rest) = values.as_chunks::<LANES>();
    // SAFETY: the caller upholds the contract; each array has eight elements.
    let sum = unsafe {
        let shift = S::splat(shift);
        let mut sums = S::splat(0.0);
        for vector in vectors {
            sums = S::add(sums, exp_lanes::<S>(S::sub(S::load(vector.as_ptr()), shift)));
        }
        S::reduce_add(sums)
    };
    sum + sum_of_rest(rest, shift)
}

/// The elements that do not fill a vector.
#[inline(always)]
fn sum_of_rest(values: &[f32], shift: f32) -> f32 {
    values.iter().fold(0.0, |sum, value| sum + exp(value - shift))
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::Rng;

    use super::*;

    /// All instruction sets give the same bits, and the definition in f64 is near.
    #[test]
    fn log_probabilities_agree_with_their_definition() {
        let mut rng = Rng::new(1);
        for vocab in [1, 7, 8, 9, 255, 256, 257, 4096, 49_152, 151_937] {
            for spread in [0.01, 3.0, 40.0, 3e38] {
                let logits: Vec<f32> = (0..vocab).map(|_| (rng.gaussian() * spread) as f32).collect();
                let logits: Vec<f32> = logits.into_iter().map(|l| l.clamp(f32::MIN, f32::MAX)).collect();
                let (mut top, mut expected_top) = ([(0, 0.0); 5], [(0, 0.0); 5]);
                let portable = log_softmax(Isa::PORTABLE, &logits, &mut top);
                let expected = LogSoftmax::with_top(&logits, &mut expected_top);
                assert_eq!(top, expected_top);
                assert_eq!(portable.largest, expected.largest);
                let error = (portable.log_sum - expected.log_sum).abs();
                assert!(error < 1e-6 * (1.0 + expected.log_sum), "{vocab} {spread}: {error:e}");
                for isa in Isa::supported() {
                    let got = log_softmax(isa, &logits, &mut top);
                    assert_eq!(top, expected_top);
                    assert_eq!(got.log_sum.to_bits(), portable.log_sum.to_bits(), "{isa:?} {vocab} {spread}");
                    assert_eq!(got.largest.to_bits(), portable.largest.to_bits());
                }
            }
        }
    }
}
