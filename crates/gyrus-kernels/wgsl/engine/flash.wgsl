// flash: out = softmax(scale * q K) V for tiles of rows, each tile of one sequence, over tiles of KEYS positions.
//
//   0  qkv          [rows, q_stride] f32, read: Q comes first
//   1  k_cache      blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM], KV (f32 or f16), read
//   2  v_cache      likewise
//   3  params       FlashParams (immediates where the device has them)
//   4  rows         [rows] (position, first entry in block_table) u32
//   5  block_table  u32
//   6  out          [rows, n_heads, HEAD_DIM] f32, written
//   7  tiles        [tiles] (first row, rows, end of the positions that they see, base of the tree) u32
//   8  branches     [rows] 64 bits, with TREE: bit i says whether a row sees position base + i
//
// Grid: (n_kv_heads * ceil(heads of one / HEADS), tiles), the last tiles first: in a prompt they see the most. A
// workgroup takes QUERIES queries that share a KV head, HEADS of them for each row: query s is head s % HEADS of row
// s / HEADS. An invocation owns four queries; of scores, four keys, ACROSS apart; of the output, VECTORS vectors of
// each, ACROSS apart. Keys and values go through workgroup memory as f32, KEY_DIMS elements of all keys or VALUE_KEYS
// whole values at a time; with HELD, an invocation loads its part of the next piece, at most HELD loads, while it
// works on this one. Key tiles begin at multiples of KEYS whatever the rows, and what a row does not see has
// weight 0: a row's bits do not depend on its neighbours. Scores are logarithms to base 2, sums f32.
// Twin: scalar::attend.

#include "params/FlashParams"
#define PARAMS FlashParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override QUERIES: u32 = 32u;
override KEYS: u32 = 32u;
// A divisor of HEAD_DIM, and a multiple of 8: a row of keys with its padding is then an odd number of vectors.
override KEY_DIMS: u32 = 64u;
// A divisor of KEYS, and a multiple of 4.
override VALUE_KEYS: u32 = 32u;
override HEADS: u32 = 1u;

override ACROSS: u32 = KEYS / 4u;
override WORKGROUP: u32 = QUERIES / 4u * ACROSS;
override HEAD_VECTORS: u32 = HEAD_DIM / 4u;
override KEY_STRIDE: u32 = KEY_DIMS / 4u + 1u;
override QUERY_ROOM: u32 = QUERIES * HEAD_VECTORS;
override STAGE_ROOM: u32 = max(KEYS * KEY_STRIDE, VALUE_KEYS * HEAD_VECTORS);
override WEIGHT_ROOM: u32 = QUERIES * ACROSS;

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
#if KV == f16
@group(0) @binding(1) var<storage, read> k_cache: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> v_cache: array<vec4<u32>>;
// What one load brings, and of how many elements.
#define LOAD vec4<u32>
#define LOADED 8u
#else
@group(0) @binding(1) var<storage, read> k_cache: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v_cache: array<vec4<f32>>;
#define LOAD vec4<f32>
#define LOADED 4u
#endif
@group(0) @binding(4) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read> block_table: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> tiles: array<vec4<u32>>;
#if TREE
@group(0) @binding(8) var<storage, read> branches: array<vec2<u32>>;
#endif

var<workgroup> queries: array<vec4<f32>, QUERY_ROOM>;
// Keys, then values.
var<workgroup> stage: array<vec4<f32>, STAGE_ROOM>;
// Of query s the weights of keys t + j * ACROSS, j from 0 to 3, at s * ACROSS + t.
var<workgroup> weights: array<vec4<f32>, WEIGHT_ROOM>;
// What invocations have to say about their four queries.
var<workgroup> shares: array<vec4<f32>, WORKGROUP>;

// A position that is not seen scores NONE; the highest score is FLOOR or more, so that NONE always weighs nothing.
// Infinities might be assumed not to exist.
const NONE: f32 = -1e30;
const FLOOR: f32 = -1e29;

// c + a * b, where b has a vector for each element of a.
fn combine(a: vec4<f32>, b: mat4x4<f32>, c: vec4<f32>) -> vec4<f32> {
    let xy = fma(vec4<f32>(a.y), b[1], fma(vec4<f32>(a.x), b[0], c));
    return fma(vec4<f32>(a.w), b[3], fma(vec4<f32>(a.z), b[2], xy));
}

fn combine_all(a: mat4x4<f32>, b: mat4x4<f32>, c: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        combine(a[0], b, c[0]),
        combine(a[1], b, c[1]),
        combine(a[2], b, c[2]),
        combine(a[3], b, c[3]),
    );
}

fn highest(v: vec4<f32>) -> f32 {
    return max(max(v.x, v.y), max(v.z, v.w));
}

fn sum(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

// The first position that a row sees, and the one after the last.
fn sight(position: u32, end: u32) -> vec2<u32> {
    var seen = vec2<u32>(0u, select(end, min(end, position + 1u), params.causal != 0u));
    if (params.window != 0u) {
        seen.x = max(position + 1u, params.window) - params.window;
        // Saturating: a row sees as far ahead as it sees back.
        seen.y = min(seen.y, position + min(params.window, 0xffffffffu - position));
    }
    return seen;
}

// A query of a tile: what it sees, and where its output begins.
struct Query {
    start: u32,
    end: u32,
    output: u32,
#if TREE
    branch: vec2<u32>,
#endif
}

// No query: it sees nothing, and nothing is written.
const NOWHERE: u32 = 0xffffffffu;

fn query_of(index: u32, tile: vec4<u32>, first_head: u32, heads: u32) -> Query {
    let row = index / HEADS;
    let head = index % HEADS;
    let there = row < tile.y && head < heads;
    let at = tile.x + min(row, tile.y - 1u);
    let seen = sight(rows[at].x, tile.z);
    var query: Query;
    query.start = seen.x;
    query.end = select(0u, seen.y, there);
    query.output = select(NOWHERE, (at * params.n_heads + first_head + head) * HEAD_VECTORS, there);
#if TREE
    query.branch = branches[at];
#endif
    return query;
}

// Scores of four positions, less those that a query does not see.
fn visible(scores: vec4<f32>, positions: vec4<u32>, query: Query, base: u32) -> vec4<f32> {
    var seen = (positions >= vec4<u32>(query.start)) & (positions < vec4<u32>(query.end));
#if TREE
    seen = seen & on_branch(positions, base, query.branch);
#endif
    return select(vec4<f32>(NONE), scores, seen);
}

// Scores c * tanh(s / c), of which the division is in the queries. Beyond 10, tanh is 1; some compilers' overflows.
fn capped(scores: vec4<f32>) -> vec4<f32> {
    return tanh(clamp(scores, vec4<f32>(-10.0), vec4<f32>(10.0))) * params.cap;
}

#if TREE
// Which of four positions are before the base, or on a branch.
fn on_branch(positions: vec4<u32>, base: u32, branch: vec2<u32>) -> vec4<bool> {
    let i = positions - vec4<u32>(base);
    let words = select(vec4<u32>(branch.x), vec4<u32>(branch.y), i >= vec4<u32>(32u));
    let bits = (words >> (i & vec4<u32>(31u))) & vec4<u32>(1u);
    let inside = (i < vec4<u32>(64u)) & (bits == vec4<u32>(1u));
    return (positions < vec4<u32>(base)) | inside;
}
#endif

// The loads that make keys of KEY_DIMS elements, and how many of them.
override KEY_LOADS: u32 = KEY_DIMS / LOADED;
override PIECE_OF_KEYS: u32 = KEYS * KEY_LOADS;
// Likewise whole values.
override VALUE_LOADS: u32 = HEAD_DIM / LOADED;
override PIECE_OF_VALUES: u32 = VALUE_KEYS * VALUE_LOADS;

// What of a sequence's cache is staged: a tile of it, up to the end.
struct Cached {
    table: u32,
    kv_head: u32,
    end: u32,
}

// Index of the first element of a head's vector at a position, counted in loads. From the end on, memory may hold
// anything, and another sequence's infinity times no weight would be no number: the last position stands for them.
fn cached_at(cached: Cached, position: u32) -> u32 {
    let inside = min(position, cached.end - 1u);
    let block = block_table[cached.table + inside / KV_BLOCK];
    return ((block * params.n_kv_heads + cached.kv_head) * KV_BLOCK + inside % KV_BLOCK) * VALUE_LOADS;
}

// Load i of elements dims.. of the keys of a tile.
fn load_key(cached: Cached, start: u32, dims: u32, i: u32) -> LOAD {
    return k_cache[cached_at(cached, start + i / KEY_LOADS) + dims / LOADED + i % KEY_LOADS];
}

fn put_key(i: u32, loaded: LOAD) {
    put(i / KEY_LOADS * KEY_STRIDE + i % KEY_LOADS * (LOADED / 4u), loaded);
}

// Load i of values of keys t + j * ACROSS, VALUE_KEYS / 4 of t from first on, those of one j together.
fn load_value(cached: Cached, start: u32, first: u32, i: u32) -> LOAD {
    let value = i / VALUE_LOADS;
    let position = start + first + value % (VALUE_KEYS / 4u) + value / (VALUE_KEYS / 4u) * ACROSS;
    return v_cache[cached_at(cached, position) + i % VALUE_LOADS];
}

fn put_value(i: u32, loaded: LOAD) {
    put(i * (LOADED / 4u), loaded);
}

#if KV == f16
fn put(at: u32, loaded: vec4<u32>) {
    stage[at] = vec4<f32>(unpack2x16float(loaded.x), unpack2x16float(loaded.y));
    stage[at + 1u] = vec4<f32>(unpack2x16float(loaded.z), unpack2x16float(loaded.w));
}
#else
fn put(at: u32, loaded: vec4<f32>) {
    stage[at] = loaded;
}
#endif

#if HELD > 0
struct Held {
    loads: array<LOAD, HELD>,
}

// Those that are no part of the piece load its last.
fn hold_keys(cached: Cached, start: u32, dims: u32, lane: u32) -> Held {
    var held: Held;
    for (var i = 0u; i < HELD; i += 1u) {
        held.loads[i] = load_key(cached, start, dims, min(lane + i * WORKGROUP, PIECE_OF_KEYS - 1u));
    }
    return held;
}

fn hold_values(cached: Cached, start: u32, first: u32, lane: u32) -> Held {
    var held: Held;
    for (var i = 0u; i < HELD; i += 1u) {
        held.loads[i] = load_value(cached, start, first, min(lane + i * WORKGROUP, PIECE_OF_VALUES - 1u));
    }
    return held;
}
#endif

// Four vectors of values that belong to one of weights.
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

fn faded(sums: mat4x4<f32>, fade: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(sums[0] * fade.x, sums[1] * fade.y, sums[2] * fade.z, sums[3] * fade.w);
}

// A vector of a query's output. A row that sees nothing has no weights, and becomes 0.
fn write_one(sums: vec4<f32>, total: f32, query: Query, vector: u32) {
    if (vector < HEAD_VECTORS && query.output != NOWHERE) {
        out[query.output + vector] = sums / select(total, 1.0, total == 0.0);
    }
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let lane = here.local_index;
    let across = lane % ACROSS;
    let mine = lane / ACROSS * 4u;
    let tile = tiles[here.num_workgroups.y - 1u - here.workgroup.y];
    let end = tile.z;
    let sharing = params.n_heads / params.n_kv_heads;
    let parts = (sharing + HEADS - 1u) / HEADS;
    let kv_head = here.workgroup.x / parts;
    let part = here.workgroup.x % parts;
    let cached = Cached(rows[tile.x].y, kv_head, end);
    let first_head = kv_head * sharing + part * HEADS;
    let heads = min(HEADS, sharing - part * HEADS);

    for (var i = lane; i < QUERIES * HEAD_VECTORS; i += WORKGROUP) {
        let query = i / HEAD_VECTORS;
        // Queries beyond the last do its work, and keep it to themselves.
        let row = tile.x + min(query / HEADS, tile.y - 1u);
        let head = first_head + min(query % HEADS, heads - 1u);
        let at = row * (params.q_stride / 4u) + head * HEAD_VECTORS + i % HEAD_VECTORS;
        queries[i] = qkv[at] * params.query_scale;
    }
    let query0 = query_of(mine, tile, first_head, heads);
    let query1 = query_of(mine + 1u, tile, first_head, heads);
    let query2 = query_of(mine + 2u, tile, first_head, heads);
    let query3 = query_of(mine + 3u, tile, first_head, heads);
    // Rows are in order of position: no other sees farther back than the first.
    let begin = sight(rows[tile.x].x, end).x;
    // What all queries of this invocation see.
    let all_from = max(max(query0.start, query1.start), max(query2.start, query3.start));
    let all_to = min(min(query0.end, query1.end), min(query2.end, query3.end));

    var most = vec4<f32>(FLOOR);
    var totals = vec4<f32>();
    var sums0 = mat4x4<f32>();
#if VECTORS > 1
    var sums1 = mat4x4<f32>();
#endif
#if VECTORS > 2
    var sums2 = mat4x4<f32>();
#endif
#if VECTORS > 3
    var sums3 = mat4x4<f32>();
#endif
#if HELD > 0
    var held = hold_keys(cached, begin / KEYS * KEYS, 0u, lane);
#endif
    for (var start = begin / KEYS * KEYS; start < end; start += KEYS) {
        var scores = mat4x4<f32>();
        for (var dims = 0u; dims < HEAD_DIM; dims += KEY_DIMS) {
            workgroupBarrier();
#if HELD > 0
            for (var i = 0u; i < HELD; i += 1u) {
                if (lane + i * WORKGROUP < PIECE_OF_KEYS) {
                    put_key(lane + i * WORKGROUP, held.loads[i]);
                }
            }
#else
            for (var i = lane; i < PIECE_OF_KEYS; i += WORKGROUP) {
                put_key(i, load_key(cached, start, dims, i));
            }
#endif
            workgroupBarrier();
#if HELD > 0
            if (dims + KEY_DIMS < HEAD_DIM) {
                held = hold_keys(cached, start, dims + KEY_DIMS, lane);
            } else {
                held = hold_values(cached, start, 0u, lane);
            }
#endif
            let q = mine * HEAD_VECTORS + dims / 4u;
            let k = across * KEY_STRIDE;
            for (var i = 0u; i < KEY_DIMS / 4u; i += 1u) {
                let keys = mat4x4<f32>(
                    stage[k + i],
                    stage[k + i + ACROSS * KEY_STRIDE],
                    stage[k + i + 2u * ACROSS * KEY_STRIDE],
                    stage[k + i + 3u * ACROSS * KEY_STRIDE],
                );
                let of_queries = mat4x4<f32>(
                    queries[q + i],
                    queries[q + i + HEAD_VECTORS],
                    queries[q + i + 2u * HEAD_VECTORS],
                    queries[q + i + 3u * HEAD_VECTORS],
                );
                scores = combine_all(of_queries, transpose(keys), scores);
            }
        }
        if (params.cap != 0.0) {
            scores =
                mat4x4<f32>(capped(scores[0]), capped(scores[1]), capped(scores[2]), capped(scores[3]));
        }
        var masked = start < all_from || start + KEYS > all_to;
#if TREE
        masked = masked || start + KEYS > tile.w;
#endif
        if (masked) {
            let positions = vec4<u32>(start + across) + vec4<u32>(0u, ACROSS, 2u * ACROSS, 3u * ACROSS);
            scores = mat4x4<f32>(
                visible(scores[0], positions, query0, tile.w),
                visible(scores[1], positions, query1, tile.w),
                visible(scores[2], positions, query2, tile.w),
                visible(scores[3], positions, query3, tile.w),
            );
        }
        shares[lane] =
            vec4<f32>(highest(scores[0]), highest(scores[1]), highest(scores[2]), highest(scores[3]));
        workgroupBarrier();
        var higher = most;
        for (var i = 0u; i < ACROSS; i += 1u) {
            higher = max(higher, shares[lane - across + i]);
        }
        let fade = exp2(most - higher);
        most = higher;
        let weight = mat4x4<f32>(
            exp2(scores[0] - most.x),
            exp2(scores[1] - most.y),
            exp2(scores[2] - most.z),
            exp2(scores[3] - most.w),
        );
        totals = fma(totals, fade, vec4<f32>(sum(weight[0]), sum(weight[1]), sum(weight[2]), sum(weight[3])));
        let w = mine * ACROSS;
        weights[w + across] = weight[0];
        weights[w + across + ACROSS] = weight[1];
        weights[w + across + 2u * ACROSS] = weight[2];
        weights[w + across + 3u * ACROSS] = weight[3];
        sums0 = faded(sums0, fade);
#if VECTORS > 1
        sums1 = faded(sums1, fade);
#endif
#if VECTORS > 2
        sums2 = faded(sums2, fade);
#endif
#if VECTORS > 3
        sums3 = faded(sums3, fade);
#endif
        for (var first = 0u; first < ACROSS; first += VALUE_KEYS / 4u) {
            // The first time, all have read their keys: a barrier lies behind them.
            if (first > 0u) {
                workgroupBarrier();
            }
#if HELD > 0
            for (var i = 0u; i < HELD; i += 1u) {
                if (lane + i * WORKGROUP < PIECE_OF_VALUES) {
                    put_value(lane + i * WORKGROUP, held.loads[i]);
                }
            }
#else
            for (var i = lane; i < PIECE_OF_VALUES; i += WORKGROUP) {
                put_value(i, load_value(cached, start, first, i));
            }
#endif
            workgroupBarrier();
#if HELD > 0
            // After the last tile, the cache's last key once more.
            if (first + VALUE_KEYS / 4u < ACROSS) {
                held = hold_values(cached, start, first + VALUE_KEYS / 4u, lane);
            } else {
                held = hold_keys(cached, start + KEYS, 0u, lane);
            }
#endif
            for (var i = 0u; i < VALUE_KEYS / 4u; i += 1u) {
                let at = w + first + i;
                let of_queries = mat4x4<f32>(
                    weights[at],
                    weights[at + ACROSS],
                    weights[at + 2u * ACROSS],
                    weights[at + 3u * ACROSS],
                );
                sums0 = combine_all(of_queries, values(i, across), sums0);
#if VECTORS > 1
                sums1 = combine_all(of_queries, values(i, across + ACROSS), sums1);
#endif
#if VECTORS > 2
                sums2 = combine_all(of_queries, values(i, across + 2u * ACROSS), sums2);
#endif
#if VECTORS > 3
                sums3 = combine_all(of_queries, values(i, across + 3u * ACROSS), sums3);
#endif
            }
        }
    }
    // Each has the sum over its own keys. Where a tile was, shares were last read before its values were staged.
    shares[lane] = totals;
    workgroupBarrier();
    var total = vec4<f32>();
    for (var i = 0u; i < ACROSS; i += 1u) {
        total += shares[lane - across + i];
    }
    write_one(sums0[0], total.x, query0, across);
    write_one(sums0[1], total.y, query1, across);
    write_one(sums0[2], total.z, query2, across);
    write_one(sums0[3], total.w, query3, across);
#if VECTORS > 1
    write_one(sums1[0], total.x, query0, across + ACROSS);
    write_one(sums1[1], total.y, query1, across + ACROSS);
    write_one(sums1[2], total.z, query2, across + ACROSS);
    write_one(sums1[3], total.w, query3, across + ACROSS);
#endif
#if VECTORS > 2
    write_one(sums2[0], total.x, query0, across + 2u * ACROSS);
    write_one(sums2[1], total.y, query1, across + 2u * ACROSS);
    write_one(sums2[2], total.z, query2, across + 2u * ACROSS);
    write_one(sums2[3], total.w, query3, across + 2u * ACROSS);
#endif
#if VECTORS > 3
    write_one(sums3[0], total.x, query0, across + 3u * ACROSS);
    write_one(sums3[1], total.y, query1, across + 3u * ACROSS);
    write_one(sums3[2], total.z, query2, across + 3u * ACROSS);
    write_one(sums3[3], total.w, query3, across + 3u * ACROSS);
#endif
}
