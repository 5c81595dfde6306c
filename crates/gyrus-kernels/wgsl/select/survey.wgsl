// select_survey: the largest logit of each chunk of a row and, for rows whose sampler needs it, the sum of the
// probabilities of each slice.
//
//   0  logits    [rows, vocab] f32, read
//   1  slots     [rows] SlotState, read
//   2  partials  [rows, PARTIALS] u32, written
//   3  params    SelectParams (immediates where the device has them)
//   4  counts    [rows, vocab] u32, read: how often each token occurred; only with PENALTIES
//   5  adjusted  [rows, vocab] f32, written: logits after penalties and masks; only with PENALTIES or MASKS
//   6  masks     [rows, vocab / 32] u32, read: a bit for each token that may be chosen; only with MASKS
//   7  bins      [rows, BIN_WORDS] u32, cleared; only with WHOLE
//
// With RAW it is for select_logprobs: of every row that wants log-probabilities, with a temperature of 1.
//
// Grid: (slices, rows). Rows that do not run are skipped. The sum of a slice is that of exp((logit - largest logit of the slice) / temperature), reduced
// in f32 by one fixed tree. Twin: Sampler::draw, together with select_draw.

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
#if WHOLE
@group(0) @binding(7) var<storage, read_write> row_bins: array<atomic<u32>>;
#include "select/bins.wgsl"
#endif
#include "lib/u64.wgsl"
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/load.wgsl"
#include "select/mass.wgsl"

var<workgroup> keys: array<u32, RUN>;
var<workgroup> sums: array<f32, RUN>;
var<workgroup> smallest: atomic<u32>;

#if PENALTIES || MASKS
fn store4(base: u32, at: vec4<u32>, bits: vec4<u32>) {
    for (var i = 0u; i < 4u; i += 1u) {
        if (at[i] < params.vocab) {
            adjusted[base + at[i]] = bits[i];
        }
    }
}
#endif

fn relative_probabilities(keys: vec4<u32>, max_logit: f32, inverse: f32) -> vec4<f32> {
    return vec4<f32>(
        relative_probability(distance_to_max(keys.x, max_logit, inverse)),
        relative_probability(distance_to_max(keys.y, max_logit, inverse)),
        relative_probability(distance_to_max(keys.z, max_logit, inverse)),
        relative_probability(distance_to_max(keys.w, max_logit, inverse)));
}

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let flags = slots[group.y].flags;
#if RAW
    // A row that advanced may have ended.
    if ((flags & (SLOT_ACTIVE | SLOT_LOGPROBS)) != (SLOT_ACTIVE | SLOT_LOGPROBS)) {
        return;
    }
    let needs_sum = true;
    let inverse = 1.0;
#else
    if (!is_running(flags)) {
        return;
    }
    let needs_sum = needs_full_mass(slots[group.y].temperature, slots[group.y].top_k);
    let inverse = slots[group.y].inverse_temperature;
#endif
    let base = group.y * params.vocab;
    let out = group.y * PARTIALS;
#if WHOLE
    for (var i = group.x * RUN + lane; i < BIN_CLEARED; i += params.slices * RUN) {
        atomicStore(&row_bins[group.y * BIN_WORDS + i], 0u);
    }
#endif
    var four = vec4<u32>(NO_KEY);
    var least = vec4<u32>(NOT_FINITE);
    if (lane == 0u) {
        atomicStore(&smallest, NOT_FINITE);
    }
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
        // A key that is missing becomes the largest one.
        least = min(least, min(low_keys - vec4<u32>(1u), high_keys - vec4<u32>(1u)));
    }
    let key = max(max(four.x, four.y), max(four.z, four.w));
    keys[lane] = key;
    workgroupBarrier();
    if (lane < CHUNKS_OF_SLICE) {
        var largest = NO_KEY;
        for (var i = 0u; i < CHUNK; i += 1u) {
            largest = max(largest, keys[lane * CHUNK + i]);
        }
        partials[out + group.x * CHUNKS_OF_SLICE + lane] = largest;
    }
    if (needs_sum) {
        atomicMin(&smallest, min(min(least.x, least.y), min(least.z, least.w)));
        workgroupBarrier();
        for (var stride = RUN / 2u; stride > 0u; stride /= 2u) {
            if (lane < stride) {
                keys[lane] = max(keys[lane], keys[lane + stride]);
            }
            workgroupBarrier();
        }
        let largest = keys[0];
        var parts = vec4<f32>();
        for (var run = 0u; run < params.each; run += 8u) {
            let at = token_indices(token_at(group.x, run, lane));
            let low = keys_of(load4(base, at.low, group.y), at.low);
            let high = keys_of(load4(base, at.high, group.y), at.high);
            parts += relative_probabilities(low, value_of(largest), inverse);
            parts += relative_probabilities(high, value_of(largest), inverse);
        }
        let sum = (parts.x + parts.y) + (parts.z + parts.w);
        sums[lane] = sum;
        workgroupBarrier();
        for (var stride = RUN / 2u; stride > 0u; stride /= 2u) {
            if (lane < stride) {
                sums[lane] += sums[lane + stride];
            }
            workgroupBarrier();
        }
        if (lane == 0u) {
            partials[out + CHUNKS + 2u * group.x] = largest;
            partials[out + CHUNKS + 2u * group.x + 1u] = bitcast<u32>(sums[0]);
            // NOT_FINITE stays for a slice without tokens.
            let before = atomicLoad(&smallest);
            partials[out + SMALLEST + group.x] = select(before + 1u, NOT_FINITE, before == NOT_FINITE);
        }
    }
}
