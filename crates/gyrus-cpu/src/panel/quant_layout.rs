//! The storage of a panel's quants.
//!
//! Quants are stored in bit planes. A plane of `W` bits (1, 2, 4 or 8) is `W` vectors of 32 bytes, four bytes
//! for each of eight rows. Vector `v` holds the groups of four elements `v`, `v + W`, `v + 2·W`, …, from the
//! low bits up. So one load brings `8 / W` groups of four consecutive elements of each row.

use std::marker::PhantomData;

use gyrus_tensor::block::{IQ4_LEVELS, MXFP4_LEVELS};

use super::LANES;
use super::loads::Loads;
use crate::quantize_rows::GROUP;

/// A storage layout of unsigned quants.
pub(crate) trait QuantLayout {
    /// Bytes of a body: 32 elements of eight rows.
    const BYTES: usize;

    /// The largest quant.
    const MAX: u32;

    /// The zero point of formats without an offset, a power of two.
    const ZERO_POINT: u32;

    /// Packs 32 quants of a row.
    fn pack(body: &mut [u8], row: usize, q: &[u8; GROUP]);

    /// Unpacks the quants of a row.
    fn unpack(body: &[u8], row: usize) -> [u8; GROUP];

    /// Loads the quants of elements `4·group..4·group + 4` of all rows.
    ///
    /// # Safety
    /// `body` points to `Self::BYTES` readable bytes, `group < 8`; otherwise the contract of [`Loads`].
    unsafe fn group<S: Loads>(body: S::Place, group: usize) -> S::B;
}

/// Quants of `LOW + HIGH` bits, in a plane of low bits and a plane of high bits.
pub(crate) struct Bits<const LOW: usize, const HIGH: usize>;

impl<const LOW: usize, const HIGH: usize> QuantLayout for Bits<LOW, HIGH> {
    const BYTES: usize = 4 * LANES * (LOW + HIGH);
    const MAX: u32 = (1 << (LOW + HIGH)) - 1;
    const ZERO_POINT: u32 = 1 << (LOW + HIGH - 1);

    fn pack(body: &mut [u8], row: usize, q: &[u8; GROUP]) {
        let (low, high) = body.split_at_mut(4 * LANES * LOW);
        let groups = std::array::from_fn(|g| u32::from_le_bytes(q.as_chunks::<4>().0[g]));
        pack_plane::<LOW>(low, row, &groups, 0);
        if HIGH > 0 {
            pack_plane::<HIGH>(high, row, &groups, LOW);
        }
    }

    fn unpack(body: &[u8], row: usize) -> [u8; GROUP] {
        let (low, high) = body.split_at(4 * LANES * LOW);
        std::array::from_fn(|k| {
            let above = if HIGH > 0 { plane_at::<HIGH>(high, row, k) << LOW } else { 0 };
            plane_at::<LOW>(low, row, k) | above
        })
    }

    #[inline(always)]
    unsafe fn group<S: Loads>(body: S::Place, group: usize) -> S::B {
        // SAFETY: both planes are within `Self::BYTES`.
        unsafe {
            let low = plane::<S, LOW>(body, group, 0);
            if HIGH == 0 {
                low
            } else {
                S::or(low, plane::<S, HIGH>(S::skip(body, 4 * LANES * LOW), group, LOW))
            }
        }
    }
}

/// 4-bit indices into a table of 16 quants.
pub(crate) struct Levels<T>(PhantomData<T>);

/// A table of quants: levels plus the zero point.
pub(crate) trait LevelTable {
    const QUANTS: [u8; 16];
    const MAX: u32;
    const ZERO_POINT: u32;
}

/// The levels of the IQ4 formats.
pub(crate) struct Iq4;

impl LevelTable for Iq4 {
    const QUANTS: [u8; 16] = plus(IQ4_LEVELS, 128);
    const MAX: u32 = 255;
    const ZERO_POINT: u32 = 128;
}

/// The levels of MXFP4, from −12 to 12.
pub(crate) struct Mxfp4;

impl LevelTable for Mxfp4 {
    const QUANTS: [u8; 16] = plus(MXFP4_LEVELS, 16);
    const MAX: u32 = 28;
    const ZERO_POINT: u32 = 16;
}

const fn plus(levels: [i8; 16], zero_point: u8) -> [u8; 16] {
    let mut quants = [0; 16];
    let mut i = 0;
    while i < 16 {
        quants[i] = (levels[i] as u8).wrapping_add(zero_point);
        i += 1;
    }
    quants
}

impl<T: LevelTable> QuantLayout for Levels<T> {
    const BYTES: usize = Bits::<4, 0>::BYTES;
    const MAX: u32 = T::MAX;
    const ZERO_POINT: u32 = T::ZERO_POINT;

    fn pack(body: &mut [u8], row: usize, q: &[u8; GROUP]) {
        Bits::<4, 0>::pack(body, row, q);
    }

    fn unpack(body: &[u8], row: usize) -> [u8; GROUP] {
        Bits::<4, 0>::unpack(body, row).map(|q| T::QUANTS[usize::from(q)])
    }

    #[inline(always)]
    unsafe fn group<S: Loads>(body: S::Place, group: usize) -> S::B {
        // SAFETY: the caller upholds the contract; indices of four bits are below 16.
        unsafe { S::lookup(&T::QUANTS, Bits::<4, 0>::group::<S>(body, group)) }
    }
}

const fn mask(width: usize) -> u8 {
    (0xFFu16 >> (8 - width)) as u8
}

/// Packs bits `from..from + W` of eight groups of four elements, four bytes at a time.
#[inline(always)]
fn pack_plane<const W: usize>(bytes: &mut [u8], row: usize, groups: &[u32; GROUP / 4], from: usize) {
    let mask = u32::from_le_bytes([mask(W); 4]);
    for (vector, bytes) in bytes.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut().enumerate() {
        let mut word = 0;
        for part in 0..8 / W {
            word |= (groups[vector + part * W] >> from & mask) << (part * W);
        }
        bytes[4 * row..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

fn plane_at<const W: usize>(bytes: &[u8], row: usize, k: usize) -> u8 {
    let group = k / 4;
    bytes[4 * LANES * (group % W) + 4 * row + k % 4] >> (group / W * W) & mask(W)
}

/// A group's bits in a plane, shifted to bit `at`.
#[inline(always)]
unsafe fn plane<S: Loads, const W: usize>(bytes: S::Place, group: usize, at: usize) -> S::B {
    // SAFETY: `bytes` points to a plane of `W` vectors.
    unsafe {
        let vector = S::bytes(S::skip(bytes, 4 * LANES * (group % W)));
        S::field(vector, at as i32 - (group / W * W) as i32, mask(W) << at)
    }
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::Rng;

    use super::*;

    fn round_trip<C: QuantLayout>(max: u8) {
        let mut rng = Rng::new(u64::from(max));
        let mut body = vec![0; C::BYTES];
        let rows: [[u8; GROUP]; LANES] =
            std::array::from_fn(|_| std::array::from_fn(|_| rng.below(usize::from(max) + 1) as u8));
        for (row, q) in rows.iter().enumerate() {
            C::pack(&mut body, row, q);
        }
        for (row, q) in rows.iter().enumerate() {
            assert_eq!(C::unpack(&body, row), *q);
        }
    }

    #[test]
    fn packed_quants_unpack_unchanged() {
        round_trip::<Bits<2, 0>>(3);
        round_trip::<Bits<2, 1>>(7);
        round_trip::<Bits<4, 0>>(15);
        round_trip::<Bits<4, 1>>(31);
        round_trip::<Bits<4, 2>>(63);
        round_trip::<Bits<8, 0>>(255);
    }
}
