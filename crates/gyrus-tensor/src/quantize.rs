//! Quantisation from `f32`, by least squares without an importance matrix.

use half::{bf16, f16};

use crate::block::*;
use crate::fit::{self, peak};
use crate::{DType, TensorError};

/// Quantises `values` to `dtype`. Their number must be a multiple of the type's block.
///
/// A value that the type cannot represent (NaN, an infinity, a magnitude whose scale overflows f16) is an error
/// with its index. `F16` and `BF16` round to nearest.
pub fn quantize(dtype: DType, values: &[f32]) -> Result<Vec<u8>, TensorError> {
    let (run, limit) = encoder(dtype).ok_or(TensorError::NoQuantizer { dtype })?;
    let bytes = dtype.bytes_of_elems(values.len())?;
    // `<=` is false for NaN, so NaN is rejected too.
    let holds = |v: &f32| limit.is_none_or(|limit| v.abs() <= limit);
    if let Some(index) = values.iter().position(|v| !holds(v)) {
        return Err(TensorError::Unrepresentable { dtype, index, value: values[index].to_string() });
    }
    let mut out = Vec::with_capacity(bytes);
    run(values, &mut out);
    debug_assert_eq!(out.len(), bytes);
    Ok(out)
}

/// Whether [`quantize`] supports this type.
pub fn can_quantize(dtype: DType) -> bool {
    encoder(dtype).is_some()
}

type Encode = fn(&[f32], &mut Vec<u8>);

/// The encoder of a type and its largest magnitude, if it has one. A larger magnitude would overflow the f16 scale
/// (the magnitude divided by the number of steps) or offset.
fn encoder(dtype: DType) -> Option<(Encode, Option<f32>)> {
    const F16_MAX: f32 = 65504.0;
    let (run, limit): (Encode, f32) = match dtype {
        DType::F32 => return Some((|x, out| each(x, out, f32::to_le_bytes), None)),
        DType::F16 => (|x, out| each(x, out, |v| f16::from_f32(v).to_le_bytes()), F16_MAX),
        DType::BF16 => (|x, out| each(x, out, |v| bf16::from_f32(v).to_le_bytes()), bf16::MAX.to_f32()),
        DType::Q4_0 => (blocks::<BlockQ4_0>, F16_MAX * 8.0),
        DType::Q4_1 => (blocks::<BlockQ4_1>, F16_MAX),
        DType::Q5_0 => (blocks::<BlockQ5_0>, F16_MAX * 16.0),
        DType::Q5_1 => (blocks::<BlockQ5_1>, F16_MAX),
        DType::Q8_0 => (blocks::<BlockQ8_0>, F16_MAX * 127.0),
        // A fitted scale may exceed the initial one by a few per cent, so the limit is well below the maximum.
        DType::Q4_K => (blocks::<BlockQ4K>, F16_MAX * 32.0),
        DType::Q6_K => (blocks::<BlockQ6K>, F16_MAX * 2048.0),
        // The largest level times the largest power of two that f32 has it with.
        DType::MXFP4 => (blocks::<BlockMxfp4>, 6.0 * MXFP4_LARGEST),
        _ => return None,
    };
    Some((run, Some(limit)))
}

fn each<const N: usize>(values: &[f32], out: &mut Vec<u8>, write: impl Fn(f32) -> [u8; N]) {
    values.iter().for_each(|&v| out.extend_from_slice(&write(v)));
}

fn blocks<B: Quantize>(values: &[f32], out: &mut Vec<u8>) {
    for values in values.chunks_exact(B::DTYPE.block_elems()) {
        out.extend_from_slice(bytemuck::bytes_of(&B::quantize(values)));
    }
}

/// A block format with a quantiser. `x` is exactly one block of finite values.
trait Quantize: Block {
    fn quantize(x: &[f32]) -> Self;
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn range(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &v| (low.min(v), high.max(v)))
}

/// Rounds to the nearest quant and clamps to `0..=last`.
fn step(value: f32, last: u8) -> u8 {
    value.round_ties_even().clamp(0.0, f32::from(last)) as u8
}

/// Packs 32 values of up to five bits: nibbles `j` and `j + 16` share a byte, fifth bits go to `qh`.
fn pack_nibbles(q: &[u8; 32]) -> ([u8; 16], [u8; 4]) {
    let qs = std::array::from_fn(|j| q[j] & 15 | (q[j + 16] & 15) << 4);
    let qh = q.iter().enumerate().fold(0u32, |bits, (j, &q)| bits | u32::from(q >> 4) << j);
    (qs, qh.to_le_bytes())
}

/// Quantises with a scale only: the largest magnitude maps to the most negative quant, `-zero`.
fn scaled(x: &[f32], zero: u8) -> (HalfLe, [u8; 32]) {
    let d = HalfLe::from_f32(peak(x) / -f32::from(zero));
    let id = inverse(d.to_f32());
    (d, std::array::from_fn(|j| step(x[j] * id + f32::from(zero), 2 * zero - 1)))
}

/// Quantises with scale and offset: the range of the block spans all quants.
fn offset(x: &[f32], last: u8) -> (HalfLe, HalfLe, [u8; 32]) {
    let (low, high) = range(x);
    let d = HalfLe::from_f32((high - low) / f32::from(last));
    let m = HalfLe::from_f32(low);
    let (id, low) = (inverse(d.to_f32()), m.to_f32());
    (d, m, std::array::from_fn(|j| step((x[j] - low) * id, last)))
}

impl Quantize for BlockQ4_0 {
    fn quantize(x: &[f32]) -> Self {
        let (d, q) = scaled(x, 8);
        BlockQ4_0 { d, qs: pack_nibbles(&q).0 }
    }
}

impl Quantize for BlockQ4_1 {
    fn quantize(x: &[f32]) -> Self {
        let (d, m, q) = offset(x, 15);
        BlockQ4_1 { d, m, qs: pack_nibbles(&q).0 }
    }
}

impl Quantize for BlockQ5_0 {
    fn quantize(x: &[f32]) -> Self {
        let (d, q) = scaled(x, 16);
        let (qs, qh) = pack_nibbles(&q);
        BlockQ5_0 { d, qh, qs }
    }
}

impl Quantize for BlockQ5_1 {
    fn quantize(x: &[f32]) -> Self {
        let (d, m, q) = offset(x, 31);
        let (qs, qh) = pack_nibbles(&q);
        BlockQ5_1 { d, m, qh, qs }
    }
}

impl Quantize for BlockQ8_0 {
    fn quantize(x: &[f32]) -> Self {
        let d = HalfLe::from_f32(peak(x).abs() / 127.0);
        let id = inverse(d.to_f32());
        BlockQ8_0 { d, qs: std::array::from_fn(|j| (x[j] * id).round_ties_even() as i8) }
    }
}

impl Quantize for BlockQ4K {
    fn quantize(x: &[f32]) -> Self {
        let fits: [(f32, f32); 8] = std::array::from_fn(|k| fit::affine(&x[32 * k..32 * (k + 1)], 15.0));
        let most = |pick: fn(&(f32, f32)) -> f32| fits.iter().map(pick).fold(0.0, f32::max);
        let d = HalfLe::from_f32(most(|f| f.0) / 63.0);
        let dmin = HalfLe::from_f32(most(|f| f.1) / 63.0);
        let (id, idmin) = (inverse(d.to_f32()), inverse(dmin.to_f32()));
        let scales: [u8; 8] = std::array::from_fn(|k| step(fits[k].0 * id, 63));
        let mins: [u8; 8] = std::array::from_fn(|k| step(fits[k].1 * idmin, 63));
        // The quants use the scales as stored, not as fitted.
        let mut qs = [0; 128];
        for k in 0..8 {
            let min = dmin.to_f32() * f32::from(mins[k]);
            let id = inverse(d.to_f32() * f32::from(scales[k]));
            for j in 0..32 {
                qs[32 * (k / 2) + j] |= step((x[32 * k + j] + min) * id, 15) << (4 * (k % 2));
            }
        }
        BlockQ4K { d, dmin, scales: pack_scale_min(&scales, &mins), qs }
    }
}

impl Quantize for BlockQ6K {
    fn quantize(x: &[f32]) -> Self {
        let fits: [f32; 16] = std::array::from_fn(|k| fit::symmetric(&x[16 * k..16 * (k + 1)], 32.0));
        // The largest scale maps to -128, which has no positive counterpart.
        let d = HalfLe::from_f32(peak(&fits) / -128.0);
        let id = inverse(d.to_f32());
        let scales: [i8; 16] = std::array::from_fn(|k| (fits[k] * id).round_ties_even() as i8);
        let (mut ql, mut qh) = ([0; 128], [0; 64]);
        for (i, &v) in x.iter().enumerate() {
            let id = inverse(d.to_f32() * f32::from(scales[i / 16]));
            let q = step(v * id + 32.0, 63);
            let (half, within) = (i / 128, i % 128);
            ql[64 * half + within % 64] |= (q & 15) << (4 * (within / 64));
            qh[32 * half + within % 32] |= (q >> 4) << (2 * (within / 32));
        }
        BlockQ6K { ql, qh, scales, d }
    }
}

/// The largest E8M0 scale whose product with every element is finite: 2^125.
const MXFP4_LARGEST: f32 = f32::from_bits((125 + 127) << 23);

impl Quantize for BlockMxfp4 {
    /// One power of two puts the largest magnitude between 4 and 8, where it is clamped to 6, the next one between 2 and
    /// 4. The one with the smaller squared error is used.
    fn quantize(x: &[f32]) -> Self {
        let exponent = peak(x).abs().to_bits() >> 23;
        let low = exponent.saturating_sub(2) as u8;
        let most = (MXFP4_LARGEST.to_bits() >> 23) as u8;
        let (first, second) = (encode_mxfp4(x, low), encode_mxfp4(x, (low + 1).min(most)));
        if second.1 < first.1 { second.0 } else { first.0 }
    }
}

/// A block with the nearest levels for the exponent `e`, and its squared error.
fn encode_mxfp4(x: &[f32], e: u8) -> (BlockMxfp4, f64) {
    let mut block = BlockMxfp4 { e, qs: [0; 16] };
    let d = f64::from(block.scale().to_f32());
    let error = |value: f32, q: usize| (f64::from(value) - d * f64::from(MXFP4_LEVELS[q])).abs();
    let mut sum = 0.0;
    for (j, &value) in x.iter().enumerate() {
        // Code 8 is a second zero.
        let codes = (0..16).filter(|q| *q != 8);
        let best = codes.min_by(|a, b| error(value, *a).total_cmp(&error(value, *b))).unwrap_or(0);
        block.qs[j % 16] |= (best as u8) << (4 * (j / 16));
        sum += error(value, best).powi(2);
    }
    (block, sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequantize;

    fn round_trip(dtype: DType, x: &[f32]) -> Vec<f32> {
        let bytes = quantize(dtype, x).unwrap();
        let mut back = vec![0.0; x.len()];
        dequantize(dtype, &bytes, &mut back).unwrap();
        back
    }

    fn quantizable() -> impl Iterator<Item = DType> {
        DType::ALL.iter().copied().filter(|d| can_quantize(*d))
    }

    #[test]
    fn zeros_stay_zero_and_errors_stay_within_a_fifth_of_the_magnitude() {
        for dtype in quantizable() {
            let n = dtype.block_elems().max(4);
            assert!(round_trip(dtype, &vec![0.0; n]).iter().all(|&v| v == 0.0), "{dtype}");
            for magnitude in [1e-45, 1e-20, 1e-7, 1.0, 60000.0] {
                let x: Vec<f32> = (0..n).map(|i| magnitude * (i as f32 / n as f32 - 0.5)).collect();
                let back = round_trip(dtype, &x);
                let worst = gyrus_testkit::distance(&x, &back);
                // A block whose scale underflows f16 loses at most its own magnitude.
                assert!(worst <= 0.2 * magnitude + 1e-6, "{dtype} at {magnitude}: {worst}");
            }
        }
    }

    #[test]
    fn every_element_is_packed_at_its_own_index() {
        // One element is −1 and the others are 0, so a misplaced nibble or bit shows.
        for dtype in quantizable().filter(|d| d.is_quantized()) {
            let n = dtype.block_elems();
            for hot in 0..n {
                let x: Vec<f32> = (0..n).map(|i| if i == hot { -1.0 } else { 0.0 }).collect();
                let back = round_trip(dtype, &x);
                for (i, &v) in back.iter().enumerate() {
                    assert!((v - x[i]).abs() < 0.05, "{dtype}: element {i} is {v} with {hot} hot");
                }
            }
        }
    }

    #[test]
    fn unrepresentable_values_are_rejected_with_their_index() {
        for dtype in quantizable().filter(|&d| d != DType::F32) {
            let mut x = vec![1.0; dtype.block_elems().max(8)];
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
                x[5] = bad;
                match quantize(dtype, &x) {
                    Err(TensorError::Unrepresentable { index: 5, .. }) => {}
                    other => panic!("{dtype} with {bad}: {other:?}"),
                }
            }
        }
        assert_eq!(quantize(DType::Q2_K, &[0.0; 256]), Err(TensorError::NoQuantizer { dtype: DType::Q2_K }));
    }
}
