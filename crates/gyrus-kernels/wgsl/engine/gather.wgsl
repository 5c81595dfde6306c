// gather: out[i] = x[indices[first + i]], rows of `count` elements.
//
//   0  x        [rows, count] f32, read
//   1  indices  u32, read
//   2  out      [_, count] f32, written
//   3  params   ElementwiseParams (immediates where the device has them): count, and `first` as _pad0
//
// Grid: (ceil(count / WORKGROUP), number of rows to gather). Twin: a copy of rows, in scalar::Reference.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    if (i < params.count) {
        let row = indices[params._pad0 + here.workgroup.y];
        out[here.workgroup.y * params.count + i] = x[row * params.count + i];
    }
}
