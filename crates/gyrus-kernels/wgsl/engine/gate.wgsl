// gate: out[r][i] = f(x[r][i]) * x[r][count + i].
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

fn activated(v: f32) -> f32 {
#if ACTIVATION == silu
    return v / (1.0 + exp(-v));
#else
    // Beyond ten, tanh is one to the last digit, and its quotient of sums would overflow.
    let t = clamp(0.7978845608 * (v + 0.044715 * v * v * v), -10.0, 10.0);
    return 0.5 * v * (1.0 + tanh(t));
#endif
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.group.x * WORKGROUP + here.lane;
    let row = here.group.y;
    if (i < params.count) {
        let at = 2u * row * params.count + i;
        out[row * params.count + i] = activated(x[at]) * x[at + params.count];
    }
}
