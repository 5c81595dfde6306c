//! int8 dot products with AVX-512 VNNI.
//!
//! `vpdpbusd` adds four u8 × i8 products to a 32-bit lane. Panels hold unsigned quants and activations are
//! signed, so a block takes eight instructions per row. The sums cannot overflow: 255 · 127 · 32 < 2³¹. The
//! `f32` part is the AVX2 code. Registers are 256 bits wide, like a panel; AVX-512 adds the broadcast from
//! memory and 16 more registers.

use std::arch::x86_64::*;

use super::avx2::broadcast;
use super::quant_layout::QuantLayout;
use super::scale_layout::ScaleLayout;
use super::source::Source;
use super::tile::{Kernel, multiply_panel};
use super::{LANES, TILE};
use crate::quantize_rows::QBlock;
use crate::simd::Avx2;

struct Vnni;

impl Kernel for Vnni {
    type Simd = Avx2;
    const SIGNED: bool = false;

    /// Two accumulators per row hide the latency of the instruction.
    #[inline(always)]
    unsafe fn dots<C: QuantLayout, L: ScaleLayout, const M: usize>(
        body: *const u8,
        x: [*const QBlock; M],
    ) -> [[__m256i; 2]; M] {
        // SAFETY: the caller upholds the contract; groups are below 8.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; M];
            for c in 0..4 {
                let w = [C::group::<Avx2>(body, c), C::group::<Avx2>(body, c + 4)];
                for r in 0..M {
                    sums[r][0] = _mm256_dpbusd_epi32(sums[r][0], w[0], broadcast(x[r], c));
                    sums[r][1] = _mm256_dpbusd_epi32(sums[r][1], w[1], broadcast(x[r], c + 4));
                }
            }
            if !L::PER_16 {
                for sums in &mut sums {
                    sums[0] = _mm256_add_epi32(sums[0], sums[1]);
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        Avx2::prefetch(p);
    }
}

/// The VNNI form of [`super::Tile`].
///
/// # Safety
/// The contract of [`super::Tile`].
pub(super) unsafe fn tile<F: Source>(
    panel: &[u8],
    x: &[QBlock],
    rows: usize,
    out: &mut [[f32; LANES]; TILE],
) {
    // 32 registers hold the sums of eight rows.
    // SAFETY: the caller upholds the contract.
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
unsafe fn tile_of<F: Source, const M: usize>(panel: &[u8], x: &[QBlock], out: &mut [[f32; LANES]; TILE]) {
    // SAFETY: the caller upholds the contract.
    unsafe { multiply_panel::<Vnni, F, M>(panel, x, out) }
}
