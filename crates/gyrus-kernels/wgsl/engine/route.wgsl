// route: the experts of each row, those with the largest router logits, of equal ones the lowest id first; and their
// weights, a softmax over all experts or over the chosen ones.
//
//   0  logits  [rows, EXPERT_COUNT] f32, read
//   1  scale   [EXPERT_COUNT] f32, a factor on each expert's weight, if SCALE
//   2  out     [rows, 2 * USED] f32, written: ids in the order of descending logits, then weights
//   3  params  ElementwiseParams (immediates where the device has them); not used
//
// OVER_ALL 1: the softmax is over all experts. If a logit is not finite, the ids are 0 to USED - 1 and the weights NaN.
// The rank of an expert is the number of experts before it, so that nothing is sorted. Sums in f32, in the order of ids
// or ranks. Grid: (1, rows), a workgroup a row. Twin: scalar::route.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#define WORKGROUP 256u
// Experts are read four at a time: a load from workgroup memory takes longer than four comparisons.
#define VECTORS ((EXPERT_COUNT + 3u) / 4u)
// The least finite number, for experts beyond the last. None is before an expert of the row.
#define LEAST 0xff7fffffu

@group(0) @binding(0) var<storage, read> logits: array<f32>;
#if SCALE
@group(0) @binding(1) var<storage, read> scale: array<f32>;
#endif
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

var<workgroup> row_logits: array<vec4<f32>, VECTORS>;
var<workgroup> chosen: array<u32, USED>;
var<workgroup> not_finite: atomic<u32>;
#if OVER_ALL
var<workgroup> exponentials: array<vec4<f32>, VECTORS>;
#endif

fn logit_of(expert: u32) -> f32 {
    return row_logits[expert / 4u][expert % 4u];
}

// How many experts come before one: those with a larger logit, and of equal ones those with a lower id.
fn rank_of(expert: u32, logit: f32) -> u32 {
    var before = vec4<u32>();
    for (var i = 0u; i < VECTORS; i += 1u) {
        let others = row_logits[i];
        let ids = 4u * i + vec4<u32>(0u, 1u, 2u, 3u);
        let larger = others > vec4<f32>(logit);
        let equal = (others == vec4<f32>(logit)) & (ids < vec4<u32>(expert));
        before += select(vec4<u32>(), vec4<u32>(1u), larger | equal);
    }
    return (before.x + before.y) + (before.z + before.w);
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let lane = here.local_index;
    let row = here.workgroup.y;
    if (lane == 0u) {
        atomicStore(&not_finite, 0u);
    }
    workgroupBarrier();
    for (var i = lane; i < VECTORS; i += WORKGROUP) {
        var four = vec4<f32>(bitcast<f32>(LEAST));
        for (var j = 0u; j < min(4u, EXPERT_COUNT - 4u * i); j += 1u) {
            let logit = logits[row * EXPERT_COUNT + 4u * i + j];
            four[j] = logit;
            // By its bits: compilers may assume that comparisons see numbers only.
            if ((bitcast<u32>(logit) & 0x7f800000u) == 0x7f800000u) {
                atomicStore(&not_finite, 1u);
            }
        }
        row_logits[i] = four;
    }
    workgroupBarrier();
    for (var expert = lane; expert < EXPERT_COUNT; expert += WORKGROUP) {
        let rank = rank_of(expert, logit_of(expert));
        if (rank < USED) {
            chosen[rank] = expert;
        }
    }
    workgroupBarrier();
    let is_wrong = atomicLoad(&not_finite) != 0u;
    if (is_wrong) {
        for (var slot = lane; slot < USED; slot += WORKGROUP) {
            out[row * (2u * USED) + slot] = f32(slot);
            // A NaN that is no constant, which WGSL does not allow.
            out[row * (2u * USED) + USED + slot] = bitcast<f32>(0x7fc00000u * atomicLoad(&not_finite));
        }
        return;
    }
    let largest = logit_of(chosen[0]);
#if OVER_ALL
    for (var i = lane; i < VECTORS; i += WORKGROUP) {
        let ids = 4u * i + vec4<u32>(0u, 1u, 2u, 3u);
        let is_expert = ids < vec4<u32>(EXPERT_COUNT);
        exponentials[i] = select(vec4<f32>(), exp(row_logits[i] - largest), is_expert);
    }
    workgroupBarrier();
#endif
    for (var slot = lane; slot < USED; slot += WORKGROUP) {
        var sum = 0.0;
#if OVER_ALL
        // Those of experts beyond the last are 0.
        for (var i = 0u; i < VECTORS; i += 1u) {
            let four = exponentials[i];
            sum = (((sum + four.x) + four.y) + four.z) + four.w;
        }
#else
        for (var other = 0u; other < USED; other += 1u) {
            sum += exp(logit_of(chosen[other]) - largest);
        }
#endif
        let expert = chosen[slot];
        var weight = exp(logit_of(expert) - largest) / sum;
#if SCALE
        weight *= scale[expert];
#endif
        out[row * (2u * USED) + slot] = f32(expert);
        out[row * (2u * USED) + USED + slot] = weight;
    }
}
