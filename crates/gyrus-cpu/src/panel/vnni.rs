//! int8 dot products with AVX-512 VNNI.
//!
//! `vpdpbusd` adds four u8 × i8 products to a 32-bit lane. Panels hold unsigned quants and activations are
//! signed, so a block takes eight instructions per row. The sums cannot overflow: 255 · 127 · 32 < 2³¹. A single row is
//! bound by memory and takes one panel at a time, in registers of 256 bits. Several rows take two panels at a time, in
//! registers of 512 bits. AVX-512 also adds the broadcast from memory and 16 more registers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx2::broadcast;
use super::avx512::Places;
use super::loads::Loads;
use super::quant_layout::QuantLayout;
use super::scale_layout::ScaleLayout;
use super::source::Source;
use super::tile::{Kernel, Place, multiply_panel};
use super::{LANES, PAIR_LANES, TILE, group_bytes};
use crate::quantize_rows::QBlock;
use crate::simd::{Avx2, Avx512, Registers};

/// The instruction in registers of one size.
///
/// # Safety
/// `x` points to a block, `g < 8`; otherwise the contract of [`Loads`].
trait DotProduct: Loads {
    /// Adds the products of `w` with the activations `4·g..4·g + 4` to each lane.
    unsafe fn dot(sum: Self::I, w: Self::B, x: *const QBlock, g: usize) -> Self::I;

    /// Prefetches the cache line `distance` bytes from `p`.
    fn prefetch(p: Self::Place, distance: usize);
}

impl DotProduct for Avx2 {
    #[inline(always)]
    unsafe fn dot(sum: __m256i, w: __m256i, x: *const QBlock, g: usize) -> __m256i {
        // SAFETY: the caller upholds the contract.
        unsafe { _mm256_dpbusd_epi32(sum, w, broadcast(x, g)) }
    }

    #[inline(always)]
    fn prefetch(p: *const u8, distance: usize) {
        <Avx2 as Kernel>::prefetch(p, distance);
    }
}

impl DotProduct for Avx512 {
    #[inline(always)]
    unsafe fn dot(sum: __m512i, w: __m512i, x: *const QBlock, g: usize) -> __m512i {
        // SAFETY: a block starts with 32 int8 values; the caller upholds the rest of the contract.
        unsafe { _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x.cast::<i32>().add(g).read_unaligned())) }
    }

    #[inline(always)]
    fn prefetch(p: Places, distance: usize) {
        <Avx2 as Kernel>::prefetch(p.first, distance);
        <Avx2 as Kernel>::prefetch(p.first.wrapping_add(p.stride), distance);
    }
}

struct Vnni<S>(PhantomData<S>);

impl<S: DotProduct> Kernel for Vnni<S> {
    type Simd = S;
    const SIGNED: bool = false;

    /// Two accumulators per row hide the latency of the instruction.
    #[inline(always)]
    unsafe fn dots<C: QuantLayout, L: ScaleLayout, const M: usize>(
        body: Place<Self>,
        x: [*const QBlock; M],
    ) -> [[<S as Registers>::I; 2]; M] {
        // SAFETY: the caller upholds the contract; groups are below 8.
        unsafe {
            let mut sums = [[S::splat_i(0); 2]; M];
            for c in 0..4 {
                let w = [C::group::<S>(body, c), C::group::<S>(body, c + 4)];
                for r in 0..M {
                    sums[r][0] = S::dot(sums[r][0], w[0], x[r], c);
                    sums[r][1] = S::dot(sums[r][1], w[1], x[r], c + 4);
                }
            }
            if !L::PER_16 {
                for sums in &mut sums {
                    sums[0] = S::add_i(sums[0], sums[1]);
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn prefetch(p: Place<Self>, distance: usize) {
        S::prefetch(p, distance);
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
    unsafe {
        multiply_panel::<Vnni<Avx2>, F, M, LANES>(panel.as_ptr(), panel.len() / group_bytes::<F>(), x, out)
    }
}

/// The VNNI form of [`super::PairTile`].
///
/// # Safety
/// The contract of [`super::PairTile`].
pub(super) unsafe fn pair_tile<F: Source>(
    panels: &[u8],
    x: &[QBlock],
    rows: usize,
    out: &mut [[f32; PAIR_LANES]; TILE],
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        match rows {
            1 => pair_tile_of::<F, 1>(panels, x, out),
            2 => pair_tile_of::<F, 2>(panels, x, out),
            3 => pair_tile_of::<F, 3>(panels, x, out),
            4 => pair_tile_of::<F, 4>(panels, x, out),
            5 => pair_tile_of::<F, 5>(panels, x, out),
            6 => pair_tile_of::<F, 6>(panels, x, out),
            7 => pair_tile_of::<F, 7>(panels, x, out),
            _ => pair_tile_of::<F, 8>(panels, x, out),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn pair_tile_of<F: Source, const M: usize>(
    panels: &[u8],
    x: &[QBlock],
    out: &mut [[f32; PAIR_LANES]; TILE],
) {
    let stride = panels.len() / 2;
    let places = Places { first: panels.as_ptr(), stride };
    // SAFETY: the caller upholds the contract; both panels have `stride` bytes.
    unsafe { multiply_panel::<Vnni<Avx512>, F, M, PAIR_LANES>(places, stride / group_bytes::<F>(), x, out) }
}
