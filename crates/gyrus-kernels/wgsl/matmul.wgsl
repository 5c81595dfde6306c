// matmul: y[r, y_offset + n] (+)= Σ_k weight[n, k]·x[r, k], for few rows; the weights are read once for ROWS of them.
//
//   0  quants    the weight matrix in planes, by WEIGHT (lib/weights.wgsl)
//   1  high      likewise, if the type has upper bits
//   2  scales    likewise, if the type is quantised
//   3  x         ACTIVATIONS f32: [m, k] f32, rows x_stride apart. ACTIVATIONS int8: [m, 2, k / 32] vectors of
//                sixteen signed bytes, as quantize_rows writes them
//   4  x_scales  [m, k / 32] as quantize_rows writes them, if ACTIVATIONS is int8
//   5  y         [m, y_stride] f32, written in n columns from y_offset on
//   6  params    MatMulParams (immediates where the device has them)
//
// A team of LANES invocations takes COLUMNS of the output for ROWS rows; an invocation takes every LANES-th unit of
// the sum. Sums are f32 (of a block of 32, int8 products are summed as integers), and contracted only where it is
// written: a row's bits are the same for every ROWS, COLUMNS and number of rows. Twin: scalar::matmul.

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

#if ACTIVATIONS == int8
@group(0) @binding(3) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> x_scales: array<vec2<u32>>;
#define PARTIAL f32
#else
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
#define PARTIAL vec4<f32>
#endif
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

#if ACTIVATIONS == int8
fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// A block's part of the sum, added to what there was.
fn block_dot(w: Block, row: u32, block: u32, sum: f32) -> f32 {
    let blocks = params.k / 32u;
    let first = dot16(w.first, x[2u * row * blocks + block]);
    let last = dot16(w.last, x[(2u * row + 1u) * blocks + block]);
    let of_x = x_scales[row * blocks + block];
    let scale = bitcast<f32>(of_x.x);
#if OFFSETS || ZERO > 0
    // Sums of the sixteen first and last bytes.
    let sum_first = extractBits(bitcast<i32>(of_x.y), 0u, 16u);
    let sum_last = bitcast<i32>(of_x.y) >> 16u;
#else
    let sum_first = 0;
    let sum_last = 0;
#endif
#if SCALES == 1
    let product = f32(first + last - ZERO * (sum_first + sum_last));
    var all = fma(scale * w.scales.scale.x, product, sum);
#if OFFSETS
    all = fma(scale * w.scales.offset.x, f32(sum_first + sum_last), all);
#endif
#else
    var all = fma(scale * w.scales.scale.x, f32(first - ZERO * sum_first), sum);
    all = fma(scale * w.scales.scale.y, f32(last - ZERO * sum_last), all);
#if OFFSETS
    all = fma(scale * w.scales.offset.x, f32(sum_first), all);
    all = fma(scale * w.scales.offset.y, f32(sum_last), all);
#endif
#endif
    return all;
}
#endif

@compute @workgroup_size(WORKGROUP)
#if SUBGROUPS
fn KERNEL(here: Invocation, @builtin(subgroup_size) subgroup_size: u32) {
    let member = team_member(here, subgroup_size);
#else
fn KERNEL(here: Invocation) {
    let member = team_member(here);
#endif
    let lane = member.place % LANES;
    // Neighbouring workgroups share weights, not activations.
    let tiles = (params.m + ROWS - 1u) / ROWS;
    let index = group_index(here);
    let first_row = (index % tiles) * ROWS;
    let first_column = (index / tiles * (WORKGROUP / LANES) + member.place / LANES) * COLUMNS;

    // Those beyond the end do the last one's work and keep it to themselves: barriers want them all.
    var sums: array<PARTIAL, SUMS>;
    let units = weight_units(params.k);
    for (var unit = lane; unit < units; unit += LANES) {
        for (var c = 0u; c < COLUMNS; c += 1u) {
            let column = min(first_column + c, params.n - 1u);
#if ACTIVATIONS == int8
            let w = weight_block(column, unit, params.k);
            for (var r = 0u; r < ROWS; r += 1u) {
                let row = min(first_row + r, params.m - 1u);
                sums[c * ROWS + r] = block_dot(w, row, unit, sums[c * ROWS + r]);
            }
#else
            var w = weight_values(column, unit, params.k);
            for (var r = 0u; r < ROWS; r += 1u) {
                let row = min(first_row + r, params.m - 1u) * (params.x_stride / 4u);
                var sum = sums[c * ROWS + r];
                for (var i = 0u; i < UNIT_VECTORS; i += 1u) {
#if UNIT_VECTORS == 2
                    // A padded unit: its zeros may meet any number of this row.
                    let at = min(2u * unit + i, params.k / 4u - 1u);
#else
                    let at = 8u * unit + i;
#endif
                    sum = fma(w[i], x[row + at], sum);
                }
                sums[c * ROWS + r] = sum;
            }
#endif
        }
    }
    for (var i = 0u; i < SUMS; i += 1u) {
#if ACTIVATIONS == int8
        let own = sums[i];
#else
        let own = (sums[i].x + sums[i].y) + (sums[i].z + sums[i].w);
#endif
        let sum = team_sum(own, member);
        let row = first_row + i % ROWS;
        let column = first_column + i / ROWS;
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
