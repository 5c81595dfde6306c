//! AVX-512 F and BW: one register holds 16 lanes.

use std::arch::x86_64::*;

use super::Registers;

pub(crate) struct Avx512;

// The contract of `Registers` covers every block: the CPU has the instructions and pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Registers for Avx512 {
    const N: usize = 16;
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    #[inline(always)]
    unsafe fn splat(v: f32) -> __m512 {
        unsafe { _mm512_set1_ps(v) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn neg(a: __m512) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(i32::MIN))) }
    }

    #[inline(always)]
    unsafe fn splat_i(v: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(v) }
    }

    #[inline(always)]
    unsafe fn add_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn sub_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn scale_i(a: __m512i, n: i32) -> __m512i {
        unsafe {
            if n >= 0 {
                _mm512_sll_epi32(a, _mm_cvtsi32_si128(n))
            } else {
                _mm512_sra_epi32(a, _mm_cvtsi32_si128(-n))
            }
        }
    }

    #[inline(always)]
    unsafe fn to_f(a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    unsafe fn field(v: __m512i, up: i32, mask: u8) -> __m512i {
        unsafe {
            // There are no byte shifts; the mask removes bits that cross into a neighbour.
            let v = if up >= 0 {
                _mm512_sll_epi16(v, _mm_cvtsi32_si128(up))
            } else {
                _mm512_srl_epi16(v, _mm_cvtsi32_si128(-up))
            };
            if mask == 0xFF { v } else { _mm512_and_si512(v, _mm512_set1_epi8(mask as i8)) }
        }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], v: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), v) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    unsafe fn to_i(a: __m512) -> __m512i {
        unsafe { _mm512_cvtps_epi32(a) }
    }

    #[inline(always)]
    unsafe fn power_of_two(n: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(n, _mm512_set1_epi32(127)))) }
    }
}
