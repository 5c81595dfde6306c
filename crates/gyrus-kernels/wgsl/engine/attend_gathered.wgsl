// attend_gathered: decode attention of several rows. A workgroup computes all splits of a row's heads, merges them and
// quantises the result to int8 for a mat-vec. Several rows keep the GPU busy without split-K across workgroups, and one
// workgroup loads positions, block table and heads only once.
//
// Bindings and constants: lib/attend.wgsl, and
//   9   q         as in lib/int8_rows.wgsl
//   10  q_scales  likewise
//
// Grid: (1, n_kv_heads · groups of GROUP query heads, rows). An iteration processes TILES tiles, one of each of as many
// splits. Four invocations score a key of each tile, so that one load of their part of a query serves all tiles;
// SOFTMAX_LANES lanes compute the softmax weights of a tile of one head; then each invocation sums two elements of a
// tile's values, which are in its registers, for all heads. Keys of the next iteration are loaded during the softmax,
// values during the scores, and the block table entries of both one iteration earlier: no load waits for another.
// Splits, sums and merging are those of engine/attend.wgsl and lib/merge.wgsl, with the same bits. Sums in f32. Twins:
// scalar::attention, scalar::quantize_rows.

#include "lib/splits.wgsl"
#define SPLIT_SLOTS MAX_SPLITS
#include "lib/attend.wgsl"

#define INT8_SUMS 1
#define Q_BINDING 9
#define Q_SCALES_BINDING 10
#include "lib/int8.wgsl"
#include "lib/int8_rows.wgsl"

#include "lib/attend_tiles.wgsl"

// Vectors from a tile's scores to the next tile's. The padding avoids bank conflicts.
#define SCORE_STRIDE (GROUP * SPLIT_TILE / 4u + 2u)

// Scores of the tiles, replaced by their softmax weights. Double-buffered: this iteration's and the next one's.
var<workgroup> weights: array<vec4<f32>, 2u * TILES * SCORE_STRIDE>;
var<workgroup> rescale: array<f32, TILES * GROUP>;
#if SUMS_IN_WORKGROUP
// Sums of the splits, [split, head, pair].
var<workgroup> split_sums: array<vec2<f32>, MAX_SPLITS * GROUP * PAIRS>;
#endif

// An invocation's parts of the queries, in registers if they are few.
struct Queries {
#if QUERIES_IN_REGISTERS
    vectors: array<vec4<f32>, 2 * GROUP * KEY_LOADS>,
#else
    // WGSL has no empty struct.
    none: u32,
#endif
}

fn query_at(task: Task, number: u32) -> u32 {
    return number / KEY_LOADS * (HEAD_DIM / 4u) + 2u * (4u * (number % KEY_LOADS) + task.index % 4u);
}

fn load_queries(task: Task) -> Queries {
    var own_queries: Queries;
#if QUERIES_IN_REGISTERS
#repeat N QUERIES
    own_queries.vectors[2 * N] = queries[query_at(task, N)];
    own_queries.vectors[2 * N + 1] = queries[query_at(task, N) + 1u];
#end
#endif
    return own_queries;
}

// Scores of the iteration's keys, stored from `to` on.
fn score_keys(
    task: Task, thread: Thread, own_queries: Queries, keys: ptr<function, Keys>, step: Step, splits: Splits, to: u32) {
#if ROTATE
#repeat T TILES
    if (first_position(step, T, splits) + task.index / 4u == task.position) {
#repeat I KEY_LOADS
        (*keys).vectors[T * KEY_LOADS + I] = new_kv_f16(4u * I + task.index % 4u);
#end
    }
#end
#endif
    // Each of four invocations has one part of a score.
    var parts: array<array<f32, GROUP>, TILES>;
#repeat G GROUP
    {
        var sums: array<vec4<f32>, TILES>;
#repeat I KEY_LOADS
        {
#if QUERIES_IN_REGISTERS
            let first = own_queries.vectors[2 * (G * KEY_LOADS + I)];
            let position = own_queries.vectors[2 * (G * KEY_LOADS + I) + 1];
#else
            let first = queries[query_at(task, G * KEY_LOADS + I)];
            let position = queries[query_at(task, G * KEY_LOADS + I) + 1u];
#endif
#repeat T TILES
            {
                let k = (*keys).vectors[T * KEY_LOADS + I];
                sums[T] = fma(vec4<f32>(unpack2x16float(k.x), unpack2x16float(k.y)), first, sums[T]);
                sums[T] = fma(vec4<f32>(unpack2x16float(k.z), unpack2x16float(k.w)), position, sums[T]);
            }
#end
        }
#end
#repeat T TILES
        parts[T][G] = (sums[T].x + sums[T].y) + (sums[T].z + sums[T].w);
#end
    }
#end
    // Neighbours exchange parts, so that each ends with whole scores of TILES / 4 tiles (or duplicates of fewer).
    let odd = (task.index & 1u) != 0u;
    let second = (task.index & 2u) != 0u;
#if TILES == 4
    let low = exchange_sums(parts[0], parts[2], odd, 1u, thread);
    let high = exchange_sums(parts[1], parts[3], odd, 1u, thread);
    let sums = exchange_sums(low, high, second, 2u, thread);
    let tile = 2u * (task.index & 1u) + ((task.index >> 1u) & 1u);
#elif TILES == 2
    let half = exchange_sums(parts[0], parts[1], odd, 1u, thread);
    let sums = exchange_sums(half, half, second, 2u, thread);
    let tile = task.index & 1u;
#else
    let half = exchange_sums(parts[0], parts[0], odd, 1u, thread);
    let sums = exchange_sums(half, half, second, 2u, thread);
    let tile = 0u;
#endif
    let at = to + tile * SCORE_STRIDE + task.index / 16u;
#repeat G GROUP
    weights[at + G * (SPLIT_TILE / 4u)][(task.index / 4u) % 4u] = sums[G];
#end
}

// Adds the parts of two neighbouring lanes: the lower lane gets the sums of `first`, the `upper` one those of `other`.
fn exchange_sums(first: array<f32, GROUP>, other: array<f32, GROUP>, upper: bool, distance: u32, thread: Thread)
    -> array<f32, GROUP> {
    var sums: array<f32, GROUP>;
#if SUBGROUPS
    if (distance < thread.shuffle_width) {
#repeat G GROUP
        sums[G] = select(first[G], other[G], upper)
            + subgroupShuffleXor(select(other[G], first[G], upper), distance);
#end
        return sums;
    }
#endif
#repeat G GROUP
    sums[G] = select(first[G], other[G], upper)
        + shuffle_xor_f32(select(other[G], first[G], upper), distance, thread);
#end
    return sums;
}

// Online softmax: replaces scores by weights. SOFTMAX_LANES lanes handle a tile of one head. Their sums have the tree
// of 32 lanes with two positions each.
fn softmax_tile(task: Task, thread: Thread, step: Step, splits: Splits, origin: u32) {
    let lane = task.index % SOFTMAX_LANES;
#repeat W SOFTMAX_ITERATIONS
    {
        // Invocations beyond the end repeat the last work item and do not write.
        let index = task.index / SOFTMAX_LANES + W * (WORKGROUP / SOFTMAX_LANES);
        let number = min(index, TILES * GROUP - 1u);
        let first = first_position(step, number / GROUP, splits) + lane;
        let scores_at = origin + number / GROUP * SCORE_STRIDE + number % GROUP * (SPLIT_TILE / 4u) + lane / 4u;
#repeat I SCORES_PER_LANE
        let score##I =
            masked_score(weights[scores_at + I * (SOFTMAX_LANES / 4u)][lane % 4u], first + I * SOFTMAX_LANES, task);
#end
#if SCORES_PER_LANE == 4
        var new_max = max(max(score0, score2), max(score1, score3));
#else
        var new_max = max(score0, score1);
#endif
        new_max = reduce_max_over(new_max, SOFTMAX_LANES, thread);
        let old_max = running_max[step.split * GROUP + number];
        new_max = max(old_max, new_max);
        // Masked positions have weight 0 even if the whole tile is masked.
#repeat I SCORES_PER_LANE
        let weight##I = select(0.0, exp(score##I - new_max), score##I > MASKED);
#end
#if SCORES_PER_LANE == 4
        var sum = (weight0 + weight2) + (weight1 + weight3);
#else
        var sum = weight0 + weight1;
#endif
        if (index < TILES * GROUP) {
#repeat I SCORES_PER_LANE
            weights[scores_at + I * (SOFTMAX_LANES / 4u)][lane % 4u] = weight##I;
#end
        }
        sum = reduce_sum_over(sum, SOFTMAX_LANES, thread);
        if (index < TILES * GROUP && lane == 0u) {
            let slot = step.split * GROUP + number;
            let factor = exp(old_max - new_max);
            rescale[number] = factor;
            running_max[slot] = new_max;
            exp_sum[slot] = fma(exp_sum[slot], factor, sum);
        }
    }
#end
}

struct Sums {
    heads: array<array<vec2<f32>, GROUP>, VALUE_ITERATIONS>,
}

// Rescales the sums and adds the iteration's weighted values.
fn accumulate_values(
    task: Task, values: ptr<function, Values>, sums: ptr<function, Sums>, step: Step, splits: Splits, origin: u32) {
#repeat R VALUE_ITERATIONS
    {
        let mine = value_task(task, R);
        let tile = first_position(step, mine.tile, splits);
        let first = tile + mine.part * PART_POSITIONS;
        if (mine.in_range && tile <= task.position) {
            if (first + PART_POSITIONS > task.position) {
                // The row's own value is not in the cache yet. Values beyond it are zeroed: infinity times a weight of
                // 0 would be NaN.
#if ROTATE
                let pair = HEAD_DIM + 2u * mine.pair;
                let new_word = pack2x16float(vec2<f32>(new_kv[pair], new_kv[pair + 1u]));
#endif
#repeat P PART_POSITIONS
                {
                    var word = (*values).words[R * PART_POSITIONS + P];
#if ROTATE
                    word = select(word, new_word, first + P == task.position);
#endif
                    (*values).words[R * PART_POSITIONS + P] = select(word, 0u, first + P > task.position);
                }
#end
            }
            let weights_at = origin + mine.tile * SCORE_STRIDE + mine.part * (PART_POSITIONS / 4u);
#repeat G GROUP
            (*sums).heads[R][G] *= rescale[mine.tile * GROUP + G];
#end
#repeat F PART_VECTORS
            {
#repeat G GROUP
                let weight##G = weights[weights_at + G * (SPLIT_TILE / 4u) + F];
#end
#repeat P 4
                {
                    let pair = unpack2x16float((*values).words[R * PART_POSITIONS + 4 * F + P]);
#repeat G GROUP
                    (*sums).heads[R][G] = fma(vec2<f32>(weight##G[P]), pair, (*sums).heads[R][G]);
#end
                }
#end
            }
#end
        }
    }
#end
}

// Adds the parts of a split's sums in order and stores them until all splits are done.
fn store_split_sums(task: Task, thread: Thread, sums: ptr<function, Sums>, step: Step, splits: Splits) {
#repeat R VALUE_ITERATIONS
    {
        let mine = value_task(task, R);
        let split = step.split + mine.tile;
#repeat G GROUP
        {
            let part = (*sums).heads[R][G];
            var sum = part;
#repeat S PARTS
#if S > 0
            sum += vec2<f32>(
                shuffle_xor_f32(part.x, S * (LANES / PARTS), thread),
                shuffle_xor_f32(part.y, S * (LANES / PARTS), thread));
#endif
#end
            if (mine.in_range && mine.part == 0u && split < splits.count) {
#if SUMS_IN_WORKGROUP
                split_sums[(split * GROUP + G) * PAIRS + mine.pair] = sum;
#else
                if (has_head(task, G)) {
                    partials[partial_at(task, G, split) + mine.pair] = sum;
                }
#endif
            }
        }
#end
    }
#end
}

// Four elements of the sums of a head's split.
fn split_sums4(task: Task, g: u32, split: u32, four: u32) -> vec4<f32> {
#if SUMS_IN_WORKGROUP
    let at = (split * GROUP + g) * PAIRS + 2u * four;
    return vec4<f32>(split_sums[at], split_sums[at + 1u]);
#else
    let at = partial_at(task, g, split) + 2u * four;
    return vec4<f32>(partials[at], partials[at + 1u]);
#endif
}

// Four elements of a head, merged from its splits as in lib/merge.wgsl. Running max and sum of exponentials are in
// workgroup memory, and eight loads are in flight at once.
fn merge_splits(task: Task, g: u32, four: u32, count: u32) -> vec4<f32> {
    var max_score = running_max[g];
    for (var split = 1u; split < count; split += 1u) {
        max_score = max(max_score, running_max[split * GROUP + g]);
    }
    var merged_exp_sum = 0.0;
    var sum = vec4<f32>();
    for (var split = 0u; split < count; split += 8u) {
        var loaded: array<vec4<f32>, 8>;
#repeat I 8
        loaded[I] = split_sums4(task, g, min(split + I, count - 1u), four);
#end
#repeat I 8
        if (split + I < count) {
            let slot = (split + I) * GROUP + g;
            let weight = exp(running_max[slot] - max_score);
            merged_exp_sum = fma(exp_sum[slot], weight, merged_exp_sum);
            sum = fma(loaded[I], vec4<f32>(weight), sum);
        }
#end
    }
    return sum / merged_exp_sum;
}

// Vectors of four elements of a group's heads.
#define OUTPUT_VECTORS (GROUP * HEAD_DIM / 4u)

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let thread = thread_of(here);
    let task = task_of(here, thread);
    let splits = splits_of(task.position, params.window);
#if SINKS
    has_first_split = true;
#endif
    // All loads are issued before the first is used.
    var step = Step(0u, 0u);
    var upcoming = next_step(step, splits);
    let first_key_blocks = first_key_blocks(task, splits);
    let first_value_blocks = first_value_blocks(task, splits);
    if (task.index < ENTRIES) {
        entries[ENTRIES + task.index] = table_entry(task, upcoming, task.index, splits);
    }
#if ROTATE
    let pairs = fetch_pairs(task, thread.index / LANES, thread.index % LANES);
#endif
    var keys = fetch_keys(task, first_key_blocks);
    var values: Values;
    fetch_values(task, first_value_blocks, &values);
#if ROTATE
    prepare_attention(task, thread, pairs);
#else
    prepare_attention(task, thread);
#endif
    workgroupBarrier();
#if ROTATE
    if (task.group == 0u) {
        write_new_kv(task, thread.index);
    }
#endif

    let own_queries = load_queries(task);
    var scores_base = 0u;
    var iteration = 0u;
    while (step.split < splits.count) {
        var sums: Sums;
        for (step.offset = 0u; step.offset < splits.size; step.offset += SPLIT_TILE) {
            upcoming = next_step(upcoming, splits);
            var entry = 0u;
            if (task.index < ENTRIES) {
                entry = table_entry(task, upcoming, task.index, splits);
            }
            // Only the first values are loaded an iteration ahead: their registers are in use until its end.
            if (iteration > 0u) {
                fetch_values(task, value_blocks(task, iteration), &values);
            }
            iteration += 1u;
            score_keys(task, thread, own_queries, &keys, step, splits, scores_base);
            workgroupBarrier();
            keys = fetch_keys(task, key_blocks(task, iteration));
            softmax_tile(task, thread, step, splits, scores_base);
            // This iteration's entries are no longer needed.
            if (task.index < ENTRIES) {
                entries[(iteration + 1u) % 2u * ENTRIES + task.index] = entry;
            }
            workgroupBarrier();
            accumulate_values(task, &values, &sums, step, splits, scores_base);
            // The next scores go to the other buffer.
            scores_base = TILES * SCORE_STRIDE - scores_base;
        }
        store_split_sums(task, thread, &sums, step, splits);
        step.split += TILES;
    }
#if !SUMS_IN_WORKGROUP
    storageBarrier();
#endif
    workgroupBarrier();

    for (var begin = 0u; begin < OUTPUT_VECTORS; begin += WORKGROUP) {
        // Invocations beyond the end repeat the last work item and do not write.
        let index = min(begin + thread.index, OUTPUT_VECTORS - 1u);
        let g = index / (HEAD_DIM / 4u);
        let four = index % (HEAD_DIM / 4u);
        let quantized = to_int8(merge_splits(task, g, four, splits.count), thread);
        if (begin + thread.index < OUTPUT_VECTORS && has_head(task, g)) {
            let to = query_head(task, g) * (HEAD_DIM / 4u) + four;
            write_int8(quantized, task.row, to, params.n_heads * HEAD_DIM / 32u);
        }
    }
}
