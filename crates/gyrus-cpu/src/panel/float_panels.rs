//! f32, f16 and bf16 weights, repacked so each SIMD lane computes one output row.
//!
//! A panel interleaves 16 output rows: `[k][row]`, in the file's element type. One load brings an element of
//! each row, which the kernel multiplies with one activation broadcast to all lanes. The sum over `k` is
//! split into four quarters, each in ascending order by fused multiply-add, added as `(0+1)+(2+3)`. With one
//! activation row the four accumulators hide the latency of FMA. With more rows the kernel processes the
//! quarters one after the other, with the same result.

use gyrus_tensor::DType;
use half::{bf16, f16};

use crate::CpuError;
use crate::f32_dot::Element;
use crate::isa::{Isa, Level};
use crate::pool::Pool;
use crate::simd::{LANES, Simd};
use crate::slab::SlabBytes;
use crate::storage::Disjoint;

/// Output rows of a panel.
pub(crate) const ROWS: usize = 16;

/// The most activation rows of a tile.
pub(crate) const TILE: usize = 12;

const QUARTERS: usize = 4;

/// Multiplies a panel with up to [`TILE`] rows of activations, interleaved in `x` (`[k, rows]`). Separate
/// rows would often be a multiple of a page apart and evict each other from the L1 cache. `out[r]` receives
/// the sums of row `r`.
///
/// # Safety
/// The CPU has the instructions of the function's level. `panel` holds whole columns of the function's
/// element type, `rows` is in `1..=TILE`, and `x` holds `rows` elements for each column.
type Tile = unsafe fn(panel: &[u8], x: &[f32], rows: usize, out: &mut [[f32; ROWS]; TILE]);

/// Interleaves rows of `cols` elements for a tile.
pub(crate) fn interleave(x: &[f32], cols: usize, out: &mut [f32]) {
    let rows = x.len() / cols;
    // In square blocks, so cache lines of both sides are fully used while they are cached.
    for first in (0..cols).step_by(ROWS) {
        for (r, x) in x.chunks_exact(cols).enumerate() {
            for k in first..cols.min(first + ROWS) {
                out[k * rows + r] = x[k];
            }
        }
    }
}

/// A float weight matrix in panels of [`ROWS`] rows.
pub(crate) struct FloatPanels {
    data: SlabBytes,
    rows: usize,
    cols: usize,
    vtable: &'static VTable,
}

/// The functions of an element type, so callers need not be generic.
struct VTable {
    dtype: DType,
    bytes: usize,
    get: fn(&[u8]) -> f32,
    portable: Tile,
    #[cfg(target_arch = "x86_64")]
    avx2: Tile,
    #[cfg(target_arch = "x86_64")]
    avx512: Tile,
    #[cfg(target_arch = "aarch64")]
    neon: Tile,
}

static TYPES: &[VTable] =
    &[vtable::<f32>(DType::F32), vtable::<f16>(DType::F16), vtable::<bf16>(DType::BF16)];

const fn vtable<T: Element>(dtype: DType) -> VTable {
    VTable {
        dtype,
        bytes: size_of::<T>(),
        get: get::<T>,
        portable: portable::<T>,
        #[cfg(target_arch = "x86_64")]
        avx2: x86::avx2_tile::<T>,
        #[cfg(target_arch = "x86_64")]
        avx512: x86::avx512_tile::<T>,
        #[cfg(target_arch = "aarch64")]
        neon: neon_tile::<T>,
    }
}

fn get<T: Element>(bytes: &[u8]) -> f32 {
    bytemuck::pod_read_unaligned::<T>(bytes).to_f32()
}

impl FloatPanels {
    /// Repacks a `rows × cols` matrix whose length has been checked; `None` if the type is not a float.
    pub(crate) fn pack(
        pool: &Pool,
        dtype: DType,
        rows: usize,
        cols: usize,
        source: &[u8],
    ) -> Result<Option<FloatPanels>, CpuError> {
        // The kernels load elements in native byte order; files are little-endian.
        if !cfg!(target_endian = "little") {
            return Ok(None);
        }
        let Some(vtable) = TYPES.iter().find(|entry| entry.dtype == dtype) else {
            return Ok(None);
        };
        let (size, count) = (vtable.bytes, rows.div_ceil(ROWS));
        let (row_bytes, panel_bytes) = (cols * size, cols * ROWS * size);
        let bytes = count.checked_mul(panel_bytes).ok_or(CpuError::Memory { bytes: usize::MAX })?;
        let mut data = SlabBytes::zeroed(bytes)?;
        let parts = Disjoint::new(data.as_mut_slice());
        pool.run(count, &|panel| {
            // SAFETY: each task writes its own panel only; `data` outlives the loop.
            let out = unsafe { parts.part(panel * panel_bytes..(panel + 1) * panel_bytes) };
            let source = &source[panel * ROWS * row_bytes..rows.min((panel + 1) * ROWS) * row_bytes];
            match size {
                2 => transpose::<2>(source, cols, out),
                _ => transpose::<4>(source, cols, out),
            }
        });
        Ok(Some(FloatPanels { data, rows, cols, vtable }))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.data.as_slice().len()
    }

    fn panel(&self, index: usize) -> &[u8] {
        let bytes = self.cols * ROWS * self.vtable.bytes;
        &self.data.as_slice()[index * bytes..(index + 1) * bytes]
    }

    /// Multiplies panel `index` with the interleaved rows of `x`.
    pub(crate) fn multiply(&self, isa: Isa, index: usize, x: &[f32], out: &mut [[f32; ROWS]; TILE]) {
        let rows = x.len() / self.cols;
        assert!((1..=TILE).contains(&rows) && x.len() == rows * self.cols);
        let tile = match isa.level() {
            Level::Portable => self.vtable.portable,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => self.vtable.avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => self.vtable.avx512,
            #[cfg(target_arch = "aarch64")]
            Level::Neon | Level::NeonDot | Level::NeonI8mm => self.vtable.neon,
        };
        // SAFETY: the function is of this `Isa`, which proves the instructions, and type; lengths were checked.
        unsafe { tile(self.panel(index), x, rows, out) }
    }

    /// The values of one row.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let size = self.vtable.bytes;
        let columns = self.panel(row / ROWS).chunks_exact(ROWS * size);
        for (column, v) in columns.zip(out) {
            *v = (self.vtable.get)(&column[row % ROWS * size..][..size]);
        }
    }
}

/// Transposes rows of `cols` elements of `N` bytes to columns of 16; missing rows stay zero.
fn transpose<const N: usize>(source: &[u8], cols: usize, out: &mut [u8]) {
    let (source, _) = source.as_chunks::<N>();
    let (out, _) = out.as_chunks_mut::<N>();
    // In square blocks, so cache lines of both sides are fully used while they are cached.
    for first in (0..cols).step_by(ROWS) {
        for (row, source) in source.chunks_exact(cols).enumerate() {
            for k in first..cols.min(first + ROWS) {
                out[k * ROWS + row] = source[k];
            }
        }
    }
}

/// The range of `k` of quarter `index`.
fn quarter(cols: usize, index: usize) -> std::ops::Range<usize> {
    let size = cols.div_ceil(QUARTERS);
    cols.min(index * size)..cols.min((index + 1) * size)
}

/// The portable form of [`Tile`]. It is `unsafe` only to have that type; it has no
/// safety requirements.
unsafe fn portable<T: Element>(panel: &[u8], x: &[f32], rows: usize, out: &mut [[f32; ROWS]; TILE]) {
    let size = size_of::<T>();
    let cols = panel.len() / (ROWS * size);
    let mut column = [0.0; ROWS];
    let mut sums = [[[0.0f32; ROWS]; TILE]; QUARTERS];
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

/// Calls the kernel for 1 to 6 rows, with as many quarters at once as registers allow. Consecutive `k` are
/// `step` apart in `x`.
///
/// # Safety
/// The contract of [`Tile`]; the caller enables the target features.
#[inline(always)]
unsafe fn tile_up_to_6<W: Wide, T: Element>(
    panel: &[u8],
    x: *const f32,
    step: usize,
    rows: usize,
    out: &mut [[f32; ROWS]],
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        match rows {
            1 => multiply_panel::<W, T, 1, 4>(panel, x, step, out),
            2 => multiply_panel::<W, T, 2, 2>(panel, x, step, out),
            3 => multiply_panel::<W, T, 3, 2>(panel, x, step, out),
            4 => multiply_panel::<W, T, 4, 1>(panel, x, step, out),
            5 => multiply_panel::<W, T, 5, 1>(panel, x, step, out),
            _ => multiply_panel::<W, T, 6, 1>(panel, x, step, out),
        }
    }
}

/// `M` rows, `Q` quarters at a time. Consecutive `k` are `step` apart in `x`.
///
/// # Safety
/// The contract of [`Tile`], with `M` rows; the caller enables the target features.
#[inline(always)]
unsafe fn multiply_panel<W: Wide, T: Element, const M: usize, const Q: usize>(
    panel: &[u8],
    x: *const f32,
    step: usize,
    out: &mut [[f32; ROWS]],
) {
    let cols = panel.len() / (ROWS * size_of::<T>());
    let panel: *const T = panel.as_ptr().cast();
    // SAFETY: `k` stays below `cols` and rows below `M`.
    unsafe {
        let mut sums = [[W::splat(0.0); M]; QUARTERS];
        for first in (0..QUARTERS).step_by(Q) {
            let mut acc = [[W::splat(0.0); M]; Q];
            // Later quarters are never longer, so each has at least the length of the last one.
            let common = quarter(cols, first + Q - 1).len();
            for k in 0..common {
                for (q, acc) in acc.iter_mut().enumerate() {
                    let k = quarter(cols, first + q).start + k;
                    let w = W::load(panel.add(k * ROWS));
                    for (r, acc) in acc.iter_mut().enumerate() {
                        *acc = W::fma(w, W::splat(*x.add(k * step + r)), *acc);
                    }
                }
            }
            for (q, acc) in acc.iter_mut().enumerate() {
                let range = quarter(cols, first + q);
                for k in range.start + common..range.end {
                    let w = W::load(panel.add(k * ROWS));
                    for (r, acc) in acc.iter_mut().enumerate() {
                        *acc = W::fma(w, W::splat(*x.add(k * step + r)), *acc);
                    }
                }
                sums[first + q] = *acc;
            }
        }
        for r in 0..M {
            let sum = W::add(W::add(sums[0][r], sums[1][r]), W::add(sums[2][r], sums[3][r]));
            W::store(out[r].as_mut_ptr(), sum);
        }
    }
}

/// Up to 12 rows, six at a time: their sums fit 16 registers of eight lanes or 32 of four.
///
/// # Safety
/// The contract of [`Tile`]; the caller enables the target features.
#[inline(always)]
unsafe fn tile_by_6<W: Wide, T: Element>(
    panel: &[u8],
    x: &[f32],
    rows: usize,
    out: &mut [[f32; ROWS]; TILE],
) {
    for first in (0..rows).step_by(6) {
        // SAFETY: the caller upholds the contract for these rows too.
        unsafe {
            let x = x.as_ptr().add(first);
            tile_up_to_6::<W, T>(panel, x, rows, (rows - first).min(6), &mut out[first..]);
        }
    }
}

/// # Safety
/// The contract of [`Tile`].
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn neon_tile<T: Element>(panel: &[u8], x: &[f32], rows: usize, out: &mut [[f32; ROWS]; TILE]) {
    // SAFETY: the caller upholds the contract.
    unsafe { tile_by_6::<Pair<crate::simd::Neon>, T>(panel, x, rows, out) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::simd::{Avx2, Avx512, Registers};

    /// # Safety
    /// The contract of [`Tile`].
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2_tile<T: Element>(
        panel: &[u8],
        x: &[f32],
        rows: usize,
        out: &mut [[f32; ROWS]; TILE],
    ) {
        // SAFETY: the caller upholds the contract.
        unsafe { tile_by_6::<Pair<Avx2>, T>(panel, x, rows, out) }
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

    /// # Safety
    /// The contract of [`Tile`].
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(super) unsafe fn avx512_tile<T: Element>(
        panel: &[u8],
        x: &[f32],
        rows: usize,
        out: &mut [[f32; ROWS]; TILE],
    ) {
        let all = x.as_ptr();
        // SAFETY: the caller upholds the contract.
        unsafe {
            match rows {
                12 => multiply_panel::<Avx512, T, 12, 1>(panel, all, rows, out),
                8..12 => {
                    multiply_panel::<Avx512, T, 8, 1>(panel, all, rows, out);
                    if rows > 8 {
                        tile_up_to_6::<Avx512, T>(panel, all.add(8), rows, rows - 8, &mut out[8..]);
                    }
                }
                _ => tile_by_6::<Avx512, T>(panel, x, rows, out),
            }
        }
    }
}
