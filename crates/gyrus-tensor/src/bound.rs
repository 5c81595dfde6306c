//! An upper bound of a tensor's magnitudes, from its scales alone.

use half::{bf16, f16};

use crate::block::*;
use crate::{DType, TensorError};

/// An upper bound of the magnitudes of `bytes` after [`dequantize`](crate::dequantize). For block formats it reads the
/// scales and not the quants, so it is cheap compared to a copy, and may be a few times too large. The bound is NaN or
/// infinite if a scale is.
pub fn magnitude_bound(dtype: DType, bytes: &[u8]) -> Result<f32, TensorError> {
    // The largest quants that `dequantize` accepts, which may exceed those that `quantize` writes.
    Ok(match dtype {
        DType::F32 => elements(bytes, f32::from_le_bytes),
        DType::F16 => elements(bytes, |b| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => elements(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        DType::Q4_0 => scales(bytes, |b: &BlockQ4_0| 8.0 * size(b.d)),
        DType::Q4_1 => scales(bytes, |b: &BlockQ4_1| 15.0 * size(b.d) + size(b.m)),
        DType::Q5_0 => scales(bytes, |b: &BlockQ5_0| 16.0 * size(b.d)),
        DType::Q5_1 => scales(bytes, |b: &BlockQ5_1| 31.0 * size(b.d) + size(b.m)),
        DType::Q8_0 => scales(bytes, |b: &BlockQ8_0| 128.0 * size(b.d)),
        DType::Q2_K => scales(bytes, |b: &BlockQ2K| 15.0 * (3.0 * size(b.d) + size(b.dmin))),
        DType::Q3_K => scales(bytes, |b: &BlockQ3K| 32.0 * 4.0 * size(b.d)),
        DType::Q4_K => scales(bytes, |b: &BlockQ4K| 63.0 * (15.0 * size(b.d) + size(b.dmin))),
        DType::Q5_K => scales(bytes, |b: &BlockQ5K| 63.0 * (31.0 * size(b.d) + size(b.dmin))),
        DType::Q6_K => scales(bytes, |b: &BlockQ6K| 128.0 * 32.0 * size(b.d)),
        DType::IQ4_NL => scales(bytes, |b: &BlockIq4Nl| 127.0 * size(b.d)),
        DType::IQ4_XS => scales(bytes, |b: &BlockIq4Xs| 32.0 * 127.0 * size(b.d)),
        DType::MXFP4 => scales(bytes, |b: &BlockMxfp4| 12.0 * b.scale().to_f32()),
        DType::AFFINE2_BF16 => scales(bytes, affine::<8, true>),
        DType::AFFINE3_BF16 => scales(bytes, affine::<12, true>),
        DType::AFFINE4_BF16 => scales(bytes, affine::<16, true>),
        DType::AFFINE5_BF16 => scales(bytes, affine::<20, true>),
        DType::AFFINE6_BF16 => scales(bytes, affine::<24, true>),
        DType::AFFINE8_BF16 => scales(bytes, affine::<32, true>),
        DType::AFFINE2_F16 => scales(bytes, affine::<8, false>),
        DType::AFFINE3_F16 => scales(bytes, affine::<12, false>),
        DType::AFFINE6_F16 => scales(bytes, affine::<24, false>),
        DType::AFFINE8_F16 => scales(bytes, affine::<32, false>),
        _ => return Err(TensorError::NoDequantizer { dtype }),
    })
}

fn size(scale: HalfLe) -> f32 {
    scale.to_f32().abs()
}

fn affine<const BYTES: usize, const BF16: bool>(block: &BlockAffine<BYTES, BF16>) -> f32 {
    let (d, m) = block.scale();
    ((1 << (BYTES / 4)) - 1) as f32 * d.abs() + m.abs()
}

fn scales<B: Block>(bytes: &[u8], bound: impl Fn(&B) -> f32) -> f32 {
    let whole = bytes.len() / size_of::<B>() * size_of::<B>();
    largest(bytemuck::cast_slice::<u8, B>(&bytes[..whole]).iter().map(bound))
}

fn elements<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> f32 {
    largest(bytes.as_chunks::<N>().0.iter().map(|b| read(*b)))
}

/// The largest magnitude. Magnitudes order like their bits, and NaN is above all numbers.
fn largest(values: impl Iterator<Item = f32>) -> f32 {
    f32::from_bits(values.fold(0, |most, value| most.max(value.to_bits() & 0x7fff_ffff)))
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::Rng;

    use super::*;
    use crate::{can_dequantize, dequantize};

    #[test]
    fn no_value_exceeds_its_bound() {
        let mut rng = Rng::new(6);
        for &dtype in DType::ALL.iter().filter(|d| can_dequantize(**d)) {
            let elems = dtype.block_elems();
            for _ in 0..300 {
                let bytes = rng.bytes(dtype.bytes_of_elems(elems).unwrap());
                let mut values = vec![0.0; elems];
                dequantize(dtype, &bytes, &mut values).unwrap();
                let bound = magnitude_bound(dtype, &bytes).unwrap();
                for value in values {
                    // A NaN or infinite value must make the bound NaN or infinite.
                    assert!(
                        if value.is_finite() {
                            value.abs() <= bound || bound.is_nan()
                        } else {
                            !bound.is_finite()
                        },
                        "{dtype} {value} {bound}"
                    );
                }
            }
        }
        assert!(magnitude_bound(DType::IQ1_S, &[]).is_err());
        assert_eq!(magnitude_bound(DType::Q8_0, &[]).unwrap(), 0.0);
    }
}
