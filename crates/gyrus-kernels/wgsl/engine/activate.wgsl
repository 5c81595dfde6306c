// activate: x[r][i] = f(x[r][i]).
//
//   0  x       [rows, count] f32, read and written
//   1  params  ElementwiseParams (immediates where the device has them)
//
// ACTIVATION is the name of f, see lib/activation.wgsl. Grid: (ceil(count / WORKGROUP), rows). Twin: scalar::activate.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 1
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;

#include "lib/activation.wgsl"

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    if (i < params.count) {
        let at = here.workgroup.y * params.count + i;
        x[at] = activated(x[at]);
    }
}
