//! AVX2, FMA and F16C: one register holds eight lanes.

use std::arch::x86_64::*;

use half::f16;

use super::{Registers, Simd};

pub(crate) struct Avx2;

// The contract of `Simd` covers every block: the CPU has the instructions and pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Registers for Avx2 {
    const N: usize = 8;
    type F = __m256;
    type I = __m256i;
    type B = __m256i;

    #[inline(always)]
    unsafe fn splat(v: f32) -> __m256 {
        unsafe { _mm256_set1_ps(v) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn neg(a: __m256) -> __m256 {
        unsafe { _mm256_xor_ps(a, _mm256_set1_ps(-0.0)) }
    }

    #[inline(always)]
    unsafe fn splat_i(v: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(v) }
    }

    #[inline(always)]
    unsafe fn add_i(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn sub_i(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn scale_i(a: __m256i, n: i32) -> __m256i {
        unsafe {
            if n >= 0 {
                _mm256_sll_epi32(a, _mm_cvtsi32_si128(n))
            } else {
                _mm256_sra_epi32(a, _mm_cvtsi32_si128(-n))
            }
        }
    }

    #[inline(always)]
    unsafe fn to_f(a: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(a) }
    }

    #[inline(always)]
    unsafe fn field(v: __m256i, up: i32, mask: u8) -> __m256i {
        unsafe {
            // AVX2 has no byte shifts; the mask removes bits that cross into a neighbour.
            let v = if up >= 0 {
                _mm256_sll_epi16(v, _mm_cvtsi32_si128(up))
            } else {
                _mm256_srl_epi16(v, _mm_cvtsi32_si128(-up))
            };
            if mask == 0xFF { v } else { _mm256_and_si256(v, _mm256_set1_epi8(mask as i8)) }
        }
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], v: __m256i) -> __m256i {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, v)
        }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    unsafe fn to_i(a: __m256) -> __m256i {
        unsafe { _mm256_cvtps_epi32(a) }
    }

    #[inline(always)]
    unsafe fn power_of_two(n: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127)))) }
    }
}

// The contract of `Simd` covers every block: the CPU has the instructions and pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: __m256) {
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn select_lanes(a: __m256, start: i32, end: i32, b: __m256) -> __m256 {
        unsafe {
            let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let from = _mm256_cmpgt_epi32(index, _mm256_set1_epi32(start - 1));
            let to = _mm256_cmpgt_epi32(_mm256_set1_epi32(end), index);
            _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_and_si256(from, to)))
        }
    }

    #[inline(always)]
    unsafe fn reduce_add(a: __m256) -> f32 {
        unsafe {
            let v = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }

    #[inline(always)]
    unsafe fn reduce_max(a: __m256) -> f32 {
        unsafe {
            let v = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }

    #[inline(always)]
    unsafe fn max_abs_bits(a: [__m256; 4]) -> u32 {
        unsafe {
            let mut most = _mm256_setzero_si256();
            for a in a {
                let magnitude = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7FFF_FFFF));
                most = _mm256_max_epu32(most, magnitude);
            }
            let most = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
            let most = _mm_max_epu32(most, _mm_shuffle_epi32::<0b01_00_11_10>(most));
            let most = _mm_max_epu32(most, _mm_shuffle_epi32::<0b10_11_00_01>(most));
            _mm_cvtsi128_si32(most) as u32
        }
    }

    #[inline(always)]
    unsafe fn to_i8(a: [__m256; 4]) -> ([i8; 32], [i32; 2]) {
        unsafe {
            let first = _mm256_packs_epi32(_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1]));
            let last = _mm256_packs_epi32(_mm256_cvtps_epi32(a[2]), _mm256_cvtps_epi32(a[3]));
            // Packing works within 128-bit halves; the permutation restores the order.
            let packed = _mm256_packs_epi16(first, last);
            let packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            let mut bytes = [0i8; 32];
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), packed);
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), packed);
            let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            let (first, last) = (_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours));
            // One register for both, so two additions reduce the first and the last 16.
            let halves = _mm_hadd_epi32(first, last);
            let sums = _mm_hadd_epi32(halves, halves);
            (bytes, [_mm_extract_epi32::<0>(sums), _mm_extract_epi32::<1>(sums)])
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
}
