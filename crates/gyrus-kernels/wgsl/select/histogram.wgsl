// select_histogram: the masses of the bins of rows that select_draw has left, and of runs of bins.
//
//   0  logits    [rows, vocab] f32, read; with PENALTIES or MASKS `adjusted`, which select_survey wrote
//   1  slots     [rows] SlotState, read
//   2  partials  [rows, PARTIALS] u32, read: what select_draw has left
//   3  params    SelectParams (immediates where the device has them)
//   4  bins      [rows, BIN_WORDS] u32, added to; select_survey has cleared them
//
// Grid: (slices, rows). Rows of which nothing is left to bins are skipped. Masses are in fixed point: their sums do not
// depend on the order. Twin: Sampler::draw, together with select_gather and select_finish.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> slots: array<SlotState>;
@group(0) @binding(2) var<storage, read> partials: array<u32>;
@group(0) @binding(4) var<storage, read_write> row_bins: array<atomic<u32>>;
#include "lib/u64.wgsl"
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/mass.wgsl"
#include "select/bins.wgsl"

var<workgroup> broadcast: u32;
var<workgroup> run_mass: array<atomic<u32>, 2u * BIN_RUNS>;

// Adds to a 64-bit sum of two words in `bins`.
fn add_global(word: u32, value: vec2<u32>) {
    let old = atomicAdd(&row_bins[word], value.x);
    let high = value.y + select(0u, 1u, old + value.x < old);
    if (high > 0u) {
        atomicAdd(&row_bins[word + 1u], high);
    }
}

fn add_token(key: u32, at: u32, max_logit: f32, inverse: f32, per_unit: f32) {
    if (key == NO_KEY) {
        return;
    }
    let distance = distance_to_max(key, max_logit, inverse);
    let own = mass(relative_probability(distance));
    if (all(own == vec2<u32>())) {
        return;
    }
    let bin = row_bin(distance, per_unit);
    add_global(at + BIN_MASS + 2u * bin, own);
    let bin_run = 2u * (bin / BINS_OF_RUN);
    let old = atomicAdd(&run_mass[bin_run], own.x);
    atomicAdd(&run_mass[bin_run + 1u], own.y + select(0u, 1u, old + own.x < old));
}

fn load_keys(base: u32, at: vec4<u32>) -> vec4<u32> {
    let inside = vec4<u32>(base) + min(at, vec4<u32>(params.vocab - 1u));
    return keys_of(vec4<u32>(logits[inside.x], logits[inside.y], logits[inside.z], logits[inside.w]), at);
}

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let left = group.y * PARTIALS + LEFT;
    let at = group.y * BIN_WORDS;
    if (lane == 0u) {
        broadcast = partials[left];
        if (group.x == 0u) {
            atomicStore(&row_bins[at + BIN_LEFT], broadcast);
            atomicStore(&row_bins[at + BIN_MAX_KEY], partials[left + 1u]);
            atomicStore(&row_bins[at + BIN_MIN_KEY], partials[left + 2u]);
        }
    }
    if (workgroupUniformLoad(&broadcast) != LEFT_TO_BINS) {
        return;
    }
    if (lane < 2u * BIN_RUNS) {
        atomicStore(&run_mass[lane], 0u);
    }
    workgroupBarrier();
    let max_logit = value_of(partials[left + 1u]);
    let inverse = slots[group.y].inverse_temperature;
    let per_unit = bins_per_unit(distance_to_max(partials[left + 2u], max_logit, inverse));
    let base = group.y * params.vocab;
    for (var run = 0u; run < params.each; run += 8u) {
        let tokens_at = token_indices(token_at(group.x, run, lane));
        let low = load_keys(base, tokens_at.low);
        let high = load_keys(base, tokens_at.high);
        for (var i = 0u; i < 4u; i += 1u) {
            add_token(low[i], at, max_logit, inverse, per_unit);
            add_token(high[i], at, max_logit, inverse, per_unit);
        }
    }
    workgroupBarrier();
    if (lane < BIN_RUNS) {
        let own = vec2<u32>(atomicLoad(&run_mass[2u * lane]), atomicLoad(&run_mass[2u * lane + 1u]));
        if (any(own != vec2<u32>())) {
            add_global(at + BIN_RUN_MASS + 2u * lane, own);
        }
    }
}
