//! The nibble formats: Q4_0, Q4_1 and Q4_K.

use bytemuck::from_bytes;
use gyrus_tensor::DType;
use gyrus_tensor::block::{BlockQ4_0, BlockQ4_1, BlockQ4K, scale_min};

use super::{Format, Lane, Scale, half_at, nibbles, put_nibbles};

/// Body: 128 bytes of nibbles, eight half-precision scales.
pub(crate) struct Q4_0;

/// Body: 128 bytes of nibbles, eight scales, eight offsets.
pub(crate) struct Q4_1;

/// Header: eight scales of scales, eight scales of minimums. Body: 128 bytes of nibbles, eight byte
/// scales, eight byte minimums.
#[allow(non_camel_case_types)]
pub(crate) struct Q4_K;

/// The nibbles of 32 elements whose bytes hold `k` and `k + 16`, as single values.
fn halves(qs: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|k| qs[k % 16] >> (k / 16 * 4) & 15)
}

impl Format for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const HEADER: usize = 0;
    const BODY: usize = 128 + 16;

    fn pack(source: &[u8], row: usize, group: &mut [u8]) {
        let block: &BlockQ4_0 = from_bytes(source);
        put_nibbles(group, row, &halves(&block.qs));
        group[128 + 2 * row..][..2].copy_from_slice(&source[..2]);
    }

    fn lane(group: &[u8], _: usize, row: usize) -> Lane {
        Lane { q: nibbles(group, row), zero: 8, scale: Scale::One(half_at(&group[128..], row)), min: None }
    }
}

impl Format for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const HEADER: usize = 0;
    const BODY: usize = 128 + 32;

    fn pack(source: &[u8], row: usize, group: &mut [u8]) {
        let block: &BlockQ4_1 = from_bytes(source);
        put_nibbles(group, row, &halves(&block.qs));
        group[128 + 2 * row..][..2].copy_from_slice(&source[..2]);
        group[144 + 2 * row..][..2].copy_from_slice(&source[2..4]);
    }

    fn lane(group: &[u8], _: usize, row: usize) -> Lane {
        Lane {
            q: nibbles(group, row),
            zero: 0,
            scale: Scale::One(half_at(&group[128..], row)),
            min: Some(half_at(&group[144..], row)),
        }
    }
}

impl Format for Q4_K {
    const DTYPE: DType = DType::Q4_K;
    const HEADER: usize = 32;
    const BODY: usize = 128 + 16;

    fn pack(source: &[u8], row: usize, group: &mut [u8]) {
        let block: &BlockQ4K = from_bytes(source);
        group[2 * row..][..2].copy_from_slice(&source[..2]);
        group[16 + 2 * row..][..2].copy_from_slice(&source[2..4]);
        for (sub, body) in group[Self::HEADER..].chunks_exact_mut(Self::BODY).enumerate() {
            let q = std::array::from_fn(|k| block.qs[32 * (sub / 2) + k] >> (4 * (sub % 2)) & 15);
            put_nibbles(body, row, &q);
            (body[128 + row], body[136 + row]) = scale_min(&block.scales, sub);
        }
    }

    fn lane(group: &[u8], sub: usize, row: usize) -> Lane {
        let body = &group[Self::HEADER + sub * Self::BODY..][..Self::BODY];
        let (d, dmin) = (half_at(group, row), half_at(&group[16..], row));
        Lane {
            q: nibbles(body, row),
            zero: 0,
            scale: Scale::One(d * f32::from(body[128 + row])),
            min: Some(-(dmin * f32::from(body[136 + row]))),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::avx2::{Kernel, bytes_to_f32, halves_to_f32, nibble_dots, scale_add, zero_point};
    use super::*;
    use crate::quantize_rows::QBlock;

    impl Kernel for Q4_0 {
        type Head = ();
        type Dot = __m256i;

        #[inline(always)]
        unsafe fn head(_: *const u8) {}

        #[inline(always)]
        unsafe fn dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [__m256i; M] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { nibble_dots(body, x) }
        }

        #[inline(always)]
        unsafe fn add<const M: usize>(
            _: (),
            body: *const u8,
            x: [*const QBlock; M],
            dots: [__m256i; M],
            acc: &mut [__m256; M],
        ) {
            // SAFETY: the caller's contract covers the 144 bytes of a body and one block of each row.
            unsafe {
                let d = halves_to_f32(body.add(128));
                for r in 0..M {
                    let dot = _mm256_add_epi32(dots[r], zero_point::<0>(x[r]));
                    acc[r] = scale_add(dot, d, x[r], acc[r]);
                }
            }
        }
    }

    impl Kernel for Q4_1 {
        type Head = ();
        type Dot = __m256i;

        #[inline(always)]
        unsafe fn head(_: *const u8) {}

        #[inline(always)]
        unsafe fn dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [__m256i; M] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { nibble_dots(body, x) }
        }

        #[inline(always)]
        unsafe fn add<const M: usize>(
            _: (),
            body: *const u8,
            x: [*const QBlock; M],
            dots: [__m256i; M],
            acc: &mut [__m256; M],
        ) {
            // SAFETY: the caller's contract covers the 160 bytes of a body and one block of each row.
            unsafe {
                let d = halves_to_f32(body.add(128));
                let m = halves_to_f32(body.add(144));
                for r in 0..M {
                    let sum = scale_add(dots[r], d, x[r], acc[r]);
                    acc[r] = _mm256_fmadd_ps(m, _mm256_set1_ps((*x[r]).scaled_sum), sum);
                }
            }
        }
    }

    impl Kernel for Q4_K {
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
            unsafe { nibble_dots(body, x) }
        }

        #[inline(always)]
        unsafe fn add<const M: usize>(
            (d, dmin): Self::Head,
            body: *const u8,
            x: [*const QBlock; M],
            dots: [__m256i; M],
            acc: &mut [__m256; M],
        ) {
            // SAFETY: the caller's contract covers the 144 bytes of a body and one block of each row.
            unsafe {
                let scale = _mm256_mul_ps(d, bytes_to_f32(body.add(128)));
                let min = _mm256_mul_ps(dmin, bytes_to_f32(body.add(136)));
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

    use super::super::vnni::{Kernel, nibble_quants};
    use super::*;

    impl Kernel for Q4_0 {
        #[inline(always)]
        unsafe fn quants(body: *const u8) -> [__m256i; 8] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { nibble_quants(body) }
        }
    }

    impl Kernel for Q4_1 {
        #[inline(always)]
        unsafe fn quants(body: *const u8) -> [__m256i; 8] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { nibble_quants(body) }
        }
    }

    impl Kernel for Q4_K {
        #[inline(always)]
        unsafe fn quants(body: *const u8) -> [__m256i; 8] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { nibble_quants(body) }
        }
    }
}
