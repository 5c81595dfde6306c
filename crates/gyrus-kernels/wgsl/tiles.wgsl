// tiles: tiled mat-mul for many rows (prefill), y[r, y_offset + n] (+)= x_scales[r] · Σ_k weight[n, k]·x[r, k].
//
//   0  quants    the weight matrix in planes, by WEIGHT (lib/weights.wgsl)
//   1  high      likewise, if the type has high bits
//   2  scales    likewise, if the type is quantised
//   3  x         [m, k rounded up to a multiple of 64] f16, zero beyond k, as f16_rows writes it
//   4  x_scales  [m] f32, if SPLITS is 1
//   5  y         [m, y_stride] f32: n columns from y_offset on are written. SPLITS > 1: [SPLITS, m, n] partial sums
//   6  params    MatMulParams (immediates where the device has them)
//
// Epilogue: ACTIVATION none writes the products. silu or gelu_tanh writes f(gate)·up; the weights then have 2·n rows,
// the gate's first. SPLITS > 1 is split-K: as many workgroups share the sum of an output, and sum_tiles adds the
// partial sums.
//
// Grid: tiles folded over x and y. A workgroup computes a tile of TILE_ROWS × TILE_COLUMNS (half of the columns are the
// gate's) in steps of STEP along k. Both operands of a step are staged in workgroup memory. COOPERATIVE: weights are
// rounded to f16, and subgroups multiply f16 cooperative matrices with f32 accumulators (lib/tiles_cooperative.wgsl).
// Else everything but x is f32 (lib/tiles_plain.wgsl). Either way sums run along k in one order whatever the tile's
// size, so that the bits of a row depend on that row alone. Twin: scalar::matmul of the f16 rows of scalar::f16_rows.

#if COOPERATIVE
enable f16;
enable wgpu_cooperative_matrix;
#endif

#include "params/MatMulParams"
#define PARAMS MatMulParams
#define PARAMS_BINDING 6
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

#define QUANTS_BINDING 0
#define HIGH_BINDING 1
#define SCALES_BINDING 2
#include "lib/weights.wgsl"
#include "lib/weights16.wgsl"

#if COOPERATIVE
struct F16x8 {
    low: vec4<f16>,
    high: vec4<f16>,
}
@group(0) @binding(3) var<storage, read> x: array<F16x8>;
#else
@group(0) @binding(3) var<storage, read> x: array<vec4<u32>>;
#endif
#if SPLITS == 1
@group(0) @binding(4) var<storage, read> x_scales: array<f32>;
#endif
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

#if ACTIVATION == none
#define OUT_COLUMNS TILE_COLUMNS
#else
#include "lib/activation.wgsl"
const OUT_COLUMNS: u32 = TILE_COLUMNS / 2u;
#endif

// Groups of 16 weights in a staged row, and groups of 8 elements in a staged row of x.
const WEIGHT_GROUPS: u32 = STEP / 16u;
const X_GROUPS: u32 = STEP / 8u;

// The weight row of a tile's column. Columns beyond the end repeat the last one and are not written.
fn weight_row(column: u32, first_column: u32) -> u32 {
#if ACTIVATION == none
    return min(first_column + column, params.n - 1u);
#else
    let gate_row = min(first_column + column % OUT_COLUMNS, params.n - 1u);
    return select(gate_row, params.n + gate_row, column >= OUT_COLUMNS);
#endif
}

fn load_weights(group: u32, step: u32, first_column: u32) -> Weights16 {
    let row = weight_row(group / WEIGHT_GROUPS, first_column);
    return load_weights16(row, step * WEIGHT_GROUPS + group % WEIGHT_GROUPS, params.k);
}

// The index of a group of eight of x. Rows are padded to whole steps.
fn x_index(group: u32, step: u32, first_row: u32) -> u32 {
    let row = min(first_row + group / X_GROUPS, params.m - 1u);
    return row * (params.x_stride / 8u) + step * X_GROUPS + group % X_GROUPS;
}

// The tile of a workgroup.
struct Tile {
    first_row: u32,
    first_column: u32,
    // Its range of steps along k; the last is excluded.
    first_step: u32,
    end_step: u32,
}

#if SPLITS > 1
// The workgroup's part of k.
var<private> split: u32;
#endif

fn tile_of(here: Invocation) -> Tile {
    // Neighbouring workgroups share weights, which are larger than x.
    let tiles = (params.m + TILE_ROWS - 1u) / TILE_ROWS;
    let index = workgroup_index(here);
    let steps = (params.k + STEP - 1u) / STEP;
#if SPLITS > 1
    let tiles_per_split = tiles * ((params.n + OUT_COLUMNS - 1u) / OUT_COLUMNS);
    split = min(index / tiles_per_split, SPLITS - 1u);
    let first = index % tiles_per_split;
    return Tile(
        first % tiles * TILE_ROWS, first / tiles * OUT_COLUMNS, split * steps / SPLITS, (split + 1u) * steps / SPLITS);
#else
    return Tile(index % tiles * TILE_ROWS, index / tiles * OUT_COLUMNS, 0u, steps);
#endif
}

#if ACTIVATION == none
fn write(row: u32, column: u32, sum: f32) {
#else
fn write(row: u32, column: u32, gate: f32, up: f32) {
#endif
    if (row >= params.m || column >= params.n) {
        return;
    }
#if SPLITS > 1
    y[(split * params.m + row) * params.n + column] = sum;
#else
    let at = row * params.y_stride + params.y_offset + column;
    let scale = x_scales[row];
#if ACTIVATION == none
    if (params.accumulate != 0u) {
        y[at] = fma(sum, scale, y[at]);
    } else {
        y[at] = sum * scale;
    }
#else
    y[at] = activated(gate * scale) * (up * scale);
#endif
#endif
}

#if COOPERATIVE
#include "lib/tiles_cooperative.wgsl"
#else
#include "lib/tiles_plain.wgsl"
#endif
