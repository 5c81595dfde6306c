// attend: decode attention of few rows with split-K over the context, so that a single row keeps the GPU busy. The
// prologue of a mat-vec or quantize merges the splits (lib/merge.wgsl).
//
// Bindings and constants: lib/attend.wgsl. Grid: (splits, n_kv_heads · groups of GROUP query heads, rows), a workgroup
// a split. The loads of the first tile are issued before the prologue. For each tile of 64 positions, four invocations
// score one key for all heads of the group; a 32-lane group computes the softmax weights of a head; then each
// invocation sums two elements of a head over the values, which are staged in workgroup memory. Sums in f32. Twin:
// scalar::attention.

#define SPLIT_SLOTS 1u
#include "lib/attend.wgsl"

var<workgroup> scores: array<vec4<f32>, GROUP * SPLIT_TILE>;
var<workgroup> weights: array<vec4<f32>, GROUP * SPLIT_TILE / 4u>;
var<workgroup> values: array<vec4<u32>, SPLIT_TILE * HEAD_VECTORS>;
var<workgroup> rescale: array<f32, GROUP>;

// The cache blocks that an invocation loads from for a tile. The table is read first: dependent loads wait for it.
struct Blocks {
    key: u32,
    values: array<u32, KEY_LOADS>,
}

struct Tile {
    keys: array<vec4<u32>, KEY_LOADS>,
    values: array<vec4<u32>, KEY_LOADS>,
}

// Positions of the key, and of the values, that an invocation loads of the tile at `first`. Positions beyond the last
// are clamped to it.
fn key_position(task: Task, first: u32) -> u32 {
    return min(first + task.index / 4u, task.position);
}

fn value_position(task: Task, first: u32, number: u32) -> u32 {
    return min(first + (task.index + number * WORKGROUP) / HEAD_VECTORS, task.position);
}

fn blocks_of(task: Task, first: u32) -> Blocks {
    var blocks: Blocks;
    blocks.key = block_table[task.table_base + key_position(task, first) / KV_BLOCK];
#repeat I KEY_LOADS
    blocks.values[I] = block_table[task.table_base + value_position(task, first, I) / KV_BLOCK];
#end
    return blocks;
}

fn fetch(task: Task, first: u32, blocks: Blocks) -> Tile {
    var tile: Tile;
    let key = vector_at(task, blocks.key, key_position(task, first));
#repeat I KEY_LOADS
    tile.keys[I] = k_cache[key + 4u * I + task.index % 4u];
#end
#repeat I KEY_LOADS
    {
        let value = vector_at(task, blocks.values[I], value_position(task, first, I));
        tile.values[I] = v_cache[value + (task.index + I * WORKGROUP) % HEAD_VECTORS];
    }
#end
    return tile;
}

// Scores of the keys of the tile at `first`, in four parts each.
fn score_keys(task: Task, tile: ptr<function, Tile>, first: u32) {
#if ROTATE
    if (first + task.index / 4u == task.position) {
#repeat I KEY_LOADS
        (*tile).keys[I] = new_kv_f16(4u * I + task.index % 4u);
#end
    }
#endif
#repeat G GROUP
    {
        var sum = vec4<f32>();
#repeat I KEY_LOADS
        {
            let at = G * HEAD_DIM / 4u + 2u * (4u * I + task.index % 4u);
            let k = (*tile).keys[I];
            sum = fma(vec4<f32>(unpack2x16float(k.x), unpack2x16float(k.y)), queries[at], sum);
            sum = fma(vec4<f32>(unpack2x16float(k.z), unpack2x16float(k.w)), queries[at + 1u], sum);
        }
#end
        let to = G * SPLIT_TILE + task.index / 4u;
        scores[to][task.index % 4u] = (sum.x + sum.y) + (sum.z + sum.w);
    }
#end
}

// Stages the values of the tile at `first` in workgroup memory.
fn stage_values(task: Task, tile: ptr<function, Tile>, first: u32) {
#repeat I KEY_LOADS
    {
        let at = task.index + I * WORKGROUP;
        let position = first + at / HEAD_VECTORS;
        var v = (*tile).values[I];
#if ROTATE
        if (position == task.position) {
            v = new_kv_f16(HEAD_VECTORS + at % HEAD_VECTORS);
        }
#endif
        // Values beyond the last position are zeroed: infinity times a weight of 0 would be NaN.
        values[at] = select(vec4<u32>(), v, position <= task.position);
    }
#end
}

// Online softmax of a tile: weights from scores, and the new running max, sum of exponentials and rescale factor.
fn softmax_tile(task: Task, thread: Thread, first: u32) {
    let lane = task.index % LANES;
    let lane_group = task.index / LANES;
    let head = min(lane_group, GROUP - 1u);
    let scores_at = head * SPLIT_TILE;
    var pair_scores = vec2<f32>(MASKED);
#repeat I 2
    {
        let at = lane + I * LANES;
        let parts = scores[scores_at + at];
        pair_scores[I] = masked_score((parts.x + parts.y) + (parts.z + parts.w), first + at, task);
    }
#end
    let old_max = running_max[head];
    let new_max = max(old_max, reduce_max(max(pair_scores.x, pair_scores.y), thread));
    // Masked positions have weight 0 even if the whole tile is masked.
    let e = select(vec2<f32>(), exp(pair_scores - new_max), pair_scores > vec2<f32>(MASKED));
    let sum = reduce_sum(e.x + e.y, thread);
    if (lane_group < GROUP) {
        weights[(scores_at + lane) / 4u][lane % 4u] = e.x;
        weights[(scores_at + LANES + lane) / 4u][lane % 4u] = e.y;
        if (lane == 0u) {
            let factor = exp(old_max - new_max);
            rescale[head] = factor;
            running_max[head] = new_max;
            exp_sum[head] = fma(exp_sum[head], factor, sum);
        }
    }
}

// Rescales the sums and adds a tile's weighted values.
fn accumulate_values(task: Task, sums: ptr<function, array<vec2<f32>, OUTPUTS_PER_INVOCATION>>) {
#repeat O OUTPUTS_PER_INVOCATION
    {
        let output = task.index % OUTPUTS + O * WORKGROUP;
        if (output < OUTPUTS && task.index / OUTPUTS < PARTS) {
            let g = output / (HEAD_DIM / 2u);
            let word = output % (HEAD_DIM / 2u);
            let weights_at = g * SPLIT_TILE;
            let value_at = word / 4u;
            var sum = (*sums)[O] * rescale[g];
            let begins = task.index / OUTPUTS * (SPLIT_TILE / PARTS);
            // VALUE_UNROLL loads are issued at once: a load takes longer than a product.
            for (var p = begins; p < begins + SPLIT_TILE / PARTS; p += VALUE_UNROLL) {
                var pairs: array<vec2<f32>, VALUE_UNROLL>;
#repeat P VALUE_UNROLL
                pairs[P] = unpack2x16float(values[value_at + (p + P) * HEAD_VECTORS][word % 4u]);
#end
#repeat P VALUE_UNROLL
                sum = fma(vec2<f32>(weights[(weights_at + p + P) / 4u][P % 4]), pairs[P], sum);
#end
            }
            (*sums)[O] = sum;
        }
    }
#end
}

#if PARTS > 1
// The parts of the positions are added in order. They are exchanged through `values`, which is free by then.
fn store_part(task: Task, sum: vec2<f32>) {
    if (task.index / OUTPUTS < PARTS) {
        values[task.index] = vec4<u32>(bitcast<vec2<u32>>(sum), 0u, 0u);
    }
}

fn part(place: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(values[place].xy);
}
#endif

// Writes a split's sums, running max and sum of exponentials.
fn write_sums(task: Task, sums: ptr<function, array<vec2<f32>, OUTPUTS_PER_INVOCATION>>, split: u32) {
#repeat O OUTPUTS_PER_INVOCATION
    {
        let output = task.index + O * WORKGROUP;
        let g = output / (HEAD_DIM / 2u);
        if (output < OUTPUTS && has_head(task, g)) {
            var sum = (*sums)[O];
#if PARTS > 1
#repeat S PARTS
#if S > 0
            sum += part(output + S * OUTPUTS);
#endif
#end
#endif
            let to = partial_at(task, g, split);
            partials[to + output % (HEAD_DIM / 2u)] = sum;
            if (output % (HEAD_DIM / 2u) == 0u) {
                partials[to + HEAD_DIM / 2u] = vec2<f32>(running_max[g], exp_sum[g]);
            }
        }
    }
#end
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let thread = thread_of(here);
    let task = task_of(here, thread);
    let splits = splits_of(task.position, params.window);
    let split = here.workgroup.x;
    if (split >= splits.count) {
        return;
    }
    let begin = splits.first + split * splits.size;
    let end = min(begin + splits.size, task.position + 1u);

#if SINKS
    has_first_split = split == 0u;
#endif
    // All loads are issued before the first is used.
    let blocks = blocks_of(task, begin);
#if ROTATE
    let pairs = fetch_pairs(task, thread.index / LANES, thread.index % LANES);
    var tile = fetch(task, begin, blocks);
    prepare_attention(task, thread, pairs);
#else
    var tile = fetch(task, begin, blocks);
    prepare_attention(task, thread);
#endif
    workgroupBarrier();
#if ROTATE
    // The split with the row's own position writes its key and value, in one group of heads only.
    if (end == task.position + 1u && task.group == 0u) {
        write_new_kv(task, task.index);
    }
#endif

    var sums: array<vec2<f32>, OUTPUTS_PER_INVOCATION>;
    for (var first = begin; first < end; first += SPLIT_TILE) {
        score_keys(task, &tile, first);
        stage_values(task, &tile, first);
        workgroupBarrier();
        if (first + SPLIT_TILE < end) {
            tile = fetch(task, first + SPLIT_TILE, blocks_of(task, first + SPLIT_TILE));
        }
        softmax_tile(task, thread, first);
        workgroupBarrier();
        accumulate_values(task, &sums);
        workgroupBarrier();
    }

#if PARTS > 1
    store_part(task, sums[0]);
    workgroupBarrier();
#endif
    write_sums(task, &sums, split);
}
