// attend: attention of few rows, divided over positions so that a single row keeps a GPU busy; a mat-vec or quantize
// puts the splits together (lib/merge.wgsl).
//
//   0  qkv          [rows, stride] f32. TURN 0: Q is ready, K and V are in the cache. TURN 1, for rows of different
//                   sequences: Q, K and V as the mat-mul left them; heads are normalised, turned and written here
//   1  k_cache      blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM] f16; written with TURN
//   2  v_cache      likewise
//   3  params       AttendParams (immediates where the device has them)
//   4  rows         [rows] (position, first entry in block_table) u32
//   5  block_table  u32
//   6  partials     as lib/merge.wgsl reads them, written
//   7  turns        as lib/head.wgsl has it, if TURN
//   8  head_norms   likewise, if TURN and NORM
//
// Grid: (splits, n_kv_heads times the groups of GROUP heads that share one, rows). A tile of SPLIT_TILE positions at a
// time: four invocations score one of its keys for all heads of the group, a team makes weights of a head's scores,
// then each invocation sums two elements of a head over the values, which wait in workgroup memory. The first tile's
// keys and values are fetched before the heads are made ready. Sums in f32. Twin: scalar::attention.

#include "params/AttendParams"
#define PARAMS AttendParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#define WORKGROUP 256u
#define LANES 32u
#define TEAMS 8u
#include "lib/lanes.wgsl"
#include "lib/splits.wgsl"

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
#if TURN
@group(0) @binding(1) var<storage, read_write> k_cache: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> v_cache: array<vec4<u32>>;
#else
@group(0) @binding(1) var<storage, read> k_cache: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> v_cache: array<vec4<u32>>;
#endif
@group(0) @binding(4) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read> block_table: array<u32>;
@group(0) @binding(6) var<storage, read_write> partials: array<vec2<f32>>;
#if TURN
@group(0) @binding(7) var<storage, read> turns: array<vec2<u32>>;
#if NORM
@group(0) @binding(8) var<storage, read> head_norms: array<f32>;
#endif
#include "lib/head.wgsl"
#endif
#include "lib/kv.wgsl"

// Vectors of eight halves of a head, and those that an invocation fetches of a tile of keys or values.
#define HEAD_VECTORS (HEAD_DIM / 8u)

var<workgroup> queries: array<vec4<f32>, GROUP * HEAD_DIM / 4u>;
var<workgroup> scores: array<vec4<f32>, GROUP * SPLIT_TILE>;
var<workgroup> weights: array<vec4<f32>, GROUP * SPLIT_TILE / 4u>;
var<workgroup> values: array<vec4<u32>, SPLIT_TILE * HEAD_VECTORS>;
var<workgroup> most: array<f32, GROUP>;
var<workgroup> total: array<f32, GROUP>;
var<workgroup> fade: array<f32, GROUP>;
#if TURN
// The row's own key, then its value.
var<workgroup> newest: array<f32, 2u * HEAD_DIM>;
#endif

// The query head number `number` of a group; those beyond the end do the last one's work.
fn query_head(kv_head: u32, group: u32, number: u32) -> u32 {
    return kv_head * HEADS_PER_KV + min(group * GROUP + number, HEADS_PER_KV - 1u);
}

// Below every score; an infinity might be assumed not to exist.
const NONE: f32 = -1e30;

struct Tile {
    keys: array<vec4<u32>, FETCH>,
    values: array<vec4<u32>, FETCH>,
}

// What an invocation fetches of the tile from `first` on; a position beyond the last is taken for the last.
fn fetch(row: u32, kv_head: u32, first: u32, last: u32, place: u32) -> Tile {
    var tile: Tile;
    let key = kv_at(row, min(first + place / 4u, last), kv_head) / 8u;
#repeat I FETCH
    tile.keys[I] = k_cache[key + 4u * I + place % 4u];
#end
#repeat I FETCH
    {
        let at = place + I * WORKGROUP;
        let position = min(first + at / HEAD_VECTORS, last);
        tile.values[I] = v_cache[kv_at(row, position, kv_head) / 8u + at % HEAD_VECTORS];
    }
#end
    return tile;
}

#if TURN
// Eight elements of the row's own key, or from HEAD_VECTORS on of its value, as halves.
fn eight_halves(at: u32) -> vec4<u32> {
    let i = 8u * at;
    return vec4<u32>(
        pack2x16float(vec2<f32>(newest[i], newest[i + 1u])),
        pack2x16float(vec2<f32>(newest[i + 2u], newest[i + 3u])),
        pack2x16float(vec2<f32>(newest[i + 4u], newest[i + 5u])),
        pack2x16float(vec2<f32>(newest[i + 6u], newest[i + 7u])));
}
#endif

@compute @workgroup_size(WORKGROUP)
#if SUBGROUPS
fn KERNEL(here: Invocation, @builtin(subgroup_size) subgroup_size: u32) {
    let member = team_member(here, subgroup_size);
#else
fn KERNEL(here: Invocation) {
    let member = team_member(here);
#endif
    let place = member.place;
    let lane = place % LANES;
    let team = place / LANES;
    let row = here.group.z;
    let kv_head = here.group.y / GROUPS;
    let group = here.group.y % GROUPS;
    let last = rows[row].x;
    let splits = splits_of(last, params.window);
    let split = here.group.x;
    if (split >= splits.count) {
        return;
    }
    let begin = splits.first + split * splits.size;
    let end = min(begin + splits.size, last + 1u);
    var seen = 0u;
    if (params.window != 0u && last + 1u > params.window) {
        seen = last + 1u - params.window;
    }

    var tile = fetch(row, kv_head, begin, last, place);

    let origin = row * params.stride;
#if TURN
    // Heads of Q that share this key head, and the key head itself.
    for (var number = team; number < (GROUP + TEAMS) / TEAMS * TEAMS; number += TEAMS) {
        let is_key = number >= GROUP;
        let head = select(query_head(kv_head, group, number), params.n_heads + kv_head, is_key);
        var pairs: array<vec2<f32>, OWNED>;
#repeat I OWNED
        {
            let at = pair_elements(min(lane + I * LANES, HEAD_PAIRS - 1u)) + origin + head * HEAD_DIM;
            pairs[I] = vec2<f32>(qkv[at.x], qkv[at.y]);
        }
#end
        turn_head(&pairs, u32(is_key), row, last, lane, member);
#repeat I OWNED
        if (lane + I * LANES < HEAD_PAIRS && number <= GROUP) {
            let at = pair_elements(lane + I * LANES);
            if (is_key) {
                newest[at.x] = pairs[I].x;
                newest[at.y] = pairs[I].y;
            } else {
                let to = number * HEAD_DIM + at;
                queries[to.x / 4u][to.x % 4u] = pairs[I].x;
                queries[to.y / 4u][to.y % 4u] = pairs[I].y;
            }
        }
#end
    }
    for (var i = place; i < HEAD_DIM; i += WORKGROUP) {
        newest[HEAD_DIM + i] = qkv[origin + (params.n_heads + params.n_kv_heads + kv_head) * HEAD_DIM + i];
    }
#else
    for (var i = place; i < GROUP * HEAD_DIM; i += WORKGROUP) {
        let head = query_head(kv_head, group, i / HEAD_DIM);
        queries[i / 4u][i % 4u] = qkv[origin + head * HEAD_DIM + i % HEAD_DIM];
    }
#endif
    if (place < GROUP) {
        most[place] = NONE;
        total[place] = 0.0;
    }
    workgroupBarrier();
#if TURN
    // The row's own split writes, and only one group of heads does.
    if (end == last + 1u && group == 0u && place < HEAD_VECTORS) {
        let to = kv_at(row, last, kv_head) / 8u + place;
        k_cache[to] = eight_halves(place);
        v_cache[to] = eight_halves(HEAD_VECTORS + place);
    }
#endif

    var sums: array<vec2<f32>, OWN>;
    for (var first = begin; first < end; first += SPLIT_TILE) {
        let position = first + place / 4u;
#if TURN
        if (position == last) {
#repeat I FETCH
            tile.keys[I] = eight_halves(4u * I + place % 4u);
#end
        }
#endif
#repeat G GROUP
        {
            var sum = vec4<f32>();
#repeat I FETCH
            {
                let at = G * HEAD_DIM / 4u + 2u * (4u * I + place % 4u);
                let k = tile.keys[I];
                sum = fma(vec4<f32>(unpack2x16float(k.x), unpack2x16float(k.y)), queries[at], sum);
                sum = fma(vec4<f32>(unpack2x16float(k.z), unpack2x16float(k.w)), queries[at + 1u], sum);
            }
#end
            scores[G * SPLIT_TILE + place / 4u][place % 4u] = (sum.x + sum.y) + (sum.z + sum.w);
        }
#end
#repeat I FETCH
        {
            let at = place + I * WORKGROUP;
            let position = first + at / HEAD_VECTORS;
            var v = tile.values[I];
#if TURN
            if (position == last) {
                v = eight_halves(HEAD_VECTORS + at % HEAD_VECTORS);
            }
#endif
            // Whatever lies beyond the last position, it must not meet a weight of zero as an infinity.
            values[at] = select(vec4<u32>(), v, position <= last);
        }
#end
        workgroupBarrier();
        if (first + SPLIT_TILE < end) {
            tile = fetch(row, kv_head, first + SPLIT_TILE, last, place);
        }

        let head = min(team, GROUP - 1u);
        var two = vec2<f32>(NONE);
#repeat I 2
        {
            let at = lane + I * LANES;
            let parts = scores[head * SPLIT_TILE + at];
            var score = ((parts.x + parts.y) + (parts.z + parts.w)) * params.scale;
            if (params.soft_cap != 0.0) {
                score = params.soft_cap * tanh(clamp(score / params.soft_cap, -15.0, 15.0));
            }
            two[I] = select(NONE, score, first + at >= seen && first + at <= last);
        }
#end
        let before = most[head];
        let higher = max(before, team_max(max(two.x, two.y), member));
        // A tile that is not seen at all has no weight, whatever the scores are lowered by.
        let e = select(vec2<f32>(), exp(two - higher), two > vec2<f32>(NONE));
        let sum = team_sum(e.x + e.y, member);
        if (team < GROUP) {
            weights[(head * SPLIT_TILE + lane) / 4u][lane % 4u] = e.x;
            weights[(head * SPLIT_TILE + LANES + lane) / 4u][lane % 4u] = e.y;
            if (lane == 0u) {
                let faded = exp(before - higher);
                fade[head] = faded;
                most[head] = higher;
                total[head] = fma(total[head], faded, sum);
            }
        }
        workgroupBarrier();
#repeat O OWN
        {
            let output = place % OUTPUTS + O * WORKGROUP;
            if (output < OUTPUTS && place / OUTPUTS < SHARES) {
                let g = output / (HEAD_DIM / 2u);
                let word = output % (HEAD_DIM / 2u);
                var sum = sums[O] * fade[g];
                let begins = place / OUTPUTS * (SPLIT_TILE / SHARES);
                // Several on their way at once: a load takes longer than a product.
                for (var p = begins; p < begins + SPLIT_TILE / SHARES; p += TOGETHER) {
                    var pairs: array<vec2<f32>, TOGETHER>;
#repeat P TOGETHER
                    pairs[P] = unpack2x16float(values[(p + P) * HEAD_VECTORS + word / 4u][word % 4u]);
#end
#repeat P TOGETHER
                    sum = fma(vec2<f32>(weights[(g * SPLIT_TILE + p + P) / 4u][P % 4]), pairs[P], sum);
#end
                }
                sums[O] = sum;
            }
        }
#end
        workgroupBarrier();
    }

#if SHARES > 1
    // Shares of the positions, put together in their order; nobody needs the values any more.
    if (place / OUTPUTS < SHARES) {
        values[place] = vec4<u32>(bitcast<vec2<u32>>(sums[0]), 0u, 0u);
    }
    workgroupBarrier();
#endif
#repeat O OWN
    {
        let output = place + O * WORKGROUP;
        let g = output / (HEAD_DIM / 2u);
        if (output < OUTPUTS && group * GROUP + g < HEADS_PER_KV) {
            var sum = sums[O];
#if SHARES > 1
#repeat S SHARES
#if S > 0
            sum += bitcast<vec2<f32>>(values[output + S * OUTPUTS].xy);
#endif
#end
#endif
            let head = row * params.n_heads + query_head(kv_head, group, g);
            let to = (head * MOST_SPLITS + split) * (HEAD_DIM / 2u + 2u);
            partials[to + output % (HEAD_DIM / 2u)] = sum;
            if (output % (HEAD_DIM / 2u) == 0u) {
                partials[to + (HEAD_DIM / 2u)] = vec2<f32>(most[g], total[g]);
            }
        }
    }
#end
}
