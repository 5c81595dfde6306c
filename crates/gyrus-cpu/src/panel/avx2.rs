//! int8 dot products with AVX2.

use std::arch::x86_64::*;

use super::quant_layout::QuantLayout;
use super::scale_layout::ScaleLayout;
use super::source::Source;
use super::tile::{Kernel, multiply_panel};
use super::{LANES, TILE, group_bytes};
use crate::quantize_rows::QBlock;
use crate::simd::Avx2;

impl Kernel for Avx2 {
    type Simd = Avx2;
    const SIGNED: bool = false;

    /// `vpmaddubsw` adds two u8 × i8 products in 16 bits. 16-bit sums do not overflow over a whole block of
    /// 4-bit quants (15 · 127 · 16 < 2¹⁵), half a block of 5-bit quants, or a quarter of a block of 6-bit
    /// quants. 8-bit quants are split into nibbles, `16·h + l`.
    #[inline(always)]
    unsafe fn dots<C: QuantLayout, L: ScaleLayout, const M: usize>(
        body: *const u8,
        x: [*const QBlock; M],
    ) -> [[__m256i; 2]; M] {
        // SAFETY: the caller upholds the contract; groups are below 8.
        unsafe {
            let (one, sixteen) = (_mm256_set1_epi16(1), _mm256_set1_epi16(16));
            let zero = _mm256_setzero_si256();
            let mut sums = [[zero; 2]; M];
            // 16-bit sums, and those of the upper nibbles.
            let (mut low, mut high) = ([[zero; 2]; M], [[zero; 2]; M]);
            // If a 16-bit sum holds a whole block, both halves of the block use the same one.
            let joined = !L::PER_16 && (C::MAX <= 15 || C::MAX > 63);
            let widen_every = if C::MAX > 31 && C::MAX <= 63 { 2 } else { 4 };
            for c in 0..4 {
                for half in 0..2 {
                    let to = if joined { 0 } else { half };
                    let w = C::group::<Avx2>(body, c + 4 * half);
                    if C::MAX > 63 {
                        let mask = _mm256_set1_epi8(15);
                        let l = _mm256_and_si256(w, mask);
                        let h = _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask);
                        for r in 0..M {
                            let v = broadcast(x[r], c + 4 * half);
                            low[r][to] = _mm256_add_epi16(low[r][to], _mm256_maddubs_epi16(l, v));
                            high[r][to] = _mm256_add_epi16(high[r][to], _mm256_maddubs_epi16(h, v));
                        }
                    } else {
                        for r in 0..M {
                            let product = _mm256_maddubs_epi16(w, broadcast(x[r], c + 4 * half));
                            low[r][to] = _mm256_add_epi16(low[r][to], product);
                        }
                    }
                }
                if (c + 1) % widen_every == 0 {
                    for r in 0..M {
                        for half in 0..2 {
                            let wide = _mm256_madd_epi16(low[r][half], one);
                            sums[r][half] = _mm256_add_epi32(sums[r][half], wide);
                            low[r][half] = zero;
                            if C::MAX > 63 {
                                let wide = _mm256_madd_epi16(high[r][half], sixteen);
                                sums[r][half] = _mm256_add_epi32(sums[r][half], wide);
                            }
                        }
                    }
                }
            }
            if !L::PER_16 && !joined {
                for sums in &mut sums {
                    sums[0] = _mm256_add_epi32(sums[0], sums[1]);
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn prefetch(p: *const u8, distance: usize) {
        // SAFETY: a prefetch of any address is only a hint, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(distance).cast()) };
    }
}

/// The four int8 activations `4·g..4·g + 4` in every lane.
///
/// # Safety
/// `x` points to a block, `g < 8`; the caller enables AVX2.
#[inline(always)]
pub(super) unsafe fn broadcast(x: *const QBlock, g: usize) -> __m256i {
    // SAFETY: a block starts with 32 int8 values, and `g < 8`.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().add(g).read_unaligned()) }
}

/// The AVX2 form of [`super::Tile`].
///
/// # Safety
/// The contract of [`super::Tile`].
pub(super) unsafe fn tile<F: Source>(
    panel: &[u8],
    x: &[QBlock],
    rows: usize,
    out: &mut [[f32; LANES]; TILE],
) {
    // 16 registers hold the sums of four rows.
    let blocks = x.len() / rows;
    for (x, out) in x.chunks(4 * blocks).zip(out.chunks_mut(4)) {
        // SAFETY: the caller upholds the contract for these rows too.
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
unsafe fn tile_of<F: Source, const M: usize>(panel: &[u8], x: &[QBlock], out: &mut [[f32; LANES]]) {
    // SAFETY: the caller upholds the contract.
    unsafe { multiply_panel::<Avx2, F, M, LANES>(panel.as_ptr(), panel.len() / group_bytes::<F>(), x, out) }
}
