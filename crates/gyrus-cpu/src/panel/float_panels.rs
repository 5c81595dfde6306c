//! f32, f16 and bf16 weights, repacked so each SIMD lane computes one output row.
//!
//! A panel interleaves 16 output rows: `[k][row]`, in the file's element type. One load brings an element of
//! each row, which the kernel multiplies with one activation broadcast to all lanes. The sum over `k` is
//! split into four quarters, each in ascending order by fused multiply-add, added as `(0+1)+(2+3)`. With one
//! activation row the four accumulators hide the latency of FMA. With more rows the kernel processes the
//! quarters one after the other, with the same result.

mod tile;

use gyrus_tensor::DType;
use half::{bf16, f16};

use crate::CpuError;
use crate::f32_dot::Element;
use crate::isa::{Isa, Level};
use crate::pool::Pool;
use crate::slab::SlabBytes;
use crate::storage::Disjoint;

/// Output rows of a panel.
pub(crate) const ROWS: usize = 16;

/// The most activation rows of a tile.
pub(crate) const TILE: usize = 12;

/// The sums of a panel: those of activation row `r` are `sums[r]`.
pub(crate) type Sums = [[f32; ROWS]; TILE];

/// Multiplies `P` panels with up to [`TILE`] rows of activations, interleaved in `x` (`[k, rows]`). Separate
/// rows would often be a multiple of a page apart and evict each other from the L1 cache. `out[p]` receives
/// the sums of panel `p`.
///
/// # Safety
/// The CPU has the instructions of the function's level. Each panel holds `cols` columns of the function's
/// element type, `rows` is in `1..=TILE`, and `x` holds `rows` elements for each column.
type Tile<const P: usize> =
    unsafe fn(panels: [*const u8; P], cols: usize, x: *const f32, rows: usize, out: &mut [Sums; P]);

/// Interleaves rows of `cols` elements for a tile.
pub(crate) fn interleave(x: &[f32], cols: usize, out: &mut [f32]) {
    let rows = x.len() / cols;
    #[cfg(target_arch = "x86_64")]
    if rows == TILE && cols.is_multiple_of(4) {
        return interleave_tile(x, cols, out);
    }
    // In square blocks, so cache lines of both sides are fully used while they are cached.
    for first in (0..cols).step_by(ROWS) {
        for (r, x) in x.chunks_exact(cols).enumerate() {
            for k in first..cols.min(first + ROWS) {
                out[k * rows + r] = x[k];
            }
        }
    }
}

/// [`interleave`] of a whole tile by transposing squares of four, with the SSE that each x86-64 has.
#[cfg(target_arch = "x86_64")]
fn interleave_tile(x: &[f32], cols: usize, out: &mut [f32]) {
    use std::arch::x86_64::{_MM_TRANSPOSE4_PS, _mm_loadu_ps, _mm_storeu_ps};
    assert!(x.len() == TILE * cols && cols.is_multiple_of(4));
    assert_eq!(out.len(), x.len());
    let (x, out) = (x.as_ptr(), out.as_mut_ptr());
    for k in (0..cols).step_by(4) {
        for r in (0..TILE).step_by(4) {
            // SAFETY: rows `r..r + 4` and columns `k..k + 4` are within both, whose lengths were checked.
            unsafe {
                let [mut a, mut b, mut c, mut d] =
                    [0, 1, 2, 3].map(|i| _mm_loadu_ps(x.add((r + i) * cols + k)));
                _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
                for (i, column) in [a, b, c, d].into_iter().enumerate() {
                    _mm_storeu_ps(out.add((k + i) * TILE + r), column);
                }
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
    portable: Tile<1>,
    #[cfg(target_arch = "x86_64")]
    avx2: Tile<1>,
    #[cfg(target_arch = "x86_64")]
    avx512: Tile<1>,
    #[cfg(target_arch = "x86_64")]
    avx512_pair: Tile<2>,
    #[cfg(target_arch = "aarch64")]
    neon: Tile<1>,
}

static TYPES: &[VTable] =
    &[vtable::<f32>(DType::F32), vtable::<f16>(DType::F16), vtable::<bf16>(DType::BF16)];

const fn vtable<T: Element>(dtype: DType) -> VTable {
    VTable {
        dtype,
        bytes: size_of::<T>(),
        get: get::<T>,
        portable: tile::portable::<T>,
        #[cfg(target_arch = "x86_64")]
        avx2: tile::x86::avx2::<T>,
        #[cfg(target_arch = "x86_64")]
        avx512: tile::x86::avx512::<T, 1>,
        #[cfg(target_arch = "x86_64")]
        avx512_pair: tile::x86::avx512::<T, 2>,
        #[cfg(target_arch = "aarch64")]
        neon: tile::neon::<T>,
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
    pub(crate) fn multiply(&self, isa: Isa, index: usize, x: &[f32], out: &mut [Sums; 1]) {
        let tile = match isa.level() {
            Level::Portable => self.vtable.portable,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => self.vtable.avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => self.vtable.avx512,
            #[cfg(target_arch = "aarch64")]
            Level::Neon | Level::NeonDot | Level::NeonI8mm => self.vtable.neon,
        };
        // SAFETY: the function is of this `Isa`, which proves the instructions, and of this type.
        unsafe { self.run(tile, index, x, out) }
    }

    /// Whether [`FloatPanels::multiply_pair`] has a kernel, which needs registers for twice the sums.
    pub(crate) fn pairs(&self, isa: Isa) -> bool {
        self.pair_tile(isa).is_some()
    }

    /// [`FloatPanels::multiply`] of panels `index` and `index + 1` at once, with the same bits.
    ///
    /// # Panics
    /// If [`FloatPanels::pairs`] is false.
    pub(crate) fn multiply_pair(&self, isa: Isa, index: usize, x: &[f32], out: &mut [Sums; 2]) {
        let tile = self.pair_tile(isa).expect("the caller asked whether there is one");
        // SAFETY: the function is of this `Isa`, which proves the instructions, and of this type.
        unsafe { self.run(tile, index, x, out) }
    }

    fn pair_tile(&self, isa: Isa) -> Option<Tile<2>> {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => Some(self.vtable.avx512_pair),
            _ => None,
        }
    }

    /// # Safety
    /// `tile` is of this type and its instructions are there.
    unsafe fn run<const P: usize>(&self, tile: Tile<P>, index: usize, x: &[f32], out: &mut [Sums; P]) {
        let rows = x.len() / self.cols;
        assert!((1..=TILE).contains(&rows) && x.len() == rows * self.cols);
        let panels = std::array::from_fn(|p| self.panel(index + p).as_ptr());
        // SAFETY: the caller proves type and instructions; each panel has `cols` columns, and lengths were checked.
        unsafe { tile(panels, self.cols, x.as_ptr(), rows, out) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleave_puts_the_elements_of_each_column_together() {
        for rows in 1..=TILE {
            for cols in [1, 3, 4, 15, 16, 17, 40] {
                let x: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
                let mut out = vec![-1.0; rows * cols];
                interleave(&x, cols, &mut out);
                for (i, found) in out.iter().enumerate() {
                    assert_eq!(*found, x[i % rows * cols + i / rows], "{rows} × {cols} at {i}");
                }
            }
        }
    }
}
