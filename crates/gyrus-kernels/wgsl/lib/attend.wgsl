// Attention of a row's heads that share a key head, one tile of SPLIT_TILE positions at a time, by a crew of CREW
// invocations: what engine/attend.wgsl and engine/attend_gathered.wgsl have in common. So whoever attends, a split's
// sums have the same bits.
//
//   0  qkv          [rows, stride] f32. TURN 0: Q is ready, K and V are in the cache. TURN 1, for rows of different
//                   sequences: Q, K and V as the mat-mul left them; heads are normalised, turned and written here
//   1  k_cache      blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM] f16; written with TURN
//   2  v_cache      likewise
//   3  params       AttendParams (immediates where the device has them)
//   4  rows         [rows] (position, first entry in block_table) u32, unless POSITION says that the position of the
//                   only row, whose table is the first, is a parameter
//   5  block_table  u32
//   6  partials     as lib/merge.wgsl reads them, written
//   7  turns        as lib/head.wgsl has it, if TURN
//   8  head_norms   likewise, if TURN and NORM
//
// Needs CREWS, SLOTS (splits whose largest scores and sums of weights are kept) and GATHER. Four invocations score one
// of a tile's keys for all heads of the group, a team makes weights of a head's scores, then each invocation sums two
// elements of a head over the values, which wait in workgroup memory.

#include "params/AttendParams"
#define PARAMS AttendParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#define CREW 256u
#define LANES 32u
#define TEAMS (WORKGROUP / LANES)
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
#if !POSITION
@group(0) @binding(4) var<storage, read> rows: array<vec2<u32>>;
#endif
@group(0) @binding(5) var<storage, read> block_table: array<u32>;
@group(0) @binding(6) var<storage, read_write> partials: array<vec2<f32>>;
#if TURN
@group(0) @binding(7) var<storage, read> turns: array<vec2<u32>>;
#if NORM
@group(0) @binding(8) var<storage, read> head_norms: array<f32>;
#endif
#include "lib/head.wgsl"
#endif

// Vectors of eight halves of a head.
#define HEAD_VECTORS (HEAD_DIM / 8u)
// Pairs of `partials` that a split of a head takes.
#define PARTIAL_PAIRS (HEAD_DIM / 2u + 2u)

// All crews have the queries in common.
var<workgroup> queries: array<vec4<f32>, GROUP * HEAD_DIM / 4u>;
#if TURN
// The row's own key, then its value.
var<workgroup> newest: array<f32, 2u * HEAD_DIM>;
#endif
// Of each kept split and head.
var<workgroup> most: array<f32, SLOTS * GROUP>;
var<workgroup> total: array<f32, SLOTS * GROUP>;
// Of each crew.
var<workgroup> scores: array<vec4<f32>, CREWS * GROUP * SPLIT_TILE>;
var<workgroup> weights: array<vec4<f32>, CREWS * GROUP * SPLIT_TILE / 4u>;
var<workgroup> values: array<vec4<u32>, CREWS * SPLIT_TILE * HEAD_VECTORS>;
var<workgroup> fade: array<f32, CREWS * GROUP>;

// What an invocation works on.
struct Task {
    row: u32,
    kv_head: u32,
    // Which of the groups of heads that share the key head.
    group: u32,
    // The row's position, and the first one that it sees.
    last: u32,
    seen: u32,
    // Where the row's block table begins.
    table: u32,
    crew: u32,
    // The invocation's number in its crew.
    place: u32,
}

fn task_of(here: Invocation, member: Member) -> Task {
#if POSITION
    let row = vec2<u32>(params.position, 0u);
#else
    let row = rows[here.group.z];
#endif
    var seen = 0u;
    if (params.window != 0u && row.x + 1u > params.window) {
        seen = row.x + 1u - params.window;
    }
    return Task(
        here.group.z, here.group.y / GROUPS, here.group.y % GROUPS, row.x, seen, row.y, member.place / CREW,
        member.place % CREW);
}

// The query head number `number` of a group; those beyond the end do the last one's work.
fn query_head(task: Task, number: u32) -> u32 {
    return task.kv_head * HEADS_PER_KV + min(task.group * GROUP + number, HEADS_PER_KV - 1u);
}

// Whether a group has a head number `number`.
fn has_head(task: Task, number: u32) -> bool {
    return task.group * GROUP + number < HEADS_PER_KV;
}

// Below every score; an infinity might be assumed not to exist.
const NONE: f32 = -1e30;

// The blocks of what an invocation fetches of a tile, as the table has them: what is computed of a load waits for it.
struct Blocks {
    key: u32,
    values: array<u32, FETCH>,
}

struct Tile {
    keys: array<vec4<u32>, FETCH>,
    values: array<vec4<u32>, FETCH>,
}

// Positions of the key, and of values, that an invocation fetches of the tile from `first` on. One beyond the last is
// taken for the last.
fn key_position(task: Task, first: u32) -> u32 {
    return min(first + task.place / 4u, task.last);
}

fn value_position(task: Task, first: u32, number: u32) -> u32 {
    return min(first + (task.place + number * CREW) / HEAD_VECTORS, task.last);
}

fn blocks_of(task: Task, first: u32) -> Blocks {
    var blocks: Blocks;
    blocks.key = block_table[task.table + key_position(task, first) / KV_BLOCK];
#repeat I FETCH
    blocks.values[I] = block_table[task.table + value_position(task, first, I) / KV_BLOCK];
#end
    return blocks;
}

// Index of the first vector of the task's key head at a position that lies in a block.
fn vector_at(task: Task, block: u32, position: u32) -> u32 {
    return ((block * params.n_kv_heads + task.kv_head) * KV_BLOCK + position % KV_BLOCK) * HEAD_VECTORS;
}

fn fetch(task: Task, first: u32, blocks: Blocks) -> Tile {
    var tile: Tile;
    let key = vector_at(task, blocks.key, key_position(task, first));
#repeat I FETCH
    tile.keys[I] = k_cache[key + 4u * I + task.place % 4u];
#end
#repeat I FETCH
    {
        let value = vector_at(task, blocks.values[I], value_position(task, first, I));
        tile.values[I] = v_cache[value + (task.place + I * CREW) % HEAD_VECTORS];
    }
#end
    return tile;
}

#include "lib/attend_begin.wgsl"

// Scores of the keys of the tile from `first` on, in four parts each.
fn score_keys(task: Task, tile: ptr<function, Tile>, first: u32) {
#if TURN
    if (first + task.place / 4u == task.last) {
#repeat I FETCH
        (*tile).keys[I] = eight_halves(4u * I + task.place % 4u);
#end
    }
#endif
#repeat G GROUP
    {
        var sum = vec4<f32>();
#repeat I FETCH
        {
            let at = G * HEAD_DIM / 4u + 2u * (4u * I + task.place % 4u);
            let k = (*tile).keys[I];
            sum = fma(vec4<f32>(unpack2x16float(k.x), unpack2x16float(k.y)), queries[at], sum);
            sum = fma(vec4<f32>(unpack2x16float(k.z), unpack2x16float(k.w)), queries[at + 1u], sum);
        }
#end
        let to = (task.crew * GROUP + G) * SPLIT_TILE + task.place / 4u;
        scores[to][task.place % 4u] = (sum.x + sum.y) + (sum.z + sum.w);
    }
#end
}

// Puts the values of the tile from `first` on where all of the crew find them.
fn keep_values(task: Task, tile: ptr<function, Tile>, first: u32) {
#repeat I FETCH
    {
        let at = task.place + I * CREW;
        let position = first + at / HEAD_VECTORS;
        var v = (*tile).values[I];
#if TURN
        if (position == task.last) {
            v = eight_halves(HEAD_VECTORS + at % HEAD_VECTORS);
        }
#endif
        // Whatever lies beyond the last position, it must not meet a weight of zero as an infinity.
        values[task.crew * SPLIT_TILE * HEAD_VECTORS + at] = select(vec4<u32>(), v, position <= task.last);
    }
#end
}

// Weights of a tile's positions from their scores, for the split in this slot. A tile that is not there (`live` false)
// changes nothing.
fn weigh_scores(task: Task, member: Member, first: u32, slot: u32, live: bool) {
    let lane = task.place % LANES;
    let team = task.place / LANES;
    let head = min(team, GROUP - 1u);
    let scored = (task.crew * GROUP + head) * SPLIT_TILE;
    var two = vec2<f32>(NONE);
#repeat I 2
    {
        let at = lane + I * LANES;
        let parts = scores[scored + at];
        var score = ((parts.x + parts.y) + (parts.z + parts.w)) * params.scale;
        if (params.soft_cap != 0.0) {
            score = params.soft_cap * tanh(clamp(score / params.soft_cap, -15.0, 15.0));
        }
        two[I] = select(NONE, score, first + at >= task.seen && first + at <= task.last);
    }
#end
    let before = most[slot * GROUP + head];
    let higher = max(before, team_max(max(two.x, two.y), member));
    // A tile that is not seen at all has no weight, whatever the scores are lowered by.
    let e = select(vec2<f32>(), exp(two - higher), two > vec2<f32>(NONE));
    let sum = team_sum(e.x + e.y, member);
    if (team < GROUP && live) {
        weights[(scored + lane) / 4u][lane % 4u] = e.x;
        weights[(scored + LANES + lane) / 4u][lane % 4u] = e.y;
        if (lane == 0u) {
            let faded = exp(before - higher);
            fade[task.crew * GROUP + head] = faded;
            most[slot * GROUP + head] = higher;
            total[slot * GROUP + head] = fma(total[slot * GROUP + head], faded, sum);
        }
    }
}

// Adds a tile's values, as they weigh, to what was before.
fn sum_values(task: Task, sums: ptr<function, array<vec2<f32>, OWN>>, live: bool) {
#repeat O OWN
    {
        let output = task.place % OUTPUTS + O * CREW;
        if (output < OUTPUTS && task.place / OUTPUTS < SHARES && live) {
            let g = output / (HEAD_DIM / 2u);
            let word = output % (HEAD_DIM / 2u);
            let weighed = (task.crew * GROUP + g) * SPLIT_TILE;
            let kept = task.crew * SPLIT_TILE * HEAD_VECTORS + word / 4u;
            var sum = (*sums)[O] * fade[task.crew * GROUP + g];
            let begins = task.place / OUTPUTS * (SPLIT_TILE / SHARES);
            // Several on their way at once: a load takes longer than a product.
            for (var p = begins; p < begins + SPLIT_TILE / SHARES; p += TOGETHER) {
                var pairs: array<vec2<f32>, TOGETHER>;
#repeat P TOGETHER
                pairs[P] = unpack2x16float(values[kept + (p + P) * HEAD_VECTORS][word % 4u]);
#end
#repeat P TOGETHER
                sum = fma(vec2<f32>(weights[(weighed + p + P) / 4u][P % 4]), pairs[P], sum);
#end
            }
            (*sums)[O] = sum;
        }
    }
#end
}

#if SHARES > 1
#if GATHER
var<workgroup> shares: array<vec2<f32>, WORKGROUP>;
#endif

// Shares of the positions are put together in their order. They wait where values were, if nobody needs those any more.
fn put_share(task: Task, sum: vec2<f32>) {
    if (task.place / OUTPUTS < SHARES) {
#if GATHER
        shares[task.crew * CREW + task.place] = sum;
#else
        values[task.place] = vec4<u32>(bitcast<vec2<u32>>(sum), 0u, 0u);
#endif
    }
}

fn share(task: Task, place: u32) -> vec2<f32> {
#if GATHER
    return shares[task.crew * CREW + place];
#else
    return bitcast<vec2<f32>>(values[place].xy);
#endif
}
#endif

// Where the sums of a head's split are.
fn partial_at(task: Task, g: u32, split: u32) -> u32 {
    let head = task.row * params.n_heads + query_head(task, g);
    return (head * MOST_SPLITS + split) * PARTIAL_PAIRS;
}

// Writes a split's sums.
fn write_sums(task: Task, sums: ptr<function, array<vec2<f32>, OWN>>, split: u32) {
#repeat O OWN
    {
        let output = task.place + O * CREW;
        let g = output / (HEAD_DIM / 2u);
        if (output < OUTPUTS && has_head(task, g)) {
            var sum = (*sums)[O];
#if SHARES > 1
#repeat S SHARES
#if S > 0
            sum += share(task, output + S * OUTPUTS);
#endif
#end
#endif
            let to = partial_at(task, g, split);
            partials[to + output % (HEAD_DIM / 2u)] = sum;
#if !GATHER
            if (output % (HEAD_DIM / 2u) == 0u) {
                partials[to + HEAD_DIM / 2u] = vec2<f32>(most[g], total[g]);
            }
#endif
        }
    }
#end
}
