// select_gather: the tokens of the bins that decide the cuts and the draw of rows whose tokens are found by bins.
//
//   0  logits    [rows, vocab] f32, read; with PENALTIES or MASKS `adjusted`, which select_survey wrote
//   1  slots     [rows] SlotState, read
//   2  partials  [rows, PARTIALS] u32: masses are read, cuts are written, tokens are added in any order
//   3  params    SelectParams (immediates where the device has them)
//   4  rows      [rows] (position, first entry in block_table), read
//
// Grid: (any, rows); blocks of a row are dealt to the workgroups round-robin. If there are more than MAX_GATHERED tokens,
// they are only counted. Twin: Sampler::draw, together with select_histogram and select_draw.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "select/slot.wgsl"
#include "lib/invocation.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> slots: array<SlotState>;
@group(0) @binding(2) var<storage, read_write> partials: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read> rows: array<vec2<u32>>;
#include "lib/u64.wgsl"
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/mass.wgsl"
#include "select/random.wgsl"
#include "select/block.wgsl"

const WORKGROUP: u32 = BIN_RUNS;
#include "select/scan.wgsl"
#define RUNS 0
#include "select/cuts.wgsl"
#include "select/binned.wgsl"

fn store_mass(word: u32, value: vec2<u32>) {
    atomicStore(&partials[word], value.x);
    atomicStore(&partials[word + 1u], value.y);
}

fn store_bin(word: u32, value: BinMass) {
    atomicStore(&partials[word], value.bin);
    store_mass(word + 1u, value.before);
}

fn add_token(at: u32, key: u32, token: u32) {
    let place = atomicAdd(&partials[at + BIN_GATHERED], 1u);
    if (place < MAX_GATHERED) {
        atomicStore(&partials[at + BIN_TOKENS + 2u * place], key);
        atomicStore(&partials[at + BIN_TOKENS + 2u * place + 1u], token);
    }
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let row = here.workgroup.y;
    let slot = slots[row];
    if (!is_binned(slot)) {
        return;
    }
    number_lanes(here);
    // The first block is loaded while the cuts are found.
    let base = row * params.vocab;
    var tokens_at = block_tokens(here.workgroup.x, lane);
    var keys = block_keys(base, tokens_at);
    let at = row * PARTIALS + ROW_BINS;
    let max_key = row_max_key(at);
    if (max_key == NO_KEY) {
        return;
    }
    let scale = row_scale(at, max_key, slot);
    let z = row_random(row, slot);
    let cuts = find_cuts(at, slot, scale.per_unit, z);
    if (here.workgroup.x == 0u && lane == 0u) {
        store_mass(at + CUT_TOTAL, cuts.total);
        store_mass(at + CUT_GOAL, cuts.top_p);
        store_bin(at + CUT_TOP, cuts.top);
        store_bin(at + CUT_LEAST, cuts.least);
        store_bin(at + CUT_FIRST, cuts.first);
        atomicStore(&partials[at + CUT_LAST], cuts.last.bin);
    }
    for (var block = here.workgroup.x; block * BLOCK < params.vocab; block += here.num_workgroups.x) {
        let next_at = block_tokens(block + here.num_workgroups.x, lane);
        let next = block_keys(base, next_at);
        for (var i = 0u; i < 4u; i += 1u) {
            let distance = distance_to_max(keys[i], scale.max_logit, scale.inverse);
            if (keys[i] != NO_KEY && is_wanted(bin_at(distance, scale.per_unit), cuts, slot)) {
                if (any(mass(relative_probability(distance)) != vec2<u32>())) {
                    add_token(at, keys[i], tokens_at[i]);
                }
            }
        }
        tokens_at = next_at;
        keys = next;
    }
}
