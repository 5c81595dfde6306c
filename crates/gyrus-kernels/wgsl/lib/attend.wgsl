// Decode attention of one row's query heads that share a KV head: what engine/attend.wgsl and
// engine/attend_gathered.wgsl have in common. Both iterate over tiles of SPLIT_TILE positions, and both give the sums
// of a split the same bits: a score is summed in four parts, each of every fourth vector of eight elements; the
// exponentials of a tile are reduced over 32 lanes; values are summed over PARTS of a tile's positions, and the parts
// are added in order.
//
//   0  qkv          [rows, stride] f32. ROTATE 0: Q is rotated already, K and V are in the cache. ROTATE 1, for rows of
//                   different sequences: the output of the QKV projection; heads are normalised, rotated and written to
//                   the cache here
//   1  k_cache      blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM] f16; written with ROTATE
//   2  v_cache      likewise
//   3  params       AttendParams (immediates where the device has them)
//   4  rows         [rows] (position, first entry in block_table) u32; absent if POSITION is 1: then there is one row,
//                   its
//                   position is a parameter and its block table is the first
//   5  block_table  u32
//   6  partials     the splits, in the layout of lib/merge.wgsl; written
//   7  turns        as in lib/rotate_head.wgsl, if ROTATE
//   8  head_norms   likewise, if ROTATE and NORM
//   11 sinks        [n_heads] f32, if SINKS: a score of each head that joins the softmax of the first split
//
// A workgroup has WORKGROUP invocations and stores the running max and the sum of exponentials of SPLIT_SLOTS splits.

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
#include "lib/kv.wgsl"

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

#if SINKS
@group(0) @binding(11) var<storage, read> sinks: array<f32>;
// Whether slot 0 is the row's first split.
var<private> has_first_split: bool;
#endif

// Vectors of eight f16 of a head.
#define HEAD_VECTORS (HEAD_DIM / 8u)
// Entries of `partials` of one split of a head.
#define PARTIAL_PAIRS (HEAD_DIM / 2u + 2u)

var<workgroup> queries: array<vec4<f32>, GROUP * HEAD_DIM / 4u>;
#if ROTATE
// The row's own key, then its value. They are not in the cache yet.
var<workgroup> new_kv: array<f32, 2u * HEAD_DIM>;
#endif
// Running max of the scores and sum of exponentials of each split and head.
var<workgroup> running_max: array<f32, SPLIT_SLOTS * GROUP>;
var<workgroup> exp_sum: array<f32, SPLIT_SLOTS * GROUP>;

// The work of an invocation.
struct Task {
    row: u32,
    kv_head: u32,
    // Which group of GROUP query heads of the KV head.
    group: u32,
    // The row's position, and the first position that it attends to.
    position: u32,
    first_visible: u32,
    // The first entry of the row's block table.
    table_base: u32,
    // The invocation's index in the workgroup.
    index: u32,
}

fn task_of(here: Invocation, thread: Thread) -> Task {
#if POSITION
    let row = vec2<u32>(params.position, 0u);
#else
    let row = rows[here.workgroup.z];
#endif
    var first_visible = 0u;
    if (params.window != 0u && row.x + 1u > params.window) {
        first_visible = row.x + 1u - params.window;
    }
    // The remainder tells the compiler the range of the index.
    return Task(
        here.workgroup.z, here.workgroup.y / GROUPS, here.workgroup.y % GROUPS, row.x, first_visible, row.y,
        thread.index % WORKGROUP);
}

// Query head number `number` of a group. Heads beyond the end repeat the last one.
fn query_head(task: Task, number: u32) -> u32 {
    return task.kv_head * HEADS_PER_KV + min(task.group * GROUP + number, HEADS_PER_KV - 1u);
}

// Whether a group has a query head number `number`.
fn has_head(task: Task, number: u32) -> bool {
    return task.group * GROUP + number < HEADS_PER_KV;
}

// The score of a masked position, below every score. It is finite: compilers may assume that infinities do not exist.
const MASKED: f32 = -1e30;

// Index of the first vector of the task's KV head at a position, which is in block `block`.
fn vector_at(task: Task, block: u32, position: u32) -> u32 {
    return kv_row(block, task.kv_head, position) * HEAD_VECTORS;
}

#include "lib/attend_begin.wgsl"

// The scaled, soft-capped and masked score of a dot product.
fn masked_score(sum: f32, position: u32, task: Task) -> f32 {
    var score = sum * params.scale;
    if (params.soft_cap != 0.0) {
        score = params.soft_cap * tanh(clamp(score / params.soft_cap, -15.0, 15.0));
    }
    return select(MASKED, score, position >= task.first_visible && position <= task.position);
}

// The first entry in `partials` of a head's split.
fn partial_at(task: Task, g: u32, split: u32) -> u32 {
    let head = task.row * params.n_heads + query_head(task, g);
    return (head * MAX_SPLITS + split) * PARTIAL_PAIRS;
}
