//! The steps of attention over one KV block: a small GEMM, the online softmax update, the merge of splits.
//!
//! GEMMs sum in ascending order by fused multiply-add with one accumulator per output, independent of the
//! tiling. The SIMD forms are bit-equal to the portable ones.

use gyrus_kernels::KV_BLOCK;
use half::f16;

use crate::elementwise::{capped, capped_lanes};
use crate::exp::{exp, exp_lanes};
use crate::f32_dot::{Element, add_lanes};
use crate::isa::Isa;
use crate::kv::Stored;
use crate::simd::{LANES, Registers, Simd, dispatch};

/// The shape of a GEMM: `c[r · ldc + j] += Σ_t a[r · lda + t] · b[t · ldb + j]` for `r` in `0..rows`, `j` in
/// `0..cols` and `t` in `depth`, in ascending order.
#[derive(Clone)]
pub(super) struct GemmShape {
    pub rows: usize,
    pub cols: usize,
    pub depth: std::ops::Range<usize>,
    pub lda: usize,
    pub ldb: usize,
    pub ldc: usize,
}

/// `c += a · b`, after a check of the lengths.
pub(super) fn gemm(isa: Isa, e: &GemmShape, a: &[f32], b: Stored, c: &mut [f32]) {
    if e.rows == 0 || e.depth.is_empty() || e.cols == 0 {
        return;
    }
    let b_len = match b {
        Stored::F32(b) => b.len(),
        Stored::F16(b) => b.len(),
    };
    assert!((e.rows - 1) * e.lda + e.depth.end <= a.len(), "a is too short");
    assert!((e.depth.end - 1) * e.ldb + e.cols <= b_len, "b is too short");
    assert!((e.rows - 1) * e.ldc + e.cols <= c.len(), "c is too short");
    let isa = if e.cols.is_multiple_of(2 * LANES) { isa } else { isa.narrow() };
    dispatch_gemm(isa, e, a, b, c);
}

dispatch! {
    wide fn dispatch_gemm(e: &GemmShape, a: &[f32], b: Stored, c: &mut [f32]) { portable_gemm, simd_gemm }
}

fn portable_gemm(e: &GemmShape, a: &[f32], b: Stored, c: &mut [f32]) {
    match b {
        Stored::F32(b) => portable_gemm_of(e, a, |i| b[i], c),
        Stored::F16(b) => portable_gemm_of(e, a, |i: usize| f16::to_f32(b[i]), c),
    }
}

fn portable_gemm_of(e: &GemmShape, a: &[f32], b: impl Fn(usize) -> f32, c: &mut [f32]) {
    for r in 0..e.rows {
        for t in e.depth.clone() {
            let a = a[r * e.lda + t];
            for j in 0..e.cols {
                let c = &mut c[r * e.ldc + j];
                *c = a.mul_add(b(t * e.ldb + j), *c);
            }
        }
    }
}

/// The running state of a row's online softmax.
#[derive(Debug, Clone, Copy)]
pub(super) struct SoftmaxState {
    /// The largest score so far.
    pub max: f32,
    /// `Σ e^(score − max)`.
    pub sum: f32,
}

impl SoftmaxState {
    pub(super) const EMPTY: SoftmaxState = SoftmaxState { max: f32::NEG_INFINITY, sum: 0.0 };
}

dispatch! {
    /// One online softmax step. Replaces the dot products of a block by weights: `e^(score − max)` for the
    /// slots in `slots` and zero elsewhere, where `score` is the scaled and optionally soft-capped dot
    /// product. Returns the factor by which the caller must rescale its accumulated output.
    pub(super) wide fn softmax_block(
        s: &mut [f32; KV_BLOCK],
        slots: std::ops::Range<usize>,
        scale: f32,
        softcap: Option<f32>,
        state: &mut SoftmaxState,
    ) -> f32 {
        portable_softmax_block, simd_softmax_block
    }
}

fn portable_softmax_block(
    s: &mut [f32; KV_BLOCK],
    slots: std::ops::Range<usize>,
    scale: f32,
    softcap: Option<f32>,
    state: &mut SoftmaxState,
) -> f32 {
    for (i, s) in s.iter_mut().enumerate() {
        let score = softcap.map_or(*s * scale, |cap| capped(*s * scale, cap));
        *s = if slots.contains(&i) { score } else { f32::NEG_INFINITY };
    }
    let max = s.iter().fold(state.max, |max, &v| if v > max { v } else { max });
    // All scores so far are −∞: weights of zero instead of the NaN of ∞ − ∞.
    let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let mut lanes = [[0.0; LANES]; 4];
    for (i, s) in s.iter_mut().enumerate() {
        *s = exp(*s - shift);
        lanes[i / LANES][i % LANES] = *s;
    }
    let sum = add_lanes(std::array::from_fn(|l| (lanes[0][l] + lanes[2][l]) + (lanes[1][l] + lanes[3][l])));
    let factor = exp(state.max - shift);
    *state = SoftmaxState { max, sum: state.sum.mul_add(factor, sum) };
    factor
}

/// Merges the partial result of later positions (`part`, `part_out`) into that of earlier ones (`state`, `out`).
pub(super) fn merge(state: &mut SoftmaxState, out: &mut [f32], part: SoftmaxState, part_out: &[f32]) {
    if state.sum == 0.0 {
        *state = part;
        out.copy_from_slice(part_out);
        return;
    }
    let max = if part.max > state.max { part.max } else { state.max };
    let (a, b) = (exp(state.max - max), exp(part.max - max));
    *state = SoftmaxState { max, sum: state.sum * a + part.sum * b };
    for (out, part) in out.iter_mut().zip(part_out) {
        *out = *out * a + part * b;
    }
}

/// # Safety
/// The shape is within the buffers; otherwise the contract of [`Registers`].
#[inline(always)]
unsafe fn simd_gemm<S: Registers>(e: &GemmShape, a: &[f32], b: Stored, c: &mut [f32]) {
    if !e.cols.is_multiple_of(S::N) {
        return portable_gemm(e, a, b, c);
    }
    // SAFETY: the caller upholds the contract, and `cols` is a multiple of the lanes.
    unsafe {
        match b {
            Stored::F32(b) => simd_gemm_of::<S, f32>(e, a.as_ptr(), b.as_ptr(), c.as_mut_ptr()),
            Stored::F16(b) => simd_gemm_of::<S, f16>(e, a.as_ptr(), b.as_ptr(), c.as_mut_ptr()),
        }
    }
}

/// # Safety
/// The shape is within the buffers, `cols` is a multiple of the lanes; otherwise the contract of [`Registers`].
#[inline(always)]
unsafe fn simd_gemm_of<S: Registers, B: Element>(e: &GemmShape, a: *const f32, b: *const B, c: *mut f32) {
    let mut r = 0;
    while r < e.rows {
        // SAFETY: the rows stay below `e.rows`.
        unsafe {
            let (a, c) = (a.add(r * e.lda), c.add(r * e.ldc));
            r += match e.rows - r {
                1 => columns::<S, B, 1, 4>(e, a, b, c),
                2 => columns::<S, B, 2, 4>(e, a, b, c),
                3 => columns::<S, B, 3, 4>(e, a, b, c),
                4 | 5 => columns::<S, B, 4, 2>(e, a, b, c),
                _ => columns::<S, B, 6, 2>(e, a, b, c),
            };
        }
    }
}

/// All columns of `R` rows, `W` registers at a time; returns `R`.
///
/// # Safety
/// The contract of [`simd_gemm_of`], with `R` rows at `a` and `c`.
#[inline(always)]
unsafe fn columns<S: Registers, B: Element, const R: usize, const W: usize>(
    e: &GemmShape,
    a: *const f32,
    b: *const B,
    c: *mut f32,
) -> usize {
    let mut j = 0;
    // SAFETY: the columns stay below `e.cols`.
    unsafe {
        while j + W * S::N <= e.cols {
            tile::<S, B, R, W>(e, a, b.add(j), c.add(j));
            j += W * S::N;
        }
        while j < e.cols {
            tile::<S, B, R, 1>(e, a, b.add(j), c.add(j));
            j += S::N;
        }
    }
    R
}

/// # Safety
/// The contract of [`simd_gemm_of`], with `R` rows and `W` registers of columns.
#[inline(always)]
unsafe fn tile<S: Registers, B: Element, const R: usize, const W: usize>(
    e: &GemmShape,
    a: *const f32,
    b: *const B,
    c: *mut f32,
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let mut acc = [[S::splat(0.0); W]; R];
        for (r, acc) in acc.iter_mut().enumerate() {
            for (w, acc) in acc.iter_mut().enumerate() {
                *acc = S::load(c.add(r * e.ldc + w * S::N));
            }
        }
        for t in e.depth.clone() {
            // Hold the factor with fewer registers, so 12 accumulators fit into 16 registers.
            if R < W {
                let mut column = [S::splat(0.0); R];
                for (r, column) in column.iter_mut().enumerate() {
                    *column = S::splat(*a.add(r * e.lda + t));
                }
                for w in 0..W {
                    let b = B::load::<S>(b.add(t * e.ldb + w * S::N));
                    for (acc, a) in acc.iter_mut().zip(&column) {
                        acc[w] = S::fma(*a, b, acc[w]);
                    }
                }
            } else {
                let mut row = [S::splat(0.0); W];
                for (w, row) in row.iter_mut().enumerate() {
                    *row = B::load::<S>(b.add(t * e.ldb + w * S::N));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let a = S::splat(*a.add(r * e.lda + t));
                    for w in 0..W {
                        acc[w] = S::fma(a, row[w], acc[w]);
                    }
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (w, acc) in acc.iter().enumerate() {
                S::store(c.add(r * e.ldc + w * S::N), *acc);
            }
        }
    }
}

/// # Safety
/// The contract of [`Registers`].
#[inline(always)]
unsafe fn simd_softmax_block<S: Lanes>(
    s: &mut [f32; KV_BLOCK],
    slots: std::ops::Range<usize>,
    scale: f32,
    softcap: Option<f32>,
    state: &mut SoftmaxState,
) -> f32 {
    // SAFETY: the registers cover the 32 scores.
    unsafe {
        let scale = S::splat(scale);
        // Four registers of eight lanes or two of sixteen.
        let mut v = [scale; KV_BLOCK / LANES];
        let v = &mut v[..KV_BLOCK / S::N];
        for (i, v) in v.iter_mut().enumerate() {
            let mut score = S::mul(S::load(s.as_ptr().add(S::N * i)), scale);
            if let Some(cap) = softcap {
                score = capped_lanes::<S>(score, cap);
            }
            *v = score;
        }
        if slots != (0..KV_BLOCK) {
            for (i, v) in v.iter_mut().enumerate() {
                let first = (S::N * i) as i32;
                let (start, end) = (slots.start as i32 - first, slots.end as i32 - first);
                *v = S::select_lanes(*v, start, end, S::splat(f32::NEG_INFINITY));
            }
        }
        let most = S::reduce_max(v.iter().skip(1).fold(v[0], |most, v| S::max(most, *v)));
        let max = if most > state.max { most } else { state.max };
        let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
        for (i, v) in v.iter_mut().enumerate() {
            *v = exp_lanes::<S>(S::sub(*v, S::splat(shift)));
            S::store(s.as_mut_ptr().add(S::N * i), *v);
        }
        let sum = S::add_block(v);
        // Usually the maximum does not change, and e⁰ is 1.
        let factor =
            if state.max == max && state.max != f32::NEG_INFINITY { 1.0 } else { exp(state.max - shift) };
        *state = SoftmaxState { max, sum: state.sum.mul_add(factor, sum) };
        factor
    }
}

/// What the softmax of a block needs across lanes.
///
/// # Safety
/// The contract of [`Registers`].
trait Lanes: Registers {
    /// Lanes `start..end` of `a` and the others of `b`; the bounds may be outside the lanes.
    unsafe fn select_lanes(a: Self::F, start: i32, end: i32, b: Self::F) -> Self::F;
    /// The largest lane, if none is NaN.
    unsafe fn reduce_max(a: Self::F) -> f32;
    /// The sum of a block's lanes in the order of [`portable_softmax_block`].
    unsafe fn add_block(v: &[Self::F]) -> f32;
}

// The contract of `Registers` covers every block.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<S: Simd> Lanes for S {
    #[inline(always)]
    unsafe fn select_lanes(a: S::F, start: i32, end: i32, b: S::F) -> S::F {
        unsafe { <S as Simd>::select_lanes(a, start, end, b) }
    }

    #[inline(always)]
    unsafe fn reduce_max(a: S::F) -> f32 {
        unsafe { <S as Simd>::reduce_max(a) }
    }

    #[inline(always)]
    unsafe fn add_block(v: &[S::F]) -> f32 {
        unsafe { S::reduce_add(S::add(S::add(v[0], v[2]), S::add(v[1], v[3]))) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::Lanes;
    use crate::simd::{Avx2, Avx512, Registers, Simd};

    // The contract of `Registers` covers every block.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Lanes for Avx512 {
        #[inline(always)]
        unsafe fn select_lanes(a: __m512, start: i32, end: i32, b: __m512) -> __m512 {
            let below = |end: i32| (1u32 << end.clamp(0, 16)) - 1;
            unsafe { _mm512_mask_blend_ps((below(end) & !below(start)) as u16, b, a) }
        }

        #[inline(always)]
        unsafe fn reduce_max(a: __m512) -> f32 {
            let [low, high] = unsafe { halves(a) };
            unsafe { <Avx2 as Simd>::reduce_max(Avx2::max(low, high)) }
        }

        /// The low half is the sum of the first and the third eight lanes, the high half of the others.
        #[inline(always)]
        unsafe fn add_block(v: &[__m512]) -> f32 {
            let [low, high] = unsafe { halves(Avx512::add(v[0], v[1])) };
            unsafe { Avx2::reduce_add(Avx2::add(low, high)) }
        }
    }

    #[inline(always)]
    unsafe fn halves(a: __m512) -> [__m256; 2] {
        // SAFETY: as for the function. The cast of f64 lanes needs AVX-512 F only.
        unsafe {
            let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(a));
            [_mm512_castps512_ps256(a), _mm256_castpd_ps(high)]
        }
    }
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::Rng;

    use super::*;

    #[test]
    fn simd_gemm_is_bit_equal_to_portable_in_every_tiling() {
        let mut rng = Rng::new(7);
        for rows in 1..=14 {
            for cols in [8, 24, 32, 64, 80, 12] {
                for depth in [0..32, 3..29, 5..5, 0..1] {
                    let (lda, ldb, ldc) = (32, cols + 8, cols + 1);
                    let mut random = |n: usize| (0..n).map(|_| rng.gaussian() as f32).collect::<Vec<_>>();
                    let (a, b, c) = (random(rows * lda), random(32 * ldb), random(rows * ldc));
                    let b_f16: Vec<f16> = b.iter().map(|v| f16::from_f32(*v)).collect();
                    let e = GemmShape { rows, cols, depth: depth.clone(), lda, ldb, ldc };
                    for b in [Stored::F32(&b), Stored::F16(&b_f16)] {
                        let (mut portable, mut fast) = (c.clone(), c.clone());
                        gemm(Isa::PORTABLE, &e, &a, b, &mut portable);
                        gemm(Isa::detect(), &e, &a, b, &mut fast);
                        assert_eq!(fast, portable, "{rows}×{cols} {depth:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn simd_softmax_block_is_bit_equal_to_portable() {
        let mut rng = Rng::new(8);
        for round in 0..500 {
            let s: [f32; KV_BLOCK] = std::array::from_fn(|_| 30.0 * rng.gaussian() as f32);
            let start = rng.below(KV_BLOCK);
            let slots =
                if round % 3 == 0 { 0..KV_BLOCK } else { start..start + 1 + rng.below(KV_BLOCK - start) };
            let before =
                if round % 2 == 0 { SoftmaxState::EMPTY } else { SoftmaxState { max: 3.0, sum: 1.5 } };
            for softcap in [None, Some(50.0)] {
                let run = |isa| {
                    let (mut s, mut state) = (s, before);
                    let factor = softmax_block(isa, &mut s, slots.clone(), 0.125, softcap, &mut state);
                    let rest = [factor, state.max, state.sum];
                    s.iter().chain(&rest).map(|v| v.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(run(Isa::detect()), run(Isa::PORTABLE));
            }
        }
    }
}
