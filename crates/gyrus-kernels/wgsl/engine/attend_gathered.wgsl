// attend_gathered: attention of several rows, each put together at once and made bytes for a mat-vec: enough rows keep
// a GPU busy without being divided, and who stays has its positions, block table and heads at hand.
//
// Bindings and constants: lib/attend.wgsl, and
//   9   q         as in lib/int8_rows.wgsl
//   10  q_scales  likewise
//
// Grid: (1, n_kv_heads times the groups of GROUP heads that share one, rows). In a turn a workgroup attends to TILES
// tiles, of as many splits. Four invocations score a key of each tile, which is one fetch of their part of a query for
// all; WEIGHERS make weights of a tile's scores of one head; then each invocation sums two elements of a tile's values,
// which are in its registers, for all heads. Keys are fetched while the weights of the turn before are made, values
// while keys are scored, and the block table's entries for both a turn before: no load waits for another. Splits, sums
// and how they are put together are those of engine/attend.wgsl and lib/merge.wgsl, and so are the bits. Sums in f32.
// Twins: scalar::attention, scalar::quantize_rows.

#include "lib/splits.wgsl"
#define SLOTS MAX_SPLITS
#include "lib/attend.wgsl"

#define INT8_SUMS 1
#define Q_BINDING 9
#define Q_SCALES_BINDING 10
#include "lib/int8.wgsl"
#include "lib/int8_rows.wgsl"

#include "lib/attend_tiles.wgsl"

// Vectors from a tile's scores to the next one's: a few more than there are spread them over the banks.
#define SCORED (GROUP * SPLIT_TILE / 4u + 2u)

// Scores of this turn's tiles, which become weights, and of the next one's.
var<workgroup> weights: array<vec4<f32>, 2u * TILES * SCORED>;
var<workgroup> fade: array<f32, TILES * GROUP>;
#if KEPT
// Sums of splits.
var<workgroup> kept: array<vec2<f32>, MAX_SPLITS * GROUP * PAIRS>;
#endif

// An invocation's parts of the queries, in registers where they are few.
struct Queries {
#if HELD
    vectors: array<vec4<f32>, 2 * GROUP * FETCH>,
#else
    // There is no struct without a field.
    none: u32,
#endif
}

fn query_at(task: Task, number: u32) -> u32 {
    return number / FETCH * (HEAD_DIM / 4u) + 2u * (4u * (number % FETCH) + task.place % 4u);
}

fn own_queries(task: Task) -> Queries {
    var own: Queries;
#if HELD
#repeat N QUERIES
    own.vectors[2 * N] = queries[query_at(task, N)];
    own.vectors[2 * N + 1] = queries[query_at(task, N) + 1u];
#end
#endif
    return own;
}

// Scores of the turn's keys, to `to` on.
fn score_keys(
    task: Task, thread: Thread, own: Queries, keys: ptr<function, Keys>, turn: Turn, splits: Splits, to: u32) {
#if ROTATE
#repeat T TILES
    if (first_of(turn, T, splits) + task.place / 4u == task.last) {
#repeat I FETCH
        (*keys).vectors[T * FETCH + I] = eight_f16(4u * I + task.place % 4u);
#end
    }
#end
#endif
    // Of each invocation one of four parts.
    var parts: array<array<f32, GROUP>, TILES>;
#repeat G GROUP
    {
        var sums: array<vec4<f32>, TILES>;
#repeat I FETCH
        {
#if HELD
            let first = own.vectors[2 * (G * FETCH + I)];
            let last = own.vectors[2 * (G * FETCH + I) + 1];
#else
            let first = queries[query_at(task, G * FETCH + I)];
            let last = queries[query_at(task, G * FETCH + I) + 1u];
#endif
#repeat T TILES
            {
                let k = (*keys).vectors[T * FETCH + I];
                sums[T] = fma(vec4<f32>(unpack2x16float(k.x), unpack2x16float(k.y)), first, sums[T]);
                sums[T] = fma(vec4<f32>(unpack2x16float(k.z), unpack2x16float(k.w)), last, sums[T]);
            }
#end
        }
#end
#repeat T TILES
        parts[T][G] = (sums[T].x + sums[T].y) + (sums[T].z + sums[T].w);
#end
    }
#end
    // Neighbours give each other the parts of the tiles that the other keeps, as far as there are several.
    let odd = (task.place & 1u) != 0u;
    let late = (task.place & 2u) != 0u;
#if TILES == 4
    let low = halves(parts[0], parts[2], odd, 1u, thread);
    let high = halves(parts[1], parts[3], odd, 1u, thread);
    let sums = halves(low, high, late, 2u, thread);
    let tile = 2u * (task.place & 1u) + ((task.place >> 1u) & 1u);
#elif TILES == 2
    let half = halves(parts[0], parts[1], odd, 1u, thread);
    let sums = halves(half, half, late, 2u, thread);
    let tile = task.place & 1u;
#else
    let half = halves(parts[0], parts[0], odd, 1u, thread);
    let sums = halves(half, half, late, 2u, thread);
    let tile = 0u;
#endif
    let at = to + tile * SCORED + task.place / 16u;
#repeat G GROUP
    weights[at + G * (SPLIT_TILE / 4u)][(task.place / 4u) % 4u] = sums[G];
#end
}

// Of two neighbours' parts, one has the sums of the first ones, and the one that is `upper` of the others.
fn halves(first: array<f32, GROUP>, other: array<f32, GROUP>, upper: bool, distance: u32, thread: Thread)
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

// Weights of the turn's positions in place of their scores, a tile and head by WEIGHERS invocations: they sum as a team
// of 32 does of which each has two positions.
fn weigh_scores(task: Task, thread: Thread, turn: Turn, splits: Splits, origin: u32) {
    let lane = task.place % WEIGHERS;
#repeat W WEIGHINGS
    {
        // Those beyond the end do the last one's work and keep it to themselves.
        let index = task.place / WEIGHERS + W * (WORKGROUP / WEIGHERS);
        let number = min(index, TILES * GROUP - 1u);
        let first = first_of(turn, number / GROUP, splits) + lane;
        let scored = origin + number / GROUP * SCORED + number % GROUP * (SPLIT_TILE / 4u) + lane / 4u;
#repeat I WEIGHED
        let score##I = finished(weights[scored + I * (WEIGHERS / 4u)][lane % 4u], first + I * WEIGHERS, task);
#end
#if WEIGHED == 4
        var higher = max(max(score0, score2), max(score1, score3));
#else
        var higher = max(score0, score1);
#endif
        higher = reduce_max_over(higher, WEIGHERS, thread);
        let before = most[turn.split * GROUP + number];
        higher = max(before, higher);
        // A tile that is not seen at all has no weight, whatever the scores are lowered by.
#repeat I WEIGHED
        let weight##I = select(0.0, exp(score##I - higher), score##I > NONE);
#end
#if WEIGHED == 4
        var sum = (weight0 + weight2) + (weight1 + weight3);
#else
        var sum = weight0 + weight1;
#endif
        if (index < TILES * GROUP) {
#repeat I WEIGHED
            weights[scored + I * (WEIGHERS / 4u)][lane % 4u] = weight##I;
#end
        }
        sum = reduce_sum_over(sum, WEIGHERS, thread);
        if (index < TILES * GROUP && lane == 0u) {
            let slot = turn.split * GROUP + number;
            let faded = exp(before - higher);
            fade[number] = faded;
            most[slot] = higher;
            total[slot] = fma(total[slot], faded, sum);
        }
    }
#end
}

struct Sums {
    heads: array<array<vec2<f32>, GROUP>, ROUNDS>,
}

// Adds the turn's values, as they weigh, to what was before.
fn sum_values(
    task: Task, values: ptr<function, Values>, sums: ptr<function, Sums>, turn: Turn, splits: Splits, origin: u32) {
#repeat R ROUNDS
    {
        let mine = summer(task, R);
        let tile = first_of(turn, mine.tile, splits);
        let first = tile + mine.share * SHARE;
        if (mine.in_range && tile <= task.last) {
            if (first + SHARE > task.last) {
                // The row's own value is not in the cache yet. Whatever lies beyond, it must not meet a weight of zero
                // as an infinity.
#if ROTATE
                let pair = HEAD_DIM + 2u * mine.pair;
                let newest_word = f16_pair(vec2<f32>(newest[pair], newest[pair + 1u]));
#endif
#repeat P SHARE
                {
                    var word = (*values).words[R * SHARE + P];
#if ROTATE
                    word = select(word, newest_word, first + P == task.last);
#endif
                    (*values).words[R * SHARE + P] = select(word, 0u, first + P > task.last);
                }
#end
            }
            let weighed = origin + mine.tile * SCORED + mine.share * (SHARE / 4u);
#repeat G GROUP
            (*sums).heads[R][G] *= fade[mine.tile * GROUP + G];
#end
#repeat F SHARE_FOURS
            {
#repeat G GROUP
                let weight##G = weights[weighed + G * (SPLIT_TILE / 4u) + F];
#end
#repeat P 4
                {
                    let pair = unpack2x16float((*values).words[R * SHARE + 4 * F + P]);
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

// Puts the shares of a split's sums together, in their order, and keeps them until all splits are there.
fn keep_sums(task: Task, thread: Thread, sums: ptr<function, Sums>, turn: Turn, splits: Splits) {
#repeat R ROUNDS
    {
        let mine = summer(task, R);
        let split = turn.split + mine.tile;
#repeat G GROUP
        {
            let share = (*sums).heads[R][G];
            var sum = share;
#repeat S SHARES
#if S > 0
            sum += vec2<f32>(
                shuffle_xor_f32(share.x, S * (LANES / SHARES), thread),
                shuffle_xor_f32(share.y, S * (LANES / SHARES), thread));
#endif
#end
            if (mine.in_range && mine.share == 0u && split < splits.count) {
#if KEPT
                kept[(split * GROUP + G) * PAIRS + mine.pair] = sum;
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

// Four elements of a head's split.
fn four_kept(task: Task, g: u32, split: u32, four: u32) -> vec4<f32> {
#if KEPT
    let at = (split * GROUP + g) * PAIRS + 2u * four;
    return vec4<f32>(kept[at], kept[at + 1u]);
#else
    let at = partial_at(task, g, split) + 2u * four;
    return vec4<f32>(partials[at], partials[at + 1u]);
#endif
}

// Four elements of a head of the group from its splits: lib/merge.wgsl, with largest scores and sums of weights at hand
// and several sums on their way at once.
fn gathered(task: Task, g: u32, four: u32, count: u32) -> vec4<f32> {
    var highest = most[g];
    for (var split = 1u; split < count; split += 1u) {
        highest = max(highest, most[split * GROUP + g]);
    }
    var all = 0.0;
    var sum = vec4<f32>();
    for (var split = 0u; split < count; split += 8u) {
        var some: array<vec4<f32>, 8>;
#repeat I 8
        some[I] = four_kept(task, g, min(split + I, count - 1u), four);
#end
#repeat I 8
        if (split + I < count) {
            let slot = (split + I) * GROUP + g;
            let weight = exp(most[slot] - highest);
            all = fma(total[slot], weight, all);
            sum = fma(some[I], vec4<f32>(weight), sum);
        }
#end
    }
    return sum / all;
}

// Vectors of four elements of a group's heads.
#define FOURS (GROUP * HEAD_DIM / 4u)

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
    // Everything is on its way before anything is waited for.
    var turn = Turn(0u, 0u);
    var ahead = next(turn, splits);
    let first_key_blocks = first_key_blocks(task, splits);
    let first_value_blocks = first_value_blocks(task, splits);
    if (task.place < ENTRIES) {
        entries[ENTRIES + task.place] = entry_of(task, ahead, task.place, splits);
    }
#if ROTATE
    let pairs = fetch_pairs(task, thread.index / LANES, thread.index % LANES);
#endif
    var keys = fetch_keys(task, first_key_blocks);
    var values: Values;
    fetch_values(task, first_value_blocks, &values);
#if ROTATE
    begin_attention(task, thread, pairs);
#else
    begin_attention(task, thread);
#endif
    workgroupBarrier();
#if ROTATE
    if (task.group == 0u) {
        write_newest(task, thread.index);
    }
#endif

    let own = own_queries(task);
    var at = 0u;
    var number = 0u;
    while (turn.split < splits.count) {
        var sums: Sums;
        for (turn.offset = 0u; turn.offset < splits.size; turn.offset += SPLIT_TILE) {
            ahead = next(ahead, splits);
            var entry = 0u;
            if (task.place < ENTRIES) {
                entry = entry_of(task, ahead, task.place, splits);
            }
            // Only the first are fetched a turn ahead: registers of values are needed to the end of it.
            if (number > 0u) {
                fetch_values(task, value_blocks(task, number), &values);
            }
            number += 1u;
            score_keys(task, thread, own, &keys, turn, splits, at);
            workgroupBarrier();
            keys = fetch_keys(task, key_blocks(task, number));
            weigh_scores(task, thread, turn, splits, at);
            // Nobody needs this turn's any more.
            if (task.place < ENTRIES) {
                entries[(number + 1u) % 2u * ENTRIES + task.place] = entry;
            }
            workgroupBarrier();
            sum_values(task, &values, &sums, turn, splits, at);
            // The next scores go where nobody reads weights any more.
            at = TILES * SCORED - at;
        }
        keep_sums(task, thread, &sums, turn, splits);
        turn.split += TILES;
    }
#if !KEPT
    storageBarrier();
#endif
    workgroupBarrier();

    for (var begin = 0u; begin < FOURS; begin += WORKGROUP) {
        // Those beyond the end do the last one's work and keep it to themselves.
        let index = min(begin + thread.index, FOURS - 1u);
        let g = index / (HEAD_DIM / 4u);
        let four = index % (HEAD_DIM / 4u);
        let bytes = to_int8(gathered(task, g, four, splits.count), thread);
        if (begin + thread.index < FOURS && has_head(task, g)) {
            let to = query_head(task, g) * (HEAD_DIM / 4u) + four;
            write_int8(bytes, task.row, to, params.n_heads * HEAD_DIM / 32u);
        }
    }
}
