// sum_tiles: the reduction after a split-K tiles, y[r, y_offset + n] (+)= x_scales[r] · Σ_s parts[s, r, n].
//
//   0  parts     [splits, m, n] f32
//   1  x_scales  [m] f32
//   2  y         [m, y_stride] f32: n columns from y_offset on are written
//   3  params    SumTilesParams (immediates where the device has them)
//
// Grid: one invocation an output, folded over x and y. The parts are added in order. Twin: scalar::matmul.

#include "params/SumTilesParams"
#define PARAMS SumTilesParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read> parts: array<f32>;
@group(0) @binding(1) var<storage, read> x_scales: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let outputs = params.m * params.n;
    let index = workgroup_index(here) * WORKGROUP + here.local_index;
    if (index >= outputs) {
        return;
    }
    let row = index / params.n;
    var sum = parts[index];
    for (var split = 1u; split < params.splits; split += 1u) {
        sum += parts[split * outputs + index];
    }
    let at = row * params.y_stride + params.y_offset + index % params.n;
    if (params.accumulate != 0u) {
        y[at] = fma(sum, x_scales[row], y[at]);
    } else {
        y[at] = sum * x_scales[row];
    }
}
