//! What the AVX2 kernels of all panel formats share.
//!
//! The helpers are `#[inline(always)]` without a target feature of their own, so that they compile into
//! [`tile_of`], which has it; calling one anywhere else would be a contract violation.

use std::arch::x86_64::*;

use super::{Format, LANES, TILE};
use crate::quantize_rows::QBlock;

/// How far ahead weights are fetched, in bytes; beyond a panel's end lies the next panel.
pub(super) const PREFETCH: usize = 4096;

/// A format's inner step.
pub(crate) trait Kernel: Format {
    /// What a group's header holds, in registers.
    type Head: Copy;

    /// A block's exact integer sums for eight rows: one vector, or two where a scale covers 16.
    type Dot: Copy;

    /// Reads a group's header.
    ///
    /// # Safety
    /// `group` points to `Self::BYTES` readable bytes; the processor has AVX2, FMA and F16C.
    unsafe fn head(group: *const u8) -> Self::Head;

    /// One block's sums `Σ q·x` with each of `M` activation rows.
    ///
    /// # Safety
    /// `body` points to `Self::BODY` readable bytes and each of `x` to a block; the processor has AVX2,
    /// FMA and F16C.
    unsafe fn dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [Self::Dot; M];

    /// Adds one block's product with `M` activation rows to their sums, as `Lane::accumulate` does, from
    /// what [`Kernel::dots`] gives. The other rungs end in this too: it is where rounding happens.
    ///
    /// # Safety
    /// As for [`Kernel::dots`].
    unsafe fn add<const M: usize>(
        head: Self::Head,
        body: *const u8,
        x: [*const QBlock; M],
        dots: [Self::Dot; M],
        acc: &mut [__m256; M],
    );
}

/// The AVX2 form of [`super::Tile`].
///
/// # Safety
/// As for [`super::Tile`].
pub(crate) unsafe fn tile<F: Kernel>(
    panel: &[u8],
    x: &[QBlock],
    rows: usize,
    out: &mut [[f32; LANES]; TILE],
) {
    debug_assert_eq!(x.len(), panel.len() / F::BYTES * F::SUB * rows);
    // Sixteen registers hold the sums of four rows.
    let blocks = x.len() / rows;
    for (x, out) in x.chunks(4 * blocks).zip(out.chunks_mut(4)) {
        // SAFETY: passed on, for the rows of this part.
        unsafe {
            match x.len() / blocks {
                1 => tile_of::<F, 1>(panel, x, out),
                2 => tile_of::<F, 2>(panel, x, out),
                3 => tile_of::<F, 3>(panel, x, out),
                _ => tile_of::<F, 4>(panel, x, out),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_of<F: Kernel, const M: usize>(panel: &[u8], x: &[QBlock], out: &mut [[f32; LANES]]) {
    let groups = panel.len() / F::BYTES;
    let stride = groups * F::SUB;
    let mut acc = [_mm256_setzero_ps(); M];
    // SAFETY: the panel holds `groups` groups and `x` holds `M` rows of `stride` blocks.
    unsafe {
        let mut group = panel.as_ptr();
        let mut x: [*const QBlock; M] = std::array::from_fn(|r| x.as_ptr().add(r * stride));
        for _ in 0..groups {
            if M == 1 {
                // One row of activations is bound by memory.
                for line in (0..F::BYTES).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(group.wrapping_add(PREFETCH + line).cast());
                }
            }
            let head = F::head(group);
            for sub in 0..F::SUB {
                let body = group.add(F::HEADER + sub * F::BODY);
                F::add(head, body, x, F::dots(body, x), &mut acc);
                x = std::array::from_fn(|r| x[r].add(1));
            }
            group = group.add(F::BYTES);
        }
        for r in 0..M {
            _mm256_storeu_ps(out[r].as_mut_ptr(), acc[r]);
        }
    }
}

/// Four activation bytes, `4·g..`, in every lane.
///
/// # Safety
/// `x` points to a block, `g < 8`; the caller is compiled with AVX2.
#[inline(always)]
pub(super) unsafe fn broadcast(x: *const QBlock, g: usize) -> __m256i {
    // SAFETY: within the 32 bytes that a block begins with.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().add(g).read_unaligned()) }
}

/// `Σ q·x` for eight rows of nibbles. Sixteen-bit sums hold a whole block: 15 · 127 · 16 < 2¹⁵.
///
/// # Safety
/// `body` points to 128 bytes, each of `x` to a block; the caller is compiled with AVX2.
#[inline(always)]
pub(super) unsafe fn nibble_dots<const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [__m256i; M] {
    // SAFETY: four loads of 32 bytes, groups below 8.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        let mut dots = [_mm256_setzero_si256(); M];
        for c in 0..4 {
            let w = _mm256_loadu_si256(body.add(32 * c).cast());
            let low = _mm256_and_si256(w, mask);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask);
            for r in 0..M {
                dots[r] = _mm256_add_epi16(dots[r], _mm256_maddubs_epi16(low, broadcast(x[r], c)));
                dots[r] = _mm256_add_epi16(dots[r], _mm256_maddubs_epi16(high, broadcast(x[r], c + 4)));
            }
        }
        dots.map(|dot| _mm256_madd_epi16(dot, _mm256_set1_epi16(1)))
    }
}

/// `−8 · 2^SHIFT · Σx` in every lane: what a zero point of that size takes off.
///
/// # Safety
/// `x` points to a block; the caller is compiled with AVX2.
#[inline(always)]
pub(super) unsafe fn zero_point<const SHIFT: i32>(x: *const QBlock) -> __m256i {
    // SAFETY: by contract.
    unsafe { _mm256_slli_epi32::<SHIFT>(_mm256_set1_epi32((*x).minus8_sum)) }
}

/// `acc + dot · (scale · x.scale)`, the product with `dot` fused.
///
/// # Safety
/// `x` points to a block; the caller is compiled with AVX2 and FMA.
#[inline(always)]
pub(super) unsafe fn scale_add(dot: __m256i, scale: __m256, x: *const QBlock, acc: __m256) -> __m256 {
    // SAFETY: by contract.
    unsafe {
        let scale = _mm256_mul_ps(scale, _mm256_set1_ps((*x).scale));
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc)
    }
}

/// Eight half-precision numbers.
///
/// # Safety
/// `p` points to 16 bytes; the caller is compiled with F16C.
#[inline(always)]
pub(super) unsafe fn halves_to_f32(p: *const u8) -> __m256 {
    // SAFETY: by contract.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

/// Eight unsigned bytes as numbers.
///
/// # Safety
/// `p` points to 8 bytes; the caller is compiled with AVX2.
#[inline(always)]
pub(super) unsafe fn bytes_to_f32(p: *const u8) -> __m256 {
    // SAFETY: by contract.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
}

/// Eight signed bytes as numbers.
///
/// # Safety
/// `p` points to 8 bytes; the caller is compiled with AVX2.
#[inline(always)]
pub(super) unsafe fn signed_bytes_to_f32(p: *const u8) -> __m256 {
    // SAFETY: by contract.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
}
