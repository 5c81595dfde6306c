// select_refine: the masses of the bins in the runs of bins that decide the cuts and the draw of rows whose tokens are found
// by bins. Needed if select_histogram has left the bins out.
//
//   0  logits    [rows, vocab] f32, read; with PENALTIES or MASKS `adjusted`, which select_survey wrote
//   1  slots     [rows] SlotState, read
//   2  partials  [rows, PARTIALS] u32: masses of runs are read, masses are added to bins
//   3  params    SelectParams (immediates where the device has them)
//   4  rows      [rows] (position, first entry in block_table), read
//
// Grid: (any, rows); blocks of a row are dealt to the workgroups round-robin. Twin: Sampler::draw, together with
// select_gather and select_draw.

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
#include "select/add.wgsl"

const WORKGROUP: u32 = BIN_RUNS;
#include "select/scan.wgsl"
#define RUNS 1
#include "select/cuts.wgsl"
#include "select/binned.wgsl"

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let row = here.workgroup.y;
    let slot = slots[row];
    if (!is_binned(slot)) {
        return;
    }
    number_lanes(here);
    // The first block is loaded while the runs are found.
    let base = row * params.vocab;
    var keys = block_keys(base, block_tokens(here.workgroup.x, lane));
    let at = row * PARTIALS + ROW_BINS;
    let max_key = row_max_key(at);
    if (max_key == NO_KEY) {
        return;
    }
    let scale = row_scale(at, max_key, slot);
    let z = row_random(row, slot);
    let runs = find_runs(at, slot, scale.per_unit, z);
    for (var block = here.workgroup.x; block * BLOCK < params.vocab; block += here.num_workgroups.x) {
        let next = block_keys(base, block_tokens(block + here.num_workgroups.x, lane));
        for (var i = 0u; i < 4u; i += 1u) {
            let distance = distance_to_max(keys[i], scale.max_logit, scale.inverse);
            let bin = bin_at(distance, scale.per_unit);
            if (keys[i] != NO_KEY && is_needed(bin / BINS_OF_RUN, runs, slot)) {
                let own = mass(relative_probability(distance));
                let word = at + BIN_MASS + 2u * bin;
                let old = add_global(word, own.x);
                add_global(word + 1u, own.y + select(0u, 1u, old + own.x < old));
            }
        }
        keys = next;
    }
}
