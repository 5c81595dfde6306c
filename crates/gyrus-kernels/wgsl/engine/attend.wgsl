// attend: attention of few rows, divided over positions so that a single row keeps a GPU busy; a mat-vec or quantize
// puts the splits together (lib/merge.wgsl).
//
// Bindings and constants: lib/attend.wgsl. Grid: (splits, n_kv_heads times the groups of GROUP heads that share one,
// rows). A workgroup takes a split. Its first tile's keys and values are fetched before the heads are made ready. Sums
// in f32. Twin: scalar::attention.

#define GATHER 0
#include "lib/attend.wgsl"

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
    let split = here.group.x;
    if (split >= splits.count) {
        return;
    }
    let begin = splits.first + split * splits.size;
    let end = min(begin + splits.size, task.last + 1u);

    var beginning = fetch_beginning(task, member, begin);
    begin_attention(task, member, &beginning);
    var tile = beginning.tile;
    workgroupBarrier();
#if TURN
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
        weigh_scores(task, member, first, 0u, true);
        workgroupBarrier();
        sum_values(task, &sums, true);
        workgroupBarrier();
    }

#if SHARES > 1
    put_share(task, sums[0]);
    workgroupBarrier();
#endif
    write_sums(task, &sums, split);
}
