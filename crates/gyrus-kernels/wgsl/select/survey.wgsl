// select_survey: the largest logit of each chunk of a row, and for rows that are not cut to a few tokens the sum of
// their probabilities.
//
//   0  logits    [rows, vocab] f32, read
//   1  samplers  [rows] SelectRow, read
//   2  partials  [rows, PARTIALS] u32, written
//   3  params    SelectParams (immediates where the device has them)
//   4  counts    [rows, vocab] u32, read: how often each token occurred; only with PENALTIES
//   5  adjusted  [rows, vocab] f32, written: logits after penalties; only with PENALTIES
//
// Grid: (slices, rows). A slice's sum is of exp((logit - its largest) / temperature), in f32 as one tree.

#include "params/SelectParams"
#include "params/SelectRow"
#define PARAMS SelectParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> samplers: array<SelectRow>;
@group(0) @binding(2) var<storage, read_write> partials: array<u32>;
#if PENALTIES
@group(0) @binding(4) var<storage, read> counts: array<u32>;
@group(0) @binding(5) var<storage, read_write> adjusted: array<u32>;
#endif
#include "lib/u64.wgsl"
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/mass.wgsl"

var<workgroup> keys: array<u32, RUN>;
var<workgroup> sums: array<f32, RUN>;

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let base = group.y * params.vocab;
    let out = group.y * PARTIALS;
    var key = NO_KEY;
    for (var run = 0u; run < params.each; run += 1u) {
        let id = token_at(group.x, run, lane);
        if (id < params.vocab) {
#if PENALTIES
            let bits = penalised(logits[base + id], counts[base + id], samplers[group.y]);
            adjusted[base + id] = bits;
#else
            let bits = logits[base + id];
#endif
            key = max(key, key_of(bits));
        }
    }
    keys[lane] = key;
    workgroupBarrier();
    if (lane < CHUNKS_OF_SLICE) {
        var most = NO_KEY;
        for (var i = 0u; i < CHUNK; i += 1u) {
            most = max(most, keys[lane * CHUNK + i]);
        }
        partials[out + group.x * CHUNKS_OF_SLICE + lane] = most;
    }
    if (is_wide(samplers[group.y].temperature, samplers[group.y].top_k)) {
        workgroupBarrier();
        for (var stride = RUN / 2u; stride > 0u; stride /= 2u) {
            if (lane < stride) {
                keys[lane] = max(keys[lane], keys[lane + stride]);
            }
            workgroupBarrier();
        }
        let most = keys[0];
        let inverse = samplers[group.y].inverse_temperature;
        var sum = 0.0;
        for (var run = 0u; run < params.each; run += 1u) {
            let id = token_at(group.x, run, lane);
            if (id < params.vocab) {
#if PENALTIES
                let other = key_of(adjusted[base + id]);
#else
                let other = key_of(logits[base + id]);
#endif
                sum += likelihood(gap(other, value_of(most), inverse));
            }
        }
        sums[lane] = sum;
        workgroupBarrier();
        for (var stride = RUN / 2u; stride > 0u; stride /= 2u) {
            if (lane < stride) {
                sums[lane] += sums[lane + stride];
            }
            workgroupBarrier();
        }
        if (lane == 0u) {
            partials[out + CHUNKS + 2u * group.x] = most;
            partials[out + CHUNKS + 2u * group.x + 1u] = bitcast<u32>(sums[0]);
        }
    }
}
