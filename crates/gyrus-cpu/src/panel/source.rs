//! How the blocks of each file format map to a quant layout and a scale layout.

use gyrus_tensor::block::*;

use super::quant_layout::{Bits, Iq4, Levels, Mxfp4, QuantLayout};
use super::scale_layout::{BlockScales, ScaleLayout, SuperBlockScales};
use crate::quantize_rows::GROUP;

/// A block format with panels: its layouts, and how to read a block.
pub(crate) trait Source: Block {
    type QuantLayout: QuantLayout;
    type ScaleLayout: ScaleLayout;

    /// The quants of elements `32·sub..32·sub + 32`.
    fn quants(&self, sub: usize) -> [u8; GROUP];

    /// The scales of these elements.
    fn scales(&self, sub: usize) -> Scales;
}

/// The scales of 32 elements of a row: the bytes of a 16-bit scale and offset, which super-blocks multiply by
/// a factor for each 16 elements.
#[derive(Default)]
pub(crate) struct Scales {
    pub(super) scale: [u8; 2],
    pub(super) offset: [u8; 2],
    pub(super) factors: [i8; 2],
    pub(super) offset_factors: [i8; 2],
}

/// Unpacks nibbles: byte `k` holds element `k` in its low and `k + 16` in its high nibble.
fn nibbles(qs: &[u8; 16]) -> [u8; GROUP] {
    let mut q = [0; GROUP];
    let (low, high) = q.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(qs) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
    q
}

/// The bits of `mask` in each of 32 bytes after a right shift by `shift`.
fn field(bytes: &[u8], shift: usize, mask: u8) -> [u8; GROUP] {
    let mut q = [0; GROUP];
    q.iter_mut().zip(&bytes[..GROUP]).for_each(|(q, byte)| *q = byte >> shift & mask);
    q
}

/// [`nibbles`] with the fifth bits from `qh`.
fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [u8; GROUP] {
    let (low, fifths) = (nibbles(qs), u32::from_le_bytes(qh));
    std::array::from_fn(|k| low[k] | ((fifths >> k & 1) as u8) << 4)
}

/// 32 bytes hold 32 elements in their low nibbles and the next 32 in their high nibbles.
fn nibble_runs(qs: &[u8; 128], sub: usize) -> [u8; GROUP] {
    field(&qs[GROUP * (sub / 2)..], 4 * (sub % 2), 15)
}

/// 32 bytes hold four runs of 32 two-bit elements, from the low bits up.
fn two_bit_runs(qs: &[u8; 64], sub: usize) -> [u8; GROUP] {
    field(&qs[GROUP * (sub / 4)..], 2 * (sub % 4), 3)
}

impl Source for BlockQ4_0 {
    type QuantLayout = Bits<4, 0>;
    type ScaleLayout = BlockScales<false>;

    fn quants(&self, _: usize) -> [u8; GROUP] {
        nibbles(&self.qs)
    }

    fn scales(&self, _: usize) -> Scales {
        Scales { scale: self.d.to_le_bytes(), ..Scales::default() }
    }
}

impl Source for BlockQ4_1 {
    type QuantLayout = Bits<4, 0>;
    type ScaleLayout = BlockScales<true>;

    fn quants(&self, _: usize) -> [u8; GROUP] {
        nibbles(&self.qs)
    }

    fn scales(&self, _: usize) -> Scales {
        Scales { scale: self.d.to_le_bytes(), offset: self.m.to_le_bytes(), ..Scales::default() }
    }
}

impl Source for BlockQ5_0 {
    type QuantLayout = Bits<4, 1>;
    type ScaleLayout = BlockScales<false>;

    fn quants(&self, _: usize) -> [u8; GROUP] {
        five_bits(&self.qs, self.qh)
    }

    fn scales(&self, _: usize) -> Scales {
        Scales { scale: self.d.to_le_bytes(), ..Scales::default() }
    }
}

impl Source for BlockQ5_1 {
    type QuantLayout = Bits<4, 1>;
    type ScaleLayout = BlockScales<true>;

    fn quants(&self, _: usize) -> [u8; GROUP] {
        five_bits(&self.qs, self.qh)
    }

    fn scales(&self, _: usize) -> Scales {
        Scales { scale: self.d.to_le_bytes(), offset: self.m.to_le_bytes(), ..Scales::default() }
    }
}

impl Source for BlockQ8_0 {
    type QuantLayout = Bits<8, 0>;
    type ScaleLayout = BlockScales<false>;

    fn quants(&self, _: usize) -> [u8; GROUP] {
        self.qs.map(|q| q as u8 ^ 0x80)
    }

    fn scales(&self, _: usize) -> Scales {
        Scales { scale: self.d.to_le_bytes(), ..Scales::default() }
    }
}

impl Source for BlockIq4Nl {
    type QuantLayout = Levels<Iq4>;
    type ScaleLayout = BlockScales<false>;

    fn quants(&self, _: usize) -> [u8; GROUP] {
        nibbles(&self.qs)
    }

    fn scales(&self, _: usize) -> Scales {
        Scales { scale: self.d.to_le_bytes(), ..Scales::default() }
    }
}

impl Source for BlockMxfp4 {
    type QuantLayout = Levels<Mxfp4>;
    type ScaleLayout = BlockScales<false, true>;

    fn quants(&self, _: usize) -> [u8; GROUP] {
        nibbles(&self.qs)
    }

    fn scales(&self, _: usize) -> Scales {
        Scales { scale: self.scale().to_le_bytes(), ..Scales::default() }
    }
}

impl Source for BlockIq4Xs {
    type QuantLayout = Levels<Iq4>;
    type ScaleLayout = SuperBlockScales<false, false>;

    fn quants(&self, sub: usize) -> [u8; GROUP] {
        nibbles(&self.qs.as_chunks().0[sub])
    }

    fn scales(&self, sub: usize) -> Scales {
        // Six bits minus 32 fit int8.
        let factor = self.scale(sub) as i8;
        Scales { scale: self.d.to_le_bytes(), factors: [factor; 2], ..Scales::default() }
    }
}

impl Source for BlockQ2K {
    type QuantLayout = Bits<2, 0>;
    type ScaleLayout = SuperBlockScales<true, true>;

    fn quants(&self, sub: usize) -> [u8; GROUP] {
        two_bit_runs(&self.qs, sub)
    }

    fn scales(&self, sub: usize) -> Scales {
        let two = [self.scales[2 * sub], self.scales[2 * sub + 1]];
        Scales {
            scale: self.d.to_le_bytes(),
            offset: self.dmin.to_le_bytes(),
            factors: two.map(|s| (s & 15) as i8),
            offset_factors: two.map(|s| (s >> 4) as i8),
        }
    }
}

impl Source for BlockQ3K {
    type QuantLayout = Bits<2, 1>;
    type ScaleLayout = SuperBlockScales<true, false>;

    fn quants(&self, sub: usize) -> [u8; GROUP] {
        let (low, third) = (two_bit_runs(&self.qs, sub), field(&self.hmask, sub, 1));
        std::array::from_fn(|k| low[k] | third[k] << 2)
    }

    fn scales(&self, sub: usize) -> Scales {
        // Six bits minus 32 fit int8.
        let factors = [self.scale(2 * sub) as i8, self.scale(2 * sub + 1) as i8];
        Scales { scale: self.d.to_le_bytes(), factors, ..Scales::default() }
    }
}

impl Source for BlockQ4K {
    type QuantLayout = Bits<4, 0>;
    type ScaleLayout = SuperBlockScales<false, true>;

    fn quants(&self, sub: usize) -> [u8; GROUP] {
        nibble_runs(&self.qs, sub)
    }

    fn scales(&self, sub: usize) -> Scales {
        super_scales(self.d, self.dmin, &self.scales, sub)
    }
}

impl Source for BlockQ5K {
    type QuantLayout = Bits<4, 1>;
    type ScaleLayout = SuperBlockScales<false, true>;

    fn quants(&self, sub: usize) -> [u8; GROUP] {
        let (low, fifth) = (nibble_runs(&self.qs, sub), field(&self.qh, sub, 1));
        std::array::from_fn(|k| low[k] | fifth[k] << 4)
    }

    fn scales(&self, sub: usize) -> Scales {
        super_scales(self.d, self.dmin, &self.scales, sub)
    }
}

/// The scales of Q4_K and Q5_K. Their six bits fit int8.
fn super_scales(d: HalfLe, dmin: HalfLe, scales: &[u8; 12], sub: usize) -> Scales {
    let (factor, offset) = scale_min(scales, sub);
    Scales {
        scale: d.to_le_bytes(),
        offset: dmin.to_le_bytes(),
        factors: [factor as i8; 2],
        offset_factors: [offset as i8; 2],
    }
}

impl Source for BlockQ6K {
    type QuantLayout = Bits<4, 2>;
    type ScaleLayout = SuperBlockScales<true, false>;

    fn quants(&self, sub: usize) -> [u8; GROUP] {
        let (half, run) = (sub / 4, sub % 4);
        let low = field(&self.ql[64 * half + run % 2 * GROUP..], 4 * (run / 2), 15);
        let high = two_bit_runs(&self.qh, sub);
        std::array::from_fn(|k| low[k] | high[k] << 4)
    }

    fn scales(&self, sub: usize) -> Scales {
        let factors = [self.scales[2 * sub], self.scales[2 * sub + 1]];
        Scales { scale: self.d.to_le_bytes(), factors, ..Scales::default() }
    }
}

/// The layouts of affine groups.
macro_rules! affine {
    ($($bytes:literal $low:literal $high:literal;)*) => {$(
        impl<const BF16: bool> Source for BlockAffine<$bytes, BF16> {
            type QuantLayout = Bits<$low, $high>;
            type ScaleLayout = BlockScales<true, BF16>;

            fn quants(&self, _: usize) -> [u8; GROUP] {
                BlockAffine::quants(self)
            }

            fn scales(&self, _: usize) -> Scales {
                Scales { scale: self.d, offset: self.m, ..Scales::default() }
            }
        }
    )*};
}

affine! {
    8 2 0;
    12 2 1;
    16 4 0;
    20 4 1;
    24 4 2;
    32 8 0;
}
