//! Q8_0.

use bytemuck::from_bytes;
use gyrus_tensor::DType;
use gyrus_tensor::block::BlockQ8_0;

use super::{Format, Lane, Scale, half_at};

/// Body: 256 bytes `q + 128`, eight half-precision scales.
pub(crate) struct Q8_0;

impl Format for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const HEADER: usize = 0;
    const BODY: usize = 256 + 16;

    fn pack(source: &[u8], row: usize, group: &mut [u8]) {
        let block: &BlockQ8_0 = from_bytes(source);
        for (k, &q) in block.qs.iter().enumerate() {
            group[k / 4 * 32 + row * 4 + k % 4] = q as u8 ^ 0x80;
        }
        group[256 + 2 * row..][..2].copy_from_slice(&source[..2]);
    }

    fn lane(group: &[u8], _: usize, row: usize) -> Lane {
        Lane {
            q: std::array::from_fn(|k| group[k / 4 * 32 + row * 4 + k % 4]),
            zero: 128,
            scale: Scale::One(half_at(&group[256..], row)),
            min: None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::avx2::{Kernel, broadcast, halves_to_f32, scale_add, zero_point};
    use super::*;
    use crate::quantize_rows::QBlock;

    impl Kernel for Q8_0 {
        type Head = ();
        type Dot = __m256i;

        #[inline(always)]
        unsafe fn head(_: *const u8) {}

        /// A product of two bytes does not leave room to add in 16 bits. Each weight is split into its
        /// nibbles, `q + 128 = 16·h + l`, whose products do (15 · 127 · 16 < 2¹⁵), and the two sums are
        /// joined once per block.
        #[inline(always)]
        unsafe fn dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [__m256i; M] {
            // SAFETY: the caller's contract covers the 272 bytes of a body and one block of each row.
            unsafe {
                let mask = _mm256_set1_epi8(15);
                let mut low = [_mm256_setzero_si256(); M];
                let mut high = [_mm256_setzero_si256(); M];
                for g in 0..8 {
                    let w = _mm256_loadu_si256(body.add(32 * g).cast());
                    let l = _mm256_and_si256(w, mask);
                    let h = _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask);
                    for r in 0..M {
                        let v = broadcast(x[r], g);
                        low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(l, v));
                        high[r] = _mm256_add_epi16(high[r], _mm256_maddubs_epi16(h, v));
                    }
                }
                let (one, sixteen) = (_mm256_set1_epi16(1), _mm256_set1_epi16(16));
                let mut dots = [_mm256_setzero_si256(); M];
                for r in 0..M {
                    let (low, high) = (_mm256_madd_epi16(low[r], one), _mm256_madd_epi16(high[r], sixteen));
                    dots[r] = _mm256_add_epi32(low, high);
                }
                dots
            }
        }

        #[inline(always)]
        unsafe fn add<const M: usize>(
            _: (),
            body: *const u8,
            x: [*const QBlock; M],
            dots: [__m256i; M],
            acc: &mut [__m256; M],
        ) {
            // SAFETY: the caller's contract covers the 272 bytes of a body and one block of each row.
            unsafe {
                let d = halves_to_f32(body.add(256));
                for r in 0..M {
                    let dot = _mm256_add_epi32(dots[r], zero_point::<4>(x[r]));
                    acc[r] = scale_add(dot, d, x[r], acc[r]);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod vnni {
    use std::arch::x86_64::*;

    use super::super::vnni::Kernel;
    use super::*;

    impl Kernel for Q8_0 {
        #[inline(always)]
        unsafe fn quants(body: *const u8) -> [__m256i; 8] {
            // SAFETY: the caller's contract covers the 256 bytes a body begins with.
            unsafe {
                let mut quants = [_mm256_setzero_si256(); 8];
                for (g, quants) in quants.iter_mut().enumerate() {
                    *quants = _mm256_loadu_si256(body.add(32 * g).cast());
                }
                quants
            }
        }
    }
}
