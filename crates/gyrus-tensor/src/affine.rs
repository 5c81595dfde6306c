//! The blocks of affine groups, the quantisation of MLX: `v = scale·q + bias` with unsigned `q`.
//!
//! A file has three tensors for a weight `[n, k]`: a row's quants as a dense little-endian stream of bits, and one scale
//! and one bias for each group of 32, 64 or 128 elements. [`AffineRows`] assembles blocks of 32 elements from them. A
//! block repeats its group's scale and bias in the file's own 16-bit type, so nothing is rounded.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use crate::block::Block;
use crate::{DType, TensorError};

/// Elements of a block.
const ELEMS: usize = 32;

/// `v = d·q + m` for 32 quants of `BYTES / 4` bits. `d` and `m` are bf16 with `BF16`, otherwise f16.
///
/// `qs` is a plane of high bits and then a plane of low bits: 1 + 4 bits for 5, 2 + 4 for 6, 1 + 2 for 3; for 2, 4 and 8
/// bits there is one plane. Byte `j` of a plane of 2, 4 or 8 bits holds elements `j`, `j + B`, `j + 2·B`, … from the
/// low bits up, where `B` is the plane's number of bytes. Bit `j` of a plane of one bit, a little-endian `u32`, is that of
/// element `j`. With f16, blocks of 4 bits are those of Q4_1 and blocks of 5 bits are those of Q5_1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, packed)]
pub struct BlockAffine<const BYTES: usize, const BF16: bool> {
    /// Scale.
    pub d: [u8; 2],
    /// Offset.
    pub m: [u8; 2],
    /// Quants.
    pub qs: [u8; BYTES],
}

impl<const BYTES: usize, const BF16: bool> BlockAffine<BYTES, BF16> {
    /// Bits of a quant.
    pub const BITS: usize = BYTES / 4;

    /// Bits of the low plane.
    pub const LOW: usize = match Self::BITS {
        2 | 3 => 2,
        8 => 8,
        _ => 4,
    };

    /// Scale and offset.
    pub fn scale(&self) -> (f32, f32) {
        (to_f32::<BF16>(self.d), to_f32::<BF16>(self.m))
    }

    /// The quants in the order of elements.
    pub fn quants(&self) -> [u8; ELEMS] {
        let qs = self.qs;
        let (high, low) = qs.split_at(BYTES - 4 * Self::LOW);
        let mut q = plane(low, Self::LOW);
        if !high.is_empty() {
            let above = plane(high, Self::BITS - Self::LOW);
            q.iter_mut().zip(above).for_each(|(q, above)| *q |= above << Self::LOW);
        }
        q
    }

    /// A block of quants below `2^BITS`.
    fn new(d: [u8; 2], m: [u8; 2], q: &[u8; ELEMS]) -> Self {
        let mut qs = [0; BYTES];
        let (high, low) = qs.split_at_mut(BYTES - 4 * Self::LOW);
        put_plane(low, Self::LOW, q);
        if !high.is_empty() {
            put_plane(high, Self::BITS - Self::LOW, &q.map(|q| q >> Self::LOW));
        }
        BlockAffine { d, m, qs }
    }
}

impl<const BYTES: usize, const BF16: bool> Block for BlockAffine<BYTES, BF16> {
    const DTYPE: DType = {
        let scale = if BF16 { DType::BF16 } else { DType::F16 };
        match DType::affine(Self::BITS, scale) {
            Some(dtype) => dtype,
            None => panic!("no such type"),
        }
    };

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = self.scale();
        for (v, q) in out.iter_mut().zip(self.quants()) {
            *v = d * f32::from(q) + m;
        }
    }
}

impl DType {
    /// The block format of affine groups with quants of `bits` bits and scales of a 16-bit type, if there is one.
    pub const fn affine(bits: usize, scale: DType) -> Option<DType> {
        Some(match (bits, scale) {
            (2, DType::BF16) => DType::AFFINE2_BF16,
            (3, DType::BF16) => DType::AFFINE3_BF16,
            (4, DType::BF16) => DType::AFFINE4_BF16,
            (5, DType::BF16) => DType::AFFINE5_BF16,
            (6, DType::BF16) => DType::AFFINE6_BF16,
            (8, DType::BF16) => DType::AFFINE8_BF16,
            (2, DType::F16) => DType::AFFINE2_F16,
            (3, DType::F16) => DType::AFFINE3_F16,
            (4, DType::F16) => DType::Q4_1,
            (5, DType::F16) => DType::Q5_1,
            (6, DType::F16) => DType::AFFINE6_F16,
            (8, DType::F16) => DType::AFFINE8_F16,
            _ => return None,
        })
    }

    /// Whether it is a block format that only [`AffineRows`] assembles. No file declares it.
    pub const fn is_affine(self) -> bool {
        use DType::*;
        matches!(
            self,
            AFFINE2_BF16
                | AFFINE3_BF16
                | AFFINE4_BF16
                | AFFINE5_BF16
                | AFFINE6_BF16
                | AFFINE8_BF16
                | AFFINE2_F16
                | AFFINE3_F16
                | AFFINE6_F16
                | AFFINE8_F16
        )
    }
}

/// Some rows of a weight in affine groups, as MLX stores them.
#[derive(Debug, Clone, Copy)]
pub struct AffineRows<'a> {
    /// Bits of a quant: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// Elements that share a scale and a bias, a multiple of 32.
    pub group: usize,
    /// The type of scales and biases: BF16, F16 or F32.
    pub scale: DType,
    /// The quants of all rows.
    pub quants: &'a [u8],
    /// `[rows, k / group]`.
    pub scales: &'a [u8],
    /// `[rows, k / group]`.
    pub biases: &'a [u8],
}

impl AffineRows<'_> {
    /// The type of the assembled elements: a block format, or F32 if scales are F32.
    pub fn dtype(&self) -> Option<DType> {
        match self.scale {
            DType::F32 => DType::affine(self.bits, DType::BF16).map(|_| DType::F32),
            scale => DType::affine(self.bits, scale),
        }
    }

    /// Writes all elements to `out`, as elements of [`AffineRows::dtype`].
    pub fn assemble(&self, out: &mut [u8]) -> Result<(), TensorError> {
        let dtype = self.dtype().ok_or(TensorError::NoDequantizer { dtype: self.scale })?;
        let groups = self.scales.len() / self.scale.block_bytes();
        let elems = groups.saturating_mul(self.group);
        let check = |dtype: DType, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(TensorError::ByteCount { dtype, elems, expected, found }),
        };
        if self.group == 0 || !self.group.is_multiple_of(ELEMS) {
            return Err(TensorError::PartialBlock { dtype, row: self.group, block: ELEMS });
        }
        check(self.scale, self.scales.len(), self.biases.len())?;
        check(DType::U32, (elems / 8).saturating_mul(self.bits), self.quants.len())?;
        check(dtype, dtype.bytes_of_elems(elems)?, out.len())?;
        match (self.bits, self.scale) {
            (2, _) => self.fill_bits::<8>(out),
            (3, _) => self.fill_bits::<12>(out),
            (4, _) => self.fill_bits::<16>(out),
            (5, _) => self.fill_bits::<20>(out),
            (6, _) => self.fill_bits::<24>(out),
            _ => self.fill_bits::<32>(out),
        }
        Ok(())
    }

    fn fill_bits<const BYTES: usize>(&self, out: &mut [u8]) {
        match self.scale {
            DType::BF16 => self.fill_blocks::<BlockAffine<BYTES, true>, BYTES>(out, BlockAffine::new),
            DType::F16 => self.fill_blocks::<BlockAffine<BYTES, false>, BYTES>(out, BlockAffine::new),
            _ => self.fill_values::<BYTES>(out),
        }
    }

    fn fill_blocks<B: Pod, const BYTES: usize>(
        &self,
        out: &mut [u8],
        block: impl Fn([u8; 2], [u8; 2], &[u8; ELEMS]) -> B,
    ) {
        let (scales, biases) = (self.scales.as_chunks().0, self.biases.as_chunks().0);
        let per_group = self.group / ELEMS;
        let quants = self.quants.as_chunks::<BYTES>().0;
        for (b, (out, quants)) in out.chunks_exact_mut(size_of::<B>()).zip(quants).enumerate() {
            let made = block(scales[b / per_group], biases[b / per_group], &stream(quants));
            out.copy_from_slice(bytemuck::bytes_of(&made));
        }
    }

    fn fill_values<const BYTES: usize>(&self, out: &mut [u8]) {
        let (scales, biases) = (self.scales.as_chunks().0, self.biases.as_chunks().0);
        let per_group = self.group / ELEMS;
        let quants = self.quants.as_chunks::<BYTES>().0;
        for (b, (out, quants)) in out.chunks_exact_mut(4 * ELEMS).zip(quants).enumerate() {
            let scale = f32::from_le_bytes(scales[b / per_group]);
            let bias = f32::from_le_bytes(biases[b / per_group]);
            for (out, q) in out.as_chunks_mut().0.iter_mut().zip(stream(quants)) {
                *out = (scale * f32::from(q) + bias).to_le_bytes();
            }
        }
    }
}

/// 32 elements of a dense stream of `BYTES / 4` bits each.
#[inline(always)]
fn stream<const BYTES: usize>(bytes: &[u8; BYTES]) -> [u8; ELEMS] {
    let bits = BYTES / 4;
    let mask = (1u16 << bits) - 1;
    std::array::from_fn(|j| {
        let (at, shift) = (j * bits / 8, j * bits % 8);
        let above = if at + 1 < BYTES { bytes[at + 1] } else { 0 };
        (u16::from_le_bytes([bytes[at], above]) >> shift & mask) as u8
    })
}

/// The elements of a plane of 1, 2, 4 or 8 bits.
#[inline(always)]
fn plane(bytes: &[u8], width: usize) -> [u8; ELEMS] {
    match width {
        1 => std::array::from_fn(|j| bytes[j / 8] >> (j % 8) & 1),
        2 => wide_plane::<8>(bytes),
        4 => wide_plane::<16>(bytes),
        _ => wide_plane::<32>(bytes),
    }
}

/// A plane of `BYTES` bytes, each with `32 / BYTES` elements.
#[inline(always)]
fn wide_plane<const BYTES: usize>(bytes: &[u8]) -> [u8; ELEMS] {
    let width = BYTES / 4;
    let mut q = [0; ELEMS];
    for (run, q) in q.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
        for (q, byte) in q.iter_mut().zip(bytes) {
            *q = byte >> (run * width) & mask(width);
        }
    }
    q
}

/// The reverse of [`plane`], into zeroed bytes.
#[inline(always)]
fn put_plane(bytes: &mut [u8], width: usize, q: &[u8; ELEMS]) {
    match width {
        1 => q.iter().enumerate().for_each(|(j, q)| bytes[j / 8] |= (q & 1) << (j % 8)),
        2 => put_wide_plane::<8>(bytes, q),
        4 => put_wide_plane::<16>(bytes, q),
        _ => put_wide_plane::<32>(bytes, q),
    }
}

#[inline(always)]
fn put_wide_plane<const BYTES: usize>(bytes: &mut [u8], q: &[u8; ELEMS]) {
    let width = BYTES / 4;
    for (run, q) in q.as_chunks::<BYTES>().0.iter().enumerate() {
        for (q, byte) in q.iter().zip(&mut *bytes) {
            *byte |= (q & mask(width)) << (run * width);
        }
    }
}

const fn mask(width: usize) -> u8 {
    (0xFFu16 >> (8 - width)) as u8
}

fn to_f32<const BF16: bool>(bytes: [u8; 2]) -> f32 {
    if BF16 { bf16::from_le_bytes(bytes).to_f32() } else { f16::from_le_bytes(bytes).to_f32() }
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::Rng;

    use super::*;
    use crate::dequantize;

    /// The value of element `i` of a row, from the definition: bits `i·b..i·b + b` of the row's words.
    fn literal(rows: &AffineRows<'_>, i: usize) -> f32 {
        let bit = |at: usize| u32::from(rows.quants[at / 8] >> (at % 8) & 1);
        let q = (0..rows.bits).fold(0, |q, b| q | bit(i * rows.bits + b) << b);
        let number = |bytes: &[u8]| {
            let at = i / rows.group * rows.scale.block_bytes();
            match rows.scale {
                DType::BF16 => bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
                DType::F16 => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
                _ => f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
            }
        };
        number(rows.scales) * q as f32 + number(rows.biases)
    }

    fn numbers(rng: &mut Rng, scale: DType, n: usize) -> Vec<u8> {
        let values: Vec<f32> = (0..n).map(|_| rng.gaussian() as f32).collect();
        crate::quantize(scale, &values).unwrap()
    }

    #[test]
    fn assembled_elements_have_the_values_of_the_definition() {
        let mut rng = Rng::new(11);
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                for scale in [DType::BF16, DType::F16, DType::F32] {
                    let elems = 3 * 384;
                    let scales = numbers(&mut rng, scale, elems / group);
                    let biases = numbers(&mut rng, scale, elems / group);
                    let quants = rng.bytes(elems * bits / 8);
                    let rows =
                        AffineRows { bits, group, scale, quants: &quants, scales: &scales, biases: &biases };
                    let dtype = rows.dtype().unwrap();
                    let mut bytes = vec![0; dtype.bytes_of_elems(elems).unwrap()];
                    rows.assemble(&mut bytes).unwrap();
                    let mut values = vec![0.0; elems];
                    dequantize(dtype, &bytes, &mut values).unwrap();
                    for (i, value) in values.iter().enumerate() {
                        let expected = literal(&rows, i);
                        assert_eq!(value.to_bits(), expected.to_bits(), "{bits} {group} {scale} {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_takes_the_bits_of_its_quants_and_four_bytes() {
        for bits in [2, 3, 4, 5, 6, 8] {
            for scale in [DType::BF16, DType::F16] {
                assert_eq!(DType::affine(bits, scale).unwrap().block_bytes(), 4 * bits + 4);
            }
        }
        assert_eq!(DType::affine(4, DType::BF16).unwrap().block_bytes(), DType::Q4_1.block_bytes());
        assert_eq!(DType::affine(7, DType::BF16), None);
    }

    #[test]
    fn wrong_sizes_are_errors() {
        let good = AffineRows {
            bits: 3,
            group: 64,
            scale: DType::BF16,
            quants: &[0; 24],
            scales: &[0; 2],
            biases: &[0; 2],
        };
        let mut out = [0; 32];
        assert_eq!(good.assemble(&mut out), Ok(()));
        assert!(good.assemble(&mut out[1..]).is_err());
        for bad in [
            AffineRows { bits: 7, ..good },
            AffineRows { bits: usize::MAX, ..good },
            AffineRows { group: 0, ..good },
            AffineRows { group: 48, ..good },
            AffineRows { group: usize::MAX & !31, ..good },
            AffineRows { scale: DType::U32, ..good },
            AffineRows { quants: &[0; 23], ..good },
            AffineRows { scales: &[0; 4], ..good },
            AffineRows { biases: &[0; 4], ..good },
        ] {
            assert!(bad.assemble(&mut out).is_err(), "{bad:?}");
        }
    }
}
