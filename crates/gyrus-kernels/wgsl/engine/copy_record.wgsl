// copy_record: copies a record of a layer's state to another.
//
//   0  state   [records, count] vec4<f32>, read and written
//   1  pair    [2] u32, read: the record that is copied, or 0xffffffff for zeros, and the one that is overwritten
//   2  params  ElementwiseParams (immediates where the device has them)
//
// Grid: (ceil(count / WORKGROUP), 1). Twin: scalar::Reference.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read_write> state: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> pair: array<u32>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    if (i < params.count) {
        var value = vec4<f32>(0.0);
        if (pair[0] != 0xffffffffu) {
            value = state[pair[0] * params.count + i];
        }
        state[pair[1] * params.count + i] = value;
    }
}
