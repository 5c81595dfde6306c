// select_draw: draws a token of each row with its sampler, and advances the row's slot.
//
//   0  logits    [rows, vocab] f32, read; with PENALTIES or MASKS `adjusted`, which select_survey wrote
//   1  slots     [rows] SlotState, advanced
//   2  partials  [rows, PARTIALS] u32, read: what select_survey wrote
//   3  tokens    [rows] u32, advanced
//   4  rows      [rows] (position, first entry in block_table), advanced
//   5  emitted   [EMITTED, MAX_ROWS] u32, written at the row's step
//   6  params    SelectParams (immediates where the device has them)
//   7  history   [rows, params.history] u32, tokens by position; only with PENALTIES
//   8  counts    [rows, vocab] u32, advanced; only with PENALTIES
//
// Grid: (rows), a workgroup a row. Twins: Sampler::draw, scalar::SelectState.
//
// Each of the k largest logits is in one of the k chunks with the largest maxima, and is at least the smallest of these
// maxima. So the kernel reads only these chunks, collects the tokens that are at least that large (the candidates), and
// sorts them by rank counting. The candidates are a prefix of the row in descending order, equal logits by id. top-k,
// top-p and min-p all cut that order to a prefix. If the candidates do not suffice (many tokens are wanted, or too many
// have equal logits for the buffer), radix.wgsl finds the token in several passes over the row.
//
// Sums are in fixed point, hence exact: a row's token does not depend on the order in which candidates were found.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 6
#include "lib/params.wgsl"
#include "select/slot.wgsl"

// A power of two from 256 on.
override WORKGROUP: u32 = 256u;
// The capacity of the candidate buffer, and the most candidates that an invocation sorts.
const CANDIDATES: u32 = 1024u;
const CANDIDATES_PER_INVOCATION: u32 = 4u;

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

const NONE: u32 = 0xffffffffu;
// Bins of 1/16 octave for a key's distance from the largest key.
const DISTANCE_BINS: u32 = 464u;
// 256 bins of four words for the radix passes. Candidates need DISTANCE_BINS bins of one word, then a list of chunks.
const BINS: u32 = 1024u;

// The state of the row.
var<private> lane: u32;
var<private> base: u32;
var<private> max_key: u32;
var<private> max_logit: f32;
var<private> inverse: f32;
// The largest keys of chunks 4·lane to 4·lane + 3, and of the chunks 4·WORKGROUP after them.
var<private> chunk_max: vec4<u32>;
var<private> chunk_max_high: vec4<u32>;
#if SUBGROUPS
// Shuffles reach lanes at a distance below this: the subgroup size, or 1 if shuffles cannot be used.
var<private> shuffle_width: u32;
var<private> subgroup_lane: u32;
#endif

var<workgroup> bins: array<atomic<u32>, BINS>;
// (key, token).
var<workgroup> candidates: array<vec2<u32>, CANDIDATES>;
var<workgroup> scan_low: array<u32, WORKGROUP>;
var<workgroup> scan_high: array<u32, WORKGROUP>;
var<workgroup> largest: atomic<u32>;
var<workgroup> found: atomic<u32>;
var<workgroup> chosen: atomic<u32>;
var<workgroup> sum_low: atomic<u32>;
var<workgroup> sum_high: atomic<u32>;
// Values that one invocation broadcasts to the workgroup.
var<workgroup> broadcast_slot: SlotState;
var<workgroup> broadcast: u32;
var<workgroup> broadcast_mass: vec2<u32>;

// Inclusive prefix sum over the workgroup. All invocations must call it. Values are exchanged by shuffles within a
// subgroup and through workgroup memory between subgroups.
fn scan(value: vec2<u32>) -> vec2<u32> {
    var sum = value;
    var stride = 1u;
#if SUBGROUPS
    for (; stride < shuffle_width; stride *= 2u) {
        let other = vec2<u32>(subgroupShuffleUp(sum.x, stride), subgroupShuffleUp(sum.y, stride));
        if (subgroup_lane >= stride) {
            sum = add64(sum, other);
        }
    }
    // Now add the totals of the preceding subgroups, each of `stride` invocations.
    let block = lane / stride;
    workgroupBarrier();
    if (lane % stride == stride - 1u) {
        scan_low[block] = sum.x;
        scan_high[block] = sum.y;
    }
    workgroupBarrier();
    for (var i = 0u; i < block; i += 1u) {
        sum = add64(sum, vec2<u32>(scan_low[i], scan_high[i]));
    }
#else
    for (; stride < WORKGROUP; stride *= 2u) {
        workgroupBarrier();
        scan_low[lane] = sum.x;
        scan_high[lane] = sum.y;
        workgroupBarrier();
        if (lane >= stride) {
            sum = add64(sum, vec2<u32>(scan_low[lane - stride], scan_high[lane - stride]));
        }
    }
#endif
    return sum;
}

// Adds to the 64-bit sum in workgroup memory.
fn add_shared(value: vec2<u32>) {
    let old = atomicAdd(&sum_low, value.x);
    atomicAdd(&sum_high, value.y + select(0u, 1u, old + value.x < old));
}

fn shared_sum() -> vec2<u32> {
    return vec2<u32>(atomicLoad(&sum_low), atomicLoad(&sum_high));
}

fn bin_of(key: u32) -> u32 {
    let distance = max_key - key;
    if (distance < 16u) {
        return distance;
    }
    let octave = firstLeadingBit(distance);
    return (octave - 3u) * 16u + ((distance >> (octave - 4u)) & 15u);
}

fn mass_of(key: u32) -> vec2<u32> {
    return mass(relative_probability(distance_to_max(key, max_logit, inverse)));
}

// 64 random bits, a hash of seed and step, the same as on the CPU.
fn random(seed: vec2<u32>, step: u32) -> vec2<u32> {
    var z = multiply64(vec2<u32>(step, 0u), vec2<u32>(0x7F4A7C15u, 0x9E3779B9u));
    z = seed ^ add64(z, vec2<u32>(0xD192ED03u, 0xD1B54A32u));
    for (var i = 0u; i < 2u; i += 1u) {
        z = multiply64(z ^ shift_right64(z, 30u), vec2<u32>(0x1CE4E5B9u, 0xBF58476Du));
        z = multiply64(z ^ shift_right64(z, 27u), vec2<u32>(0x133111EBu, 0x94D049BBu));
        z ^= shift_right64(z, 31u);
    }
    return z;
}

// A random mass below `total`: the random fraction z of it.
fn random_mass(total: vec2<u32>, z: vec2<u32>) -> vec2<u32> {
    return add64(fraction64(total, z.y), vec2<u32>(fraction64(total, z.x).y, 0u));
}

// The mass that top-p keeps at least. The most likely token is always kept.
fn top_p_mass(total: vec2<u32>, top_p: f32) -> vec2<u32> {
    let target_mass = fraction64(total, u32(top_p * 4294967296.0));
    return select(target_mass, vec2<u32>(1u, 0u), all(target_mass == vec2<u32>()));
}

// Keys of four tokens of the row, NO_KEY for those beyond the vocabulary or not allowed.
fn keys_at(at: vec4<u32>) -> vec4<u32> {
    let inside = vec4<u32>(base) + min(at, vec4<u32>(params.vocab - 1u));
    return keys_of(vec4<u32>(logits[inside.x], logits[inside.y], logits[inside.z], logits[inside.w]), at);
}

#include "select/candidates.wgsl"
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
        let full_mass = needs_full_mass(slot.temperature, slot.top_k);
        if (!full_mass || slot.top_k == 0u || slot.top_k >= params.vocab) {
            draw_candidates(slot, partial, full_mass, z);
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
}
