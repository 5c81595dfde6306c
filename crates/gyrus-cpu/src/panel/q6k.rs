//! Q6_K, with a scale for each 16.

use bytemuck::from_bytes;
use gyrus_tensor::DType;
use gyrus_tensor::block::BlockQ6K;

use super::{Format, Lane, Scale, half_at, nibbles, put_nibbles};

/// Header: eight half-precision scales of scales. Body: 128 bytes of low nibbles; 64 bytes of upper bit
/// pairs, where byte `[k % 8 / 4][row][k % 4]` holds elements `k`, `k + 8`, `k + 16`, `k + 24` from its
/// low bits up; eight signed scales of the first 16 elements, eight of the last.
#[allow(non_camel_case_types)]
pub(crate) struct Q6_K;

impl Format for Q6_K {
    const DTYPE: DType = DType::Q6_K;
    const HEADER: usize = 16;
    const BODY: usize = 128 + 64 + 16;

    fn pack(source: &[u8], row: usize, group: &mut [u8]) {
        let block: &BlockQ6K = from_bytes(source);
        group[2 * row..][..2].copy_from_slice(&source[source.len() - 2..]);
        for (sub, body) in group[Self::HEADER..].chunks_exact_mut(Self::BODY).enumerate() {
            let (half, run) = (sub / 4, sub % 4);
            let low = std::array::from_fn(|k| block.ql[64 * half + run % 2 * 32 + k] >> (4 * (run / 2)) & 15);
            put_nibbles(body, row, &low);
            for k in 0..32 {
                let pair = block.qh[32 * half + k] >> (2 * run) & 3;
                body[128 + k % 8 / 4 * 32 + row * 4 + k % 4] |= pair << (k / 8 * 2);
            }
            body[192 + row] = block.scales[2 * sub] as u8;
            body[200 + row] = block.scales[2 * sub + 1] as u8;
        }
    }

    fn lane(group: &[u8], sub: usize, row: usize) -> Lane {
        let body = &group[Self::HEADER + sub * Self::BODY..][..Self::BODY];
        let d = half_at(group, row);
        let low = nibbles(body, row);
        let pair = |k: usize| body[128 + k % 8 / 4 * 32 + row * 4 + k % 4] >> (k / 8 * 2) & 3;
        Lane {
            q: std::array::from_fn(|k| low[k] | pair(k) << 4),
            zero: 32,
            scale: Scale::Two(d * f32::from(body[192 + row] as i8), d * f32::from(body[200 + row] as i8)),
            min: None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::avx2::{Kernel, broadcast, halves_to_f32, signed_bytes_to_f32, zero_point};
    use super::*;
    use crate::quantize_rows::QBlock;

    /// The 32 six-bit values of eight rows, group by group.
    ///
    /// # Safety
    /// `body` points to 192 bytes; the caller is compiled with AVX2.
    #[inline(always)]
    pub(super) unsafe fn six_bit_quants(body: *const u8) -> [__m256i; 8] {
        // SAFETY: six loads of 32 bytes.
        unsafe {
            let (nibble, pair) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
            let mut quants = [_mm256_setzero_si256(); 8];
            for c in 0..4 {
                // Groups c and c + 4 share a byte; their bit pairs sit at bits 2·(c / 2) and 4 further.
                let low = _mm256_loadu_si256(body.add(32 * c).cast());
                let upper = _mm256_loadu_si256(body.add(128 + 32 * (c % 2)).cast());
                let (h0, h1) = if c < 2 {
                    (_mm256_slli_epi16::<4>(upper), upper)
                } else {
                    (_mm256_slli_epi16::<2>(upper), _mm256_srli_epi16::<2>(upper))
                };
                quants[c] = _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(h0, pair));
                quants[c + 4] = _mm256_or_si256(
                    _mm256_and_si256(_mm256_srli_epi16::<4>(low), nibble),
                    _mm256_and_si256(h1, pair),
                );
            }
            quants
        }
    }

    impl Kernel for Q6_K {
        type Head = __m256;
        type Dot = [__m256i; 2];

        #[inline(always)]
        unsafe fn head(group: *const u8) -> __m256 {
            // SAFETY: the header is eight halves.
            unsafe { halves_to_f32(group) }
        }

        /// Six bits leave room for two products in 16 bits (63 · 127 · 4 < 2¹⁵), so each pair of groups
        /// is widened.
        #[inline(always)]
        unsafe fn dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [[__m256i; 2]; M] {
            // SAFETY: the caller's contract covers the 208 bytes of a body and one block of each row.
            unsafe {
                let ones = _mm256_set1_epi16(1);
                let w = six_bit_quants(body);
                let mut dots = [[_mm256_setzero_si256(); 2]; M];
                for g in [0, 2] {
                    for r in 0..M {
                        let dot = |g: usize| {
                            let a = _mm256_maddubs_epi16(w[g], broadcast(x[r], g));
                            let b = _mm256_maddubs_epi16(w[g + 1], broadcast(x[r], g + 1));
                            _mm256_madd_epi16(_mm256_add_epi16(a, b), ones)
                        };
                        dots[r][0] = _mm256_add_epi32(dots[r][0], dot(g));
                        dots[r][1] = _mm256_add_epi32(dots[r][1], dot(g + 4));
                    }
                }
                dots
            }
        }

        #[inline(always)]
        unsafe fn add<const M: usize>(
            d: __m256,
            body: *const u8,
            x: [*const QBlock; M],
            dots: [[__m256i; 2]; M],
            acc: &mut [__m256; M],
        ) {
            // SAFETY: the caller's contract covers the 208 bytes of a body and one block of each row.
            unsafe {
                let s0 = _mm256_mul_ps(d, signed_bytes_to_f32(body.add(192)));
                let s1 = _mm256_mul_ps(d, signed_bytes_to_f32(body.add(200)));
                for r in 0..M {
                    let x = &*x[r];
                    let scale = _mm256_set1_ps(x.scale);
                    // 32·Σ of the first 16, and −32·Σ of the last as the difference to the whole.
                    let zero0 = _mm256_slli_epi32::<5>(_mm256_set1_epi32(x.first_sum));
                    let zero1 = _mm256_add_epi32(zero_point::<2>(x), zero0);
                    let dot0 = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots[r][0], zero0));
                    let dot1 = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[r][1], zero1));
                    acc[r] = _mm256_fmadd_ps(dot0, _mm256_mul_ps(s0, scale), acc[r]);
                    acc[r] = _mm256_fmadd_ps(dot1, _mm256_mul_ps(s1, scale), acc[r]);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod vnni {
    use std::arch::x86_64::*;

    use super::super::vnni::Kernel;
    use super::avx2::six_bit_quants;
    use super::*;

    impl Kernel for Q6_K {
        #[inline(always)]
        unsafe fn quants(body: *const u8) -> [__m256i; 8] {
            // SAFETY: passed on; a body begins with its quants.
            unsafe { six_bit_quants(body) }
        }
    }
}
