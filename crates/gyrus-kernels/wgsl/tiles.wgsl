// tiles: y[r, y_offset + n] (+)= x_scales[r] · Σ_k weight[n, k]·x[r, k], for many rows.
//
//   0  quants    the weight matrix in planes, by WEIGHT (lib/weights.wgsl)
//   1  high      likewise, if the type has upper bits
//   2  scales    likewise, if the type is quantised
//   3  x         [m, k rounded up to whole 64] f16, zero beyond k: as f16_rows writes them
//   4  x_scales  [m] f32, if SPLITS is 1
//   5  y         [m, y_stride] f32, written in n columns from y_offset on; [SPLITS, m, n] if SPLITS is not 1
//   6  params    MatMulParams (immediates where the device has them)
//
// ACTIVATION none writes the products. silu or gelu_tanh writes f(gate)·up: the weights have 2·n rows, first those of
// the gate.
//
// SPLITS divides k between so many workgroups, whose sums sum_tiles adds up.
//
// A workgroup computes a tile of TILE_ROWS × TILE_COLUMNS (half of them the gate's) in steps of STEP along
// k, for which both operands are staged in workgroup memory. COOPERATIVE: weights are rounded to halves, subgroups
// multiply matrices of halves and sum in f32 (lib/tiles_cooperative.wgsl). Else all is f32 but x
// (lib/tiles_plain.wgsl). Either way a sum runs along k in one order whatever the tile's size: a row's bits depend on
// the row alone. Twin: scalar::matmul of what scalar::f16_rows says.

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
#include "lib/weights_sixteen.wgsl"

#if COOPERATIVE
struct Eight {
    low: vec4<f16>,
    high: vec4<f16>,
}
@group(0) @binding(3) var<storage, read> x: array<Eight>;
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

// Sixteens of a staged row of weights, and eights of one of x.
const SIXTEENS: u32 = STEP / 16u;
const EIGHTS: u32 = STEP / 8u;

// The row of the weights that is a tile's column. Those beyond the end are the last one again, and are not written.
fn weight_row(column: u32, first_column: u32) -> u32 {
#if ACTIVATION == none
    return min(first_column + column, params.n - 1u);
#else
    let of_gate = min(first_column + column % OUT_COLUMNS, params.n - 1u);
    return select(of_gate, params.n + of_gate, column >= OUT_COLUMNS);
#endif
}

fn fetch_weights(group: u32, step: u32, first_column: u32) -> Sixteen {
    let row = weight_row(group / SIXTEENS, first_column);
    return weight_sixteen(row, step * SIXTEENS + group % SIXTEENS, params.k);
}

// Where a group of eight of x is; rows have whole steps.
fn place_of_x(group: u32, step: u32, first_row: u32) -> u32 {
    let row = min(first_row + group / EIGHTS, params.m - 1u);
    return row * (params.x_stride / 8u) + step * EIGHTS + group % EIGHTS;
}

// A workgroup's place.
struct Tile {
    first_row: u32,
    first_column: u32,
    // Steps along k, from the first to before the last.
    first_step: u32,
    last_step: u32,
}

#if SPLITS > 1
// Which part of k it is.
var<private> split: u32;
#endif

fn tile(here: Invocation) -> Tile {
    // Neighbouring workgroups share weights, of which there are more than of x.
    let tiles = (params.m + TILE_ROWS - 1u) / TILE_ROWS;
    let index = workgroup_index(here);
    let steps = (params.k + STEP - 1u) / STEP;
#if SPLITS > 1
    let all = tiles * ((params.n + OUT_COLUMNS - 1u) / OUT_COLUMNS);
    split = min(index / all, SPLITS - 1u);
    let first = index % all;
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
