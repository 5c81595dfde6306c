// select_argmax: the token with the largest logit of each slice of a row, for batches in which every row is greedy.
//
//   0  logits    [rows, vocab] f32, read
//   1  partials  [rows, SLICES] of (key, token), written
//   2  params    SelectParams (immediates where the device has them)
//   3  slots     [rows] SlotState, read
//   4  counts    [rows, vocab] u32, read: how often each token occurred; only with PENALTIES
//   5  masks     [rows, vocab / 32] u32, read: a bit for each token that may be chosen; only with MASKS
//
// Grid: (slices, rows). Rows that do not run are skipped. Twin: Sampler::draw.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read_write> partials: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> slots: array<SlotState>;
#if PENALTIES
@group(0) @binding(4) var<storage, read> counts: array<u32>;
#endif
#if MASKS
@group(0) @binding(5) var<storage, read> masks: array<u32>;
#endif
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/load.wgsl"

var<workgroup> best_key: atomic<u32>;
var<workgroup> best_token: atomic<u32>;

// The largest of (key, token) and four more; the first of equal keys.
fn better(best: vec2<u32>, keys: vec4<u32>, at: vec4<u32>) -> vec2<u32> {
    var found = select(best, vec2<u32>(keys.x, at.x), keys.x > best.x);
    found = select(found, vec2<u32>(keys.y, at.y), keys.y > found.x);
    found = select(found, vec2<u32>(keys.z, at.z), keys.z > found.x);
    return select(found, vec2<u32>(keys.w, at.w), keys.w > found.x);
}

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    if (!is_running(slots[group.y].flags)) {
        return;
    }
    if (lane == 0u) {
        atomicStore(&best_key, NO_KEY);
        atomicStore(&best_token, 0xffffffffu);
    }
    workgroupBarrier();
    let base = group.y * params.vocab;
    // Runs are in the order of token ids, so that the first of equal keys is kept.
    var best = vec2<u32>(NO_KEY, 0xffffffffu);
    for (var run = 0u; run < params.each; run += 8u) {
        let at = token_indices(token_at(group.x, run, lane));
        let low = load4(base, at.low, group.y);
        let high = load4(base, at.high, group.y);
        best = better(best, keys_of(low, at.low), at.low);
        best = better(best, keys_of(high, at.high), at.high);
    }
    let key = best.x;
    let token = best.y;
#if SUBGROUPS
    let subgroup_max = subgroupMax(key);
    if (key == subgroup_max) {
        atomicMax(&best_key, key);
    }
#else
    atomicMax(&best_key, key);
#endif
    workgroupBarrier();
    let largest = atomicLoad(&best_key);
    if (key == largest) {
        atomicMin(&best_token, token);
    }
    workgroupBarrier();
    if (lane == 0u) {
        partials[group.y * SLICES + group.x] = vec2<u32>(largest, atomicLoad(&best_token));
    }
}
