// select_survey: the largest logit of each chunk of a row; for rows whose tokens are found by bins, the largest and the
// smallest logit of each slice.
//
//   0  logits    [rows, vocab] f32, read
//   1  slots     [rows] SlotState, read
//   2  partials  [rows, PARTIALS] u32, written; with WHOLE the bins are cleared
//   3  params    SelectParams (immediates where the device has them)
//   4  counts    [rows, vocab] u32, read: how often each token occurred; only with PENALTIES
//   5  adjusted  [rows, vocab] f32, written: logits after penalties and masks; only with PENALTIES or MASKS
//   6  masks     [rows, vocab / 32] u32, read: a bit for each token that may be chosen; only with MASKS
//
// With RAW it is for select_logprobs: of every row that wants log-probabilities, the largest logit of each slice and the
// sum of exp(logit - largest logit of the slice), reduced in f32 by one fixed tree.
//
// Grid: (slices, rows). Rows that do not run are skipped. Twin: Sampler::draw, together with select_draw; scalar::logprobs.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> slots: array<SlotState>;
@group(0) @binding(2) var<storage, read_write> partials: array<u32>;
#if PENALTIES
@group(0) @binding(4) var<storage, read> counts: array<u32>;
#endif
#if PENALTIES || MASKS
@group(0) @binding(5) var<storage, read_write> adjusted: array<u32>;
#endif
#if MASKS
@group(0) @binding(6) var<storage, read> masks: array<u32>;
#endif
#include "lib/u64.wgsl"
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/load.wgsl"
#include "select/mass.wgsl"

var<workgroup> keys: array<u32, RUN>;
#if RAW
var<workgroup> sums: array<f32, RUN>;
#elif WHOLE
// Of the slice; the smallest less one, so that a missing key is the largest.
var<workgroup> largest: atomic<u32>;
var<workgroup> smallest: atomic<u32>;
#endif

#if PENALTIES || MASKS
fn store4(base: u32, at: vec4<u32>, bits: vec4<u32>) {
    for (var i = 0u; i < 4u; i += 1u) {
        if (at[i] < params.vocab) {
            adjusted[base + at[i]] = bits[i];
        }
    }
}
#endif

#if RAW
fn relative_probabilities(keys: vec4<u32>, max_logit: f32) -> vec4<f32> {
    return vec4<f32>(
        relative_probability(distance_to_max(keys.x, max_logit, 1.0)),
        relative_probability(distance_to_max(keys.y, max_logit, 1.0)),
        relative_probability(distance_to_max(keys.z, max_logit, 1.0)),
        relative_probability(distance_to_max(keys.w, max_logit, 1.0)));
}
#endif

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let flags = slots[group.y].flags;
#if RAW
    // A row that advanced may have ended.
    if ((flags & (SLOT_ACTIVE | SLOT_LOGPROBS)) != (SLOT_ACTIVE | SLOT_LOGPROBS)) {
        return;
    }
#else
    if (!is_running(flags)) {
        return;
    }
#endif
    let base = group.y * params.vocab;
    let out = group.y * PARTIALS;
#if WHOLE
    let has_bins = is_binned(slots[group.y]);
    if (has_bins) {
        for (var i = group.x * RUN + lane; i < BIN_CLEARED; i += params.slices * RUN) {
            partials[out + ROW_BINS + i] = 0u;
        }
    }
    if (lane == 0u) {
        atomicStore(&largest, NO_KEY);
        atomicStore(&smallest, NOT_FINITE);
    }
    var least = vec4<u32>(NOT_FINITE);
#endif
    var four = vec4<u32>(NO_KEY);
    for (var run = 0u; run < params.each; run += 8u) {
        let at = token_indices(token_at(group.x, run, lane));
        let low = load4(base, at.low, group.y);
        let high = load4(base, at.high, group.y);
#if PENALTIES || MASKS
        store4(base, at.low, low);
        store4(base, at.high, high);
#endif
        let low_keys = keys_of(low, at.low);
        let high_keys = keys_of(high, at.high);
        four = max(four, max(low_keys, high_keys));
#if WHOLE
        // A key that is missing becomes the largest one.
        least = min(least, min(low_keys - vec4<u32>(1u), high_keys - vec4<u32>(1u)));
#endif
    }
    keys[lane] = max(max(four.x, four.y), max(four.z, four.w));
    workgroupBarrier();
    if (lane < CHUNKS_OF_SLICE) {
        var of_chunk = NO_KEY;
        for (var i = 0u; i < CHUNK; i += 1u) {
            of_chunk = max(of_chunk, keys[lane * CHUNK + i]);
        }
        partials[out + group.x * CHUNKS_OF_SLICE + lane] = of_chunk;
#if WHOLE
        atomicMax(&largest, of_chunk);
#endif
    }
#if WHOLE
    if (has_bins) {
        let own = min(min(least.x, least.y), min(least.z, least.w));
#if SUBGROUPS
        if (own == subgroupMin(own)) {
            atomicMin(&smallest, own);
        }
#else
        atomicMin(&smallest, own);
#endif
        workgroupBarrier();
        if (lane == 0u) {
            partials[out + LARGEST + group.x] = atomicLoad(&largest);
            // NOT_FINITE stays for a slice without tokens.
            let before = atomicLoad(&smallest);
            partials[out + SMALLEST + group.x] = select(before + 1u, NOT_FINITE, before == NOT_FINITE);
        }
    }
#endif
#if RAW
    workgroupBarrier();
    for (var stride = RUN / 2u; stride > 0u; stride /= 2u) {
        if (lane < stride) {
            keys[lane] = max(keys[lane], keys[lane + stride]);
        }
        workgroupBarrier();
    }
    let max_key = keys[0];
    var parts = vec4<f32>();
    for (var run = 0u; run < params.each; run += 8u) {
        let at = token_indices(token_at(group.x, run, lane));
        let low = keys_of(load4(base, at.low, group.y), at.low);
        let high = keys_of(load4(base, at.high, group.y), at.high);
        parts += relative_probabilities(low, value_of(max_key));
        parts += relative_probabilities(high, value_of(max_key));
    }
    sums[lane] = (parts.x + parts.y) + (parts.z + parts.w);
    workgroupBarrier();
    for (var stride = RUN / 2u; stride > 0u; stride /= 2u) {
        if (lane < stride) {
            sums[lane] += sums[lane + stride];
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
        partials[out + LARGEST + group.x] = max_key;
        partials[out + SUMS + group.x] = bitcast<u32>(sums[0]);
    }
#endif
}
