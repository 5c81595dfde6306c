// rms_norm, layer_norm and their forms with a residual: normalises each row.
//
//   NORM rms    y = v / sqrt(mean(v^2) + eps) * weight; with PLUS_ONE, checkpoints store weight - 1
//   NORM layer  y = (v - mean(v)) / sqrt(mean((v - mean(v))^2) + eps) * weight, plus bias if BIAS
//
//   0  x         [rows, dim] f32, read; written if RESIDUAL or IN_PLACE
//   1  weight    [dim] f32, read
//   2  out       [rows, dim] f32, written; absent if IN_PLACE
//   3  params    RMSNormParams or LayerNormParams (immediates where the device has them)
//   4  residual  [rows, dim] f32, read; only if RESIDUAL
//   5  bias      [dim] f32, read; only if BIAS
//
// COLUMNS: parts of rows are normalised in place, from column `first` on; params is ColumnNormParams, the grid is
// (parts, rows). ADD: the normalised row times scale is added to out, and dim is that of RMSNormParams.
//
// v is x, or x + residual. The sum x + residual is written to x and the normalised row to out. IN_PLACE writes the
// normalised row to x and does not store the sum. Grid: (1, rows), a workgroup a row. An invocation holds
// VECTORS_PER_INVOCATION vectors (of four elements with VECTOR, else of one) in registers from load to store. Sums in
// f32. Twin: scalar::norm.

#if NORM == layer
#include "params/LayerNormParams"
#define PARAMS LayerNormParams
#elif COLUMNS
#include "params/ColumnNormParams"
#define PARAMS ColumnNormParams
#else
#include "params/RMSNormParams"
#define PARAMS RMSNormParams
#endif
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

#if VECTOR
#define ELEMENTS vec4<f32>
#define WIDTH 4u
#else
#define ELEMENTS f32
#define WIDTH 1u
#endif

#if IN_PLACE || RESIDUAL
@group(0) @binding(0) var<storage, read_write> x: array<ELEMENTS>;
#else
@group(0) @binding(0) var<storage, read> x: array<ELEMENTS>;
#endif
@group(0) @binding(1) var<storage, read> weight: array<ELEMENTS>;
#if !IN_PLACE
@group(0) @binding(2) var<storage, read_write> out: array<ELEMENTS>;
#endif
#if RESIDUAL
@group(0) @binding(4) var<storage, read> residual: array<ELEMENTS>;
#endif
#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<ELEMENTS>;
#endif

#include "lib/sum.wgsl"

// The sum of a vector's elements.
fn horizontal_sum(v: ELEMENTS) -> f32 {
#if VECTOR
    return (v.x + v.y) + (v.z + v.w);
#else
    return v;
#endif
}

fn normalised(v: ELEMENTS, factor: f32, at: u32) -> ELEMENTS {
#if PLUS_ONE
    let y = v * factor * (weight[at] + 1.0);
#else
    let y = v * factor * weight[at];
#endif
#if BIAS
    return y + bias[at];
#else
    return y;
#endif
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let count = params.dim / WIDTH;
#if COLUMNS
    let row = (here.workgroup.y * params.stride + params.first) / WIDTH + here.workgroup.x * count;
#else
    let row = here.workgroup.y * count;
#endif
    var values: array<ELEMENTS, VECTORS_PER_INVOCATION>;
    // Invocations beyond the end load the last vector, so that no load is inside a branch.
    for (var k = 0u; k < VECTORS_PER_INVOCATION; k += 1u) {
        let at = row + min(here.local_index + k * WORKGROUP, count - 1u);
#if RESIDUAL
        values[k] = x[at] + residual[at];
#else
        values[k] = x[at];
#endif
    }
#if NORM == layer
    var total = 0.0;
    for (var k = 0u; k < VECTORS_PER_INVOCATION; k += 1u) {
        if (here.local_index + k * WORKGROUP < count) {
            total += horizontal_sum(values[k]);
        }
    }
    let mean = workgroup_sum(total, here) / f32(params.dim);
    // The next sum overwrites the memory this one is read from.
    workgroupBarrier();
#endif
    var squares = 0.0;
    for (var k = 0u; k < VECTORS_PER_INVOCATION; k += 1u) {
        if (here.local_index + k * WORKGROUP < count) {
#if RESIDUAL && !IN_PLACE
            x[row + here.local_index + k * WORKGROUP] = values[k];
#endif
#if NORM == layer
            values[k] -= mean;
#endif
            squares += horizontal_sum(values[k] * values[k]);
        }
    }
    let factor = inverseSqrt(workgroup_sum(squares, here) / f32(params.dim) + params.eps);
    for (var k = 0u; k < VECTORS_PER_INVOCATION; k += 1u) {
        let i = here.local_index + k * WORKGROUP;
        if (i < count) {
#if IN_PLACE
            x[row + i] = normalised(values[k], factor, i);
#elif ADD
            out[row + i] += params.scale * normalised(values[k], factor, i);
#else
            out[row + i] = normalised(values[k], factor, i);
#endif
        }
    }
}
