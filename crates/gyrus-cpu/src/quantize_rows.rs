//! Quantisation of activations to int8 for the `fast` matmul.

use crate::isa::Isa;
use crate::simd::{LANES, Simd, dispatch};

/// Elements of an int8 block, which share a scale, in activations and in panels.
pub const GROUP: usize = 32;

/// 32 activations as int8: `v ≈ scale·q`, with `q` in −127..=127.
///
/// The block also stores sums of `q`, which every weight format with an offset needs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C, align(16))]
pub struct QBlock {
    /// Quantised values.
    pub qs: [i8; GROUP],
    /// The largest magnitude divided by 127; NaN if a value is NaN.
    pub scale: f32,
    /// `scale · Σq`.
    pub scaled_sum: f32,
    /// `−8 · Σq`. A format with zero point `8·z` adds `z` times this value.
    pub minus8_sum: i32,
    /// `Σq` over the first 16 elements, for formats with a scale per 16.
    pub first_sum: i32,
}

/// Quantises one row to int8. A last partial block is padded with zeros.
///
/// # Panics
/// If `out` has another number of blocks than `x` needs.
pub fn quantize_row(isa: Isa, x: &[f32], out: &mut [QBlock]) {
    assert_eq!(x.len().div_ceil(GROUP), out.len(), "blocks for {} values", x.len());
    row(isa, x, out);
}

dispatch! {
    fn row(x: &[f32], out: &mut [QBlock]) { portable_row, simd_row }
}

fn portable_row(x: &[f32], out: &mut [QBlock]) {
    for (x, out) in x.chunks(GROUP).zip(out) {
        let mut block = [0.0; GROUP];
        block[..x.len()].copy_from_slice(x);
        *out = portable_block(&block);
    }
}

/// The portable form of quantisation. The SIMD form gives the same bits.
fn portable_block(x: &[f32; GROUP]) -> QBlock {
    // Magnitudes order like their bits, and NaN is above all numbers, so a NaN shows in the scale.
    let amax = f32::from_bits(x.iter().map(|v| v.to_bits() & 0x7FFF_FFFF).max().unwrap_or(0));
    let inverse = inverse(amax);
    let qs = x.map(|v| {
        let scaled = (v * inverse).round_ties_even();
        // These comparisons map NaN to 127, like the SIMD minimum.
        let high = if scaled < 127.0 { scaled } else { 127.0 };
        (if high > -127.0 { high } else { -127.0 }) as i8
    });
    let sum = |qs: &[i8]| qs.iter().map(|&q| i32::from(q)).sum();
    finish(qs, sum(&qs[..16]), sum(&qs[16..]), amax)
}

fn inverse(amax: f32) -> f32 {
    if amax > 0.0 { 127.0 / amax } else { 0.0 }
}

#[inline(always)]
fn finish(qs: [i8; GROUP], first_sum: i32, last_sum: i32, amax: f32) -> QBlock {
    let (sum, scale) = (first_sum + last_sum, amax / 127.0);
    QBlock { qs, scale, scaled_sum: scale * sum as f32, minus8_sum: -8 * sum, first_sum }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_row<S: Simd>(x: &[f32], out: &mut [QBlock]) {
    let (whole, tail) = x.as_chunks::<GROUP>();
    for (x, out) in whole.iter().zip(out.iter_mut()) {
        // SAFETY: the caller upholds the contract.
        *out = unsafe { simd_block::<S>(x) };
    }
    if let (false, Some(last)) = (tail.is_empty(), out.last_mut()) {
        let mut padded = [0.0; GROUP];
        padded[..tail.len()].copy_from_slice(tail);
        // SAFETY: the caller upholds the contract.
        *last = unsafe { simd_block::<S>(&padded) };
    }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_block<S: Simd>(x: &[f32; GROUP]) -> QBlock {
    // SAFETY: four loads of eight from an array of 32.
    unsafe {
        let mut v = [S::splat(0.0); 4];
        for (i, v) in v.iter_mut().enumerate() {
            *v = S::load(x.as_ptr().add(LANES * i));
        }
        let amax = f32::from_bits(S::max_abs_bits(v));
        let inverse = S::splat(inverse(amax));
        for v in &mut v {
            let scaled = S::round(S::mul(*v, inverse));
            *v = S::max(S::min(scaled, S::splat(127.0)), S::splat(-127.0));
        }
        let (qs, [first_sum, last_sum]) = S::to_i8(v);
        finish(qs, first_sum, last_sum, amax)
    }
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::Rng;

    use super::*;

    fn quantized(isa: Isa, x: &[f32]) -> Vec<QBlock> {
        let mut out = vec![QBlock::default(); x.len().div_ceil(GROUP)];
        quantize_row(isa, x, &mut out);
        out
    }

    fn bits(blocks: &[QBlock]) -> Vec<([i8; 32], u32, u32, i32, i32)> {
        let bits = |b: &QBlock| (b.qs, b.scale.to_bits(), b.scaled_sum.to_bits(), b.minus8_sum, b.first_sum);
        blocks.iter().map(bits).collect()
    }

    #[test]
    fn rounding_error_is_at_most_half_a_step() {
        let mut rng = Rng::new(1);
        let x: Vec<f32> = (0..1000).map(|_| rng.gaussian() as f32 * 3.0).collect();
        let blocks = quantized(Isa::PORTABLE, &x);
        for (i, v) in x.iter().enumerate() {
            let b = &blocks[i / GROUP];
            assert!((v - b.scale * f32::from(b.qs[i % GROUP])).abs() <= b.scale * 0.500_01);
        }
        for b in &blocks {
            let sum: i32 = b.qs.iter().map(|&q| i32::from(q)).sum();
            assert_eq!(b.minus8_sum, -8 * sum);
            assert_eq!(b.scaled_sum, b.scale * sum as f32);
            assert_eq!(b.first_sum, b.qs[..16].iter().map(|&q| i32::from(q)).sum::<i32>());
        }
    }

    #[test]
    fn simd_is_bit_equal_to_portable_on_partial_blocks_and_special_values() {
        let mut rng = Rng::new(2);
        for len in [1, 7, 31, 32, 33, 64, 100, 576] {
            let mut x: Vec<f32> = (0..len).map(|_| rng.gaussian() as f32).collect();
            for poison in [0.0, 1e-42, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let at = rng.below(len);
                x[at] = poison;
                assert_eq!(bits(&quantized(Isa::detect(), &x)), bits(&quantized(Isa::PORTABLE, &x)));
            }
            x.fill(0.0);
            assert_eq!(bits(&quantized(Isa::detect(), &x)), bits(&quantized(Isa::PORTABLE, &x)));
        }
    }

    #[test]
    fn a_nan_makes_the_scale_nan() {
        let mut x = [1.0; 32];
        x[5] = f32::NAN;
        assert!(quantized(Isa::detect(), &x)[0].scale.is_nan());
    }
}
