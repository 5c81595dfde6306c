//! The kernels that multiply float panels.

use std::mem::MaybeUninit;

use super::{ROWS, Sums, get};
use crate::f32_dot::Element;
use crate::simd::{LANES, Simd};

const QUARTERS: usize = 4;

/// The range of `k` of quarter `index`.
fn quarter(cols: usize, index: usize) -> std::ops::Range<usize> {
    let size = cols.div_ceil(QUARTERS);
    cols.min(index * size)..cols.min((index + 1) * size)
}

/// The portable form of [`Tile`](super::Tile).
///
/// # Safety
/// The contract of [`Tile`](super::Tile); it needs no instructions.
pub(super) unsafe fn portable<T: Element>(
    [panel]: [*const u8; 1],
    cols: usize,
    x: *const f32,
    rows: usize,
    [out]: &mut [Sums; 1],
) {
    let size = size_of::<T>();
    // SAFETY: the caller says that these many bytes and elements are there.
    let (panel, x) = unsafe {
        (std::slice::from_raw_parts(panel, cols * ROWS * size), std::slice::from_raw_parts(x, cols * rows))
    };
    let mut column = [0.0; ROWS];
    let mut sums = [Sums::default(); QUARTERS];
    for (index, sums) in sums.iter_mut().enumerate() {
        for k in quarter(cols, index) {
            let bytes = panel[k * ROWS * size..][..ROWS * size].chunks_exact(size);
            column.iter_mut().zip(bytes).for_each(|(v, bytes)| *v = get::<T>(bytes));
            for (r, sums) in sums[..rows].iter_mut().enumerate() {
                let x = x[k * rows + r];
                sums.iter_mut().zip(&column).for_each(|(sum, w)| *sum = w.mul_add(x, *sum));
            }
        }
    }
    for (r, out) in out[..rows].iter_mut().enumerate() {
        *out = std::array::from_fn(|l| (sums[0][r][l] + sums[1][r][l]) + (sums[2][r][l] + sums[3][r][l]));
    }
}

/// 16 lanes of `f32`.
///
/// # Safety
/// The contract of [`Simd`].
trait Wide {
    type V: Copy;

    unsafe fn splat(v: f32) -> Self::V;
    unsafe fn load<T: Element>(p: *const T) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
}

/// Two registers of eight lanes.
struct Pair<S>(std::marker::PhantomData<S>);

// The contract of `Simd` covers every block.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<S: Simd> Wide for Pair<S> {
    type V = [S::F; 2];

    #[inline(always)]
    unsafe fn splat(v: f32) -> [S::F; 2] {
        unsafe { [S::splat(v); 2] }
    }

    #[inline(always)]
    unsafe fn load<T: Element>(p: *const T) -> [S::F; 2] {
        unsafe { [T::load::<S>(p), T::load::<S>(p.add(LANES))] }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [S::F; 2]) {
        unsafe {
            S::store(p, v[0]);
            S::store(p.add(LANES), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn add(a: [S::F; 2], b: [S::F; 2]) -> [S::F; 2] {
        unsafe { [S::add(a[0], b[0]), S::add(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn fma(a: [S::F; 2], b: [S::F; 2], c: [S::F; 2]) -> [S::F; 2] {
        unsafe { [S::fma(a[0], b[0], c[0]), S::fma(a[1], b[1], c[1])] }
    }
}

/// `P` panels, and the rows that each of their columns is multiplied with.
#[derive(Clone, Copy)]
struct Operands<T, const P: usize> {
    panels: [*const T; P],
    cols: usize,
    x: *const f32,
    /// Elements of `x` from one `k` to the next.
    step: usize,
    /// The first of the rows.
    first: usize,
}

/// Calls the kernel for 1 to 6 rows, with as many quarters at once as registers allow.
///
/// # Safety
/// The contract of [`Tile`](super::Tile); the caller enables the target features.
#[inline(always)]
unsafe fn multiply_up_to_6<W: Wide, T: Element, const P: usize>(
    of: Operands<T, P>,
    rows: usize,
    out: &mut [Sums; P],
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        match rows {
            1 => multiply::<W, T, 1, 4, P>(of, out),
            2 => multiply::<W, T, 2, 2, P>(of, out),
            3 => multiply::<W, T, 3, 2, P>(of, out),
            4 => multiply::<W, T, 4, 1, P>(of, out),
            5 => multiply::<W, T, 5, 1, P>(of, out),
            _ => multiply::<W, T, 6, 1, P>(of, out),
        }
    }
}

/// `M` rows of `P` panels, `Q` quarters at a time.
///
/// # Safety
/// The contract of [`Tile`](super::Tile), with `M` rows after the first; the caller enables the target features.
#[inline(always)]
unsafe fn multiply<W: Wide, T: Element, const M: usize, const Q: usize, const P: usize>(
    of: Operands<T, P>,
    out: &mut [Sums; P],
) {
    let Operands { panels, cols, x, step, first: first_row } = of;
    // SAFETY: `k` stays below `cols` and rows below those of `x`; `QUARTERS` is a multiple of `Q`, so all sums are written.
    unsafe {
        let x = x.add(first_row);
        let add = |k: usize, acc: &mut [[W::V; P]; M]| {
            let mut w = [W::splat(0.0); P];
            for (w, panel) in w.iter_mut().zip(panels) {
                *w = W::load(panel.add(k * ROWS));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = W::splat(*x.add(k * step + r));
                for (acc, w) in acc.iter_mut().zip(w) {
                    *acc = W::fma(w, x, *acc);
                }
            }
        };
        // All of them are written below; zeros would take 6 KiB of stores for a tile.
        let mut sums = [[[MaybeUninit::<W::V>::uninit(); P]; M]; QUARTERS];
        for first in (0..QUARTERS).step_by(Q) {
            let mut acc = [[[W::splat(0.0); P]; M]; Q];
            // Later quarters are never longer, so each has at least the length of the last one.
            let common = quarter(cols, first + Q - 1).len();
            for k in 0..common {
                for (q, acc) in acc.iter_mut().enumerate() {
                    add(quarter(cols, first + q).start + k, acc);
                }
            }
            for (q, acc) in acc.iter_mut().enumerate() {
                let range = quarter(cols, first + q);
                for k in range.start + common..range.end {
                    add(k, acc);
                }
                for (sums, acc) in sums[first + q].as_flattened_mut().iter_mut().zip(acc.as_flattened()) {
                    sums.write(*acc);
                }
            }
        }
        for r in 0..M {
            for (p, out) in out.iter_mut().enumerate() {
                let sum = |q: usize| sums[q][r][p].assume_init();
                let sum = W::add(W::add(sum(0), sum(1)), W::add(sum(2), sum(3)));
                W::store(out[first_row + r].as_mut_ptr(), sum);
            }
        }
    }
}

/// Up to 12 rows, six at a time: their sums fit 16 registers of eight lanes or 32 of four.
///
/// # Safety
/// The contract of [`Tile`](super::Tile); the caller enables the target features.
#[inline(always)]
unsafe fn multiply_by_6<W: Wide, T: Element, const P: usize>(
    of: Operands<T, P>,
    rows: usize,
    out: &mut [Sums; P],
) {
    for first in (of.first..rows).step_by(6) {
        // SAFETY: the caller upholds the contract for these rows too.
        unsafe { multiply_up_to_6::<W, T, P>(Operands { first, ..of }, (rows - first).min(6), out) }
    }
}

/// # Safety
/// The contract of [`Tile`](super::Tile).
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
pub(super) unsafe fn neon<T: Element>(
    panels: [*const u8; 1],
    cols: usize,
    x: *const f32,
    rows: usize,
    out: &mut [Sums; 1],
) {
    let of = Operands { panels: panels.map(|panel| panel.cast::<T>()), cols, x, step: rows, first: 0 };
    // SAFETY: the caller upholds the contract.
    unsafe { multiply_by_6::<Pair<crate::simd::Neon>, T, 1>(of, rows, out) }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::simd::{Avx2, Avx512, Registers};

    /// # Safety
    /// The contract of [`Tile`](super::super::Tile).
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(in super::super) unsafe fn avx2<T: Element>(
        panels: [*const u8; 1],
        cols: usize,
        x: *const f32,
        rows: usize,
        out: &mut [Sums; 1],
    ) {
        let of = Operands { panels: panels.map(|panel| panel.cast::<T>()), cols, x, step: rows, first: 0 };
        // SAFETY: the caller upholds the contract.
        unsafe { multiply_by_6::<Pair<Avx2>, T, 1>(of, rows, out) }
    }

    // The contract of `Simd` covers every block.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Wide for Avx512 {
        type V = __m512;

        #[inline(always)]
        unsafe fn splat(v: f32) -> __m512 {
            unsafe { <Avx512 as Registers>::splat(v) }
        }

        #[inline(always)]
        unsafe fn load<T: Element>(p: *const T) -> __m512 {
            unsafe { T::load::<Avx512>(p) }
        }

        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m512) {
            unsafe { <Avx512 as Registers>::store(p, v) }
        }

        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            unsafe { <Avx512 as Registers>::add(a, b) }
        }

        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { <Avx512 as Registers>::fma(a, b, c) }
        }
    }

    /// 12 rows of two panels have 24 sums, in 32 registers. A value of `x` is then loaded for two products, so that loads
    /// do not limit them.
    ///
    /// # Safety
    /// The contract of [`Tile`](super::super::Tile).
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(in super::super) unsafe fn avx512<T: Element, const P: usize>(
        panels: [*const u8; P],
        cols: usize,
        x: *const f32,
        rows: usize,
        out: &mut [Sums; P],
    ) {
        let of = Operands { panels: panels.map(|panel| panel.cast::<T>()), cols, x, step: rows, first: 0 };
        // SAFETY: the caller upholds the contract.
        unsafe {
            match rows {
                12 => multiply::<Avx512, T, 12, 1, P>(of, out),
                8..12 => {
                    multiply::<Avx512, T, 8, 1, P>(of, out);
                    multiply_by_6::<Avx512, T, P>(Operands { first: 8, ..of }, rows, out);
                }
                _ => multiply_by_6::<Avx512, T, P>(of, rows, out),
            }
        }
    }
}
