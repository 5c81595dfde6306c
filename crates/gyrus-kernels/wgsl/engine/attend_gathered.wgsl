// attend_gathered: attention of several rows, each put together at once and made bytes for a mat-vec: enough rows keep
// a GPU busy without being divided, and who stays has its positions, block table and heads at hand.
//
// Bindings and constants: lib/attend.wgsl, and
//   9   q         as in lib/row_bytes.wgsl
//   10  q_scales  likewise
//
// Grid: (1, n_kv_heads times the groups of GROUP heads that share one, rows). Crews take every CREWS-th split of a row.
// A tile's keys and values are fetched while the one before is attended to, and what the block table has of the tile
// behind it: no load waits for another. Splits, sums and how they are put together are those of engine/attend.wgsl and
// lib/merge.wgsl, and so are the bits. Sums in f32. Twins: scalar::attention, scalar::quantize_rows.

#define GATHER 1
#include "lib/attend.wgsl"

#define BYTE_SUMS 1
#define Q_BINDING 9
#define Q_SCALES_BINDING 10
#include "lib/bytes.wgsl"
#include "lib/row_bytes.wgsl"

// Vectors of four elements of a group's heads.
#define FOURS (GROUP * HEAD_DIM / 4u)

// A tile of a crew: where in which of its splits.
struct Cursor {
    split: u32,
    offset: u32,
}

fn first_of(cursor: Cursor, splits: Splits) -> u32 {
    return splits.first + cursor.split * splits.size + cursor.offset;
}

// The crew's next tile, which may be beyond the last position.
fn next(cursor: Cursor, splits: Splits) -> Cursor {
    if (cursor.offset + SPLIT_TILE < splits.size) {
        return Cursor(cursor.split, cursor.offset + SPLIT_TILE);
    }
    return Cursor(cursor.split + CREWS, 0u);
}

// Four elements of a head of the group from its splits: lib/merge.wgsl, with largest scores and sums of weights at hand
// and several sums on their way at once.
fn gathered(task: Task, g: u32, four: u32, count: u32) -> vec4<f32> {
    var highest = most[g];
    for (var split = 1u; split < count; split += 1u) {
        highest = max(highest, most[split * GROUP + g]);
    }
    let origin = partial_at(task, g, 0u) + 2u * four;
    var all = 0.0;
    var sum = vec4<f32>();
    for (var split = 0u; split < count; split += 8u) {
        var some: array<vec4<f32>, 8>;
#repeat I 8
        {
            let at = origin + min(split + I, count - 1u) * PARTIAL_PAIRS;
            some[I] = vec4<f32>(partials[at], partials[at + 1u]);
        }
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

@compute @workgroup_size(WORKGROUP)
#if SUBGROUPS
fn KERNEL(here: Invocation, @builtin(subgroup_size) subgroup_size: u32) {
    let member = team_member(here, subgroup_size);
#else
fn KERNEL(here: Invocation) {
    let member = team_member(here);
#endif
    let task = task_of(here, member);
    let splits = splits_of(task.last, params.window);
    var ahead = Cursor(task.crew, 0u);
    var beginning = fetch_beginning(task, member, first_of(ahead, splits));
    ahead = next(ahead, splits);
    var blocks = blocks_of(task, first_of(ahead, splits));
    begin_attention(task, member, &beginning);
    var tile = beginning.tile;
    workgroupBarrier();
#if TURN
    if (task.group == 0u) {
        write_newest(task, member.place);
    }
#endif

    // As many rounds and tiles for each crew, since barriers want them all: MOST_SPLITS is a multiple of CREWS, and a
    // tile beyond the last position is not live.
    for (var round = 0u; round < splits.count; round += CREWS) {
        let split = round + task.crew;
        var sums: array<vec2<f32>, OWN>;
#repeat O OWN
        sums[O] = vec2<f32>();
#end
        for (var offset = 0u; offset < splits.size; offset += SPLIT_TILE) {
            let first = first_of(Cursor(split, offset), splits);
            let live = first <= task.last;
            score_keys(task, &tile, first);
            workgroupBarrier();
            // Only now has everybody done with the values before.
            keep_values(task, &tile, first);
            tile = fetch(task, first_of(ahead, splits), blocks);
            ahead = next(ahead, splits);
            blocks = blocks_of(task, first_of(ahead, splits));
            weigh_scores(task, member, first, split, live);
            workgroupBarrier();
            sum_values(task, &sums, live);
        }
#if SHARES > 1
        put_share(task, sums[0]);
        workgroupBarrier();
#endif
        if (split < splits.count) {
            write_sums(task, &sums, split);
        }
    }
    storageBarrier();
    workgroupBarrier();

    for (var begin = 0u; begin < FOURS; begin += WORKGROUP) {
        // Those beyond the end do the last one's work and keep it to themselves.
        let index = min(begin + member.place, FOURS - 1u);
        let g = index / (HEAD_DIM / 4u);
        let four = index % (HEAD_DIM / 4u);
        let bytes = to_bytes(gathered(task, g, four, splits.count), member);
        if (begin + member.place < FOURS && has_head(task, g)) {
            let to = query_head(task, g) * (HEAD_DIM / 4u) + four;
            write_bytes(bytes, task.row, to, params.n_heads * HEAD_DIM / 32u);
        }
    }
}
