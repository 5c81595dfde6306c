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

#define WORKGROUP 128u

@group(0) @binding(0) var<storage, read> logits: array<f32>;
#if SCALE
@group(0) @binding(1) var<storage, read> scale: array<f32>;
#endif
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

var<workgroup> row_logits: array<f32, EXPERT_COUNT>;
var<workgroup> chosen: array<u32, USED>;
var<workgroup> not_finite: atomic<u32>;
#if OVER_ALL
var<workgroup> exponentials: array<f32, EXPERT_COUNT>;
#endif

fn is_before(other: u32, other_logit: f32, expert: u32, logit: f32) -> bool {
    return other_logit > logit || (other_logit == logit && other < expert);
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let lane = here.local_index;
    let row = here.workgroup.y;
    if (lane == 0u) {
        atomicStore(&not_finite, 0u);
    }
    workgroupBarrier();
    for (var expert = lane; expert < EXPERT_COUNT; expert += WORKGROUP) {
        let logit = logits[row * EXPERT_COUNT + expert];
        row_logits[expert] = logit;
        // By its bits: compilers may assume that comparisons see numbers only.
        if ((bitcast<u32>(logit) & 0x7f800000u) == 0x7f800000u) {
            atomicStore(&not_finite, 1u);
        }
    }
    workgroupBarrier();
    for (var expert = lane; expert < EXPERT_COUNT; expert += WORKGROUP) {
        let logit = row_logits[expert];
        var rank = 0u;
        for (var other = 0u; other < EXPERT_COUNT; other += 1u) {
            rank += u32(is_before(other, row_logits[other], expert, logit));
        }
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
    let largest = row_logits[chosen[0]];
#if OVER_ALL
    for (var expert = lane; expert < EXPERT_COUNT; expert += WORKGROUP) {
        exponentials[expert] = exp(row_logits[expert] - largest);
    }
    workgroupBarrier();
#endif
    for (var slot = lane; slot < USED; slot += WORKGROUP) {
        var sum = 0.0;
#if OVER_ALL
        for (var expert = 0u; expert < EXPERT_COUNT; expert += 1u) {
            sum += exponentials[expert];
        }
#else
        for (var other = 0u; other < USED; other += 1u) {
            sum += exp(row_logits[chosen[other]] - largest);
        }
#endif
        let expert = chosen[slot];
        var weight = exp(row_logits[expert] - largest) / sum;
#if SCALE
        weight *= scale[expert];
#endif
        out[row * (2u * USED) + slot] = f32(expert);
        out[row * (2u * USED) + USED + slot] = weight;
    }
}
