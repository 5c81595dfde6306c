// rope_write: prepares prefill attention. Normalises each head of Q and K if NORM, rotates them by their row's
// position, and writes K and V to the cache. Q stays in qkv. Without WRITE, rows have Q only; with WRITE n_heads may be 0.
//
//   0  qkv          [rows, stride] f32: Q, K, V side by side; Q is read and written
//   1  k_cache      blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM], KV (f32 or f16); written; only if WRITE
//   2  v_cache      likewise
//   3  params       AttendParams (immediates where the device has them)
//   4  rows         [rows] (position, first entry in block_table) u32
//   5  block_table  u32; only if WRITE
//   6  turns        as in lib/rotate_head.wgsl
//   7  head_norms   likewise, if NORM
//
// Grid: (ceil(heads of Q, K and V / LANE_GROUPS), rows), a 32-lane group a head. Arithmetic in f32. Twins: Rope::apply,
// scalar::rms_norm.

#include "params/AttendParams"
#define PARAMS AttendParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#define WORKGROUP 128u
#define LANES 32u
#define LANE_GROUPS 4u
#include "lib/lanes.wgsl"

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;
#if WRITE
#if KV == f16
@group(0) @binding(1) var<storage, read_write> k_cache: array<u32>;
@group(0) @binding(2) var<storage, read_write> v_cache: array<u32>;
#else
@group(0) @binding(1) var<storage, read_write> k_cache: array<f32>;
@group(0) @binding(2) var<storage, read_write> v_cache: array<f32>;
#endif
@group(0) @binding(5) var<storage, read> block_table: array<u32>;
#endif
@group(0) @binding(4) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read> turns: array<vec2<u32>>;
#if NORM
@group(0) @binding(7) var<storage, read> head_norms: array<f32>;
#endif
#if WRITE
#include "lib/kv_rows.wgsl"
#include "lib/f16_range.wgsl"
#endif
#include "lib/rotate_head.wgsl"

var<workgroup> staged: array<f32, LANE_GROUPS * HEAD_DIM>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let thread = thread_of(here);
    let row = here.workgroup.y;
    let lane = thread.index % LANES;
    let lane_group = thread.index / LANES;
    let first_value = params.n_heads + params.n_kv_heads;
#if WRITE
    let heads = first_value + params.n_kv_heads;
#else
    let heads = params.n_heads;
#endif
    // Lane groups beyond the end repeat the last head and do not write: the barriers need all invocations.
    let head = min(here.workgroup.x * LANE_GROUPS + lane_group, heads - 1u);
    let in_range = here.workgroup.x * LANE_GROUPS + lane_group < heads;
    let origin = row * params.stride + head * HEAD_DIM;
    var values: array<vec2<f32>, PAIRS_PER_LANE>;
#repeat I PAIRS_PER_LANE
    {
        let at = pair_elements(min(lane + I * LANES, HEAD_PAIRS - 1u));
        values[I] = vec2<f32>(qkv[origin + at.x], qkv[origin + at.y]);
    }
#end
    var rotated = values;
    rotate_head(&rotated, u32(head >= params.n_heads), row, rows[row].x, lane, thread);
#repeat I PAIRS_PER_LANE
    if (lane + I * LANES < HEAD_PAIRS) {
        let at = pair_elements(lane + I * LANES);
        let value = select(rotated[I], values[I], head >= first_value);
        staged[lane_group * HEAD_DIM + at.x] = value.x;
        staged[lane_group * HEAD_DIM + at.y] = value.y;
    }
#end
    workgroupBarrier();
    if (!in_range) {
        return;
    }
    if (head < params.n_heads) {
        for (var i = lane; i < HEAD_DIM; i += LANES) {
            qkv[origin + i] = staged[lane_group * HEAD_DIM + i];
        }
        return;
    }
#if WRITE
    let is_value = head >= first_value;
    let kv_head = head - select(params.n_heads, first_value, is_value);
    let to = kv_at(row, rows[row].x, kv_head);
#if KV == f16
    for (var word = lane; word < HEAD_PAIRS; word += LANES) {
        let source = lane_group * HEAD_DIM + 2u * word;
        let packed = pack2x16float(vec2<f32>(f16_range(staged[source]), f16_range(staged[source + 1u])));
        if (is_value) {
            v_cache[to / 2u + word] = packed;
        } else {
            k_cache[to / 2u + word] = packed;
        }
    }
#else
    for (var i = lane; i < HEAD_DIM; i += LANES) {
        if (is_value) {
            v_cache[to + i] = staged[lane_group * HEAD_DIM + i];
        } else {
            k_cache[to + i] = staged[lane_group * HEAD_DIM + i];
        }
    }
#endif
#endif
}
