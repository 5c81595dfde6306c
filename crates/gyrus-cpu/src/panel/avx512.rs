//! Two panels of eight rows in registers of 16 lanes.

use std::arch::x86_64::*;

use super::loads::Loads;
use crate::simd::Avx512;

/// A place in the first of two panels, and the distance to the same place in the second one.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) first: *const u8,
    pub(super) stride: usize,
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
