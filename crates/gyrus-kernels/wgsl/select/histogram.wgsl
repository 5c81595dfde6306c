// select_histogram: the masses of the runs of bins of rows whose tokens are found by bins; with FINE those of the bins, too.
//
//   0  logits    [rows, vocab] f32, read; with PENALTIES or MASKS `adjusted`, which select_survey wrote
//   1  slots     [rows] SlotState, read
//   2  partials  [rows, PARTIALS] u32: what select_survey wrote is read; masses are added to the bins
//   3  params    SelectParams (immediates where the device has them)
//
// Grid: (any, rows); blocks of a row are dealt to the workgroups round-robin. Masses are in fixed point: their sums do not
// depend on the order. Runs are summed in workgroup memory, bins in `partials`: for many rows that is slower than a
// select_refine for the few bins that matter. Twin: Sampler::draw, together with select_gather and select_draw.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> slots: array<SlotState>;
@group(0) @binding(2) var<storage, read_write> partials: array<atomic<u32>>;
#include "lib/u64.wgsl"
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/mass.wgsl"
#include "select/block.wgsl"
#include "select/add.wgsl"

var<workgroup> largest: atomic<u32>;
var<workgroup> smallest: atomic<u32>;
var<workgroup> broadcast: vec2<u32>;
// Low and high words of the masses of runs.
var<workgroup> run_low: array<atomic<u32>, BIN_RUNS>;
var<workgroup> run_high: array<atomic<u32>, BIN_RUNS>;

// The state of the row.
var<private> max_logit: f32;
var<private> inverse: f32;
var<private> per_unit: f32;

// Adds to a run, and returns what its low word was.
fn add_low(run: u32, value: u32) -> u32 {
    if (value == 0u) {
        return 0u;
    }
    return atomicAdd(&run_low[run], value);
}

fn add_high(run: u32, value: u32) {
    if (value > 0u) {
        atomicAdd(&run_high[run], value);
    }
}

fn add_tokens(at: u32, keys: vec4<u32>) {
    let four = masses_of(keys, max_logit, inverse, per_unit);
#if FINE
    let old_of_bins = add_low4(at, four);
#endif
    let runs = four.bins / BINS_OF_RUN;
    let old = vec4<u32>(
        add_low(runs.x, four.low.x),
        add_low(runs.y, four.low.y),
        add_low(runs.z, four.low.z),
        add_low(runs.w, four.low.w));
    let carried = four.high + select(vec4<u32>(), vec4<u32>(1u), old + four.low < old);
    add_high(runs.x, carried.x);
    add_high(runs.y, carried.y);
    add_high(runs.z, carried.z);
    add_high(runs.w, carried.w);
#if FINE
    add_high4(at, four, old_of_bins);
#endif
}

@compute @workgroup_size(256)
fn KERNEL(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let row = group.y;
    if (!is_binned(slots[row])) {
        return;
    }
    // The first block is loaded while the slices are reduced.
    let base = row * params.vocab;
    var keys = block_keys(base, block_tokens(group.x, lane));
    let partial = row * PARTIALS;
    let at = partial + ROW_BINS;
    if (lane == 0u) {
        atomicStore(&largest, NO_KEY);
        atomicStore(&smallest, NOT_FINITE);
    }
    for (var i = lane; i < BIN_RUNS; i += RUN) {
        atomicStore(&run_low[i], 0u);
        atomicStore(&run_high[i], 0u);
    }
    workgroupBarrier();
    if (lane < params.slices) {
        atomicMax(&largest, atomicLoad(&partials[partial + LARGEST + lane]));
        atomicMin(&smallest, atomicLoad(&partials[partial + SMALLEST + lane]));
    }
    workgroupBarrier();
    if (lane == 0u) {
        broadcast = vec2<u32>(atomicLoad(&largest), atomicLoad(&smallest));
    }
    let extremes = workgroupUniformLoad(&broadcast);
    if (extremes.x == NOT_FINITE || extremes.x == NO_KEY) {
        return;
    }
    if (group.x == 0u && lane == 0u) {
        atomicStore(&partials[at + BIN_MAX_KEY], extremes.x);
        atomicStore(&partials[at + BIN_MIN_KEY], extremes.y);
    }
    max_logit = value_of(extremes.x);
    inverse = slots[row].inverse_temperature;
    let most = distance_to_max(extremes.y, max_logit, inverse);
    per_unit = bins_per_unit(most);
    mass_scale = mass_scale_of(most);
    for (var block = group.x; block * BLOCK < params.vocab; block += groups.x) {
        let next = block_keys(base, block_tokens(block + groups.x, lane));
        add_tokens(at, keys);
        keys = next;
    }
    workgroupBarrier();
    for (var i = lane; i < BIN_RUNS; i += RUN) {
        let low = atomicLoad(&run_low[i]);
        let word = at + BIN_RUN_MASS + 2u * i;
        let old = add_global(word, low);
        add_global(word + 1u, atomicLoad(&run_high[i]) + select(0u, 1u, old + low < old));
    }
}
