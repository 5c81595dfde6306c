//! The byte layouts of quantised blocks.
//!
//! Each struct is one block as stored in files: little-endian, without padding, and with an alignment of one
//! byte, so `bytemuck::cast_slice` can view any mapped range as blocks. Field order and bit positions are part
//! of the format. Each struct documents its formula, with `q` for a stored integer (quant) and `v` for the
//! value it decodes to. The formats and field names are those of ggml.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use crate::DType;

pub use crate::affine::BlockAffine;

/// A little-endian f16 in a block, stored as bytes because blocks have an alignment of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct HalfLe([u8; 2]);

impl HalfLe {
    /// Rounds to nearest, ties to even; values beyond the range become infinities.
    pub fn from_f32(value: f32) -> HalfLe {
        HalfLe(f16::from_f32(value).to_le_bytes())
    }

    /// The exact value.
    pub fn to_f32(self) -> f32 {
        f16::from_le_bytes(self.0).to_f32()
    }

    /// The stored bytes.
    pub fn to_le_bytes(self) -> [u8; 2] {
        self.0
    }
}

/// A block format that can be dequantised.
pub trait Block: Pod {
    /// The element type of the format, which determines the number of elements.
    const DTYPE: DType;

    /// Writes the values of the block. `out` has exactly `DTYPE.block_elems()` elements.
    fn dequantize(&self, out: &mut [f32]);
}

/// `v = d·(q − 8)`. Byte `j` holds element `j` in its low and element `j + 16` in its high nibble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale.
    pub d: HalfLe,
    /// Nibbles.
    pub qs: [u8; 16],
}

/// `v = d·q + m`, nibbles as in [`BlockQ4_0`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale.
    pub d: HalfLe,
    /// Offset.
    pub m: HalfLe,
    /// Nibbles.
    pub qs: [u8; 16],
}

/// `v = d·(q − 16)`, low nibbles as in [`BlockQ4_0`]; bit `j` of `qh` is bit 4 of element `j`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale.
    pub d: HalfLe,
    /// Fifth bits, a little-endian `u32`.
    pub qh: [u8; 4],
    /// Nibbles.
    pub qs: [u8; 16],
}

/// `v = d·q + m`, bits as in [`BlockQ5_0`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale.
    pub d: HalfLe,
    /// Offset.
    pub m: HalfLe,
    /// Fifth bits, a little-endian `u32`.
    pub qh: [u8; 4],
    /// Nibbles.
    pub qs: [u8; 16],
}

/// `v = d·q`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale.
    pub d: HalfLe,
    /// Signed values.
    pub qs: [i8; 32],
}

/// Sixteen sub-blocks of 16: `v = d·s·q − dmin·m`.
///
/// Each half of 128 elements takes 32 bytes of `qs`; shifts 0, 2, 4, 6 give its four runs of 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2K {
    /// Per sub-block: scale in the low nibble, minimum in the high one.
    pub scales: [u8; 16],
    /// Two-bit values.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: HalfLe,
    /// Scale of the minimums.
    pub dmin: HalfLe,
}

/// Sixteen sub-blocks of 16: `v = d·(s − 32)·(q − 4)`, where `q` is three bits.
///
/// Low bits as in [`BlockQ2K`]; bit `k` of `hmask[j]` is the third bit of element `32·k + j`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    /// Third bits.
    pub hmask: [u8; 32],
    /// Low two bits.
    pub qs: [u8; 64],
    /// Sixteen six-bit scales, see [`BlockQ3K::scale`].
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: HalfLe,
}

impl BlockQ3K {
    /// The signed scale of sub-block `k`: four low bits from the first eight bytes, two high bits from
    /// the last four.
    pub fn scale(&self, k: usize) -> i32 {
        let low = (self.scales[k % 8] >> (4 * (k / 8))) & 15;
        let high = (self.scales[8 + k % 4] >> (2 * (k / 4))) & 3;
        i32::from(low | high << 4) - 32
    }
}

/// Eight sub-blocks of 32: `v = d·s·q − dmin·m`.
///
/// Each run of 32 bytes holds one sub-block in its low nibbles and the next in its high ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4K {
    /// Scale of the scales.
    pub d: HalfLe,
    /// Scale of the minimums.
    pub dmin: HalfLe,
    /// Packed six-bit scales and minimums, see [`scale_min`].
    pub scales: [u8; 12],
    /// Nibbles.
    pub qs: [u8; 128],
}

/// As [`BlockQ4K`] with a fifth bit: bit `k` of `qh[j]` is bit 4 of element `32·k + j`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the scales.
    pub d: HalfLe,
    /// Scale of the minimums.
    pub dmin: HalfLe,
    /// Packed six-bit scales and minimums, see [`scale_min`].
    pub scales: [u8; 12],
    /// Fifth bits.
    pub qh: [u8; 32],
    /// Nibbles.
    pub qs: [u8; 128],
}

/// Sixteen sub-blocks of 16: `v = d·s·(q − 32)`.
///
/// Each half of 128 elements takes 64 bytes of `ql` (low nibbles are its first 64 elements, high nibbles
/// the rest) and 32 bytes of `qh`, whose shifts 0, 2, 4, 6 give the upper bits of its four runs of 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ6K {
    /// Low four bits.
    pub ql: [u8; 128],
    /// High two bits.
    pub qh: [u8; 64],
    /// Signed scales.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: HalfLe,
}

/// `v = d·LEVELS[q]`, nibbles as in [`BlockQ4_0`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// Scale.
    pub d: HalfLe,
    /// Nibbles.
    pub qs: [u8; 16],
}

/// Eight sub-blocks of 32: `v = d·(s − 32)·LEVELS[q]`, each laid out as [`BlockIq4Nl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// Scale of the scales.
    pub d: HalfLe,
    /// Two high bits of each scale, a little-endian `u16`.
    pub scales_h: [u8; 2],
    /// Four low bits of each scale.
    pub scales_l: [u8; 4],
    /// Nibbles.
    pub qs: [u8; 128],
}

impl BlockIq4Xs {
    /// The signed scale of sub-block `k`.
    pub fn scale(&self, k: usize) -> i32 {
        let low = (self.scales_l[k / 2] >> (4 * (k % 2))) & 15;
        let high = (u16::from_le_bytes(self.scales_h) >> (2 * k)) & 3;
        i32::from(low) + (i32::from(high) << 4) - 32
    }
}

/// `v = d·MXFP4_LEVELS[q]` with `d = 2^(e − 128)`, nibbles as in [`BlockQ4_0`].
///
/// The OCP microscaling format: elements are E2M1 floats, the scale is an E8M0 float `2^(e − 127)`. The levels are
/// twice the elements, so that they are integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockMxfp4 {
    /// Exponent of the scale; [`BlockMxfp4::NAN`] is NaN.
    pub e: u8,
    /// Nibbles.
    pub qs: [u8; 16],
}

impl BlockMxfp4 {
    /// The exponent byte of a scale that is NaN.
    pub const NAN: u8 = 0xFF;

    /// The scale of the levels, half of the block's scale. bf16 has every one of them exactly.
    pub fn scale(&self) -> bf16 {
        bf16::from_bits(match self.e {
            Self::NAN => bf16::NAN.to_bits(),
            // Subnormal.
            0 | 1 => 0x20 << self.e,
            e => u16::from(e - 1) << 7,
        })
    }
}

/// The sixteen levels of MXFP4, twice the values of E2M1.
pub const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The sixteen levels of the IQ4 formats, denser around zero.
pub const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Scale and minimum of sub-block `k` (0..8) of [`BlockQ4K`] and [`BlockQ5K`].
///
/// The first four pairs are the low six bits of bytes 0..4 and 4..8; the last four have their low nibbles
/// in bytes 8..12 and their upper two bits on top of the first eight bytes.
pub fn scale_min(scales: &[u8; 12], k: usize) -> (u8, u8) {
    if k < 4 {
        (scales[k] & 63, scales[k + 4] & 63)
    } else {
        let low = scales[k + 4];
        ((low & 15) | (scales[k - 4] >> 6) << 4, (low >> 4) | (scales[k] >> 6) << 4)
    }
}

/// Packs eight six-bit scales and minimums as [`scale_min`] reads them.
pub(crate) fn pack_scale_min(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for k in 0..4 {
        packed[k] = scales[k] & 63 | (scales[k + 4] >> 4) << 6;
        packed[k + 4] = mins[k] & 63 | (mins[k + 4] >> 4) << 6;
        packed[k + 8] = scales[k + 4] & 15 | (mins[k + 4] & 15) << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Casts from bytes rely on the size and alignment of blocks.
    #[test]
    fn blocks_have_the_size_of_their_dtype_and_alignment_one() {
        fn check<B: Block>() {
            assert_eq!(size_of::<B>(), B::DTYPE.block_bytes(), "{}", B::DTYPE);
            assert_eq!(align_of::<B>(), 1, "{}", B::DTYPE);
        }
        check::<BlockQ4_0>();
        check::<BlockQ4_1>();
        check::<BlockQ5_0>();
        check::<BlockQ5_1>();
        check::<BlockQ8_0>();
        check::<BlockQ2K>();
        check::<BlockQ3K>();
        check::<BlockQ4K>();
        check::<BlockQ5K>();
        check::<BlockQ6K>();
        check::<BlockIq4Nl>();
        check::<BlockIq4Xs>();
        check::<BlockMxfp4>();
        check::<BlockAffine<8, true>>();
        check::<BlockAffine<12, true>>();
        check::<BlockAffine<16, true>>();
        check::<BlockAffine<20, true>>();
        check::<BlockAffine<24, true>>();
        check::<BlockAffine<32, true>>();
        check::<BlockAffine<8, false>>();
        check::<BlockAffine<12, false>>();
        check::<BlockAffine<24, false>>();
        check::<BlockAffine<32, false>>();
    }

    #[test]
    fn packed_scales_unpack_unchanged() {
        let scales = [0, 63, 17, 42, 63, 1, 32, 15];
        let mins = [63, 0, 5, 33, 16, 62, 48, 7];
        let packed = pack_scale_min(&scales, &mins);
        for k in 0..8 {
            assert_eq!(scale_min(&packed, k), (scales[k], mins[k]));
        }
    }
}
