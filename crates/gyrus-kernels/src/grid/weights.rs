use gyrus_tensor::{DType, can_dequantize, dequantize};
use half::{bf16, f16};

use super::case::CaseBuffer;
use super::noise::Noise;
use crate::weights::{Planes, repack};

/// The types of weights that kernels read.
pub fn dtypes() -> Vec<DType> {
    DType::ALL.iter().copied().filter(|dtype| can_dequantize(*dtype)).collect()
}

/// A random weight matrix in the form that kernels read, and its values.
#[derive(Debug, Clone)]
pub struct Weight {
    /// As kernels read it.
    pub planes: Planes,
    /// `[rows, cols]`.
    pub values: Vec<f32>,
}

impl Weight {
    /// A matrix `[n, k]` of a type.
    ///
    /// # Panics
    /// If blocks of the type do not divide a row: it is for tests.
    pub fn new(noise: &mut Noise, dtype: DType, n: usize, k: usize) -> Weight {
        let bytes = bytes(noise, dtype, n * k);
        let mut values = vec![0.0; n * k];
        dequantize(dtype, &bytes, &mut values).expect("whole blocks");
        Weight { planes: repack(dtype, n, k, &bytes).expect("whole blocks"), values }
    }

    /// The planes as buffers.
    pub fn buffers(&self) -> Vec<CaseBuffer> {
        let planes = self.planes.layout.planes().zip(&self.planes.words);
        planes.map(|(plane, words)| CaseBuffer::read(plane.name(), words.clone())).collect()
    }
}

/// Random blocks of a type. Every bit of a quant or a packed scale is random; floats are random, from subnormal f16 to a
/// few thousand, and finite.
fn bytes(noise: &mut Noise, dtype: DType, elems: usize) -> Vec<u8> {
    let n = dtype.bytes_of_elems(elems).expect("whole blocks");
    let mut bytes: Vec<u8> = (0..n).map(|_| noise.bits() as u8).collect();
    let mut f16_at = |bytes: &mut [u8], at: &[usize]| {
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            for &at in at {
                block[at..at + 2].copy_from_slice(&f16::from_f64(scale(noise)).to_le_bytes());
            }
        }
    };
    match dtype {
        DType::F32 => {
            for word in bytes.chunks_exact_mut(4) {
                word.copy_from_slice(&(noise.number() as f32).to_le_bytes());
            }
        }
        DType::BF16 => {
            for word in bytes.chunks_exact_mut(2) {
                word.copy_from_slice(&(noise.number() as f32).to_le_bytes()[2..]);
            }
        }
        DType::F16 | DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS => {
            f16_at(&mut bytes, &[0]);
        }
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => f16_at(&mut bytes, &[0, 2]),
        DType::Q2_K => f16_at(&mut bytes, &[80, 82]),
        DType::Q3_K => f16_at(&mut bytes, &[108]),
        DType::Q6_K => f16_at(&mut bytes, &[208]),
        DType::MXFP4 => {
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                block[0] = 127 + 11 - noise.below(36) as u8;
            }
        }
        dtype if dtype.is_affine() => affine_scales(noise, dtype, &mut bytes),
        other => panic!("{other} is new: where are its scales?"),
    }
    bytes
}

fn scale(noise: &mut Noise) -> f64 {
    2f64.powi(-(noise.below(24) as i32)) * noise.number()
}

/// Scales and offsets of affine groups, in their own 16-bit type.
fn affine_scales(noise: &mut Noise, dtype: DType, bytes: &mut [u8]) {
    let is_bf16 = dtype.name().ends_with("_BF16");
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        for half in block[..4].as_chunks_mut().0 {
            let value = scale(noise);
            *half = match is_bf16 {
                true => bf16::from_f64(value).to_le_bytes(),
                false => f16::from_f64(value).to_le_bytes(),
            };
        }
    }
}
