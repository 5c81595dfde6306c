// tiles: tiled mat-mul for many rows (prefill), y[r, y_offset + n] (+)= x_scales[r] · Σ_k weight[n, k]·x[r, k].
//
//   0  quants    the weight matrix in planes, by WEIGHT (lib/weights.wgsl)
//   1  high      likewise, if the type has high bits
//   2  scales    likewise, if the type is quantised
//   3  x         [m, k rounded up to a multiple of 128] f16, zero beyond k, as f16_rows writes it
//   4  x_scales  [m] f32, if SPLITS is 1
//   5  y         [m, y_stride] f32: n columns from y_offset on are written. SPLITS > 1: [SPLITS, m, n] partial sums
//   6  params    MatMulParams (immediates where the device has them)
//   7  order     EXPERTS: tiles of slots of one expert each, and the slots, as expert_tiles writes them
//   8  biases    BIAS: [rows of the matrix] f32
//
// Epilogue: the bias is added, then the function ACTIVATION (lib/activation.wgsl) is applied unless it is none. GATED
// writes f(gate)·up; the weights then have 2·n rows, the gate's first. SPLITS > 1 is split-K: as many workgroups share the sum of an output, and sum_tiles adds the
// partial sums.
//
// EXPERTS: the weights are those of EXPERT_COUNT experts (lib/expert_rows.wgsl). Rows of y are slots, USED for each of the
// m rows. With SHARED x has a row for all slots of a row, otherwise a row a slot. The grid has params.tiles tiles of
// rows, as many as there can be; those that `order` leaves empty return at once.
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

#if BIAS
@group(0) @binding(8) var<storage, read> biases: array<f32>;
#endif
#if EXPERTS
@group(0) @binding(7) var<storage, read> order: array<u32>;
#include "lib/expert_rows.wgsl"
// The expert of this workgroup's tile, and its slots.
var<private> expert: u32;
var<workgroup> tile_slots: array<u32, TILE_ROWS>;
// The number of its slots, in workgroup memory so that control flow that depends on it is uniform.
var<workgroup> slot_count: u32;
#endif

#if ACTIVATION != none
#include "lib/activation.wgsl"
#endif
#if GATED
const OUT_COLUMNS: u32 = TILE_COLUMNS / 2u;
#else
#define OUT_COLUMNS TILE_COLUMNS
#endif

// Groups of 16 weights in a staged row, and groups of 8 elements in a staged row of x.
const WEIGHT_GROUPS: u32 = STEP / 16u;
const X_GROUPS: u32 = STEP / 8u;

// The weight row of a tile's column. Columns beyond the end repeat the last one and are not written.
fn weight_row(column: u32, first_column: u32) -> u32 {
#if !GATED
    let row = min(first_column + column, params.n - 1u);
    let rows = params.n;
#else
    let gate_row = min(first_column + column % OUT_COLUMNS, params.n - 1u);
    let row = select(gate_row, params.n + gate_row, column >= OUT_COLUMNS);
    let rows = 2u * params.n;
#endif
#if EXPERTS
    return expert_row(expert, row, rows);
#else
    return row;
#endif
}

#if EXPERTS
// The row of x of a slot.
fn x_row(slot: u32) -> u32 {
#if SHARED
    return slot / USED;
#else
    return slot;
#endif
}
#endif

fn load_weights(group: u32, step: u32, first_column: u32) -> Weights16 {
    let row = weight_row(group / WEIGHT_GROUPS, first_column);
    return load_weights16(row, step * WEIGHT_GROUPS + group % WEIGHT_GROUPS, params.k);
}

// The index of a group of eight of x. Rows are padded to whole steps.
fn x_index(group: u32, step: u32, first_row: u32) -> u32 {
#if EXPERTS
    let row = x_row(tile_slots[group / X_GROUPS]);
#else
    let row = min(first_row + group / X_GROUPS, params.m - 1u);
#endif
    return row * (params.x_stride / 8u) + step * X_GROUPS + group % X_GROUPS;
}

// The tile of a workgroup.
struct Tile {
    // EXPERTS: 0; rows of the tile are slots of `tile_slots`.
    first_row: u32,
    // The rows that it has.
    rows: u32,
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
#if EXPERTS
    let tiles = params.tiles;
#else
    let tiles = (params.m + TILE_ROWS - 1u) / TILE_ROWS;
#endif
    let index = workgroup_index(here);
    let steps = (params.k + STEP - 1u) / STEP;
#if SPLITS > 1
    let tiles_per_split = tiles * ((params.n + OUT_COLUMNS - 1u) / OUT_COLUMNS);
    split = min(index / tiles_per_split, SPLITS - 1u);
    let first = index % tiles_per_split;
    return Tile(
        first % tiles * TILE_ROWS, params.m, first / tiles * OUT_COLUMNS, split * steps / SPLITS, (split + 1u) * steps / SPLITS);
#elif EXPERTS
    let at = 4u * (index % tiles);
    expert = order[at];
    let rows = order[at + 2u];
    // Rows beyond the end repeat the last one and are not written.
    for (var row = here.local_index; row < TILE_ROWS; row += WORKGROUP) {
        tile_slots[row] = order[4u * params.tiles + order[at + 1u] + min(row, max(rows, 1u) - 1u)];
    }
    if (here.local_index == 0u) {
        slot_count = rows;
    }
    workgroupBarrier();
    // A folded grid may have a few workgroups too many: their columns are beyond the end.
    return Tile(0u, rows, index / tiles * OUT_COLUMNS, 0u, steps);
#else
    return Tile(index % tiles * TILE_ROWS, params.m, index / tiles * OUT_COLUMNS, 0u, steps);
#endif
}

// A value of a tile's column plus its bias.
fn with_bias(value: f32, column: u32, tile: Tile) -> f32 {
#if BIAS
    return value + biases[weight_row(column, tile.first_column)];
#else
    return value;
#endif
}

#if !GATED
fn write(tile_row: u32, column: u32, sum: f32, tile: Tile) {
#else
fn write(tile_row: u32, column: u32, gate: f32, up: f32, tile: Tile) {
#endif
    if (tile_row >= tile.rows || column >= params.n) {
        return;
    }
#if EXPERTS
    let row = tile_slots[tile_row];
    let scale_row = x_row(row);
#else
    let row = tile_row;
    let scale_row = tile_row;
#endif
#if SPLITS > 1
    y[(split * params.m + row) * params.n + column] = sum;
#else
    let at = row * params.y_stride + params.y_offset + column;
    let scale = x_scales[scale_row];
    let own_column = column - tile.first_column;
#if GATED
    y[at] = gated(
        with_bias(gate * scale, own_column, tile), with_bias(up * scale, own_column + OUT_COLUMNS, tile));
#elif ACTIVATION != none
    y[at] = activated(with_bias(sum * scale, own_column, tile));
#else
    if (params.accumulate != 0u) {
        y[at] = with_bias(fma(sum, scale, y[at]), own_column, tile);
    } else {
        y[at] = with_bias(sum * scale, own_column, tile);
    }
#endif
#endif
}

#if COOPERATIVE
#include "lib/tiles_cooperative.wgsl"
#else
#include "lib/tiles_plain.wgsl"
#endif
