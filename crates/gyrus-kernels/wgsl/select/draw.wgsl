// select_draw: a token of each row by its sampler, and the step's state behind it.
//
//   0  logits    [rows, vocab] f32, read; with PENALTIES `adjusted`, which select_survey wrote
//   1  samplers  [rows] SelectRow, read
//   2  partials  [rows, PARTIALS] u32, read: what select_survey wrote
//   3  tokens    [rows] u32, written
//   4  rows      [rows] (position, first entry of the block table), advanced
//   5  emitted   [EMITTED, MAX_ROWS] u32, written at the new position
//   6  params    SelectParams (immediates where the device has them)
//   7  history   [rows, HISTORY] u32, tokens by position; only with PENALTIES
//   8  counts    [rows, vocab] u32, advanced; only with PENALTIES
//
// Grid: (rows), a workgroup a row. Twin: Sampler::draw, scalar::SelectState.
//
// Any token among the k likeliest lies in one of the k chunks with the largest maxima, and is no smaller than the
// least of these. So a few chunks are read, and what is at least that large is sorted by counting: these tokens are
// the beginning of the row in descending order, equal ones by id. All cuts are beginnings of that order, too. Where
// what is near is not enough (many tokens are wanted, or so many are equal that they have no room), far.wgsl finds the
// token by reading the row several times.
//
// Sums are in fixed point, hence exact: a row's token does not depend on the order in which candidates were found.

#include "params/SelectParams"
#include "params/SelectRow"
#define PARAMS SelectParams
#define PARAMS_BINDING 6
#include "lib/params.wgsl"

// A power of two from 256 on.
override WORKGROUP: u32 = 256u;
// Tokens near the likeliest that there is room for, and how many of them an invocation sorts at most.
const CANDIDATES: u32 = 1024u;
const OWNED: u32 = 4u;

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> samplers: array<SelectRow>;
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
// Steps of 1/16 octave of a key's distance from the largest.
const STEPS: u32 = 464u;
// Words for 256 bins of four; what is near needs STEPS bins of one, and then a list of chunks.
const BINS: u32 = 1024u;

// The row at hand.
var<private> lane: u32;
var<private> base: u32;
var<private> most_key: u32;
var<private> most_value: f32;
var<private> inverse: f32;
// The largest keys of chunks 4·lane to 4·lane + 3, and of those 4·WORKGROUP further on.
var<private> held: vec4<u32>;
var<private> held_further: vec4<u32>;
#if SUBGROUPS
// Invocations that are this far apart, or farther, are in different subgroups.
var<private> reach: u32;
var<private> subgroup_lane: u32;
#endif

var<workgroup> bins: array<atomic<u32>, BINS>;
// Keys and tokens.
var<workgroup> candidates: array<vec2<u32>, CANDIDATES>;
var<workgroup> scan_low: array<u32, WORKGROUP>;
var<workgroup> scan_high: array<u32, WORKGROUP>;
var<workgroup> largest: atomic<u32>;
var<workgroup> found: atomic<u32>;
var<workgroup> chosen: atomic<u32>;
var<workgroup> sum_low: atomic<u32>;
var<workgroup> sum_high: atomic<u32>;
// What one invocation tells all.
var<workgroup> told: u32;
var<workgroup> told_mass: vec2<u32>;

// The sum of the values of this and all invocations before it. All must call it. Within subgroups values are exchanged
// directly, beyond them and where there are none through workgroup memory.
fn scan(value: vec2<u32>) -> vec2<u32> {
    var sum = value;
    var stride = 1u;
#if SUBGROUPS
    for (; stride < reach; stride *= 2u) {
        let other = vec2<u32>(subgroupShuffleUp(sum.x, stride), subgroupShuffleUp(sum.y, stride));
        if (subgroup_lane >= stride) {
            sum = add64(sum, other);
        }
    }
    // From here on an invocation adds the last sums of subgroups, each of `stride` invocations.
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

// Adds to the sum that invocations share.
fn pour(value: vec2<u32>) {
    let old = atomicAdd(&sum_low, value.x);
    atomicAdd(&sum_high, value.y + select(0u, 1u, old + value.x < old));
}

fn poured() -> vec2<u32> {
    return vec2<u32>(atomicLoad(&sum_low), atomicLoad(&sum_high));
}

fn step_of(key: u32) -> u32 {
    let away = most_key - key;
    if (away < 16u) {
        return away;
    }
    let octave = firstLeadingBit(away);
    return (octave - 3u) * 16u + ((away >> (octave - 4u)) & 15u);
}

fn mass_of(key: u32) -> vec2<u32> {
    return mass(likelihood(gap(key, most_value, inverse)));
}

// 64 bits from seed and step alone, the same as on the CPU.
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

// A share of the mass by a random number, below the mass.
fn share(total: vec2<u32>, z: vec2<u32>) -> vec2<u32> {
    return add64(fraction64(total, z.y), vec2<u32>(fraction64(total, z.x).y, 0u));
}

// The mass that a top-p keeps at least; the likeliest is always kept.
fn goal_of(total: vec2<u32>, top_p: f32) -> vec2<u32> {
    let goal = fraction64(total, u32(top_p * 4294967296.0));
    return select(goal, vec2<u32>(1u, 0u), all(goal == vec2<u32>()));
}

// Keys of four tokens of the row, NO_KEY beyond the vocabulary.
fn keys_at(at: vec4<u32>) -> vec4<u32> {
    let inside = vec4<u32>(base) + min(at, vec4<u32>(params.vocab - 1u));
    return keys_of(vec4<u32>(logits[inside.x], logits[inside.y], logits[inside.z], logits[inside.w]), at);
}

#include "select/near.wgsl"
#include "select/far.wgsl"

fn first_of(at: vec4<u32>, keys: vec4<u32>) -> u32 {
    let tokens_at = select(vec4<u32>(NONE), at, keys == vec4<u32>(most_key));
    return min(min(tokens_at.x, tokens_at.y), min(tokens_at.z, tokens_at.w));
}

// The first of the likeliest: what a row takes that draws nothing.
fn likeliest_of(chunk: u32, key: u32) {
    if (key == most_key) {
        for (var place = 0u; place < CHUNK; place += 1u) {
            for (var run = 0u; run < params.each; run += 8u) {
                let at = token_indices(chunk_token(chunk, run, place));
                let low = keys_at(at.low);
                let high = keys_at(at.high);
                atomicMin(&chosen, min(first_of(at.low, low), first_of(at.high, high)));
            }
        }
    }
}

fn likeliest(chunk: u32, keys: vec4<u32>) {
    likeliest_of(chunk, keys.x);
    likeliest_of(chunk + 1u, keys.y);
    likeliest_of(chunk + 2u, keys.z);
    likeliest_of(chunk + 3u, keys.w);
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) group: vec3<u32>,
#if SUBGROUPS
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) place: u32,
    @builtin(subgroup_size) subgroup_size: u32,
#endif
) {
    let row = group.x;
    let how = samplers[row];
    lane = index;
#if SUBGROUPS
    reach = 1u;
    subgroup_lane = place;
    // Subgroups follow each other in this numbering, if they are full.
    if (subgroups * subgroup_size == WORKGROUP) {
        reach = subgroup_size;
        lane = subgroup * subgroup_size + place;
    }
#endif
    base = row * params.vocab;
    inverse = how.inverse_temperature;
    let partial = row * (PARTIALS / 4u);
    held = held_at(partial, lane);
    held_further = held_at(partial, lane + WORKGROUP);
    if (lane == 0u) {
        atomicStore(&largest, NO_KEY);
        atomicStore(&found, 0u);
        atomicStore(&chosen, NONE);
        atomicStore(&sum_low, 0u);
        atomicStore(&sum_high, 0u);
    }
    for (var i = lane; i < BINS; i += WORKGROUP) {
        atomicStore(&bins[i], 0u);
    }
    let larger = max(held, held_further);
    let key = max(max(larger.x, larger.y), max(larger.z, larger.w));
    workgroupBarrier();
#if SUBGROUPS
    let subgroup_most = subgroupMax(key);
    if (key == subgroup_most) {
        atomicMax(&largest, key);
    }
#else
    atomicMax(&largest, key);
#endif
    workgroupBarrier();
    if (lane == 0u) {
        told = atomicLoad(&largest);
    }
    let most = workgroupUniformLoad(&told);
    most_key = most;
    most_value = value_of(most);
    if (most == NOT_FINITE) {
        if (lane == 0u) {
            advance(row, NOT_FINITE);
        }
    } else if (how.temperature == 0.0) {
        likeliest(4u * lane, held);
        likeliest(4u * (lane + WORKGROUP), held_further);
        workgroupBarrier();
        if (lane == 0u) {
            advance(row, atomicLoad(&chosen));
        }
    } else {
        let z = random(vec2<u32>(how.seed_low, how.seed_high), rows[row].x + 1u);
        let wide = is_wide(how.temperature, how.top_k);
        if (!wide || how.top_k == 0u || how.top_k >= params.vocab) {
            near(row, partial, wide, z);
        }
        workgroupBarrier();
        if (lane == 0u) {
            told = atomicLoad(&chosen);
        }
        if (workgroupUniformLoad(&told) == NONE) {
            far(row, z);
        }
        workgroupBarrier();
        if (lane == 0u) {
            advance(row, min(atomicLoad(&chosen), params.vocab - 1u));
        }
    }
}
