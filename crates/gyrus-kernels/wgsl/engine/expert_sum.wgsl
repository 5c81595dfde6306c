// expert_sum: out[r][i] (+)= the weighted sum of a row's experts, weight[r][s] * x[r * USED + s][i], in the order of slots.
//
//   0  x       [rows * USED, count] f32, read
//   1  routes  [rows, 2 * USED] f32, read (lib/experts.wgsl)
//   2  out     [rows, count] f32, written; with ACCUMULATE added to
//   3  params  ElementwiseParams (immediates where the device has them)
//
// Grid: (ceil(count / WORKGROUP), rows). Twin: scalar::expert_sum.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
#define ROUTE_BINDING 1
#include "lib/experts.wgsl"
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    let row = here.workgroup.y;
    if (i < params.count) {
        var sum = 0.0;
        for (var slot = 0u; slot < USED; slot += 1u) {
            sum = fma(expert_weight(row, slot), x[(row * USED + slot) * params.count + i], sum);
        }
#if ACCUMULATE
        out[row * params.count + i] += sum;
#else
        out[row * params.count + i] = sum;
#endif
    }
}
