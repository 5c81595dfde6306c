// Merges the splits of a head's attention. Needs HEAD_DIM and `partials`: for each row, head and one of MAX_SPLITS
// splits, the sums [HEAD_DIM] of weighted values, then the maximal score and the sum of exponentials, padded to four
// f32.

#include "lib/splits.wgsl"

#define PARTIAL_VECTORS (HEAD_DIM / 4u + 1u)

// Four elements of a head's attention, merged from `count` splits of its row.
fn merged(row: u32, heads: u32, head: u32, four: u32, count: u32) -> vec4<f32> {
    let first = (row * heads + head) * MAX_SPLITS * PARTIAL_VECTORS;
    var max_score = partials[first + HEAD_DIM / 4u].x;
    for (var split = 1u; split < count; split += 1u) {
        max_score = max(max_score, partials[first + split * PARTIAL_VECTORS + HEAD_DIM / 4u].x);
    }
    var exp_sum = 0.0;
    var sum = vec4<f32>();
    for (var split = 0u; split < count; split += 1u) {
        let at = first + split * PARTIAL_VECTORS;
        let split_stats = partials[at + HEAD_DIM / 4u].xy;
        let weight = exp(split_stats.x - max_score);
        exp_sum = fma(split_stats.y, weight, exp_sum);
        sum = fma(partials[at + four], vec4<f32>(weight), sum);
    }
    return sum / exp_sum;
}
