// attend: attention of few rows, divided over positions so that a single row keeps a GPU busy; a mat-vec or quantize
// puts the splits together (lib/merge.wgsl).
//
// Bindings and constants: lib/attend.wgsl. Grid: (splits, n_kv_heads times the groups of GROUP heads that share one,
// rows). A workgroup takes a split. Its first tile's keys and values are fetched before the heads are made ready. Four
// invocations score one of a tile's keys for all heads of the group, a team makes weights of a head's scores, then each
// invocation sums two elements of a head over the values, which wait in workgroup memory. Sums in f32. Twin:
// scalar::attention.

#define SLOTS 1u
#include "lib/attend.wgsl"

var<workgroup> scores: array<vec4<f32>, GROUP * SPLIT_TILE>;
var<workgroup> weights: array<vec4<f32>, GROUP * SPLIT_TILE / 4u>;
var<workgroup> values: array<vec4<u32>, SPLIT_TILE * HEAD_VECTORS>;
var<workgroup> fade: array<f32, GROUP>;

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
    return min(first + (task.place + number * WORKGROUP) / HEAD_VECTORS, task.last);
}

fn blocks_of(task: Task, first: u32) -> Blocks {
    var blocks: Blocks;
    blocks.key = block_table[task.table + key_position(task, first) / KV_BLOCK];
#repeat I FETCH
    blocks.values[I] = block_table[task.table + value_position(task, first, I) / KV_BLOCK];
#end
    return blocks;
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
        tile.values[I] = v_cache[value + (task.place + I * WORKGROUP) % HEAD_VECTORS];
    }
#end
    return tile;
}

// Scores of the keys of the tile from `first` on, in four parts each.
fn score_keys(task: Task, tile: ptr<function, Tile>, first: u32) {
#if ROTATE
    if (first + task.place / 4u == task.last) {
#repeat I FETCH
        (*tile).keys[I] = eight_f16(4u * I + task.place % 4u);
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
        let to = G * SPLIT_TILE + task.place / 4u;
        scores[to][task.place % 4u] = (sum.x + sum.y) + (sum.z + sum.w);
    }
#end
}

// Puts the values of the tile from `first` on where all find them.
fn keep_values(task: Task, tile: ptr<function, Tile>, first: u32) {
#repeat I FETCH
    {
        let at = task.place + I * WORKGROUP;
        let position = first + at / HEAD_VECTORS;
        var v = (*tile).values[I];
#if ROTATE
        if (position == task.last) {
            v = eight_f16(HEAD_VECTORS + at % HEAD_VECTORS);
        }
#endif
        // Whatever lies beyond the last position, it must not meet a weight of zero as an infinity.
        values[at] = select(vec4<u32>(), v, position <= task.last);
    }
#end
}

// Weights of a tile's positions from their scores.
fn weigh_scores(task: Task, thread: Thread, first: u32) {
    let lane = task.place % LANES;
    let lane_group = task.place / LANES;
    let head = min(lane_group, GROUP - 1u);
    let scored = head * SPLIT_TILE;
    var two = vec2<f32>(NONE);
#repeat I 2
    {
        let at = lane + I * LANES;
        let parts = scores[scored + at];
        two[I] = finished((parts.x + parts.y) + (parts.z + parts.w), first + at, task);
    }
#end
    let before = most[head];
    let higher = max(before, reduce_max(max(two.x, two.y), thread));
    // A tile that is not seen at all has no weight, whatever the scores are lowered by.
    let e = select(vec2<f32>(), exp(two - higher), two > vec2<f32>(NONE));
    let sum = reduce_sum(e.x + e.y, thread);
    if (lane_group < GROUP) {
        weights[(scored + lane) / 4u][lane % 4u] = e.x;
        weights[(scored + LANES + lane) / 4u][lane % 4u] = e.y;
        if (lane == 0u) {
            let faded = exp(before - higher);
            fade[head] = faded;
            most[head] = higher;
            total[head] = fma(total[head], faded, sum);
        }
    }
}

// Adds a tile's values, as they weigh, to what was before.
fn sum_values(task: Task, sums: ptr<function, array<vec2<f32>, OWN>>) {
#repeat O OWN
    {
        let output = task.place % OUTPUTS + O * WORKGROUP;
        if (output < OUTPUTS && task.place / OUTPUTS < SHARES) {
            let g = output / (HEAD_DIM / 2u);
            let word = output % (HEAD_DIM / 2u);
            let weighed = g * SPLIT_TILE;
            let kept = word / 4u;
            var sum = (*sums)[O] * fade[g];
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
// Shares of the positions are put together in their order. They wait where values were, which nobody needs any more.
fn put_share(task: Task, sum: vec2<f32>) {
    if (task.place / OUTPUTS < SHARES) {
        values[task.place] = vec4<u32>(bitcast<vec2<u32>>(sum), 0u, 0u);
    }
}

fn share(place: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(values[place].xy);
}
#endif

// Writes a split's sums.
fn write_sums(task: Task, sums: ptr<function, array<vec2<f32>, OWN>>, split: u32) {
#repeat O OWN
    {
        let output = task.place + O * WORKGROUP;
        let g = output / (HEAD_DIM / 2u);
        if (output < OUTPUTS && has_head(task, g)) {
            var sum = (*sums)[O];
#if SHARES > 1
#repeat S SHARES
#if S > 0
            sum += share(output + S * OUTPUTS);
#endif
#end
#endif
            let to = partial_at(task, g, split);
            partials[to + output % (HEAD_DIM / 2u)] = sum;
            if (output % (HEAD_DIM / 2u) == 0u) {
                partials[to + HEAD_DIM / 2u] = vec2<f32>(most[g], total[g]);
            }
        }
    }
#end
}

@compute @workgroup_size(WORKGROUP)
#if SUBGROUPS
fn KERNEL(here: Invocation, @builtin(subgroup_size) subgroup_size: u32) {
    let thread = thread_of(here, subgroup_size);
#else
fn KERNEL(here: Invocation) {
    let thread = thread_of(here);
#endif
    let task = task_of(here, thread);
    let splits = splits_of(task.last, params.window);
    let split = here.workgroup.x;
    if (split >= splits.count) {
        return;
    }
    let begin = splits.first + split * splits.size;
    let end = min(begin + splits.size, task.last + 1u);

    // Everything is on its way before anything is waited for.
    let blocks = blocks_of(task, begin);
#if ROTATE
    let pairs = fetch_pairs(task, thread.index / LANES, thread.index % LANES);
    var tile = fetch(task, begin, blocks);
    begin_attention(task, thread, pairs);
#else
    var tile = fetch(task, begin, blocks);
    begin_attention(task, thread);
#endif
    workgroupBarrier();
#if ROTATE
    // The row's own split writes, and only one group of heads does.
    if (end == task.last + 1u && task.group == 0u) {
        write_newest(task, task.place);
    }
#endif

    var sums: array<vec2<f32>, OWN>;
    for (var first = begin; first < end; first += SPLIT_TILE) {
        score_keys(task, &tile, first);
        keep_values(task, &tile, first);
        workgroupBarrier();
        if (first + SPLIT_TILE < end) {
            tile = fetch(task, first + SPLIT_TILE, blocks_of(task, first + SPLIT_TILE));
        }
        weigh_scores(task, thread, first);
        workgroupBarrier();
        sum_values(task, &sums);
        workgroupBarrier();
    }

#if SHARES > 1
    put_share(task, sums[0]);
    workgroupBarrier();
#endif
    write_sums(task, &sums, split);
}
