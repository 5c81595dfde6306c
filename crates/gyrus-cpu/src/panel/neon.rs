//! int8 dot products on ARM: with NEON alone, with `sdot` of `dotprod`, with `smmla` of `i8mm`.
//!
//! The instructions multiply signed int8. Quants of up to seven bits are valid int8. 8-bit quants become
//! signed by subtracting their zero point, 128. Formats without an offset require that anyway; for the others
//! `tile::add` adds `128·Σx`.
//!
//! The intrinsics of `dotprod` and `i8mm` are not stable yet, so the two instructions are inline assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use super::quant_layout::QuantLayout;
use super::scale_layout::ScaleLayout;
use super::source::Source;
use super::tile::{Kernel, multiply_panel};
use super::{LANES, TILE, group_bytes};
use crate::quantize_rows::QBlock;
use crate::simd::Neon;

/// NEON alone: products widened to 16 bits, sums widened to 32.
struct Widening;

/// `sdot`: dot products of four elements per lane.
struct DotProd;

/// `smmla`: a 2×8 matrix times an 8×2 matrix, for two activation rows at a time.
struct I8mm;

/// Four consecutive quants as int8, of the rows 0..4 and 4..8.
///
/// # Safety
/// The contract of [`QuantLayout::group`]; the caller enables NEON.
#[inline(always)]
unsafe fn signed<C: QuantLayout>(body: *const u8, group: usize) -> [int8x16_t; 2] {
    const { assert!(C::MAX <= 127 || C::ZERO_POINT == 128) };
    // SAFETY: the caller upholds the contract.
    unsafe {
        let mut w = C::group::<Neon>(body, group);
        if C::MAX > 127 {
            w = [veorq_u8(w[0], vdupq_n_u8(0x80)), veorq_u8(w[1], vdupq_n_u8(0x80))];
        }
        [vreinterpretq_s8_u8(w[0]), vreinterpretq_s8_u8(w[1])]
    }
}

#[inline(always)]
fn prefetch(p: *const u8, distance: usize) {
    let p = p.wrapping_add(distance);
    // SAFETY: a prefetch of any address is only a hint.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly)) };
}

impl Kernel for Widening {
    type Simd = Neon;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn dots<C: QuantLayout, L: ScaleLayout, const M: usize>(
        body: *const u8,
        x: [*const QBlock; M],
    ) -> [[[int32x4_t; 2]; 2]; M] {
        // SAFETY: the caller upholds the contract; groups are below 8.
        unsafe {
            let zero = vdupq_n_s32(0);
            let mut sums = [[[zero; 2]; 2]; M];
            for half in 0..2 {
                // A register holds two partial sums of each of two weight rows.
                let mut wide = [[zero; 4]; M];
                for c in 0..4 {
                    let group = c + 4 * half;
                    let w = signed::<C>(body, group);
                    for r in 0..M {
                        let four = x[r].cast::<i32>().add(group).read_unaligned();
                        let v = vreinterpretq_s8_s32(vdupq_n_s32(four));
                        for i in 0..2 {
                            let low = vmull_s8(vget_low_s8(w[i]), vget_low_s8(v));
                            let high = vmull_high_s8(w[i], v);
                            wide[r][2 * i] = vpadalq_s16(wide[r][2 * i], low);
                            wide[r][2 * i + 1] = vpadalq_s16(wide[r][2 * i + 1], high);
                        }
                    }
                }
                let to = if L::PER_16 { half } else { 0 };
                for r in 0..M {
                    for i in 0..2 {
                        let sum = vpaddq_s32(wide[r][2 * i], wide[r][2 * i + 1]);
                        sums[r][to][i] = vaddq_s32(sums[r][to][i], sum);
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn prefetch(p: *const u8, distance: usize) {
        prefetch(p, distance);
    }
}

/// Adds to each lane the dot product of its four int8 in `w` with the four of lane `LANE` in `x`.
///
/// # Safety
/// The CPU has `dotprod`, and the caller enables it.
#[inline(always)]
unsafe fn sdot<const LANE: i32>(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the instruction accesses registers only.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]",
            sum = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

impl Kernel for DotProd {
    type Simd = Neon;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn dots<C: QuantLayout, L: ScaleLayout, const M: usize>(
        body: *const u8,
        x: [*const QBlock; M],
    ) -> [[[int32x4_t; 2]; 2]; M] {
        // SAFETY: the caller upholds the contract; a block starts with its 32 int8 values.
        unsafe {
            let mut sums = [[[vdupq_n_s32(0); 2]; 2]; M];
            for half in 0..2 {
                let to = if L::PER_16 { half } else { 0 };
                let w = [
                    signed::<C>(body, 4 * half),
                    signed::<C>(body, 4 * half + 1),
                    signed::<C>(body, 4 * half + 2),
                    signed::<C>(body, 4 * half + 3),
                ];
                for r in 0..M {
                    let v = vld1q_s8(x[r].cast::<i8>().add(16 * half));
                    for i in 0..2 {
                        let mut sum = sums[r][to][i];
                        sum = sdot::<0>(sum, w[0][i], v);
                        sum = sdot::<1>(sum, w[1][i], v);
                        sum = sdot::<2>(sum, w[2][i], v);
                        sum = sdot::<3>(sum, w[3][i], v);
                        sums[r][to][i] = sum;
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn prefetch(p: *const u8, distance: usize) {
        prefetch(p, distance);
    }
}

/// Adds `[a0·b0, a0·b1, a1·b0, a1·b1]`, where `a0` and `a1` are the halves of `a`.
///
/// # Safety
/// The CPU has `i8mm`, and the caller enables it.
#[inline(always)]
unsafe fn smmla(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the instruction accesses registers only.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

impl Kernel for I8mm {
    type Simd = Neon;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn dots<C: QuantLayout, L: ScaleLayout, const M: usize>(
        body: *const u8,
        x: [*const QBlock; M],
    ) -> [[[int32x4_t; 2]; 2]; M] {
        // SAFETY: the caller upholds the contract; a block starts with its 32 int8 values.
        unsafe {
            let zero = vdupq_n_s32(0);
            let mut sums = [[[zero; 2]; 2]; M];
            // An odd last row is paired with itself.
            for r in (0..M).step_by(2) {
                let next = if r + 1 < M { r + 1 } else { r };
                // For each half of the block and pair of weight rows: the products with both activation rows.
                let mut pairs = [[zero; 4]; 2];
                for half in 0..2 {
                    let to = if L::PER_16 { half } else { 0 };
                    for eight in 0..2 {
                        let group = 4 * half + 2 * eight;
                        let (first, second) = (signed::<C>(body, group), signed::<C>(body, group + 1));
                        let at = 4 * group;
                        let v = vcombine_s8(
                            vld1_s8(x[r].cast::<i8>().add(at)),
                            vld1_s8(x[next].cast::<i8>().add(at)),
                        );
                        for i in 0..2 {
                            // Eight consecutive quants of the rows 0 and 1, then of 2 and 3.
                            let a = vreinterpretq_s32_s8(first[i]);
                            let b = vreinterpretq_s32_s8(second[i]);
                            let low = vreinterpretq_s8_s32(vzip1q_s32(a, b));
                            let high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
                            pairs[to][2 * i] = smmla(pairs[to][2 * i], low, v);
                            pairs[to][2 * i + 1] = smmla(pairs[to][2 * i + 1], high, v);
                        }
                    }
                }
                for half in 0..2 {
                    for i in 0..2 {
                        let (low, high) = (pairs[half][2 * i], pairs[half][2 * i + 1]);
                        sums[next][half][i] = vuzp2q_s32(low, high);
                        sums[r][half][i] = vuzp1q_s32(low, high);
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn prefetch(p: *const u8, distance: usize) {
        prefetch(p, distance);
    }
}

/// Defines a tile function: its name, its kernel, its kernel for a single row, and its target features.
macro_rules! tile {
    ($name:ident, $kernel:ty, $alone:ty, $features:literal) => {
        /// # Safety
        /// The contract of [`super::Tile`].
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name<F: Source>(
            panel: &[u8],
            x: &[QBlock],
            rows: usize,
            out: &mut [[f32; LANES]; TILE],
        ) {
            // 32 registers hold the sums of four rows and the weights.
            let (blocks, groups) = (x.len() / rows, panel.len() / group_bytes::<F>());
            for (x, out) in x.chunks(4 * blocks).zip(out.chunks_mut(4)) {
                // SAFETY: the caller upholds the contract for these rows too.
                unsafe {
                    match x.len() / blocks {
                        1 => multiply_panel::<$alone, F, 1, LANES>(panel.as_ptr(), groups, x, out),
                        2 => multiply_panel::<$kernel, F, 2, LANES>(panel.as_ptr(), groups, x, out),
                        3 => multiply_panel::<$kernel, F, 3, LANES>(panel.as_ptr(), groups, x, out),
                        _ => multiply_panel::<$kernel, F, 4, LANES>(panel.as_ptr(), groups, x, out),
                    }
                }
            }
        }
    };
}

tile!(widening_tile, Widening, Widening, "neon");
tile!(dot_tile, DotProd, DotProd, "neon,dotprod");
tile!(i8mm_tile, I8mm, DotProd, "neon,dotprod,i8mm");
