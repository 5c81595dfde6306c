//! The five-bit formats: Q5_0, Q5_1 and Q5_K.

use bytemuck::from_bytes;
use gyrus_tensor::DType;
use gyrus_tensor::block::{BlockQ5_0, BlockQ5_1, BlockQ5K, scale_min};

use super::{Format, Lane, Scale, half_at, nibbles, put_nibbles};

/// Body: 128 bytes of nibbles, 32 bytes of fifth bits, eight half-precision scales.
pub(crate) struct Q5_0;

/// Body: 128 bytes of nibbles, 32 bytes of fifth bits, eight scales, eight offsets.
pub(crate) struct Q5_1;

/// Header: eight scales of scales, eight scales of minimums. Body: 128 bytes of nibbles, 32 bytes of
/// fifth bits, eight byte scales, eight byte minimums.
#[allow(non_camel_case_types)]
pub(crate) struct Q5_K;

/// Nibbles and fifth bits together.
const QUANTS: usize = 128 + 32;

/// Bit `k / 4` of the fifth bits' byte `[row][k % 4]` belongs to element `k`.
fn put_five_bits(body: &mut [u8], row: usize, q: &[u8; 32]) {
    put_nibbles(body, row, q);
    for (k, q) in q.iter().enumerate() {
        body[128 + row * 4 + k % 4] |= (q >> 4) << (k / 4);
    }
}

fn five_bits(body: &[u8], row: usize) -> [u8; 32] {
    let low = nibbles(body, row);
    std::array::from_fn(|k| low[k] | (body[128 + row * 4 + k % 4] >> (k / 4) & 1) << 4)
}

/// The values of 32 elements whose nibbles lie as halves and whose fifth bits are a word.
fn joined(qs: &[u8; 16], qh: [u8; 4]) -> [u8; 32] {
    let qh = u32::from_le_bytes(qh);
    std::array::from_fn(|k| qs[k % 16] >> (k / 16 * 4) & 15 | ((qh >> k & 1) as u8) << 4)
}

impl Format for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const HEADER: usize = 0;
    const BODY: usize = QUANTS + 16;

    fn pack(source: &[u8], row: usize, group: &mut [u8]) {
        let block: &BlockQ5_0 = from_bytes(source);
        put_five_bits(group, row, &joined(&block.qs, block.qh));
        group[QUANTS + 2 * row..][..2].copy_from_slice(&source[..2]);
    }

    fn lane(group: &[u8], _: usize, row: usize) -> Lane {
        let scale = Scale::One(half_at(&group[QUANTS..], row));
        Lane { q: five_bits(group, row), zero: 16, scale, min: None }
    }
}

impl Format for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const HEADER: usize = 0;
    const BODY: usize = QUANTS + 32;

    fn pack(source: &[u8], row: usize, group: &mut [u8]) {
        let block: &BlockQ5_1 = from_bytes(source);
        put_five_bits(group, row, &joined(&block.qs, block.qh));
        group[QUANTS + 2 * row..][..2].copy_from_slice(&source[..2]);
        group[QUANTS + 16 + 2 * row..][..2].copy_from_slice(&source[2..4]);
    }

    fn lane(group: &[u8], _: usize, row: usize) -> Lane {
        Lane {
            q: five_bits(group, row),
            zero: 0,
            scale: Scale::One(half_at(&group[QUANTS..], row)),
            min: Some(half_at(&group[QUANTS + 16..], row)),
        }
    }
}

impl Format for Q5_K {
    const DTYPE: DType = DType::Q5_K;
    const HEADER: usize = 32;
    const BODY: usize = QUANTS + 16;

    fn pack(source: &[u8], row: usize, group: &mut [u8]) {
        let block: &BlockQ5K = from_bytes(source);
        group[2 * row..][..2].copy_from_slice(&source[..2]);
        group[16 + 2 * row..][..2].copy_from_slice(&source[2..4]);
        for (sub, body) in group[Self::HEADER..].chunks_exact_mut(Self::BODY).enumerate() {
            let low = |k: usize| block.qs[32 * (sub / 2) + k] >> (4 * (sub % 2)) & 15;
            let q = std::array::from_fn(|k| low(k) | (block.qh[k] >> sub & 1) << 4);
            put_five_bits(body, row, &q);
            (body[QUANTS + row], body[QUANTS + 8 + row]) = scale_min(&block.scales, sub);
        }
    }

    fn lane(group: &[u8], sub: usize, row: usize) -> Lane {
        let body = &group[Self::HEADER + sub * Self::BODY..][..Self::BODY];
        let (d, dmin) = (half_at(group, row), half_at(&group[16..], row));
        Lane {
            q: five_bits(body, row),
            zero: 0,
            scale: Scale::One(d * f32::from(body[QUANTS + row])),
            min: Some(-(dmin * f32::from(body[QUANTS + 8 + row]))),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::avx2::{Kernel, broadcast, bytes_to_f32, halves_to_f32, scale_add, zero_point};
    use super::*;
    use crate::quantize_rows::QBlock;

    /// The 32 five-bit values of eight rows, group by group.
    ///
    /// # Safety
    /// `body` points to 160 bytes; the caller is compiled with AVX2.
    #[inline(always)]
    pub(super) unsafe fn five_bit_quants(body: *const u8) -> [__m256i; 8] {
        // SAFETY: five loads of 32 bytes.
        unsafe {
            let (mask, bit) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
            let fifths = _mm256_loadu_si256(body.add(128).cast());
            // Group c's fifth bit is bit c: moved up to bit 4, that of group c + 4 down.
            let up = [
                _mm256_slli_epi16::<4>(fifths),
                _mm256_slli_epi16::<3>(fifths),
                _mm256_slli_epi16::<2>(fifths),
                _mm256_slli_epi16::<1>(fifths),
            ];
            let down = [
                fifths,
                _mm256_srli_epi16::<1>(fifths),
                _mm256_srli_epi16::<2>(fifths),
                _mm256_srli_epi16::<3>(fifths),
            ];
            let mut quants = [_mm256_setzero_si256(); 8];
            for c in 0..4 {
                let w = _mm256_loadu_si256(body.add(32 * c).cast());
                quants[c] = _mm256_or_si256(_mm256_and_si256(w, mask), _mm256_and_si256(up[c], bit));
                quants[c + 4] = _mm256_or_si256(
                    _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask),
                    _mm256_and_si256(down[c], bit),
                );
            }
            quants
        }
    }

    /// `Σ q·x` for eight rows of five-bit values. Sixteen-bit sums hold half a block: 31 · 127 · 8 < 2¹⁵.
    ///
    /// # Safety
    /// `body` points to 160 bytes, each of `x` to a block; the caller is compiled with AVX2.
    #[inline(always)]
    unsafe fn five_bit_dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [__m256i; M] {
        // SAFETY: the contract covers the quants; groups are below 8.
        unsafe {
            let quants = five_bit_quants(body);
            let mut first = [_mm256_setzero_si256(); M];
            let mut last = [_mm256_setzero_si256(); M];
            for c in 0..4 {
                let (low, high) = (quants[c], quants[c + 4]);
                for r in 0..M {
                    first[r] = _mm256_add_epi16(first[r], _mm256_maddubs_epi16(low, broadcast(x[r], c)));
                    last[r] = _mm256_add_epi16(last[r], _mm256_maddubs_epi16(high, broadcast(x[r], c + 4)));
                }
            }
            let ones = _mm256_set1_epi16(1);
            let mut dots = [_mm256_setzero_si256(); M];
            for r in 0..M {
                dots[r] =
                    _mm256_add_epi32(_mm256_madd_epi16(first[r], ones), _mm256_madd_epi16(last[r], ones));
            }
            dots
        }
    }

    impl Kernel for Q5_0 {
        type Head = ();
        type Dot = __m256i;

        #[inline(always)]
        unsafe fn head(_: *const u8) {}

        #[inline(always)]
        unsafe fn dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [__m256i; M] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { five_bit_dots(body, x) }
        }

        #[inline(always)]
        unsafe fn add<const M: usize>(
            _: (),
            body: *const u8,
            x: [*const QBlock; M],
            dots: [__m256i; M],
            acc: &mut [__m256; M],
        ) {
            // SAFETY: the caller's contract covers the 176 bytes of a body and one block of each row.
            unsafe {
                let d = halves_to_f32(body.add(QUANTS));
                for r in 0..M {
                    let dot = _mm256_add_epi32(dots[r], zero_point::<1>(x[r]));
                    acc[r] = scale_add(dot, d, x[r], acc[r]);
                }
            }
        }
    }

    impl Kernel for Q5_1 {
        type Head = ();
        type Dot = __m256i;

        #[inline(always)]
        unsafe fn head(_: *const u8) {}

        #[inline(always)]
        unsafe fn dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [__m256i; M] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { five_bit_dots(body, x) }
        }

        #[inline(always)]
        unsafe fn add<const M: usize>(
            _: (),
            body: *const u8,
            x: [*const QBlock; M],
            dots: [__m256i; M],
            acc: &mut [__m256; M],
        ) {
            // SAFETY: the caller's contract covers the 192 bytes of a body and one block of each row.
            unsafe {
                let d = halves_to_f32(body.add(QUANTS));
                let m = halves_to_f32(body.add(QUANTS + 16));
                for r in 0..M {
                    let sum = scale_add(dots[r], d, x[r], acc[r]);
                    acc[r] = _mm256_fmadd_ps(m, _mm256_set1_ps((*x[r]).scaled_sum), sum);
                }
            }
        }
    }

    impl Kernel for Q5_K {
        type Head = (__m256, __m256);
        type Dot = __m256i;

        #[inline(always)]
        unsafe fn head(group: *const u8) -> Self::Head {
            // SAFETY: the header has two runs of eight halves.
            unsafe { (halves_to_f32(group), halves_to_f32(group.add(16))) }
        }

        #[inline(always)]
        unsafe fn dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [__m256i; M] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { five_bit_dots(body, x) }
        }

        #[inline(always)]
        unsafe fn add<const M: usize>(
            (d, dmin): Self::Head,
            body: *const u8,
            x: [*const QBlock; M],
            dots: [__m256i; M],
            acc: &mut [__m256; M],
        ) {
            // SAFETY: the caller's contract covers the 176 bytes of a body and one block of each row.
            unsafe {
                let scale = _mm256_mul_ps(d, bytes_to_f32(body.add(QUANTS)));
                let min = _mm256_mul_ps(dmin, bytes_to_f32(body.add(QUANTS + 8)));
                for r in 0..M {
                    let sum = scale_add(dots[r], scale, x[r], acc[r]);
                    acc[r] = _mm256_fnmadd_ps(min, _mm256_set1_ps((*x[r]).scaled_sum), sum);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod vnni {
    use std::arch::x86_64::*;

    use super::super::vnni::Kernel;
    use super::avx2::five_bit_quants;
    use super::*;

    impl Kernel for Q5_0 {
        #[inline(always)]
        unsafe fn quants(body: *const u8) -> [__m256i; 8] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { five_bit_quants(body) }
        }
    }

    impl Kernel for Q5_1 {
        #[inline(always)]
        unsafe fn quants(body: *const u8) -> [__m256i; 8] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { five_bit_quants(body) }
        }
    }

    impl Kernel for Q5_K {
        #[inline(always)]
        unsafe fn quants(body: *const u8) -> [__m256i; 8] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { five_bit_quants(body) }
        }
    }
}
