//! The AVX-512 VNNI form of all panel formats.
//!
//! `vpdpbusd` adds four products of an unsigned and a signed byte to a 32-bit lane. Panels hold unsigned
//! quants and activations are signed, so a block is eight of them per row, and nothing can overflow:
//! 255 · 127 · 32 < 2³¹. What follows the integers is the AVX2 code. Registers stay 256 bits wide, a panel's
//! width; of AVX-512 the kernels use the broadcast from memory and the second sixteen registers.

use std::arch::x86_64::*;

use super::avx2::{self, PREFETCH, broadcast};
use super::{LANES, TILE};
use crate::quantize_rows::QBlock;

/// A format's inner step.
pub(crate) trait Kernel: avx2::Kernel<Dot: Join> {
    /// The 32 unsigned values of eight rows, four consecutive ones of each row in a vector.
    ///
    /// # Safety
    /// `body` points to `Self::BODY` readable bytes; the processor has AVX2.
    unsafe fn quants(body: *const u8) -> [__m256i; 8];
}

/// How a format takes the sums of the first and of the last 16 elements.
pub(crate) trait Join {
    /// # Safety
    /// The processor has AVX2.
    unsafe fn join(first: __m256i, last: __m256i) -> Self;
}

impl Join for __m256i {
    #[inline(always)]
    unsafe fn join(first: __m256i, last: __m256i) -> Self {
        // SAFETY: by contract.
        unsafe { _mm256_add_epi32(first, last) }
    }
}

impl Join for [__m256i; 2] {
    #[inline(always)]
    unsafe fn join(first: __m256i, last: __m256i) -> Self {
        [first, last]
    }
}

/// The VNNI form of [`super::Tile`].
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
    // Thirty-two registers hold the sums of eight rows.
    // SAFETY: passed on.
    unsafe {
        match rows {
            1 => tile_of::<F, 1>(panel, x, out),
            2 => tile_of::<F, 2>(panel, x, out),
            3 => tile_of::<F, 3>(panel, x, out),
            4 => tile_of::<F, 4>(panel, x, out),
            5 => tile_of::<F, 5>(panel, x, out),
            6 => tile_of::<F, 6>(panel, x, out),
            7 => tile_of::<F, 7>(panel, x, out),
            _ => tile_of::<F, 8>(panel, x, out),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile_of<F: Kernel, const M: usize>(panel: &[u8], x: &[QBlock], out: &mut [[f32; LANES]; TILE]) {
    let groups = panel.len() / F::BYTES;
    let stride = groups * F::SUB;
    let mut acc = [_mm256_setzero_ps(); M];
    // SAFETY: the panel holds `groups` groups, `x` holds `M` rows of `stride` blocks, `out` has `M` rows
    // of eight at least.
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
                F::add(head, body, x, dots::<F, M>(body, x), &mut acc);
                x = std::array::from_fn(|r| x[r].add(1));
            }
            group = group.add(F::BYTES);
        }
        for r in 0..M {
            _mm256_storeu_ps(out[r].as_mut_ptr(), acc[r]);
        }
    }
}

/// The sums of a block. Two chains per row keep the product's latency out of sight.
///
/// # Safety
/// As for [`avx2::Kernel::dots`]; the caller is compiled with AVX-512 VL and VNNI.
#[inline(always)]
unsafe fn dots<F: Kernel, const M: usize>(body: *const u8, x: [*const QBlock; M]) -> [F::Dot; M] {
    // SAFETY: passed on; groups are below 8.
    unsafe {
        let w = F::quants(body);
        let zero = _mm256_setzero_si256();
        let (mut first, mut last) = ([zero; M], [zero; M]);
        for g in 0..4 {
            for r in 0..M {
                first[r] = _mm256_dpbusd_epi32(first[r], w[g], broadcast(x[r], g));
                last[r] = _mm256_dpbusd_epi32(last[r], w[g + 4], broadcast(x[r], g + 4));
            }
        }
        // A loop, because an intrinsic within a closure is not sure to be inlined.
        let mut dots = [F::Dot::join(zero, zero); M];
        for r in 0..M {
            dots[r] = F::Dot::join(first[r], last[r]);
        }
        dots
    }
}

/// The 32 nibbles of eight rows.
///
/// # Safety
/// `body` points to 128 bytes; the caller is compiled with AVX2.
#[inline(always)]
pub(super) unsafe fn nibble_quants(body: *const u8) -> [__m256i; 8] {
    // SAFETY: four loads of 32 bytes.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        let mut quants = [_mm256_setzero_si256(); 8];
        for c in 0..4 {
            let w = _mm256_loadu_si256(body.add(32 * c).cast());
            quants[c] = _mm256_and_si256(w, mask);
            quants[c + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask);
        }
        quants
    }
}
