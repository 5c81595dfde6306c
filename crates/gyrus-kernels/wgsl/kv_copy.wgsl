// kv_copy: copies blocks of a layer's paged KV cache to other blocks, when sequences that share them diverge.
//
//   0  k_cache  blocks of `count` vec4<u32>, read and written
//   1  v_cache  likewise
//   2  params   ElementwiseParams (immediates where the device has them): count, vectors of a block
//   3  pairs    (source, target) block numbers u32, read
//
// No target is a source or another target of the same launch: KvCopyCall::pairs checks that. Grid: (ceil(count /
// WORKGROUP), pairs, 2), K then V. Twin: scalar::kv_copy.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read_write> k_cache: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> v_cache: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> pairs: array<vec2<u32>>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    if (i >= params.count) {
        return;
    }
    let at = pairs[here.workgroup.y] * params.count + i;
    if (here.workgroup.z == 0u) {
        k_cache[at.y] = k_cache[at.x];
    } else {
        v_cache[at.y] = v_cache[at.x];
    }
}
