// select_logprobs: the log-probability of each row's token and of its most likely tokens, from the logits before
// penalties, masks and temperature. It runs after the rows have advanced, and after a select_survey with RAW.
//
//   0  logits    [rows, vocab] f32, read
//   1  slots     [rows] SlotState, read: their steps are one ahead
//   2  partials  [rows, PARTIALS] u32, read: what select_survey wrote to `surveyed`
//   3  emitted   [EMITTED, MAX_ROWS] u32, read
//   4  params    SelectParams (immediates where the device has them)
//   5  logprobs  [EMITTED, MAX_ROWS, 1 + 2 · MAX_TOP] u32, written: the log-probability's bits, then pairs of token and
//                log-probability's bits, the most likely first; (NONE, -infinity) if the vocabulary has fewer tokens
//
// Grid: (rows), a workgroup a row. Rows that held or want no log-probabilities are not written. Twin: scalar::logprobs.
//
// As in select_draw, each of the `top` largest logits is at least the `top`-th largest maximum of disjoint sets of
// chunks, one set for four invocations. If too many tokens are, because their logits are equal, the most likely ones are
// found one after the other in passes over the row.
//
// A single workgroup cannot hide the time of loads, so that all that do not depend on each other are issued first.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 4
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> slots: array<SlotState>;
@group(0) @binding(2) var<storage, read> partials: array<u32>;
@group(0) @binding(3) var<storage, read> emitted: array<u32>;
@group(0) @binding(5) var<storage, read_write> logprobs: array<u32>;
#include "select/keys.wgsl"
#include "select/layout.wgsl"

const MAX_ROWS: u32 = 16u;
const EMITTED: u32 = 64u;
const MAX_TOP: u32 = 20u;
const NONE: u32 = 0xffffffffu;
const MINUS_INFINITY: u32 = 0xff800000u;
const WORKGROUP: u32 = 256u;
const CANDIDATES: u32 = 512u;

// Sets of chunks, more than MAX_TOP.
const SETS: u32 = WORKGROUP / 4u;

var<workgroup> keys: array<u32, WORKGROUP>;
var<workgroup> sets: array<u32, SETS>;
var<workgroup> sums: array<f32, SLICES>;
// (key, token).
var<workgroup> candidates: array<vec2<u32>, CANDIDATES>;
var<workgroup> found: atomic<u32>;
// Chunks that have a candidate.
var<workgroup> wanted: array<u32, CANDIDATES>;
var<workgroup> wanted_count: atomic<u32>;
var<workgroup> best_key: atomic<u32>;
var<workgroup> best_token: atomic<u32>;
// Values that one invocation broadcasts to the workgroup.
var<workgroup> broadcast: u32;
var<workgroup> broadcast_pair: vec2<u32>;

fn is_before(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

fn key_at(base: u32, token: u32) -> u32 {
    return key_of(logits[base + token]);
}

// The difference to the largest logit first: it is exact for likely tokens.
fn logprob(key: u32, largest: f32, log_sum: f32) -> u32 {
    return bitcast<u32>((value_of(key) - largest) - log_sum);
}

// Collects the tokens of `count` wanted chunks whose keys are at least this. All invocations read each chunk together: one
// alone would wait for every logit in turn.
fn collect(lane: u32, base: u32, count: u32, least: u32) {
    let each = params.each * CHUNK;
    for (var i = lane; i < count * each; i += WORKGROUP) {
        let chunk = wanted[i / each];
        let own = i % each;
        let offset = (chunk % CHUNKS_OF_SLICE) * CHUNK + own % CHUNK;
        let token = token_at(chunk / CHUNKS_OF_SLICE, own / CHUNK, offset);
        if (token < params.vocab) {
            let key = key_at(base, token);
            if (key >= least) {
                let at = atomicAdd(&found, 1u);
                if (at < CANDIDATES) {
                    candidates[at] = vec2<u32>(key, token);
                }
            }
        }
    }
}

// The largest keys of four chunks of the row; NO_KEY for chunks that it does not have.
fn chunk_keys(partial: u32, at: vec4<u32>, chunks: u32) -> vec4<u32> {
    let own = partial + at;
    let keys = vec4<u32>(partials[own.x], partials[own.y], partials[own.z], partials[own.w]);
    return select(vec4<u32>(NO_KEY), keys, at < vec4<u32>(chunks));
}

// Adds those of four chunks that have a candidate.
fn want(at: vec4<u32>, keys: vec4<u32>, least: u32) {
    for (var i = 0u; i < 4u; i += 1u) {
        if (keys[i] >= least) {
            let place = atomicAdd(&wanted_count, 1u);
            if (place < CANDIDATES) {
                wanted[place] = at[i];
            }
        }
    }
}

// The first token of the row after another in descending order. All invocations must call it.
fn next_after(lane: u32, base: u32, last: vec2<u32>) -> vec2<u32> {
    var best = vec2<u32>(NO_KEY, NONE);
    for (var token = lane; token < params.vocab; token += WORKGROUP) {
        let candidate = vec2<u32>(key_at(base, token), token);
        if (is_before(last, candidate) && is_before(candidate, best)) {
            best = candidate;
        }
    }
    if (lane == 0u) {
        atomicStore(&best_key, NO_KEY);
        atomicStore(&best_token, NONE);
    }
    workgroupBarrier();
    atomicMax(&best_key, best.x);
    workgroupBarrier();
    if (best.x == atomicLoad(&best_key)) {
        atomicMin(&best_token, best.y);
    }
    workgroupBarrier();
    if (lane == 0u) {
        broadcast_pair = vec2<u32>(atomicLoad(&best_key), atomicLoad(&best_token));
    }
    return workgroupUniformLoad(&broadcast_pair);
}

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.x;
    let step = slots[row].step - 1u;
    let flags = slots[row].flags;
    let top = min(slots[row].top, MAX_TOP);
    let base = row * params.vocab;
    let partial = row * PARTIALS;
    let chunks = params.slices * CHUNKS_OF_SLICE;
    let first_four = lane + vec4<u32>(0u, 1u, 2u, 3u) * WORKGROUP;
    let last_four = first_four + 4u * WORKGROUP;
    let first_keys = chunk_keys(partial, first_four, chunks);
    let last_keys = chunk_keys(partial, last_four, chunks);
    let slice = partial + min(lane, SLICES - 1u);
    let of_slice = vec2<u32>(partials[slice + LARGEST], partials[slice + SUMS]);
    let at = (step % EMITTED) * MAX_ROWS + row;
    let chosen = emitted[at];
    if ((flags & SLOT_LOGPROBS) == 0u || chosen >= params.vocab) {
        return;
    }
    let chosen_key = key_at(base, chosen);
    let out = at * (1u + 2u * MAX_TOP);
    let four = max(first_keys, last_keys);
    keys[lane] = max(max(four.x, four.y), max(four.z, four.w));
    if (lane == 0u) {
        atomicStore(&found, 0u);
        atomicStore(&wanted_count, 0u);
        broadcast_pair = vec2<u32>(NO_KEY);
    }
    workgroupBarrier();
    var own = NO_KEY;
    if (lane < SETS) {
        let first = 4u * lane;
        own = max(max(keys[first], keys[first + 1u]), max(keys[first + 2u], keys[first + 3u]));
        sets[lane] = own;
    }
    workgroupBarrier();
    // The largest key of the row, and the `top`-th largest of the sets' keys, by their ranks.
    if (lane < SETS) {
        var rank = 0u;
        for (var i = 0u; i < SETS; i += 1u) {
            rank += select(0u, 1u, is_before(vec2<u32>(sets[i], i), vec2<u32>(own, lane)));
        }
        if (rank == 0u) {
            broadcast_pair.x = own;
        }
        if (rank + 1u == top) {
            broadcast_pair.y = own;
        }
    }
    workgroupBarrier();
    // Fewer sets have chunks than tokens are wanted: all tokens, but not what is missing.
    let least = max(broadcast_pair.y, NO_KEY + 1u);
    let largest = value_of(broadcast_pair.x);
    if (lane < SLICES) {
        let sum = bitcast<f32>(of_slice.y) * exp(value_of(of_slice.x) - largest);
        sums[lane] = select(0.0, sum, lane < params.slices);
    }
    workgroupBarrier();
    for (var stride = SLICES / 2u; stride > 0u; stride /= 2u) {
        if (lane < stride) {
            sums[lane] += sums[lane + stride];
        }
        workgroupBarrier();
    }
    let log_sum = log(sums[0]);
    if (lane == 0u) {
        logprobs[out] = logprob(chosen_key, largest, log_sum);
    }
    if (top == 0u) {
        return;
    }
    want(first_four, first_keys, least);
    want(last_four, last_keys, least);
    workgroupBarrier();
    // Each of these chunks has a candidate: more chunks than candidates are too many of these, too.
    let chunks_wanted = atomicLoad(&wanted_count);
    if (chunks_wanted <= CANDIDATES) {
        collect(lane, base, chunks_wanted, least);
    }
    workgroupBarrier();
    if (lane == 0u) {
        broadcast = max(atomicLoad(&found), chunks_wanted);
    }
    let count = workgroupUniformLoad(&broadcast);
    if (count <= CANDIDATES) {
        for (var i = lane; i < count; i += WORKGROUP) {
            let candidate = candidates[i];
            var place = 0u;
            for (var j = 0u; j < count; j += 1u) {
                place += select(0u, 1u, is_before(candidates[j], candidate));
            }
            if (place < top) {
                logprobs[out + 1u + 2u * place] = candidate.y;
                logprobs[out + 2u + 2u * place] = logprob(candidate.x, largest, log_sum);
            }
        }
        for (var place = count + lane; place < top; place += WORKGROUP) {
            logprobs[out + 1u + 2u * place] = NONE;
            logprobs[out + 2u + 2u * place] = MINUS_INFINITY;
        }
    } else {
        var last = vec2<u32>(NOT_FINITE, 0u);
        for (var place = 0u; place < top; place += 1u) {
            last = next_after(lane, base, last);
            if (lane == 0u) {
                logprobs[out + 1u + 2u * place] = last.y;
                logprobs[out + 2u + 2u * place] = logprob(last.x, largest, log_sum);
            }
        }
    }
}
