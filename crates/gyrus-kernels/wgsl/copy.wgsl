// copy: y = x, sixteen bytes at a time. The bandwidth baseline for other kernels.
//
//   0  x       [count] vec4<u32>, read
//   1  y       likewise, written
//   2  params  ElementwiseParams (immediates where the device has them)
//
// Grid: ceil(count / WORKGROUP), folded over x and y. Twin: scalar::kv_copy of one block.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = workgroup_index(here) * WORKGROUP + here.local_index;
    if (i < params.count) {
        y[i] = x[i];
    }
}
