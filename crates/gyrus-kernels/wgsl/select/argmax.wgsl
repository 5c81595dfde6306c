// select_argmax: the likeliest token of each slice of a row, where every row takes the likeliest.
//
//   0  logits    [rows, vocab] f32, read
//   1  partials  [rows, SLICES] of (key, token), written
//   2  params    SelectParams (immediates where the device has them)
//   3  samplers  [rows] SelectRow, read; only with PENALTIES
//   4  counts    [rows, vocab] u32, read: how often each token occurred; only with PENALTIES
//
// Grid: (slices, rows). Twin: Sampler::draw.

#include "params/SelectParams"
#if PENALTIES
#include "params/SelectRow"
#endif
#define PARAMS SelectParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read_write> partials: array<vec2<u32>>;
#if PENALTIES
@group(0) @binding(3) var<storage, read> samplers: array<SelectRow>;
@group(0) @binding(4) var<storage, read> counts: array<u32>;
#endif
#include "select/keys.wgsl"
#include "select/layout.wgsl"

var<workgroup> best_key: atomic<u32>;
var<workgroup> best_token: atomic<u32>;

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    if (lane == 0u) {
        atomicStore(&best_key, NO_KEY);
        atomicStore(&best_token, 0xffffffffu);
    }
    workgroupBarrier();
    let base = group.y * params.vocab;
    // Runs come in the order of ids, so that the first of equals stays.
    var key = NO_KEY;
    var token = 0xffffffffu;
    for (var run = 0u; run < params.each; run += 1u) {
        let id = token_at(group.x, run, lane);
        if (id < params.vocab) {
#if PENALTIES
            let other = key_of(penalised(logits[base + id], counts[base + id], samplers[group.y]));
#else
            let other = key_of(logits[base + id]);
#endif
            token = select(token, id, other > key);
            key = max(key, other);
        }
    }
#if SUBGROUPS
    let most = subgroupMax(key);
    if (key == most) {
        atomicMax(&best_key, key);
    }
#else
    atomicMax(&best_key, key);
#endif
    workgroupBarrier();
    let best = atomicLoad(&best_key);
    if (key == best) {
        atomicMin(&best_token, token);
    }
    workgroupBarrier();
    if (lane == 0u) {
        partials[group.y * SLICES + group.x] = vec2<u32>(best, atomicLoad(&best_token));
    }
}
