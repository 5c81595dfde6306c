//! `out = x · Wᵀ` over one or several weights that share their input.
//!
//! Tasks split the outputs, never the sum over `k`, and every output has one order of summation. So a row's
//! result depends on that row alone, not on the rest of the batch or the number of threads.

pub(crate) mod experts;

use crate::f32_dot::{self, TILE_W, TILE_X};
use crate::matrix::{Body, Matrix};
use crate::panel::float_panels::{self, Sums};
use crate::panel::{FloatPanels, LANES, PAIR_LANES, QuantPanels, TILE};
use crate::pool::{Pool, SERIAL_ELEMS};
use crate::quantize_rows::{GROUP, QBlock, quantize_row};
use crate::storage::{Bytes, Disjoint};
use crate::thread_scratch;
use crate::{Isa, Scratch, simd};

/// The activations of a block of rows should fit the L2 cache together with a panel.
const ROW_BLOCK_BYTES: usize = 384 << 10;

/// Dequantised weights of the `f32` path that all rows of a block reuse from the L2 cache.
const DECODED_BLOCK_BYTES: usize = 192 << 10;

/// A number of activation rows that is a multiple of every kernel's tile.
const F32_ROWS: usize = 24;

const _: () = assert!(
    F32_ROWS.is_multiple_of(TILE)
        && F32_ROWS.is_multiple_of(TILE_X)
        && F32_ROWS.is_multiple_of(float_panels::TILE)
);

/// Multiplies `x` (`[m, k]`) with the transposes of `weights` (each `[n_i, k]`).
///
/// The outputs are concatenated in `out` (`[m, Σ n_i]`). With `accumulate` they are added to `out` (a
/// residual), otherwise they overwrite it. Allocates only if `scratch` must grow.
///
/// # Panics
/// If there is no weight, if weights differ in `k`, or if a slice has the wrong length.
pub fn matmul(
    pool: &Pool,
    weights: &[&Matrix],
    x: &[f32],
    out: &mut [f32],
    accumulate: bool,
    scratch: &mut Scratch,
) {
    matmul_with_bias(pool, weights, x, out, (accumulate, None), scratch);
}

/// [`matmul`], after which a bias (`[Σ n_i]`) is added to each row.
pub(crate) fn matmul_with_bias(
    pool: &Pool,
    weights: &[&Matrix],
    x: &[f32],
    out: &mut [f32],
    (accumulate, bias): (bool, Option<&[f32]>),
    scratch: &mut Scratch,
) {
    let k = weights.first().expect("a matmul needs at least one weight").cols();
    assert!(
        weights.iter().all(|w| w.cols() == k),
        "weights of one matmul must have the same number of columns"
    );
    assert!(x.len().is_multiple_of(k), "input length {} is not a multiple of {k}", x.len());
    let m = x.len() / k;
    let n: usize = weights.iter().map(|w| w.rows()).sum();
    assert_eq!(out.len(), m * n, "output length for {m} rows of {n}");
    assert!(bias.is_none_or(|bias| bias.len() == n), "the length of the bias for {n} outputs");
    if m == 0 {
        return;
    }

    let blocks = k.div_ceil(GROUP);
    let width = k.next_multiple_of(simd::LANES);
    let isa = pool.isa();
    let any_int8 = weights.iter().any(|w| w.takes_int8());
    let any_f32 = weights.iter().any(|w| !w.takes_int8());
    let pad = width != k && weights.iter().any(|w| matches!(w.body(), Body::Raw(_)));
    // A single row needs no interleaving.
    let tiled = m > 1 && weights.iter().any(|w| matches!(w.body(), Body::FloatPanels(_)));
    let when = |needed: bool, size: usize| if needed { size } else { 0 };
    let (quantized, padded, tiles) =
        scratch.take(when(any_int8, m * blocks), when(pad, m * width), when(tiled, m * k));
    if any_int8 {
        quantize_rows(pool, x, k, quantized);
    }
    if tiled {
        interleave_rows(pool, x, k, tiles);
    }
    if pad {
        for (padded, x) in padded.chunks_exact_mut(width).zip(x.chunks_exact(k)) {
            padded[..k].copy_from_slice(x);
            padded[k..].fill(0.0);
        }
    }
    let (floats, width) = if pad { (&*padded, width) } else { (x, k) };
    let tiles = if tiled { &*tiles } else { x };
    let input = Input { isa, blocks, width, quantized, floats, tiles };

    // A unit is the panel height: the output rows that a kernel computes together.
    let units: usize = weights.iter().map(|w| w.rows().div_ceil(w.unit())).sum();
    let row_block = row_block(&input, any_f32);
    let row_blocks = m.div_ceil(row_block);
    let chunk = units.div_ceil(pool.threads() * 4).min(128);
    // Several rows take units in pairs.
    let chunk = if m > 1 { chunk.next_multiple_of(2) } else { chunk };
    let chunks = units.div_ceil(chunk);

    let output = Output { data: Disjoint::new(out), n, accumulate, bias, rows: None };
    pool.run(row_blocks * chunks, &|task| {
        let rows = task / chunks * row_block;
        let rows = rows..m.min(rows + row_block);
        let units = task % chunks * chunk..units.min(task % chunks * chunk + chunk);
        multiply(&input, weights.iter().copied(), units, rows, &output);
    });
}

/// Rows whose activations fit the L2 cache, in whole tiles of every kernel that runs.
fn row_block(input: &Input, any_f32: bool) -> usize {
    let row_bytes = if any_f32 { input.width * 4 } else { input.blocks * size_of::<QBlock>() };
    let tile_rows = if any_f32 { F32_ROWS } else { TILE };
    (ROW_BLOCK_BYTES / row_bytes / tile_rows).max(1) * tile_rows
}

/// Multiplies some rows with some units of the weights, which are counted over all of them.
fn multiply<'a>(
    input: &Input,
    weights: impl Iterator<Item = &'a Matrix>,
    units: Span,
    rows: Span,
    output: &Output,
) {
    let (mut unit, end) = (units.start, units.end);
    let (mut first_unit, mut column) = (0, 0);
    for weight in weights {
        let count = weight.rows().div_ceil(weight.unit());
        if unit < end && unit < first_unit + count {
            let here = unit - first_unit..end.min(first_unit + count) - first_unit;
            unit = first_unit + here.end;
            match weight.body() {
                Body::QuantPanels(panels) => {
                    multiply_quant_panels(input, panels, weight, here, rows.clone(), output, column)
                }
                Body::FloatPanels(panels) => {
                    multiply_float_panels(input, panels, weight, here, rows.clone(), output, column)
                }
                Body::Raw(data) => multiply_raw(input, data, weight, here, rows.clone(), output, column),
            }
        }
        first_unit += count;
        column += weight.rows();
    }
}

/// The activations in each form that a kernel reads.
struct Input<'a> {
    isa: Isa,
    /// `[m, blocks]`
    quantized: &'a [QBlock],
    blocks: usize,
    /// `[m, width]`; padded to whole registers if a raw weight reads them
    floats: &'a [f32],
    width: usize,
    /// Interleaved tiles: `[m / TILE][k, TILE]`, the last one `[k, m % TILE]`
    tiles: &'a [f32],
}

/// `[m, n]`, written by tasks in disjoint rectangles.
struct Output<'a> {
    data: Disjoint<f32>,
    n: usize,
    accumulate: bool,
    /// `[n]`: added after the sums.
    bias: Option<&'a [f32]>,
    /// Where each row of the input is written, if not to the row of its own number.
    rows: Option<&'a [u32]>,
}

impl Output<'_> {
    /// Stores or adds `values` at row `row`, starting at column `column`.
    ///
    /// # Safety
    /// No other thread writes these elements during the loop.
    #[inline]
    unsafe fn put(&self, row: usize, column: usize, values: &[f32]) {
        let row = self.rows.map_or(row, |rows| rows[row] as usize);
        let at = row * self.n + column;
        // SAFETY: the caller upholds the contract.
        let out = unsafe { self.data.part(at..at + values.len()) };
        if self.accumulate {
            out.iter_mut().zip(values).for_each(|(out, v)| *out += v);
        } else {
            out.copy_from_slice(values);
        }
        if let Some(bias) = self.bias {
            out.iter_mut().zip(&bias[column..]).for_each(|(out, b)| *out += b);
        }
    }

    /// [`Output::put`] of a number of values that the compiler knows: it needs no call to copy them.
    ///
    /// # Safety
    /// No other thread writes these elements during the loop.
    #[inline(always)]
    unsafe fn put_array<const N: usize>(&self, row: usize, column: usize, values: &[f32; N]) {
        let row = self.rows.map_or(row, |rows| rows[row] as usize);
        let at = row * self.n + column;
        // SAFETY: the caller upholds the contract.
        let out = unsafe { self.data.part(at..at + N) };
        let Some(out) = out.first_chunk_mut::<N>() else { return };
        let mut values = *values;
        if self.accumulate {
            values.iter_mut().zip(&*out).for_each(|(v, out)| *v += *out);
        }
        if let Some(bias) = self.bias.and_then(|bias| bias.get(column..)?.first_chunk::<N>()) {
            values.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
        }
        *out = values;
    }
}

type Span = std::ops::Range<usize>;

/// Several rows take two panels at a time, where the instruction set can.
fn multiply_quant_panels(
    x: &Input,
    panels: &QuantPanels,
    weight: &Matrix,
    units: Span,
    rows: Span,
    out: &Output,
    column: usize,
) {
    let pair = panels.pair_tile(x.isa).filter(|_| rows.len() > 1);
    let tile = panels.tile(x.isa);
    let mut unit = units.start;
    while unit < units.end {
        let (left, column) = (weight.rows() - unit * LANES, column + unit * LANES);
        match pair.filter(|_| unit + 2 <= units.end) {
            Some(tile) => {
                let panels = panels.pair(unit);
                let tile = |x: &[QBlock], count: usize, sums: &mut [[f32; PAIR_LANES]; TILE]| {
                    // SAFETY: the tile was chosen for this `Isa` and format; `x` holds `count` rows.
                    unsafe { tile(panels, x, count, sums) }
                };
                multiply_tiles(x, rows.clone(), out, column, PAIR_LANES.min(left), tile);
                unit += 2;
            }
            None => {
                let panel = panels.panel(unit);
                let tile = |x: &[QBlock], count: usize, sums: &mut [[f32; LANES]; TILE]| {
                    // SAFETY: the tile was chosen for this `Isa` and format; `x` holds `count` rows.
                    unsafe { tile(panel, x, count, sums) }
                };
                multiply_tiles(x, rows.clone(), out, column, LANES.min(left), tile);
                unit += 1;
            }
        }
    }
}

/// Multiplies all rows by a tile, a few at a time, and stores the first `lanes` of its sums at `column`.
fn multiply_tiles<const N: usize>(
    x: &Input,
    rows: Span,
    out: &Output,
    column: usize,
    lanes: usize,
    tile: impl Fn(&[QBlock], usize, &mut [[f32; N]; TILE]),
) {
    let mut sums = [[0.0; N]; TILE];
    for row in rows.clone().step_by(TILE) {
        let count = TILE.min(rows.end - row);
        tile(&x.quantized[row * x.blocks..(row + count) * x.blocks], count, &mut sums);
        for (r, sums) in sums[..count].iter().enumerate() {
            // SAFETY: tasks write disjoint rectangles of rows and units.
            unsafe {
                match lanes == N {
                    true => out.put_array(row + r, column, sums),
                    false => out.put(row + r, column, &sums[..lanes]),
                }
            }
        }
    }
}

/// Several rows take two panels at a time, where the instruction set can.
fn multiply_float_panels(
    x: &Input,
    panels: &FloatPanels,
    weight: &Matrix,
    units: Span,
    rows: Span,
    out: &Output,
    column: usize,
) {
    let isa = x.isa;
    let pairs = rows.len() > 1 && panels.pairs(isa);
    let mut unit = units.start;
    while unit < units.end {
        let first = unit * float_panels::ROWS;
        let (left, column) = (weight.rows() - first, column + first);
        if pairs && unit + 2 <= units.end {
            let tile = |x: &[f32], sums: &mut [Sums; 2]| panels.multiply_pair(isa, unit, x, sums);
            multiply_float_tiles(x, weight.cols(), rows.clone(), out, column, left, tile);
            unit += 2;
        } else {
            let tile = |x: &[f32], sums: &mut [Sums; 1]| panels.multiply(isa, unit, x, sums);
            multiply_float_tiles(x, weight.cols(), rows.clone(), out, column, left, tile);
            unit += 1;
        }
    }
}

/// Multiplies all rows by a tile of `P` panels, a few at a time, and stores the first `left` of its sums at `column`.
fn multiply_float_tiles<const P: usize>(
    x: &Input,
    k: usize,
    rows: Span,
    out: &Output,
    column: usize,
    left: usize,
    tile: impl Fn(&[f32], &mut [Sums; P]),
) {
    const ROWS: usize = float_panels::ROWS;
    let mut sums = [Sums::default(); P];
    for row in rows.clone().step_by(float_panels::TILE) {
        let count = float_panels::TILE.min(rows.end - row);
        tile(&x.tiles[row * k..(row + count) * k], &mut sums);
        for (p, sums) in sums.iter().enumerate() {
            let (column, lanes) = (column + p * ROWS, ROWS.min(left - p * ROWS));
            for (r, sums) in sums[..count].iter().enumerate() {
                // SAFETY: tasks write disjoint rectangles of rows and units.
                unsafe {
                    match lanes {
                        ROWS => out.put_array(row + r, column, sums),
                        _ => out.put(row + r, column, &sums[..lanes]),
                    }
                }
            }
        }
    }
}

fn multiply_raw(
    x: &Input,
    data: &Bytes,
    weight: &Matrix,
    units: Span,
    rows: Span,
    out: &Output,
    column: usize,
) {
    let first = units.start * LANES;
    let last = weight.rows().min(units.end * LANES);
    if rows.len() <= TILE_X && multiply_raw_16bit(x, data, weight, first..last, rows.clone(), out, column) {
        return;
    }
    let step = if rows.len() == 1 {
        LANES
    } else {
        (DECODED_BLOCK_BYTES / 4 / x.width).max(1).next_multiple_of(LANES)
    };
    let step = step.min(last - first);
    thread_scratch::with(step * x.width, |buffer| {
        for from in (first..last).step_by(step) {
            let count = step.min(last - from);
            let w = weight.float_rows(x.isa, data, from, count, buffer);
            let mut sums = [[0.0; TILE_W]; TILE_X];
            for row in rows.clone().step_by(TILE_X) {
                let rows = TILE_X.min(rows.end - row);
                let x_rows = &x.floats[row * x.width..(row + rows) * x.width];
                for (i, w) in w.chunks(TILE_W * x.width).enumerate() {
                    f32_dot::dots(x.isa, w, x_rows, x.width, &mut sums);
                    for (r, sums) in sums[..rows].iter().enumerate() {
                        let at = column + from + i * TILE_W;
                        // SAFETY: tasks write disjoint rectangles of rows and units.
                        unsafe { out.put(row + r, at, &sums[..w.len() / x.width]) };
                    }
                }
            }
        }
    });
}

/// Multiplies a few rows with f16 or bf16 weights without decoding the weights to memory first. Returns
/// `false`, with nothing written, if the type or the instruction set has no such kernel.
fn multiply_raw_16bit(
    x: &Input,
    data: &Bytes,
    weight: &Matrix,
    range: Span,
    rows: Span,
    out: &Output,
    column: usize,
) -> bool {
    if weight.cols() != x.width {
        return false;
    }
    let x_rows = &x.floats[rows.start * x.width..rows.end * x.width];
    let mut sums = [[0.0; TILE_W]; TILE_X];
    for first in range.clone().step_by(TILE_W) {
        let count = TILE_W.min(range.end - first);
        let w = weight.raw_rows(data, first, count);
        if !f32_dot::dots_16bit(x.isa, weight.dtype(), w, x_rows, x.width, &mut sums) {
            return false;
        }
        for (r, sums) in sums[..rows.len()].iter().enumerate() {
            // SAFETY: tasks write disjoint rectangles of rows and units.
            unsafe { out.put(rows.start + r, column + first, &sums[..count]) };
        }
    }
    true
}

/// Quantises every row of `x` (`[m, k]`) to int8 blocks in `out` (`[m, k / 32]`).
fn quantize_rows(pool: &Pool, x: &[f32], k: usize, out: &mut [QBlock]) {
    let (m, blocks) = (x.len() / k, k.div_ceil(GROUP));
    let parts = Disjoint::new(out);
    pool.run_rows(m, x.len(), |row| {
        // SAFETY: each task writes its own rows only.
        let out = unsafe { parts.part(row * blocks..(row + 1) * blocks) };
        quantize_row(pool.isa(), &x[row * k..(row + 1) * k], out);
    });
}

/// Interleaves the rows of each tile of `x` (`[m, k]`).
fn interleave_rows(pool: &Pool, x: &[f32], k: usize, out: &mut [f32]) {
    let size = float_panels::TILE * k;
    let parts = Disjoint::new(out);
    let tile = |tile: usize| {
        let range = tile * size..x.len().min((tile + 1) * size);
        // SAFETY: tiles are disjoint.
        let out = unsafe { parts.part(range.clone()) };
        float_panels::interleave(&x[range], k, out);
    };
    let tiles = x.len().div_ceil(size);
    if x.len() <= SERIAL_ELEMS {
        (0..tiles).for_each(tile);
    } else {
        pool.run(tiles, &tile);
    }
}

#[cfg(test)]
mod tests {
    use gyrus_kernels::Precision;
    use gyrus_tensor::{DType, quantize};
    use gyrus_testkit::Rng;

    use super::*;
    use crate::elementwise::add_bias;

    /// For weights of each kind, whole and part panels, one row and tiles, on each instruction set.
    #[test]
    fn a_bias_has_the_bits_of_a_pass_of_its_own() {
        let mut rng = Rng::new(5);
        let mut random = |n: usize| (0..n).map(|_| rng.gaussian() as f32).collect::<Vec<_>>();
        let k = 64;
        for isa in Isa::supported() {
            let pool = Pool::with_isa(2, isa);
            for (dtype, n) in [(DType::Q8_0, 40), (DType::Q8_0, 35), (DType::F32, 48), (DType::F32, 37)] {
                let data = Bytes::from(quantize(dtype, &random(n * k)).unwrap());
                let matrix = match dtype {
                    DType::F32 => Matrix::for_many_rows(&pool, dtype, n, k, data).unwrap(),
                    _ => Matrix::new(&pool, dtype, n, k, data, Precision::Fast).unwrap(),
                };
                let bias = random(n);
                for m in [1, 2, 7, 12, 25] {
                    let (x, before) = (random(m * k), random(m * n));
                    for accumulate in [false, true] {
                        let (mut fused, mut passes) = (before.clone(), before.clone());
                        let (scratch, weights) = (&mut Scratch::new(), [&matrix]);
                        matmul_with_bias(&pool, &weights, &x, &mut fused, (accumulate, Some(&bias)), scratch);
                        matmul(&pool, &weights, &x, &mut passes, accumulate, scratch);
                        add_bias(&pool, &mut passes, n, 0, &bias);
                        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                        assert_eq!(bits(&fused), bits(&passes), "{dtype} {m} × {n}, {accumulate}");
                    }
                }
            }
        }
    }
}
