// gate_by: x[r][i] = f(x[r][i]) * by[r][first + i]. mul_by, with MULTIPLY: x[r][i] *= f(by[r][first + i]).
//
//   0  x       [rows, count] f32, read and written
//   1  by      [rows, stride] f32, read
//   2  params  GateByParams (immediates where the device has them)
//
// ACTIVATION is the name of f, see lib/activation.wgsl. Grid: (ceil(count / WORKGROUP), rows). Twin: scalar::Reference.

#include "params/GateByParams"
#define PARAMS GateByParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> by: array<f32>;

#include "lib/activation.wgsl"

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    let row = here.workgroup.y;
    if (i < params.count) {
        let at = row * params.count + i;
        let factor = by[row * params.stride + params.first + i];
#if MULTIPLY
        x[at] *= activated(factor);
#else
        x[at] = gated(x[at], factor);
#endif
    }
}
