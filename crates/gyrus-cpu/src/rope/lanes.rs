//! The vector operations of the rope kernels, with 8 lanes (AVX2) or 16 (AVX-512).
//!
//! Functions are `#[inline(always)]` without target features: they are inlined into a caller that enables
//! them. Every operation is exact or correctly rounded.

use std::arch::x86_64::*;

pub(super) use crate::simd::Avx2;
use crate::simd::{Registers, Simd};

/// The vector operations of an instruction set.
///
/// # Safety
/// Every function has one contract: the CPU has the instructions, the caller enables their target features, and
/// pointers are valid for [`Lanes::N`] elements.
pub(super) trait Lanes {
    /// A vector of `N` `f32`.
    type V: Copy;
    /// The number of lanes.
    const N: usize;

    unsafe fn splat(v: f32) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// Swaps adjacent lanes: 1, 0, 3, 2, …
    unsafe fn swap(a: Self::V) -> Self::V;

    /// The first elements of rotated pairs; `x` and `y` have the first and the second ones.
    #[inline(always)]
    unsafe fn rotated_x(x: Self::V, y: Self::V, cos: Self::V, sin: Self::V) -> Self::V {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::sub(Self::mul(x, cos), Self::mul(y, sin)) }
    }

    /// The second elements of rotated pairs.
    #[inline(always)]
    unsafe fn rotated_y(x: Self::V, y: Self::V, cos: Self::V, sin: Self::V) -> Self::V {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::add(Self::mul(x, sin), Self::mul(y, cos)) }
    }

    /// Rotated pairs of adjacent lanes; sines have the opposite sign in the first lane of a pair.
    #[inline(always)]
    unsafe fn rotated_adjacent(x: Self::V, cos: Self::V, sin: Self::V) -> Self::V {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::add(Self::mul(x, cos), Self::mul(Self::swap(x), sin)) }
    }

    unsafe fn load_f32(p: *const f32) -> Self::V;
    unsafe fn load_f16(p: *const u16) -> Self::V;
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    unsafe fn store_f32(p: *mut f32, v: Self::V);
    /// Rounds to nearest, ties to even.
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    /// Rounds to nearest, ties to even.
    unsafe fn store_bf16(p: *mut u16, v: Self::V);

    /// Copies 64 bytes with non-temporal stores; both pointers are 64-byte aligned.
    unsafe fn stream_line(to: *mut u8, from: *const u8);
}

pub(super) struct Avx512;

// The contract of `Lanes` covers these functions too.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Avx512 {
    #[inline(always)]
    unsafe fn to_f16(v: __m512) -> __m256i {
        unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
    }

    #[inline(always)]
    unsafe fn to_bf16(v: __m512) -> __m256i {
        unsafe {
            let bits = _mm512_castps_si512(v);
            let upper = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
            let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
            let bf16s = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v), quiet);
            _mm512_cvtepi32_epi16(bf16s)
        }
    }

    /// Passes two vectors to `send` as cache lines.
    #[inline(always)]
    pub(super) unsafe fn lines_f32(a: __m512, b: __m512, mut send: impl FnMut(__m512i)) {
        unsafe {
            send(_mm512_castps_si512(a));
            send(_mm512_castps_si512(b));
        }
    }

    /// As [`Avx512::lines_f32`], rounded to nearest, ties to even.
    #[inline(always)]
    pub(super) unsafe fn lines_f16(a: __m512, b: __m512, mut send: impl FnMut(__m512i)) {
        unsafe {
            let a = _mm512_castsi256_si512(Avx512::to_f16(a));
            send(_mm512_inserti64x4::<1>(a, Avx512::to_f16(b)));
        }
    }

    /// As [`Avx512::lines_f32`], rounded to nearest, ties to even.
    #[inline(always)]
    pub(super) unsafe fn lines_bf16(a: __m512, b: __m512, mut send: impl FnMut(__m512i)) {
        unsafe {
            let a = _mm512_castsi256_si512(Avx512::to_bf16(a));
            send(_mm512_inserti64x4::<1>(a, Avx512::to_bf16(b)));
        }
    }
}

// The contract of `Lanes` covers every block: the CPU has the instructions and pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx2 {
    type V = __m256;
    const N: usize = 8;

    #[inline(always)]
    unsafe fn splat(v: f32) -> __m256 {
        unsafe { <Avx2 as Registers>::splat(v) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { <Avx2 as Registers>::add(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { <Avx2 as Registers>::sub(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { <Avx2 as Registers>::mul(a, b) }
    }

    #[inline(always)]
    unsafe fn swap(a: __m256) -> __m256 {
        unsafe { _mm256_permute_ps::<0b10_11_00_01>(a) }
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> __m256 {
        unsafe { <Avx2 as Registers>::load(p) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        unsafe { <Avx2 as Registers>::load_f16(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m256 {
        unsafe { <Avx2 as Registers>::load_bf16(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store_f32(p: *mut f32, v: __m256) {
        unsafe { <Avx2 as Registers>::store(p, v) }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m256) {
        unsafe { <Avx2 as Simd>::store_f16(p.cast(), v) }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m256) {
        unsafe {
            let bits = _mm256_castps_si256(v);
            let upper = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
            // The rounding would turn a NaN into an infinity or zero, so NaN is handled separately.
            let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let bf16s = _mm256_blendv_epi8(rounded, quiet, nan);
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(bf16s, bf16s));
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(packed));
        }
    }

    #[inline(always)]
    unsafe fn stream_line(to: *mut u8, from: *const u8) {
        unsafe {
            let (to, from) = (to.cast::<__m256i>(), from.cast::<__m256i>());
            let (low, high) = (_mm256_load_si256(from), _mm256_load_si256(from.add(1)));
            _mm256_stream_si256(to, low);
            _mm256_stream_si256(to.add(1), high);
        }
    }
}

// The contract of `Lanes` covers every block: the CPU has the instructions and pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx512 {
    type V = __m512;
    const N: usize = 16;

    #[inline(always)]
    unsafe fn splat(v: f32) -> __m512 {
        unsafe { _mm512_set1_ps(v) }
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
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn swap(a: __m512) -> __m512 {
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(a) }
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store_f32(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), Avx512::to_f16(v)) }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), Avx512::to_bf16(v)) }
    }

    #[inline(always)]
    unsafe fn stream_line(to: *mut u8, from: *const u8) {
        unsafe { _mm512_stream_si512(to.cast(), _mm512_load_si512(from.cast())) }
    }
}
