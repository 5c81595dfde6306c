// select_gather: the tokens of the bins that decide the cuts and the draw of rows that select_draw has left.
//
//   0  logits  [rows, vocab] f32, read; with PENALTIES or MASKS `adjusted`, which select_survey wrote
//   1  slots   [rows] SlotState, read
//   2  rows    [rows] (position, first entry in block_table), read
//   3  params  SelectParams (immediates where the device has them)
//   4  bins    [rows, BIN_WORDS] u32: masses are read, tokens are added in any order
//
// Grid: (slices, rows). Rows of which nothing is left to bins are skipped. If there are more than MAX_GATHERED tokens,
// they are only counted. Twin: Sampler::draw, together with select_histogram and select_finish.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> slots: array<SlotState>;
@group(0) @binding(2) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> row_bins: array<atomic<u32>>;
#include "lib/u64.wgsl"
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/mass.wgsl"
#include "select/random.wgsl"
#include "select/bins.wgsl"
#include "select/cuts.wgsl"

var<workgroup> broadcast: u32;

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let at = group.y * BIN_WORDS;
    if (lane == 0u) {
        broadcast = atomicLoad(&row_bins[at + BIN_LEFT]);
    }
    if (workgroupUniformLoad(&broadcast) != LEFT_TO_BINS) {
        return;
    }
    let top_p = slots[group.y].top_p;
    let min_p = slots[group.y].min_p;
    let inverse = slots[group.y].inverse_temperature;
    let max_logit = value_of(atomicLoad(&row_bins[at + BIN_MAX_KEY]));
    let smallest = atomicLoad(&row_bins[at + BIN_MIN_KEY]);
    let per_unit = bins_per_unit(distance_to_max(smallest, max_logit, inverse));
    // The row has not advanced yet.
    let seed = vec2<u32>(slots[group.y].seed_low, slots[group.y].seed_high);
    let z = random(seed, rows[group.y].x + 1u);
    let cuts = find_cuts(lane, at, top_p, min_p, per_unit, z);
    let base = group.y * params.vocab;
    for (var run = 0u; run < params.each; run += 1u) {
        let token = token_at(group.x, run, lane);
        if (token < params.vocab) {
            let key = key_of(logits[base + token]);
            let distance = distance_to_max(key, max_logit, inverse);
            let has_mass = key != NO_KEY && any(mass(relative_probability(distance)) != vec2<u32>());
            if (has_mass && is_wanted(row_bin(distance, per_unit), cuts, top_p, min_p)) {
                let place = atomicAdd(&row_bins[at + BIN_GATHERED], 1u);
                if (place < MAX_GATHERED) {
                    atomicStore(&row_bins[at + BIN_TOKENS + 2u * place], key);
                    atomicStore(&row_bins[at + BIN_TOKENS + 2u * place + 1u], token);
                }
            }
        }
    }
}
