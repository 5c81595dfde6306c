// gate: out[r][i] = f(x[r][i]) * x[r][count + i], the gated activation of a feed-forward layer.
//
//   0  x       [rows, 2 * count] f32, read: gate and up projections side by side
//   1  out     [rows, count] f32, written
//   2  params  ElementwiseParams (immediates where the device has them)
//
// ACTIVATION is silu or gelu_tanh. Grid: (ceil(count / WORKGROUP), rows). Twin: scalar::gate.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

#include "lib/activation.wgsl"

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    let row = here.workgroup.y;
    if (i < params.count) {
        let at = 2u * row * params.count + i;
        out[row * params.count + i] = gated(x[at], x[at + params.count]);
    }
}
