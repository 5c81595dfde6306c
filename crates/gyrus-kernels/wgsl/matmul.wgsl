// matmul: y[r, y_offset + n] (+)= Σ_k weight[n, k]·x[r, k] in f32, for few rows; ROWS rows share one read of the
// weights.
//
//   0  quants    the weight matrix in planes, by WEIGHT (lib/weights.wgsl)
//   1  high      likewise, if the type has high bits
//   2  scales    likewise, if the type is quantised
//   3  x         [m, k] f32, rows x_stride apart
//   5  y         [m, y_stride] f32: n columns from y_offset on are written
//   6  params    MatMulParams (immediates where the device has them)
//   7  routes    EXPERTS: [rows, 2 * USED] f32, the experts of each row (lib/experts.wgsl)
//   8  biases    BIAS: [rows of the matrix] f32
//
// EXPERTS: as in matvec with EXPERTS each; ROWS is 1.
//
// Grid: (row tiles · column tiles folded over x and y). A group of LANES invocations computes COLUMNS outputs for ROWS
// rows; a lane takes every LANES-th unit of the sum. Sums are f32 with explicit fma, so that the bits of a row are the
// same for every ROWS, COLUMNS and m. matvec is the int8 counterpart. Twin: scalar::matmul.

#include "params/MatMulParams"
#define PARAMS MatMulParams
#define PARAMS_BINDING 6
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 128u;
override LANES: u32 = 32u;

#define QUANTS_BINDING 0
#define HIGH_BINDING 1
#define SCALES_BINDING 2
#include "lib/weights.wgsl"
#include "lib/lanes.wgsl"

@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

#if EXPERTS
#define ROUTE_BINDING 7
#include "lib/experts.wgsl"
#include "lib/expert_rows.wgsl"
#if BIAS
@group(0) @binding(8) var<storage, read> biases: array<f32>;
#endif
#endif

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let thread = thread_of(here);
    let lane = thread.index % LANES;
    // Neighbouring workgroups share weights, not activations.
    let tiles = (params.m + ROWS - 1u) / ROWS;
    let index = workgroup_index(here);
    let first_row = (index % tiles) * ROWS;
    let first_column = (index / tiles * (WORKGROUP / LANES) + thread.index / LANES) * COLUMNS;

#if EXPERTS
    let slot = min(first_row, params.m - 1u);
    let expert = expert_of(slot / USED, slot % USED);
#endif
    // Rows and columns beyond the end repeat the last one and are not written: the barriers need all invocations.
    var sums: array<vec4<f32>, SUMS>;
    let units = weight_units(params.k);
    for (var unit = lane; unit < units; unit += LANES) {
        for (var c = 0u; c < COLUMNS; c += 1u) {
            let column = min(first_column + c, params.n - 1u);
#if EXPERTS
            var w = weight_values(expert_row(expert, column, params.n), unit, params.k);
#else
            var w = weight_values(column, unit, params.k);
#endif
            for (var r = 0u; r < ROWS; r += 1u) {
#if EXPERTS && SHARED
                let row = slot / USED * (params.x_stride / 4u);
#else
                let row = min(first_row + r, params.m - 1u) * (params.x_stride / 4u);
#endif
                var sum = sums[c * ROWS + r];
                for (var i = 0u; i < UNIT_VECTORS; i += 1u) {
#if UNIT_VECTORS == 2
                    // In a padded unit the weights are 0, so any element of x may be read instead.
                    let at = min(2u * unit + i, params.k / 4u - 1u);
#else
                    let at = 8u * unit + i;
#endif
                    sum = fma(w[i], x[row + at], sum);
                }
                sums[c * ROWS + r] = sum;
            }
        }
    }
    for (var i = 0u; i < SUMS; i += 1u) {
        let lane_sum = (sums[i].x + sums[i].y) + (sums[i].z + sums[i].w);
        var sum = reduce_sum(lane_sum, thread);
        let row = first_row + i % ROWS;
        let column = first_column + i / ROWS;
#if BIAS
        sum += biases[expert_row(expert, min(column, params.n - 1u), params.n)];
#endif
        if (lane == i % LANES && row < params.m && column < params.n) {
            let at = row * params.y_stride + params.y_offset + column;
            if (params.accumulate != 0u) {
                y[at] += sum;
            } else {
                y[at] = sum;
            }
        }
    }
}
