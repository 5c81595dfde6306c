// The prologue of decode attention: loads the query heads and, with ROTATE, normalises and rotates them and the row's
// own key. The row's own key and value are used from workgroup memory, before they are in the cache. Part of
// lib/attend.wgsl.

#if ROTATE
#include "lib/f16_range.wgsl"

// Eight elements of the row's own key as f16; from HEAD_VECTORS on, of its value.
fn new_kv_f16(at: u32) -> vec4<u32> {
    let i = 8u * at;
    return vec4<u32>(
        pack2x16float(vec2<f32>(new_kv[i], new_kv[i + 1u])),
        pack2x16float(vec2<f32>(new_kv[i + 2u], new_kv[i + 3u])),
        pack2x16float(vec2<f32>(new_kv[i + 4u], new_kv[i + 5u])),
        pack2x16float(vec2<f32>(new_kv[i + 6u], new_kv[i + 7u])));
}

// Writes the row's own key and value to the cache.
fn write_new_kv(task: Task, vector: u32) {
    if (vector < HEAD_VECTORS) {
        let block = block_table[task.table_base + task.position / KV_BLOCK];
        let to = vector_at(task, block, task.position) + vector;
        k_cache[to] = new_kv_f16(vector);
        v_cache[to] = new_kv_f16(HEAD_VECTORS + vector);
    }
}

// The rotary pairs of one lane: of query head number `number` of the group, or from GROUP on of the key head.
fn fetch_pairs(task: Task, number: u32, lane: u32) -> array<vec2<f32>, PAIRS_PER_LANE> {
    let head = select(query_head(task, number), params.n_heads + task.kv_head, number >= GROUP);
    var pairs: array<vec2<f32>, PAIRS_PER_LANE>;
#repeat I PAIRS_PER_LANE
    {
        let at = pair_elements(min(lane + I * LANES, HEAD_PAIRS - 1u)) + task.row * params.stride + head * HEAD_DIM;
        pairs[I] = vec2<f32>(qkv[at.x], qkv[at.y]);
    }
#end
    return pairs;
}
#endif

// Prepares the query heads and the softmax state. A barrier must follow.
#if ROTATE
fn prepare_attention(task: Task, thread: Thread, first_pairs: array<vec2<f32>, PAIRS_PER_LANE>) {
    let origin = task.row * params.stride;
    var pairs = first_pairs;
    // The query heads of the group, then the key head.
    let lane = thread.index % LANES;
    let end = (GROUP + LANE_GROUPS) / LANE_GROUPS * LANE_GROUPS;
    for (var number = thread.index / LANES; number < end; number += LANE_GROUPS) {
        let is_key = number >= GROUP;
        if (number >= LANE_GROUPS) {
            pairs = fetch_pairs(task, number, lane);
        }
        rotate_head(&pairs, u32(is_key), task.row, task.position, lane, thread);
#repeat I PAIRS_PER_LANE
        if (lane + I * LANES < HEAD_PAIRS && number <= GROUP) {
            let at = pair_elements(lane + I * LANES);
            if (is_key) {
                new_kv[at.x] = f16_range(pairs[I].x);
                new_kv[at.y] = f16_range(pairs[I].y);
            } else {
                let to = number * HEAD_DIM + at;
                queries[to.x / 4u][to.x % 4u] = pairs[I].x;
                queries[to.y / 4u][to.y % 4u] = pairs[I].y;
            }
        }
#end
    }
    for (var i = thread.index; i < HEAD_DIM; i += WORKGROUP) {
        let value = qkv[origin + (params.n_heads + params.n_kv_heads + task.kv_head) * HEAD_DIM + i];
        new_kv[HEAD_DIM + i] = f16_range(value);
    }
#else
fn prepare_attention(task: Task, thread: Thread) {
    let origin = task.row * params.stride;
    for (var i = thread.index; i < GROUP * HEAD_DIM; i += WORKGROUP) {
        queries[i / 4u][i % 4u] = qkv[origin + query_head(task, i / HEAD_DIM) * HEAD_DIM + i % HEAD_DIM];
    }
#endif
    for (var i = thread.index; i < SPLIT_SLOTS * GROUP; i += WORKGROUP) {
        running_max[i] = MASKED;
        exp_sum[i] = 0.0;
#if SINKS
        if (i < GROUP && has_first_split) {
            running_max[i] = sinks[query_head(task, i)];
            exp_sum[i] = 1.0;
        }
#endif
    }
}
