// The attention of a head from its splits. Needs HEAD_DIM and `partials`: for each row, head and one of MOST_SPLITS
// splits the sums [HEAD_DIM] of weighted values, then the largest score and the sum of weights, padded to four.

#include "lib/splits.wgsl"

#define PARTIAL_VECTORS (HEAD_DIM / 4u + 1u)

// Four elements of a head of a row whose splits number `count`.
fn merged(row: u32, heads: u32, head: u32, four: u32, count: u32) -> vec4<f32> {
    let first = (row * heads + head) * MOST_SPLITS * PARTIAL_VECTORS;
    var most = partials[first + HEAD_DIM / 4u].x;
    for (var split = 1u; split < count; split += 1u) {
        most = max(most, partials[first + split * PARTIAL_VECTORS + HEAD_DIM / 4u].x);
    }
    var total = 0.0;
    var sum = vec4<f32>();
    for (var split = 0u; split < count; split += 1u) {
        let at = first + split * PARTIAL_VECTORS;
        let of_split = partials[at + HEAD_DIM / 4u].xy;
        let weight = exp(of_split.x - most);
        total = fma(of_split.y, weight, total);
        sum = fma(partials[at + four], vec4<f32>(weight), sum);
    }
    return sum / total;
}
