//! Dequantisation to `f32`: the reference that faster kernels are tested against.
//!
//! The order of the floating-point operations is fixed: `(d·s)·q − dmin·m`, without fused multiply-add. So
//! results are bit-equal to those of the Python package `gguf`, which uses the same order (tested).

use half::{bf16, f16};

use crate::block::*;
use crate::{DType, TensorError};

/// Converts `bytes` of type `dtype` to `f32`. The number of bytes must match `out` exactly.
///
/// Any bit pattern is accepted: a NaN or infinite scale gives NaN or infinite values.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), TensorError> {
    let run = converter(dtype).ok_or(TensorError::NoDequantizer { dtype })?;
    let expected = dtype.bytes_of_elems(out.len())?;
    if bytes.len() != expected {
        return Err(TensorError::ByteCount { dtype, elems: out.len(), expected, found: bytes.len() });
    }
    run(bytes, out);
    Ok(())
}

/// Whether [`dequantize`] supports this type.
pub fn can_dequantize(dtype: DType) -> bool {
    converter(dtype).is_some()
}

type Convert = fn(&[u8], &mut [f32]);

fn converter(dtype: DType) -> Option<Convert> {
    let convert: Convert = match dtype {
        DType::F32 => |bytes, out| each(bytes, out, f32::from_le_bytes),
        DType::F16 => |bytes, out| each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => |bytes, out| each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        DType::Q4_0 => blocks::<BlockQ4_0>,
        DType::Q4_1 => blocks::<BlockQ4_1>,
        DType::Q5_0 => blocks::<BlockQ5_0>,
        DType::Q5_1 => blocks::<BlockQ5_1>,
        DType::Q8_0 => blocks::<BlockQ8_0>,
        DType::Q2_K => blocks::<BlockQ2K>,
        DType::Q3_K => blocks::<BlockQ3K>,
        DType::Q4_K => blocks::<BlockQ4K>,
        DType::Q5_K => blocks::<BlockQ5K>,
        DType::Q6_K => blocks::<BlockQ6K>,
        DType::IQ4_NL => blocks::<BlockIq4Nl>,
        DType::IQ4_XS => blocks::<BlockIq4Xs>,
        DType::MXFP4 => blocks::<BlockMxfp4>,
        DType::AFFINE2_BF16 => blocks::<BlockAffine<8, true>>,
        DType::AFFINE3_BF16 => blocks::<BlockAffine<12, true>>,
        DType::AFFINE4_BF16 => blocks::<BlockAffine<16, true>>,
        DType::AFFINE5_BF16 => blocks::<BlockAffine<20, true>>,
        DType::AFFINE6_BF16 => blocks::<BlockAffine<24, true>>,
        DType::AFFINE8_BF16 => blocks::<BlockAffine<32, true>>,
        DType::AFFINE2_F16 => blocks::<BlockAffine<8, false>>,
        DType::AFFINE3_F16 => blocks::<BlockAffine<12, false>>,
        DType::AFFINE6_F16 => blocks::<BlockAffine<24, false>>,
        DType::AFFINE8_F16 => blocks::<BlockAffine<32, false>>,
        _ => return None,
    };
    Some(convert)
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    for (b, v) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *v = read(*b);
    }
}

fn blocks<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(B::DTYPE.block_elems())) {
        block.dequantize(out);
    }
}

/// Unpacks nibbles: byte `j` holds element `j` in its low and element `j + qs.len()` in its high nibble.
fn nibbles(qs: &[u8], mut put: impl FnMut(usize, u8)) {
    for (j, &byte) in qs.iter().enumerate() {
        put(j, byte & 15);
        put(j + qs.len(), byte >> 4);
    }
}

/// Bit 4 of element `j`, from the packed fifth bits of the Q5 formats.
fn fifth_bit(qh: [u8; 4], j: usize) -> u8 {
    ((u32::from_le_bytes(qh) >> j & 1) as u8) << 4
}

impl Block for BlockQ4_0 {
    const DTYPE: DType = DType::Q4_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        nibbles(&self.qs, |j, q| out[j] = d * (f32::from(q) - 8.0));
    }
}

impl Block for BlockQ4_1 {
    const DTYPE: DType = DType::Q4_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        nibbles(&self.qs, |j, q| out[j] = d * f32::from(q) + m);
    }
}

impl Block for BlockQ5_0 {
    const DTYPE: DType = DType::Q5_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        nibbles(&self.qs, |j, q| out[j] = d * (f32::from(q | fifth_bit(self.qh, j)) - 16.0));
    }
}

impl Block for BlockQ5_1 {
    const DTYPE: DType = DType::Q5_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        nibbles(&self.qs, |j, q| out[j] = d * f32::from(q | fifth_bit(self.qh, j)) + m);
    }
}

impl Block for BlockQ8_0 {
    const DTYPE: DType = DType::Q8_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (v, &q) in out.iter_mut().zip(&self.qs) {
            *v = d * f32::from(q);
        }
    }
}

/// The two-bit value of element `i` in the layout shared by Q2_K and Q3_K.
fn two_bits(qs: &[u8; 64], i: usize) -> u8 {
    let (half, within) = (i / 128, i % 128);
    qs[32 * half + within % 32] >> (2 * (within / 32)) & 3
}

impl Block for BlockQ2K {
    const DTYPE: DType = DType::Q2_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (k, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[k] & 15);
            let min = dmin * f32::from(self.scales[k] >> 4);
            for (j, v) in out.iter_mut().enumerate() {
                *v = scale * f32::from(two_bits(&self.qs, 16 * k + j)) - min;
            }
        }
    }
}

impl Block for BlockQ3K {
    const DTYPE: DType = DType::Q3_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (k, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * self.scale(k) as f32;
            for (j, v) in out.iter_mut().enumerate() {
                let i = 16 * k + j;
                let third = self.hmask[i % 32] >> (i / 32) & 1;
                *v = scale * (f32::from(two_bits(&self.qs, i) | third << 2) - 4.0);
            }
        }
    }
}

impl Block for BlockQ4K {
    const DTYPE: DType = DType::Q4_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (k, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_min(&self.scales, k);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            for (j, v) in out.iter_mut().enumerate() {
                let q = self.qs[32 * (k / 2) + j] >> (4 * (k % 2)) & 15;
                *v = scale * f32::from(q) - min;
            }
        }
    }
}

impl Block for BlockQ5K {
    const DTYPE: DType = DType::Q5_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (k, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_min(&self.scales, k);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            for (j, v) in out.iter_mut().enumerate() {
                let low = self.qs[32 * (k / 2) + j] >> (4 * (k % 2)) & 15;
                let fifth = self.qh[j] >> k & 1;
                *v = scale * f32::from(low | fifth << 4) - min;
            }
        }
    }
}

impl Block for BlockQ6K {
    const DTYPE: DType = DType::Q6_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (k, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[k]);
            for (j, v) in out.iter_mut().enumerate() {
                let (half, within) = (k / 8, 16 * (k % 8) + j);
                let low = self.ql[64 * half + within % 64] >> (4 * (within / 64)) & 15;
                let high = self.qh[32 * half + within % 32] >> (2 * (within / 32)) & 3;
                *v = scale * (f32::from(low | high << 4) - 32.0);
            }
        }
    }
}

fn level(q: u8) -> f32 {
    f32::from(IQ4_LEVELS[usize::from(q)])
}

impl Block for BlockIq4Nl {
    const DTYPE: DType = DType::IQ4_NL;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        nibbles(&self.qs, |j, q| out[j] = d * level(q));
    }
}

impl Block for BlockIq4Xs {
    const DTYPE: DType = DType::IQ4_XS;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (k, out) in out.chunks_exact_mut(32).enumerate() {
            let scale = d * self.scale(k) as f32;
            nibbles(&self.qs[16 * k..16 * (k + 1)], |j, q| out[j] = scale * level(q));
        }
    }
}

impl Block for BlockMxfp4 {
    const DTYPE: DType = DType::MXFP4;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.scale().to_f32();
        nibbles(&self.qs, |j, q| out[j] = d * f32::from(MXFP4_LEVELS[usize::from(q)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q4_0_nibbles_are_16_elements_apart() {
        let mut qs = [0x88; 16];
        qs[0] = 0xA3;
        let block = BlockQ4_0 { d: HalfLe::from_f32(0.5), qs };
        let mut out = [0.0; 32];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[1], out[16]), (-2.5, 0.0, 1.0));
    }

    #[test]
    fn mxfp4_scales_are_powers_of_two_and_nan() {
        let first = |e: u8, q: u8| {
            let mut out = [0.0; 32];
            BlockMxfp4 { e, qs: [q; 16] }.dequantize(&mut out);
            (out[0], out[16])
        };
        assert_eq!(first(127, 0x72), (1.0, 6.0));
        assert_eq!(first(127, 0xF1), (0.5, -6.0));
        assert_eq!(first(130, 0x98), (0.0, -4.0));
        assert_eq!(first(0, 0x92), (2f32.powi(-127), -(2f32.powi(-128))));
        assert_eq!(first(1, 0x52), (2f32.powi(-126), 3.0 * 2f32.powi(-126)));
        assert_eq!(first(252, 0x7F), (-6.0 * 2f32.powi(125), 6.0 * 2f32.powi(125)));
        assert!(first(255, 0x00).0.is_nan());
    }

    #[test]
    fn wrong_lengths_and_unsupported_types_are_rejected() {
        let mut out = [0.0; 32];
        assert_eq!(
            dequantize(DType::Q8_0, &[0; 33], &mut out),
            Err(TensorError::ByteCount { dtype: DType::Q8_0, elems: 32, expected: 34, found: 33 })
        );
        assert_eq!(
            dequantize(DType::Q4_K, &[0; 18], &mut out),
            Err(TensorError::PartialBlock { dtype: DType::Q4_K, row: 32, block: 256 })
        );
        assert_eq!(
            dequantize(DType::IQ1_S, &[], &mut []),
            Err(TensorError::NoDequantizer { dtype: DType::IQ1_S })
        );
    }

    #[test]
    fn every_bit_pattern_of_a_scale_is_accepted() {
        let mut out = [0.0; 256];
        for &dtype in DType::ALL.iter().filter(|d| can_dequantize(**d)) {
            let out = &mut out[..dtype.block_elems()];
            for fill in 0..=255u8 {
                dequantize(dtype, &vec![fill; dtype.block_bytes()], out).unwrap();
            }
        }
    }
}
