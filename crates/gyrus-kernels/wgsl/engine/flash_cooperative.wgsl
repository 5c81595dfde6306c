// flash_cooperative: flash attention by f16 cooperative matrices (tensor cores). It computes what engine/flash.wgsl does,
// over the same grid and bindings, for a cache in f16 and without draft trees.
//
//   0  qkv          [rows, q_stride] f32, read: Q comes first
//   1  k_cache      blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM] f16, read
//   2  v_cache      likewise
//   3  params       FlashParams (immediates where the device has them)
//   4  rows         [rows] (position, first entry in block_table) u32
//   5  block_table  u32
//   6  out          [rows, n_heads, HEAD_DIM] f32, written
//   7  tiles        [tiles] (first row, rows, end of the visible positions, unused) u32
//   9  sinks        [n_heads] f32, if SINKS: a score of each head that joins the softmax and has no value
//
// Grid: (n_kv_heads · ceil(query heads of one / HEADS), tiles), the last tiles first. A workgroup has QUERIES queries of
// one KV head: query s is head s % HEADS of row s / HEADS. A subgroup of 32 has 16 of them, whose products with the KEYS
// keys of a tile are fragments of 16 × 16. Queries, scaled, and softmax weights are rounded to f16; sums are f32.
//
// Fragments have no element-wise product, so the sums of values are rescaled through workgroup memory. That is rare: the
// reference that a query's scores are relative to follows their maximum only when it is exceeded by more than
// SLACK, so that weights are at most 2^SLACK. It depends on the query alone, and a factor of 1 changes nothing, so that the
// bits of a row do not depend on other rows. Key tiles begin at multiples of KEYS. Twin: scalar::attend.
//
// EMULATED computes fragments without cooperative matrices (lib/emulated_fragments.wgsl), so that devices without them test
// everything else here. It needs subgroups of at least eight.

enable f16;
#if !EMULATED
enable wgpu_cooperative_matrix;
#endif

#include "params/FlashParams"
#define PARAMS FlashParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"
#include "lib/kv.wgsl"
#include "lib/f16_range.wgsl"

#define SIDE 16u
const WORKGROUP: u32 = 32u * SUBGROUP_COUNT;
const QUERIES: u32 = SIDE * SUBGROUP_COUNT;
#define FRAGMENT_A coop_mat16x16<f16, A>
#define FRAGMENT_B coop_mat16x16<f16, B>
#define ACCUMULATOR coop_mat16x16<f32, C>

struct F16x8 {
    low: vec4<f16>,
    high: vec4<f16>,
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k_cache: array<F16x8>;
@group(0) @binding(2) var<storage, read> v_cache: array<F16x8>;
@group(0) @binding(4) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read> block_table: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> tiles: array<vec4<u32>>;
#if SINKS
@group(0) @binding(9) var<storage, read> sinks: array<f32>;
#endif

// Vectors of four elements, and loads of eight, of a head.
const HEAD_VECTORS: u32 = HEAD_DIM / 4u;
const HEAD_LOADS: u32 = HEAD_DIM / 8u;
// Vectors of four from one staged row to the next. Eight elements of padding avoid bank conflicts.
const HEAD_STRIDE: u32 = HEAD_VECTORS + 2u;
const KEY_STRIDE: u32 = KEYS / 4u + 2u;
// 16-byte loads for the keys, or the values, of a tile, and those of an invocation.
const ALL_LOADS: u32 = KEYS * HEAD_LOADS;
const TILE_LOADS: u32 = (ALL_LOADS + WORKGROUP - 1u) / WORKGROUP;
// Vectors of four scores of a query that an invocation has in the softmax: eight invocations share a query.
const OWN_VECTORS: u32 = KEYS / 32u;
// Vectors of four of a row of a fragment.
const SIDE_VECTORS: u32 = SIDE / 4u;

// Queries before the loop, softmax weights in it.
var<workgroup> left: array<vec4<f16>, QUERIES * max(HEAD_STRIDE, KEY_STRIDE)>;
var<workgroup> staged_keys: array<vec4<f16>, KEYS * HEAD_STRIDE>;
var<workgroup> staged_values: array<vec4<f16>, KEYS * HEAD_STRIDE>;
// Scores of all queries; fragments of sums when they are rescaled or written.
var<workgroup> scores: array<vec4<f32>, QUERIES * KEY_STRIDE>;
// The first position that a query attends to, and the one after the last.
var<workgroup> ranges: array<vec2<u32>, QUERIES>;
// What the sums of each query are multiplied by.
var<workgroup> factors: array<f32, QUERIES>;
// Whether a reference grew in this tile.
var<workgroup> grown: atomic<u32>;

// A masked position scores MASKED. References are at least MIN_REFERENCE, so that exp2(MASKED - reference) is 0. Both are
// finite: compilers may assume that infinities do not exist.
const MASKED: f32 = -1e30;
const MIN_REFERENCE: f32 = -1e29;
const SLACK: f32 = 8.0;

// The first position that a row attends to, and the one after the last.
fn visible_range(position: u32, end: u32) -> vec2<u32> {
    var range = vec2<u32>(0u, select(end, min(end, position + 1u), params.causal != 0u));
    if (params.window != 0u) {
        range.x = max(position + 1u, params.window) - params.window;
        // Saturating. Without causality a window extends as far ahead as back.
        range.y = min(range.y, position + min(params.window, 0xffffffffu - position));
    }
    return range;
}

// One KV head of a sequence's cache, up to position `end`.
struct CachedHead {
    table: u32,
    kv_head: u32,
    end: u32,
}

// Index of a load of a tile's keys or values. Positions from `end` on are clamped to the last one: memory beyond may hold
// anything, and infinity times a weight of 0 would be NaN.
fn load_at(cache: CachedHead, start: u32, load: u32) -> u32 {
    // Invocations beyond the last load repeat it.
    let i = min(load, ALL_LOADS - 1u);
    let position = min(start + i / HEAD_LOADS, cache.end - 1u);
    let block = block_table[cache.table + position / KV_BLOCK];
    return kv_row(block, cache.kv_head, position) * HEAD_LOADS + i % HEAD_LOADS;
}

fn staged_at(i: u32) -> u32 {
    return i / HEAD_LOADS * HEAD_STRIDE + 2u * (i % HEAD_LOADS);
}

// The largest of eight neighbouring lanes' values.
fn max_of_8(value: f32) -> f32 {
    var largest = max(value, subgroupShuffleXor(value, 1u));
    largest = max(largest, subgroupShuffleXor(largest, 2u));
    return max(largest, subgroupShuffleXor(largest, 4u));
}

fn sum_of_8(value: f32) -> f32 {
    var sum = value + subgroupShuffleXor(value, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    return sum + subgroupShuffleXor(sum, 4u);
}

#if EMULATED
#include "lib/emulated_fragments.wgsl"
#endif

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
#if EMULATED
    let subgroup = here.local_index / 32u;
    let lane = here.local_index % 32u;
#else
    let subgroup = here.subgroup_id;
    let lane = here.subgroup_lane;
#endif
    let tile = tiles[here.num_workgroups.y - 1u - here.workgroup.y];
    let end = tile.z;
    let heads_per_kv = params.n_heads / params.n_kv_heads;
    let parts = (heads_per_kv + HEADS - 1u) / HEADS;
    let kv_head = here.workgroup.x / parts;
    let part = here.workgroup.x % parts;
    let cache = CachedHead(rows[tile.x].y, kv_head, end);
    let first_head = kv_head * heads_per_kv + part * HEADS;
    let heads = min(HEADS, heads_per_kv - part * HEADS);
    // Rows are in order of position: the first attends farthest back, the last farthest ahead.
    let begin = visible_range(rows[tile.x].x, end).x / KEYS * KEYS;
    let loop_end = visible_range(rows[tile.x + tile.y - 1u].x, end).y;

    for (var i = here.local_index; i < QUERIES * HEAD_VECTORS; i += WORKGROUP) {
        let query = i / HEAD_VECTORS;
        // Padding queries repeat the last one and do not write.
        let row = tile.x + min(query / HEADS, tile.y - 1u);
        let head = first_head + min(query % HEADS, heads - 1u);
        let q = qkv[row * (params.q_stride / 4u) + head * HEAD_VECTORS + i % HEAD_VECTORS] * params.query_scale;
        let rounded = vec4<f16>(vec4<f32>(f16_range(q.x), f16_range(q.y), f16_range(q.z), f16_range(q.w)));
#if EMULATED
        queries[query * HEAD_STRIDE + i % HEAD_VECTORS] = rounded;
#else
        left[query * HEAD_STRIDE + i % HEAD_VECTORS] = rounded;
#endif
    }
    if (here.local_index < QUERIES) {
        let row = tile.x + min(here.local_index / HEADS, tile.y - 1u);
        ranges[here.local_index] = visible_range(rows[row].x, end);
    }
    if (here.local_index < SIDE * SIDE_VECTORS) {
        scores[here.local_index] = vec4<f32>();
    }
    var next_keys: array<F16x8, TILE_LOADS>;
    var next_values: array<F16x8, TILE_LOADS>;
    for (var i = 0u; i < TILE_LOADS; i += 1u) {
        let at = load_at(cache, begin, here.local_index + i * WORKGROUP);
        next_keys[i] = k_cache[at];
        next_values[i] = v_cache[at];
    }
    workgroupBarrier();

    // The first of the subgroup's queries.
    let own_query = subgroup * SIDE;
    // Where its scores, and its weights, begin.
    let own_keys = own_query * KEY_STRIDE;
#repeat D HEAD_FRAGMENTS
    let at_q##D = own_query * HEAD_STRIDE + D##u * SIDE_VECTORS;
#if EMULATED
    var o##D = Sums();
#else
    let q##D = coopLoadT<FRAGMENT_A>(&left[at_q##D], HEAD_STRIDE);
    var o##D = coopLoadT<ACCUMULATOR>(&scores[0], SIDE_VECTORS);
#endif
#end
    // Zeros that the scores of a tile begin with.
#if EMULATED
    let zero = Sums();
#else
    let zero = coopLoadT<ACCUMULATOR>(&scores[0], SIDE_VECTORS);
#endif

    // In the softmax a lane has every eighth vector of queries lane / 8 + 0, 4, 8 and 12.
    let key_lane = lane % 8u;
    let first_row = lane / 8u;
    var references = vec4<f32>(MIN_REFERENCE);
    var exp_sums = vec4<f32>();
#if SINKS
    for (var r = 0u; r < 4u; r += 1u) {
        let head = first_head + min((own_query + first_row + 4u * r) % HEADS, heads - 1u);
        // A logarithm to base 2.
        references[r] = max(MIN_REFERENCE, 1.44269504 * sinks[head]);
        exp_sums[r] = select(0.0, 1.0, key_lane == 0u);
    }
#endif
    for (var start = begin; start < loop_end; start += KEYS) {
        // Fragments of queries, and those of the last tile, are loaded.
        workgroupBarrier();
        if (here.local_index == 0u) {
            atomicStore(&grown, 0u);
        }
        for (var i = 0u; i < TILE_LOADS; i += 1u) {
            let load = here.local_index + i * WORKGROUP;
            let at = staged_at(load);
            if (load < ALL_LOADS) {
                staged_keys[at] = next_keys[i].low;
                staged_keys[at + 1u] = next_keys[i].high;
                staged_values[at] = next_values[i].low;
                staged_values[at + 1u] = next_values[i].high;
            }
        }
        workgroupBarrier();
        // After the last tile this loads the last position again, which is not used.
        for (var i = 0u; i < TILE_LOADS; i += 1u) {
            let at = load_at(cache, start + KEYS, here.local_index + i * WORKGROUP);
            next_keys[i] = k_cache[at];
            next_values[i] = v_cache[at];
        }
#repeat K KEY_FRAGMENTS
        var s##K = zero;
#repeat D HEAD_FRAGMENTS
        {
            let at = K##u * SIDE * HEAD_STRIDE + D##u * SIDE_VECTORS;
#if EMULATED
            s##K = times_keys(lane, at_q##D, at, s##K);
#else
            let keys = coopLoad<FRAGMENT_B>(&staged_keys[at], HEAD_STRIDE);
            s##K = coopMultiplyAdd(q##D, keys, s##K);
#endif
        }
#end
        // coopStoreT takes a `let` only.
        let t##K = s##K;
        let at_s##K = own_keys + K##u * SIDE_VECTORS;
#if EMULATED
        store_sums(lane, at_s##K, t##K);
#else
        coopStoreT(t##K, &scores[at_s##K], KEY_STRIDE);
#endif
#end
        workgroupBarrier();

        var grew = false;
        for (var r = 0u; r < 4u; r += 1u) {
            let query = own_query + first_row + 4u * r;
            let range = ranges[query];
            let first = query * KEY_STRIDE + key_lane;
            var own: array<vec4<f32>, OWN_VECTORS>;
            var most = vec4<f32>(MASKED);
            for (var k = 0u; k < OWN_VECTORS; k += 1u) {
                var score = scores[first + 8u * k];
                if (params.cap != 0.0) {
                    // Queries are divided by the cap already. Beyond 10, tanh is 1 in f32.
                    score = tanh(clamp(score, vec4<f32>(-10.0), vec4<f32>(10.0))) * params.cap;
                }
                let position = vec4<u32>(start + 4u * (key_lane + 8u * k)) + vec4<u32>(0u, 1u, 2u, 3u);
                let is_visible = (position >= vec4<u32>(range.x)) & (position < vec4<u32>(range.y));
                own[k] = select(vec4<f32>(MASKED), score, is_visible);
                most = max(most, own[k]);
            }
            let largest = max_of_8(max(max(most.x, most.y), max(most.z, most.w)));
            let before = references[r];
            let grows = largest > before + SLACK;
            let reference = select(before, largest, grows);
            // Of a query without weights so far there is nothing to rescale.
            grew = grew || (grows && before > MIN_REFERENCE);
            let factor = exp2(before - reference);
            references[r] = reference;
            var sums = vec4<f32>();
            for (var k = 0u; k < OWN_VECTORS; k += 1u) {
                let weights = exp2(own[k] - vec4<f32>(reference));
                sums += weights;
                left[first + 8u * k] = vec4<f16>(weights);
            }
            exp_sums[r] = fma(exp_sums[r], factor, (sums.x + sums.y) + (sums.z + sums.w));
            if (key_lane == 0u) {
                factors[query] = factor;
            }
        }
        if (grew) {
            atomicStore(&grown, 1u);
        }
        // A barrier, too: weights are written.
        if (workgroupUniformLoad(&grown) != 0u) {
#repeat D HEAD_FRAGMENTS
            {
                let sums = o##D;
#if EMULATED
                store_sums(lane, own_keys, sums);
#else
                coopStoreT(sums, &scores[own_keys], KEY_STRIDE);
#endif
            }
            workgroupBarrier();
            for (var i = lane; i < SIDE * SIDE_VECTORS; i += 32u) {
                let query = own_query + i / SIDE_VECTORS;
                scores[query * KEY_STRIDE + i % SIDE_VECTORS] *= factors[query];
            }
            workgroupBarrier();
#if EMULATED
            o##D = load_sums(lane, own_keys);
#else
            o##D = coopLoadT<ACCUMULATOR>(&scores[own_keys], KEY_STRIDE);
#endif
            workgroupBarrier();
#end
        }
#repeat K KEY_FRAGMENTS
        {
            let at_w = own_keys + K##u * SIDE_VECTORS;
#if !EMULATED
            let weights = coopLoadT<FRAGMENT_A>(&left[at_w], KEY_STRIDE);
#endif
#repeat D HEAD_FRAGMENTS
            let at_v##D = K##u * SIDE * HEAD_STRIDE + D##u * SIDE_VECTORS;
#if EMULATED
            o##D = times_values(lane, at_w, at_v##D, o##D);
#else
            let values##D = coopLoadT<FRAGMENT_B>(&staged_values[at_v##D], HEAD_STRIDE);
            o##D = coopMultiplyAdd(weights, values##D, o##D);
#endif
#end
        }
#end
    }
    for (var r = 0u; r < 4u; r += 1u) {
        let sum = sum_of_8(exp_sums[r]);
        if (key_lane == 0u) {
            // A row that attends to nothing gets 0.
            factors[own_query + first_row + 4u * r] = 1.0 / select(sum, 1.0, sum == 0.0);
        }
    }
#repeat D HEAD_FRAGMENTS
    workgroupBarrier();
    {
        let sums = o##D;
#if EMULATED
        store_sums(lane, own_keys, sums);
#else
        coopStoreT(sums, &scores[own_keys], KEY_STRIDE);
#endif
    }
    workgroupBarrier();
    for (var i = lane; i < SIDE * SIDE_VECTORS; i += 32u) {
        let query = own_query + i / SIDE_VECTORS;
        let row = query / HEADS;
        let head = query % HEADS;
        let column = D##u * SIDE_VECTORS + i % SIDE_VECTORS;
        if (row < tile.y && head < heads) {
            let to = ((tile.x + row) * params.n_heads + first_head + head) * HEAD_VECTORS + column;
            out[to] = scores[query * KEY_STRIDE + i % SIDE_VECTORS] * factors[query];
        }
    }
#end
}
