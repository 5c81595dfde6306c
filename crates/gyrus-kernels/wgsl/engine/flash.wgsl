// flash: flash attention for prefill, out = softmax(scale · q Kᵀ) V for tiles of rows, each tile of one sequence, over
// tiles of KEYS positions.
//
//   0  qkv          [rows, q_stride] f32, read: Q comes first
//   1  k_cache      blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM], KV (f32 or f16), read
//   2  v_cache      likewise
//   3  params       FlashParams (immediates where the device has them)
//   4  rows         [rows] (position, first entry in block_table) u32
//   5  block_table  u32
//   6  out          [rows, n_heads, HEAD_DIM] f32, written
//   7  tiles        [tiles] (first row, rows, end of the visible positions, base of the tree) u32
//   8  branches     [rows] 64 bits, with TREE: bit i says whether a row attends to position base + i
//   9  sinks        [n_heads] f32, if SINKS: a score of each head that joins the softmax and has no value
//
// Grid: (n_kv_heads · ceil(query heads of one / HEADS), tiles), the last tiles first: in a prompt they have the longest
// context. A workgroup has QUERIES queries of one KV head, HEADS of each row: query s is head s % HEADS of row s /
// HEADS. An invocation has four queries. Of the scores it has four keys, KEY_LANES apart; of the output, OUTPUT_VECTORS
// vectors of each query, KEY_LANES apart. Keys and values are staged in workgroup memory as f32: KEY_DIMS elements of
// all keys, or VALUE_KEYS whole values at a time. With PREFETCH > 0 an invocation issues the loads of the next stage,
// at most PREFETCH of them, before it computes on this one. Key tiles begin at multiples of KEYS whatever the rows, and
// masked positions have weight 0, so that the bits of a row do not depend on other rows. Scores are logarithms to base
// 2, sums f32. Twin: scalar::attend.

#include "params/FlashParams"
#define PARAMS FlashParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"
#include "lib/kv.wgsl"

override QUERIES: u32 = 32u;
override KEYS: u32 = 32u;
// A divisor of HEAD_DIM and a multiple of 8: a row of keys with its padding is then an odd number of vectors.
override KEY_DIMS: u32 = 64u;
// A divisor of KEYS, and a multiple of 4.
override VALUE_KEYS: u32 = 32u;
override HEADS: u32 = 1u;

override KEY_LANES: u32 = KEYS / 4u;
override WORKGROUP: u32 = QUERIES / 4u * KEY_LANES;
override HEAD_VECTORS: u32 = HEAD_DIM / 4u;
override KEY_STRIDE: u32 = KEY_DIMS / 4u + 1u;
override QUERY_VECTORS: u32 = QUERIES * HEAD_VECTORS;
override STAGE_VECTORS: u32 = max(KEYS * KEY_STRIDE, VALUE_KEYS * HEAD_VECTORS);
override WEIGHT_VECTORS: u32 = QUERIES * KEY_LANES;

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
#if KV == f16
@group(0) @binding(1) var<storage, read> k_cache: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> v_cache: array<vec4<u32>>;
// The type of one 16-byte load, and its elements.
#define LOAD vec4<u32>
#define LOAD_ELEMENTS 8u
#else
@group(0) @binding(1) var<storage, read> k_cache: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v_cache: array<vec4<f32>>;
#define LOAD vec4<f32>
#define LOAD_ELEMENTS 4u
#endif
@group(0) @binding(4) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read> block_table: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> tiles: array<vec4<u32>>;
#if TREE
@group(0) @binding(8) var<storage, read> branches: array<vec2<u32>>;
#endif
#if SINKS
@group(0) @binding(9) var<storage, read> sinks: array<f32>;

// The running max that a query begins with: its sink, as a logarithm to base 2.
fn sink(index: u32, first_head: u32, heads: u32) -> f32 {
    return max(MIN_RUNNING_MAX, 1.44269504 * sinks[first_head + min(index % HEADS, heads - 1u)]);
}
#endif

var<workgroup> queries: array<vec4<f32>, QUERY_VECTORS>;
// Keys, then values.
var<workgroup> stage: array<vec4<f32>, STAGE_VECTORS>;
// Of query s the weights of keys t + j * KEY_LANES, j from 0 to 3, at s * KEY_LANES + t.
var<workgroup> weights: array<vec4<f32>, WEIGHT_VECTORS>;
// Values of all invocations for their four queries, to be reduced over KEY_LANES.
var<workgroup> reduced: array<vec4<f32>, WORKGROUP>;

// A masked position scores MASKED. The running max is at least MIN_RUNNING_MAX, so that exp2(MASKED - max) is 0. Both
// are finite: compilers may assume that infinities do not exist.
const MASKED: f32 = -1e30;
const MIN_RUNNING_MAX: f32 = -1e29;

// c + a · b, where b has a row for each element of a.
fn mul_add4(a: vec4<f32>, b: mat4x4<f32>, c: vec4<f32>) -> vec4<f32> {
    let xy = fma(vec4<f32>(a.y), b[1], fma(vec4<f32>(a.x), b[0], c));
    return fma(vec4<f32>(a.w), b[3], fma(vec4<f32>(a.z), b[2], xy));
}

fn mul_add4x4(a: mat4x4<f32>, b: mat4x4<f32>, c: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        mul_add4(a[0], b, c[0]),
        mul_add4(a[1], b, c[1]),
        mul_add4(a[2], b, c[2]),
        mul_add4(a[3], b, c[3]),
    );
}

fn max_of(v: vec4<f32>) -> f32 {
    return max(max(v.x, v.y), max(v.z, v.w));
}

fn sum(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

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

// A query of a tile: its visible positions, and where its output begins.
struct Query {
    start: u32,
    end: u32,
    output: u32,
#if TREE
    branch: vec2<u32>,
#endif
}

// The output of a padding query: it attends to nothing and writes nothing.
const NO_OUTPUT: u32 = 0xffffffffu;

fn query_of(index: u32, tile: vec4<u32>, first_head: u32, heads: u32) -> Query {
    let row = index / HEADS;
    let head = index % HEADS;
    let exists = row < tile.y && head < heads;
    let at = tile.x + min(row, tile.y - 1u);
    let range = visible_range(rows[at].x, tile.z);
    var query: Query;
    query.start = range.x;
    query.end = select(0u, range.y, exists);
    query.output = select(NO_OUTPUT, (at * params.n_heads + first_head + head) * HEAD_VECTORS, exists);
#if TREE
    query.branch = branches[at];
#endif
    return query;
}

// Scores of four positions, masked.
fn visible(scores: vec4<f32>, positions: vec4<u32>, query: Query, base: u32) -> vec4<f32> {
    var is_visible = (positions >= vec4<u32>(query.start)) & (positions < vec4<u32>(query.end));
#if TREE
    is_visible = is_visible & on_branch(positions, base, query.branch);
#endif
    return select(vec4<f32>(MASKED), scores, is_visible);
}

// Soft-capped scores c · tanh(s / c). The queries are divided by c already. Beyond 10, tanh is 1 in f32, and some
// implementations overflow.
fn soft_capped(scores: vec4<f32>) -> vec4<f32> {
    return tanh(clamp(scores, vec4<f32>(-10.0), vec4<f32>(10.0))) * params.cap;
}

#if TREE
// Which of four positions are before the tree's base, or on the row's branch of the tree.
fn on_branch(positions: vec4<u32>, base: u32, branch: vec2<u32>) -> vec4<bool> {
    let i = positions - vec4<u32>(base);
    let words = select(vec4<u32>(branch.x), vec4<u32>(branch.y), i >= vec4<u32>(32u));
    let bits = (words >> (i & vec4<u32>(31u))) & vec4<u32>(1u);
    let inside = (i < vec4<u32>(64u)) & (bits == vec4<u32>(1u));
    return (positions < vec4<u32>(base)) | inside;
}
#endif

// Loads of KEY_DIMS elements of a key, and of all keys of a tile.
override KEY_LOADS: u32 = KEY_DIMS / LOAD_ELEMENTS;
override KEY_TILE_LOADS: u32 = KEYS * KEY_LOADS;
// Loads of a whole value, and of VALUE_KEYS values.
override VALUE_LOADS: u32 = HEAD_DIM / LOAD_ELEMENTS;
override VALUE_TILE_LOADS: u32 = VALUE_KEYS * VALUE_LOADS;

// One KV head of a sequence's cache, up to position `end`.
struct CachedHead {
    table: u32,
    kv_head: u32,
    end: u32,
}

// Index, in loads, of a head's vector at a position. Positions from `end` on are clamped to the last one: memory beyond
// may hold anything, and infinity times a weight of 0 would be NaN.
fn cache_at(cache: CachedHead, position: u32) -> u32 {
    let inside = min(position, cache.end - 1u);
    let block = block_table[cache.table + inside / KV_BLOCK];
    return kv_row(block, cache.kv_head, inside) * VALUE_LOADS;
}

// Load i of elements dims.. of a tile's keys.
fn load_key(cache: CachedHead, start: u32, dims: u32, i: u32) -> LOAD {
    return k_cache[cache_at(cache, start + i / KEY_LOADS) + dims / LOAD_ELEMENTS + i % KEY_LOADS];
}

fn stage_key(i: u32, load: LOAD) {
    stage_load(i / KEY_LOADS * KEY_STRIDE + i % KEY_LOADS * (LOAD_ELEMENTS / 4u), load);
}

// Load i of the values of keys t + j * KEY_LANES, for VALUE_KEYS / 4 of t from `first` on, ordered by j, then t.
fn load_value(cache: CachedHead, start: u32, first: u32, i: u32) -> LOAD {
    let value = i / VALUE_LOADS;
    let position = start + first + value % (VALUE_KEYS / 4u) + value / (VALUE_KEYS / 4u) * KEY_LANES;
    return v_cache[cache_at(cache, position) + i % VALUE_LOADS];
}

fn stage_value(i: u32, load: LOAD) {
    stage_load(i * (LOAD_ELEMENTS / 4u), load);
}

#if KV == f16
fn stage_load(at: u32, load: vec4<u32>) {
    stage[at] = vec4<f32>(unpack2x16float(load.x), unpack2x16float(load.y));
    stage[at + 1u] = vec4<f32>(unpack2x16float(load.z), unpack2x16float(load.w));
}
#else
fn stage_load(at: u32, load: vec4<f32>) {
    stage[at] = load;
}
#endif

#if PREFETCH > 0
struct Prefetched {
    loads: array<LOAD, PREFETCH>,
}

// Invocations beyond the last load repeat it.
fn prefetch_keys(cache: CachedHead, start: u32, dims: u32, lane: u32) -> Prefetched {
    var prefetched: Prefetched;
    for (var i = 0u; i < PREFETCH; i += 1u) {
        prefetched.loads[i] = load_key(cache, start, dims, min(lane + i * WORKGROUP, KEY_TILE_LOADS - 1u));
    }
    return prefetched;
}

fn prefetch_values(cache: CachedHead, start: u32, first: u32, lane: u32) -> Prefetched {
    var prefetched: Prefetched;
    for (var i = 0u; i < PREFETCH; i += 1u) {
        prefetched.loads[i] = load_value(cache, start, first, min(lane + i * WORKGROUP, VALUE_TILE_LOADS - 1u));
    }
    return prefetched;
}
#endif

// One vector of each of the four values that belong to a vector of weights.
fn values(at: u32, vector: u32) -> mat4x4<f32> {
    let first = at * HEAD_VECTORS + min(vector, HEAD_VECTORS - 1u);
    let stride = VALUE_KEYS / 4u * HEAD_VECTORS;
    return mat4x4<f32>(
        stage[first],
        stage[first + stride],
        stage[first + 2u * stride],
        stage[first + 3u * stride],
    );
}

fn rescaled(sums: mat4x4<f32>, rescale: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(sums[0] * rescale.x, sums[1] * rescale.y, sums[2] * rescale.z, sums[3] * rescale.w);
}

// Writes one vector of a query's output. A row that attends to nothing gets 0.
fn write_one(sums: vec4<f32>, exp_sum: f32, query: Query, vector: u32) {
    if (vector < HEAD_VECTORS && query.output != NO_OUTPUT) {
        out[query.output + vector] = sums / select(exp_sum, 1.0, exp_sum == 0.0);
    }
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let lane = here.local_index;
    let key_lane = lane % KEY_LANES;
    let first_query = lane / KEY_LANES * 4u;
    let tile = tiles[here.num_workgroups.y - 1u - here.workgroup.y];
    let end = tile.z;
    let heads_per_kv = params.n_heads / params.n_kv_heads;
    let parts = (heads_per_kv + HEADS - 1u) / HEADS;
    let kv_head = here.workgroup.x / parts;
    let part = here.workgroup.x % parts;
    let cache = CachedHead(rows[tile.x].y, kv_head, end);
    let first_head = kv_head * heads_per_kv + part * HEADS;
    let heads = min(HEADS, heads_per_kv - part * HEADS);

    for (var i = lane; i < QUERIES * HEAD_VECTORS; i += WORKGROUP) {
        let query = i / HEAD_VECTORS;
        // Padding queries repeat the last one and do not write.
        let row = tile.x + min(query / HEADS, tile.y - 1u);
        let head = first_head + min(query % HEADS, heads - 1u);
        let at = row * (params.q_stride / 4u) + head * HEAD_VECTORS + i % HEAD_VECTORS;
        queries[i] = qkv[at] * params.query_scale;
    }
    let query0 = query_of(first_query, tile, first_head, heads);
    let query1 = query_of(first_query + 1u, tile, first_head, heads);
    let query2 = query_of(first_query + 2u, tile, first_head, heads);
    let query3 = query_of(first_query + 3u, tile, first_head, heads);
    // Rows are in order of position, so the first attends farthest back.
    let begin = visible_range(rows[tile.x].x, end).x;
    // The last attends farthest ahead.
    let loop_end = visible_range(rows[tile.x + tile.y - 1u].x, end).y;
    // The positions that all queries of this invocation attend to: no mask is needed within.
    let all_from = max(max(query0.start, query1.start), max(query2.start, query3.start));
    let all_to = min(min(query0.end, query1.end), min(query2.end, query3.end));

#if SINKS
    var running_max = vec4<f32>(
        sink(first_query, first_head, heads), sink(first_query + 1u, first_head, heads),
        sink(first_query + 2u, first_head, heads), sink(first_query + 3u, first_head, heads));
    // The invocations of a query add up their sums.
    var exp_sums = vec4<f32>(select(0.0, 1.0, key_lane == 0u));
#else
    var running_max = vec4<f32>(MIN_RUNNING_MAX);
    var exp_sums = vec4<f32>();
#endif
    var sums0 = mat4x4<f32>();
#if OUTPUT_VECTORS > 1
    var sums1 = mat4x4<f32>();
#endif
#if OUTPUT_VECTORS > 2
    var sums2 = mat4x4<f32>();
#endif
#if OUTPUT_VECTORS > 3
    var sums3 = mat4x4<f32>();
#endif
#if PREFETCH > 0
    var prefetched = prefetch_keys(cache, begin / KEYS * KEYS, 0u, lane);
#endif
    for (var start = begin / KEYS * KEYS; start < loop_end; start += KEYS) {
        var scores = mat4x4<f32>();
        for (var dims = 0u; dims < HEAD_DIM; dims += KEY_DIMS) {
            workgroupBarrier();
#if PREFETCH > 0
            for (var i = 0u; i < PREFETCH; i += 1u) {
                if (lane + i * WORKGROUP < KEY_TILE_LOADS) {
                    stage_key(lane + i * WORKGROUP, prefetched.loads[i]);
                }
            }
#else
            for (var i = lane; i < KEY_TILE_LOADS; i += WORKGROUP) {
                stage_key(i, load_key(cache, start, dims, i));
            }
#endif
            workgroupBarrier();
#if PREFETCH > 0
            if (dims + KEY_DIMS < HEAD_DIM) {
                prefetched = prefetch_keys(cache, start, dims + KEY_DIMS, lane);
            } else {
                prefetched = prefetch_values(cache, start, 0u, lane);
            }
#endif
            let q = first_query * HEAD_VECTORS + dims / 4u;
            let k = key_lane * KEY_STRIDE;
            for (var i = 0u; i < KEY_DIMS / 4u; i += 1u) {
                let keys = mat4x4<f32>(
                    stage[k + i],
                    stage[k + i + KEY_LANES * KEY_STRIDE],
                    stage[k + i + 2u * KEY_LANES * KEY_STRIDE],
                    stage[k + i + 3u * KEY_LANES * KEY_STRIDE],
                );
                let query_rows = mat4x4<f32>(
                    queries[q + i],
                    queries[q + i + HEAD_VECTORS],
                    queries[q + i + 2u * HEAD_VECTORS],
                    queries[q + i + 3u * HEAD_VECTORS],
                );
                scores = mul_add4x4(query_rows, transpose(keys), scores);
            }
        }
        if (params.cap != 0.0) {
            scores = mat4x4<f32>(
                soft_capped(scores[0]), soft_capped(scores[1]), soft_capped(scores[2]), soft_capped(scores[3]));
        }
        var masked = start < all_from || start + KEYS > all_to;
#if TREE
        masked = masked || start + KEYS > tile.w;
#endif
        if (masked) {
            let positions = vec4<u32>(start + key_lane) + vec4<u32>(0u, KEY_LANES, 2u * KEY_LANES, 3u * KEY_LANES);
            scores = mat4x4<f32>(
                visible(scores[0], positions, query0, tile.w),
                visible(scores[1], positions, query1, tile.w),
                visible(scores[2], positions, query2, tile.w),
                visible(scores[3], positions, query3, tile.w),
            );
        }
        reduced[lane] =
            vec4<f32>(max_of(scores[0]), max_of(scores[1]), max_of(scores[2]), max_of(scores[3]));
        workgroupBarrier();
        var new_max = running_max;
        for (var i = 0u; i < KEY_LANES; i += 1u) {
            new_max = max(new_max, reduced[lane - key_lane + i]);
        }
        let rescale = exp2(running_max - new_max);
        running_max = new_max;
        let weight = mat4x4<f32>(
            exp2(scores[0] - running_max.x),
            exp2(scores[1] - running_max.y),
            exp2(scores[2] - running_max.z),
            exp2(scores[3] - running_max.w),
        );
        exp_sums = fma(exp_sums, rescale, vec4<f32>(sum(weight[0]), sum(weight[1]), sum(weight[2]), sum(weight[3])));
        let w = first_query * KEY_LANES;
        weights[w + key_lane] = weight[0];
        weights[w + key_lane + KEY_LANES] = weight[1];
        weights[w + key_lane + 2u * KEY_LANES] = weight[2];
        weights[w + key_lane + 3u * KEY_LANES] = weight[3];
        sums0 = rescaled(sums0, rescale);
#if OUTPUT_VECTORS > 1
        sums1 = rescaled(sums1, rescale);
#endif
#if OUTPUT_VECTORS > 2
        sums2 = rescaled(sums2, rescale);
#endif
#if OUTPUT_VECTORS > 3
        sums3 = rescaled(sums3, rescale);
#endif
        for (var first = 0u; first < KEY_LANES; first += VALUE_KEYS / 4u) {
            // Before the first stage of values a barrier has already followed the last read of keys.
            if (first > 0u) {
                workgroupBarrier();
            }
#if PREFETCH > 0
            for (var i = 0u; i < PREFETCH; i += 1u) {
                if (lane + i * WORKGROUP < VALUE_TILE_LOADS) {
                    stage_value(lane + i * WORKGROUP, prefetched.loads[i]);
                }
            }
#else
            for (var i = lane; i < VALUE_TILE_LOADS; i += WORKGROUP) {
                stage_value(i, load_value(cache, start, first, i));
            }
#endif
            workgroupBarrier();
#if PREFETCH > 0
            // After the last tile this loads the last key again, which is not used.
            if (first + VALUE_KEYS / 4u < KEY_LANES) {
                prefetched = prefetch_values(cache, start, first + VALUE_KEYS / 4u, lane);
            } else {
                prefetched = prefetch_keys(cache, start + KEYS, 0u, lane);
            }
#endif
            for (var i = 0u; i < VALUE_KEYS / 4u; i += 1u) {
                let at = w + first + i;
                let query_rows = mat4x4<f32>(
                    weights[at],
                    weights[at + KEY_LANES],
                    weights[at + 2u * KEY_LANES],
                    weights[at + 3u * KEY_LANES],
                );
                sums0 = mul_add4x4(query_rows, values(i, key_lane), sums0);
#if OUTPUT_VECTORS > 1
                sums1 = mul_add4x4(query_rows, values(i, key_lane + KEY_LANES), sums1);
#endif
#if OUTPUT_VECTORS > 2
                sums2 = mul_add4x4(query_rows, values(i, key_lane + 2u * KEY_LANES), sums2);
#endif
#if OUTPUT_VECTORS > 3
                sums3 = mul_add4x4(query_rows, values(i, key_lane + 3u * KEY_LANES), sums3);
#endif
            }
        }
    }
    // Each invocation has the sum over its own keys. `reduced` was last read before the barrier of the values' stage.
    reduced[lane] = exp_sums;
    workgroupBarrier();
    var exp_sum = vec4<f32>();
    for (var i = 0u; i < KEY_LANES; i += 1u) {
        exp_sum += reduced[lane - key_lane + i];
    }
    write_one(sums0[0], exp_sum.x, query0, key_lane);
    write_one(sums0[1], exp_sum.y, query1, key_lane);
    write_one(sums0[2], exp_sum.z, query2, key_lane);
    write_one(sums0[3], exp_sum.w, query3, key_lane);
#if OUTPUT_VECTORS > 1
    write_one(sums1[0], exp_sum.x, query0, key_lane + KEY_LANES);
    write_one(sums1[1], exp_sum.y, query1, key_lane + KEY_LANES);
    write_one(sums1[2], exp_sum.z, query2, key_lane + KEY_LANES);
    write_one(sums1[3], exp_sum.w, query3, key_lane + KEY_LANES);
#endif
#if OUTPUT_VECTORS > 2
    write_one(sums2[0], exp_sum.x, query0, key_lane + 2u * KEY_LANES);
    write_one(sums2[1], exp_sum.y, query1, key_lane + 2u * KEY_LANES);
    write_one(sums2[2], exp_sum.z, query2, key_lane + 2u * KEY_LANES);
    write_one(sums2[3], exp_sum.w, query3, key_lane + 2u * KEY_LANES);
#endif
#if OUTPUT_VECTORS > 3
    write_one(sums3[0], exp_sum.x, query0, key_lane + 3u * KEY_LANES);
    write_one(sums3[1], exp_sum.y, query1, key_lane + 3u * KEY_LANES);
    write_one(sums3[2], exp_sum.z, query2, key_lane + 3u * KEY_LANES);
    write_one(sums3[3], exp_sum.w, query3, key_lane + 3u * KEY_LANES);
#endif
}
