// select_draw: draws a token of each row with its sampler, and advances the row's slot.
//
//   0  logits    [rows, vocab] f32, read; with PENALTIES or MASKS `adjusted`, which select_survey wrote
//   1  slots     [rows] SlotState, advanced
//   2  partials  [rows, PARTIALS] u32, read: what select_survey wrote and, with WHOLE, select_gather
//   3  tokens    [rows] u32, advanced
//   4  rows      [rows] (position, first entry in block_table), advanced
//   5  emitted   [EMITTED, MAX_ROWS] u32, written at the row's step
//   6  params    SelectParams (immediates where the device has them)
//   7  history   [rows, params.history] u32, tokens by position; only with PENALTIES
//   8  counts    [rows, vocab] u32, advanced; only with PENALTIES
//
// Grid: (rows), a workgroup a row. Twins: Sampler::draw, scalar::SelectState.
//
// For a small top-k: each of the k largest logits is in one of the k chunks with the largest maxima, and is at least the
// smallest of these maxima. So the kernel reads only these chunks, collects the tokens that are at least that large (the
// candidates), and sorts them by rank counting. The candidates are a prefix of the row in descending order, equal logits
// by id. top-k, top-p and min-p all cut that order to a prefix. With WHOLE, rows of which all tokens may be drawn have
// their candidates from select_histogram and select_gather. If the candidates do not suffice (a large top-k, or too many
// equal logits for the buffer), radix.wgsl finds the token in several passes over the row.
//
// Sums are in fixed point, hence exact: a row's token does not depend on the order in which candidates were found.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 6
#include "lib/params.wgsl"
#include "select/slot.wgsl"
#include "lib/invocation.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read_write> slots: array<SlotState>;
@group(0) @binding(2) var<storage, read> partials: array<vec4<u32>>;
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

// A power of two from 256 on.
override WORKGROUP: u32 = 256u;
#include "select/scan.wgsl"
#include "select/row.wgsl"

// Bins of 1/16 octave for a key's distance from the largest key.
const DISTANCE_BINS: u32 = 464u;
// The largest keys of chunks 4·lane to 4·lane + 3, and of the chunks 4·WORKGROUP after them.
var<private> chunk_max: vec4<u32>;
var<private> chunk_max_high: vec4<u32>;

fn bin_of(key: u32) -> u32 {
    let distance = max_key - key;
    if (distance < 16u) {
        return distance;
    }
    let octave = firstLeadingBit(distance);
    return (octave - 3u) * 16u + ((distance >> (octave - 4u)) & 15u);
}

#include "select/candidates.wgsl"
#if WHOLE
#include "select/gathered.wgsl"
#endif
#include "select/radix.wgsl"

fn first_of(at: vec4<u32>, keys: vec4<u32>) -> u32 {
    let tokens_at = select(vec4<u32>(NONE), at, keys == vec4<u32>(max_key));
    return min(min(tokens_at.x, tokens_at.y), min(tokens_at.z, tokens_at.w));
}

// The first token with the largest logit: the result of a greedy row.
fn argmax_of_chunk(chunk: u32, key: u32) {
    if (key == max_key) {
        for (var offset = 0u; offset < CHUNK; offset += 1u) {
            for (var run = 0u; run < params.each; run += 8u) {
                let at = token_indices(chunk_token(chunk, run, offset));
                let low = keys_at(at.low);
                let high = keys_at(at.high);
                atomicMin(&chosen, min(first_of(at.low, low), first_of(at.high, high)));
            }
        }
    }
}

fn argmax(chunk: u32, keys: vec4<u32>) {
    argmax_of_chunk(chunk, keys.x);
    argmax_of_chunk(chunk + 1u, keys.y);
    argmax_of_chunk(chunk + 2u, keys.z);
    argmax_of_chunk(chunk + 3u, keys.w);
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let row = here.workgroup.x;
    number_lanes(here);
    base = row * params.vocab;
    let partial = row * (PARTIALS / 4u);
    chunk_max = load_chunk_max(partial, lane);
    chunk_max_high = load_chunk_max(partial, lane + WORKGROUP);
    if (lane == 0u) {
        broadcast_slot = slots[row];
        broadcast = next_position(row, broadcast_slot);
        atomicStore(&largest, NO_KEY);
        atomicStore(&found, 0u);
        atomicStore(&chosen, NONE);
        atomicStore(&sum_low, 0u);
        atomicStore(&sum_high, 0u);
    }
    for (var i = lane; i < BINS; i += WORKGROUP) {
        atomicStore(&bins[i], 0u);
    }
    let larger = max(chunk_max, chunk_max_high);
    let key = max(max(larger.x, larger.y), max(larger.z, larger.w));
    // These loads are barriers.
    let slot = workgroupUniformLoad(&broadcast_slot);
    let position = workgroupUniformLoad(&broadcast);
    if (position == HELD) {
        if (lane == 0u) {
            emit(row, slot, HELD);
        }
        return;
    }
    inverse = slot.inverse_temperature;
#if SUBGROUPS
    let subgroup_max = subgroupMax(key);
    if (key == subgroup_max) {
        atomicMax(&largest, key);
    }
#else
    atomicMax(&largest, key);
#endif
    workgroupBarrier();
    if (lane == 0u) {
        broadcast = atomicLoad(&largest);
    }
    let row_max = workgroupUniformLoad(&broadcast);
    max_key = row_max;
    max_logit = value_of(row_max);
    if (row_max == NOT_FINITE || row_max == NO_KEY) {
        if (lane == 0u) {
            advance(row, slot, position, NOT_FINITE);
        }
    } else if (slot.temperature == 0.0) {
        argmax(4u * lane, chunk_max);
        argmax(4u * (lane + WORKGROUP), chunk_max_high);
        workgroupBarrier();
        if (lane == 0u) {
            advance(row, slot, position, atomicLoad(&chosen));
        }
    } else {
        let z = random(vec2<u32>(slot.seed_low, slot.seed_high), position);
        if (slot.top_k > 0u && slot.top_k <= MAX_CANDIDATE_K) {
            draw_candidates(slot, z);
        }
#if WHOLE
        if (is_binned(slot)) {
            draw_gathered(slot, 4u * partial + ROW_BINS, z);
        }
#endif
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
}
