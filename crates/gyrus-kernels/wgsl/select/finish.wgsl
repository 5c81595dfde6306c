// select_finish: draws a token of each row that select_draw has left, and advances the row's slot.
//
//   0  logits   [rows, vocab] f32, read; with PENALTIES or MASKS `adjusted`, which select_survey wrote
//   1  slots    [rows] SlotState, advanced
//   2  bins     [rows, BIN_WORDS] u32, read
//   3  tokens   [rows] u32, advanced
//   4  rows     [rows] (position, first entry in block_table), advanced
//   5  emitted  [EMITTED, MAX_ROWS] u32, written at the row's step
//   6  params   SelectParams (immediates where the device has them)
//   7  history  [rows, params.history] u32, tokens by position; only with PENALTIES
//   8  counts   [rows, vocab] u32, advanced; only with PENALTIES
//
// Grid: (rows), a workgroup a row. Twins: Sampler::draw, scalar::SelectState.
//
// The masses of bins say in which bins top-p and min-p cut, and in which the drawn token is. The gathered tokens of these
// bins, sorted, say where exactly. If too many were gathered, because their logits are equal, or a large top-k is wanted,
// radix.wgsl finds the token in several passes over the row.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 6
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read_write> slots: array<SlotState>;
@group(0) @binding(2) var<storage, read_write> row_bins: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(4) var<storage, read_write> rows: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read_write> emitted: array<u32>;
#if PENALTIES
@group(0) @binding(7) var<storage, read_write> history: array<u32>;
@group(0) @binding(8) var<storage, read_write> counts: array<u32>;
#endif
#include "lib/u64.wgsl"
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/mass.wgsl"
#include "select/advance.wgsl"
#include "select/random.wgsl"
#include "select/bins.wgsl"
#include "select/cuts.wgsl"
#include "select/row.wgsl"
#include "select/radix.wgsl"

// The mass of a candidate in bins `first` to `last` whose probability is at least this, else 0.
fn mass_in(i: u32, first: u32, last: u32, probability: f32, per_unit: f32) -> vec2<u32> {
    let distance = distance_to_max(candidates[i].x, max_logit, inverse);
    let bin = row_bin(distance, per_unit);
    let own = relative_probability(distance);
    return select(vec2<u32>(), mass(own), bin >= first && bin <= last && own >= probability);
}

// The mass of such candidates of the invocations before this one, and of all.
struct Sums {
    before: vec2<u32>,
    all: vec2<u32>,
}

fn sums_in(begin: u32, end: u32, first: u32, last: u32, probability: f32, per_unit: f32) -> Sums {
    var own = vec2<u32>();
    for (var i = begin; i < end; i += 1u) {
        own = add64(own, mass_in(i, first, last, probability, per_unit));
    }
    let through = scan(own);
    workgroupBarrier();
    if (lane == WORKGROUP - 1u) {
        broadcast_mass = through;
    }
    return Sums(subtract64(through, own), workgroupUniformLoad(&broadcast_mass));
}

fn draw_gathered(slot: SlotState, at: u32, per_unit: f32, count: u32, z: vec2<u32>) {
    for (var i = lane; i < count; i += WORKGROUP) {
        let word = at + BIN_TOKENS + 2u * i;
        candidates[i] = vec2<u32>(atomicLoad(&row_bins[word]), atomicLoad(&row_bins[word + 1u]));
    }
    workgroupBarrier();
    sort(count);
    let cuts = find_cuts(lane, at, slot.top_p, slot.min_p, per_unit, z);
    let each = (count + WORKGROUP - 1u) / WORKGROUP;
    let begin = min(lane * each, count);
    let end = min(begin + each, count);
    let top = cuts.top.bin;
    let of_top = sums_in(begin, end, top, top, 0.0, per_unit);
    workgroupBarrier();
    if (lane == 0u) {
        broadcast_mass = cuts.total;
    }
    workgroupBarrier();
    var sum = add64(cuts.top.before, of_top.before);
    for (var i = begin; i < end; i += 1u) {
        let next = add64(sum, mass_in(i, top, top, 0.0, per_unit));
        if (slot.top_p < 1.0 && less64(sum, cuts.top_p) && !less64(next, cuts.top_p)) {
            broadcast_mass = next;
        }
        sum = next;
    }
    var kept = workgroupUniformLoad(&broadcast_mass);
    let of_least = sums_in(begin, end, cuts.least.bin, cuts.least.bin, slot.min_p, per_unit);
    let by_min_p = add64(cuts.least.before, of_least.all);
    if (slot.min_p > 0.0 && less64(by_min_p, kept)) {
        kept = by_min_p;
    }
    let drawn_mass = random_mass(kept, z);
    let of_drawn = sums_in(begin, end, cuts.first.bin, cuts.last.bin, 0.0, per_unit);
    sum = add64(cuts.first.before, of_drawn.before);
    for (var i = begin; i < end; i += 1u) {
        let next = add64(sum, mass_in(i, cuts.first.bin, cuts.last.bin, 0.0, per_unit));
        if (!less64(drawn_mass, sum) && less64(drawn_mass, next)) {
            atomicStore(&chosen, candidates[i].y);
        }
        sum = next;
    }
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) group: vec3<u32>,
#if SUBGROUPS
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane_id: u32,
    @builtin(subgroup_size) subgroup_size: u32,
#endif
) {
    let row = group.x;
    lane = index;
#if SUBGROUPS
    shuffle_width = 1u;
    subgroup_lane = lane_id;
    // If subgroups are full, invocations are numbered subgroup by subgroup.
    if (subgroups * subgroup_size == WORKGROUP) {
        shuffle_width = subgroup_size;
        lane = subgroup * subgroup_size + lane_id;
    }
#endif
    base = row * params.vocab;
    let at = row * BIN_WORDS;
    if (lane == 0u) {
        broadcast = atomicLoad(&row_bins[at + BIN_LEFT]);
        broadcast_slot = slots[row];
        atomicStore(&chosen, NONE);
    }
    let left = workgroupUniformLoad(&broadcast);
    let slot = workgroupUniformLoad(&broadcast_slot);
    if (left == LEFT_NOTHING) {
        return;
    }
    inverse = slot.inverse_temperature;
    max_key = atomicLoad(&row_bins[at + BIN_MAX_KEY]);
    max_logit = value_of(max_key);
    workgroupBarrier();
    if (lane == 0u) {
        broadcast = rows[row].x + 1u;
    }
    let position = workgroupUniformLoad(&broadcast);
    let z = random(vec2<u32>(slot.seed_low, slot.seed_high), position);
    workgroupBarrier();
    if (lane == 0u) {
        let gathered = atomicLoad(&row_bins[at + BIN_GATHERED]);
        broadcast = select(NONE, gathered, left == LEFT_TO_BINS && gathered <= MAX_GATHERED);
    }
    let count = workgroupUniformLoad(&broadcast);
    if (count != NONE) {
        let smallest = atomicLoad(&row_bins[at + BIN_MIN_KEY]);
        let per_unit = bins_per_unit(distance_to_max(smallest, max_logit, inverse));
        draw_gathered(slot, at, per_unit, count, z);
    }
    workgroupBarrier();
    if (lane == 0u) {
        broadcast = atomicLoad(&chosen);
    }
    if (workgroupUniformLoad(&broadcast) == NONE) {
        draw_row(slot, z);
    }
    workgroupBarrier();
    if (lane == 0u) {
        advance(row, slot, position, min(atomicLoad(&chosen), params.vocab - 1u));
    }
}
