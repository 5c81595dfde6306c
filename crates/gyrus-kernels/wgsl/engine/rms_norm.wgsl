// rms_norm: out = x / sqrt(mean(x^2) + eps) * weight, row by row.
//
//   0  x       [rows, dim] f32; read and, if IN_PLACE, written
//   1  weight  [dim] f32, read
//   2  out     [rows, dim] f32, written; absent if IN_PLACE
//   3  params  RMSNormParams (immediates where the device has them)
//
// Grid: (1, rows), a workgroup a row. Sums in f32. Twin: scalar::rms_norm.

#include "params/RMSNormParams"
#define PARAMS RMSNormParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

#if IN_PLACE
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
#define TARGET x
#else
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
#define TARGET out
#endif

#include "lib/sum.wgsl"

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let row = here.group.y * params.dim;
    var squares = 0.0;
    for (var i = here.lane; i < params.dim; i += WORKGROUP) {
        squares += x[row + i] * x[row + i];
    }
    let factor = inverseSqrt(workgroup_sum(squares, here) / f32(params.dim) + params.eps);
    for (var i = here.lane; i < params.dim; i += WORKGROUP) {
        TARGET[row + i] = x[row + i] * factor * weight[i];
    }
}
