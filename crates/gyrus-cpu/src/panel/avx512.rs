//! Two panels of eight rows in registers of 16 lanes.

use std::arch::x86_64::*;

use super::loads::Loads;
use crate::simd::Registers;

/// AVX-512 F and BW.
pub(super) struct Avx512;

/// A place in the first of two panels, and the distance to the same place in the second one.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) first: *const u8,
    pub(super) stride: usize,
}

// The contract of `Registers` covers every block.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Registers for Avx512 {
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
}

// The contract of `Loads` covers every block.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Loads for Avx512 {
    type Place = Places;

    #[inline(always)]
    unsafe fn skip(p: Places, bytes: usize) -> Places {
        unsafe { Places { first: p.first.add(bytes), stride: p.stride } }
    }

    #[inline(always)]
    unsafe fn f16s(p: Places) -> __m512 {
        unsafe { _mm512_cvtph_ps(both_16(p)) }
    }

    #[inline(always)]
    unsafe fn bf16s(p: Places) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(both_16(p)))) }
    }

    #[inline(always)]
    unsafe fn i8s(p: Places) -> __m512 {
        unsafe {
            let (first, second) = (p.first.cast::<i64>(), p.first.add(p.stride).cast::<i64>());
            let both = _mm_set_epi64x(second.read_unaligned(), first.read_unaligned());
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(both))
        }
    }

    #[inline(always)]
    unsafe fn bytes(p: Places) -> __m512i {
        unsafe {
            let first = _mm256_loadu_si256(p.first.cast());
            let second = _mm256_loadu_si256(p.first.add(p.stride).cast());
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
        }
    }

    #[inline(always)]
    unsafe fn put(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
}

/// 16 bytes of each panel.
#[inline(always)]
unsafe fn both_16(p: Places) -> __m256i {
    // SAFETY: the caller upholds the contract of `Loads`.
    unsafe {
        let first = _mm_loadu_si128(p.first.cast());
        let second = _mm_loadu_si128(p.first.add(p.stride).cast());
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second)
    }
}
