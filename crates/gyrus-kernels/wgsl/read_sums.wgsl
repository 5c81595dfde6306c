// read_sums: y = sums of the words of x modulo 2^32, one for each 32 KiB. The bandwidth baseline for kernels that mostly read.
//
//   0  x       [count] vec4<u32>, read
//   1  y       [ceil(count / 2048)] u32, written
//   2  params  ElementwiseParams (immediates where the device has them)
//
// Grid: ceil(count / 2048) workgroups of 256, folded over x and y. An invocation has eight loads in flight. Twin:
// scalar::read_sums.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#define WORKGROUP 256u
#define LOADS 8u

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

var<workgroup> total: atomic<u32>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    if (here.local_index == 0u) {
        atomicStore(&total, 0u);
    }
    workgroupBarrier();
    let first = workgroup_index(here) * (WORKGROUP * LOADS);
    var sum = vec4<u32>(0u);
    for (var load = 0u; load < LOADS; load++) {
        let i = first + load * WORKGROUP + here.local_index;
        if (i < params.count) {
            sum += x[i];
        }
    }
    atomicAdd(&total, sum.x + sum.y + sum.z + sum.w);
    workgroupBarrier();
    if (here.local_index == 0u && first < params.count) {
        y[workgroup_index(here)] = atomicLoad(&total);
    }
}
