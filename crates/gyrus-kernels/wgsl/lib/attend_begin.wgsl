// What attention of a row begins with: its heads turned, and with ROTATE its own key and value, which are in workgroup
// memory before they are in the cache. Belongs to lib/attend.wgsl.

#if ROTATE
#include "lib/f16_pair.wgsl"

// Eight elements of the row's own key, or from HEAD_VECTORS on of its value, as halves.
fn eight_f16(at: u32) -> vec4<u32> {
    let i = 8u * at;
    return vec4<u32>(
        f16_pair(vec2<f32>(newest[i], newest[i + 1u])),
        f16_pair(vec2<f32>(newest[i + 2u], newest[i + 3u])),
        f16_pair(vec2<f32>(newest[i + 4u], newest[i + 5u])),
        f16_pair(vec2<f32>(newest[i + 6u], newest[i + 7u])));
}

// Writes the row's own key and value to the cache.
fn write_newest(task: Task, place: u32) {
    if (place < HEAD_VECTORS) {
        let block = block_table[task.table + task.last / KV_BLOCK];
        let to = vector_at(task, block, task.last) + place;
        k_cache[to] = eight_f16(place);
        v_cache[to] = eight_f16(HEAD_VECTORS + place);
    }
}

// The pairs of a head that an invocation of its team turns: of a head of Q that shares the key head, or behind those of
// the key head itself.
fn fetch_pairs(task: Task, number: u32, lane: u32) -> array<vec2<f32>, OWNED> {
    let head = select(query_head(task, number), params.n_heads + task.kv_head, number >= GROUP);
    var pairs: array<vec2<f32>, OWNED>;
#repeat I OWNED
    {
        let at = pair_elements(min(lane + I * LANES, HEAD_PAIRS - 1u)) + task.row * params.stride + head * HEAD_DIM;
        pairs[I] = vec2<f32>(qkv[at.x], qkv[at.y]);
    }
#end
    return pairs;
}
#endif

// Makes heads and scores ready. A barrier has to follow.
#if ROTATE
fn begin_attention(task: Task, thread: Thread, first_pairs: array<vec2<f32>, OWNED>) {
    let origin = task.row * params.stride;
    var pairs = first_pairs;
    // Heads of Q that share this key head, and the key head itself.
    let lane = thread.index % LANES;
    for (var number = thread.index / LANES; number < (GROUP + LANE_GROUPS) / LANE_GROUPS * LANE_GROUPS; number += LANE_GROUPS) {
        let is_key = number >= GROUP;
        if (number >= LANE_GROUPS) {
            pairs = fetch_pairs(task, number, lane);
        }
        rotate_head(&pairs, u32(is_key), task.row, task.last, lane, thread);
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
    for (var i = thread.index; i < HEAD_DIM; i += WORKGROUP) {
        newest[HEAD_DIM + i] = qkv[origin + (params.n_heads + params.n_kv_heads + task.kv_head) * HEAD_DIM + i];
    }
#else
fn begin_attention(task: Task, thread: Thread) {
    let origin = task.row * params.stride;
    for (var i = thread.index; i < GROUP * HEAD_DIM; i += WORKGROUP) {
        queries[i / 4u][i % 4u] = qkv[origin + query_head(task, i / HEAD_DIM) * HEAD_DIM + i % HEAD_DIM];
    }
#endif
    for (var i = thread.index; i < SLOTS * GROUP; i += WORKGROUP) {
        most[i] = NONE;
        total[i] = 0.0;
    }
}
