// Attention of a row's heads that share a key head: what engine/attend.wgsl and engine/attend_gathered.wgsl have in
// common. Both take tiles of SPLIT_TILE positions, and whoever attends, a split's sums have the same bits: a score is
// summed in four parts, of every fourth eight elements of a head, a tile's weights as a team of 32 sums them, values
// over SHARES of a tile's positions, one after the other.
//
//   0  qkv          [rows, stride] f32. ROTATE 0: Q is ready, K and V are in the cache. ROTATE 1, for rows of different
//                   sequences: Q, K and V as the mat-mul left them; heads are normalised, turned and written here
//   1  k_cache      blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM] f16; written with ROTATE
//   2  v_cache      likewise
//   3  params       AttendParams (immediates where the device has them)
//   4  rows         [rows] (position, first entry in block_table) u32, unless POSITION says that the position of the
//                   only row, whose table is the first, is a parameter
//   5  block_table  u32
//   6  partials     as lib/merge.wgsl reads them, written
//   7  turns        as lib/rotate_head.wgsl has it, if ROTATE
//   8  head_norms   likewise, if ROTATE and NORM
//
// A workgroup has WORKGROUP invocations, and keeps the largest scores and sums of weights of SLOTS splits.

#include "params/AttendParams"
#define PARAMS AttendParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#define WORKGROUP 256u
#define LANES 32u
#define LANE_GROUPS (WORKGROUP / LANES)
#include "lib/lanes.wgsl"
#include "lib/splits.wgsl"

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
#if ROTATE
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
#if ROTATE
@group(0) @binding(7) var<storage, read> turns: array<vec2<u32>>;
#if NORM
@group(0) @binding(8) var<storage, read> head_norms: array<f32>;
#endif
#include "lib/rotate_head.wgsl"
#endif

// Vectors of eight halves of a head.
#define HEAD_VECTORS (HEAD_DIM / 8u)
// Pairs of `partials` that a split of a head takes.
#define PARTIAL_PAIRS (HEAD_DIM / 2u + 2u)

var<workgroup> queries: array<vec4<f32>, GROUP * HEAD_DIM / 4u>;
#if ROTATE
// The row's own key, then its value.
var<workgroup> newest: array<f32, 2u * HEAD_DIM>;
#endif
// Of each kept split and head.
var<workgroup> most: array<f32, SLOTS * GROUP>;
var<workgroup> total: array<f32, SLOTS * GROUP>;

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
    // The invocation's number.
    place: u32,
}

fn task_of(here: Invocation, thread: Thread) -> Task {
#if POSITION
    let row = vec2<u32>(params.position, 0u);
#else
    let row = rows[here.workgroup.z];
#endif
    var seen = 0u;
    if (params.window != 0u && row.x + 1u > params.window) {
        seen = row.x + 1u - params.window;
    }
    // The remainder tells a compiler how far it goes.
    return Task(
        here.workgroup.z, here.workgroup.y / GROUPS, here.workgroup.y % GROUPS, row.x, seen, row.y, thread.index % WORKGROUP);
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

// Index of the first vector of the task's key head at a position that lies in a block.
fn vector_at(task: Task, block: u32, position: u32) -> u32 {
    return ((block * params.n_kv_heads + task.kv_head) * KV_BLOCK + position % KV_BLOCK) * HEAD_VECTORS;
}

#include "lib/attend_begin.wgsl"

// A score as it is weighed, from its sum. What the row does not see has none.
fn finished(sum: f32, position: u32, task: Task) -> f32 {
    var score = sum * params.scale;
    if (params.soft_cap != 0.0) {
        score = params.soft_cap * tanh(clamp(score / params.soft_cap, -15.0, 15.0));
    }
    return select(NONE, score, position >= task.seen && position <= task.last);
}

// Where the sums of a head's split are.
fn partial_at(task: Task, g: u32, split: u32) -> u32 {
    let head = task.row * params.n_heads + query_head(task, g);
    return (head * MAX_SPLITS + split) * PARTIAL_PAIRS;
}
