// The sum of one value over all invocations of a workgroup, with the same bits in each of them.
//
// SUBGROUPS 1 sums within subgroups of any size first. SUBGROUPS 0 uses workgroup memory alone and needs WORKGROUP to
// be a power of two. There must be a barrier between two sums, since the second writes where the first is read.

var<workgroup> partial_sums: array<f32, WORKGROUP>;

fn workgroup_sum(value: f32, here: Invocation) -> f32 {
#if SUBGROUPS
    let sum = subgroupAdd(value);
    if (here.num_subgroups == 1u) {
        return sum;
    }
    if (here.subgroup_lane == 0u) {
        partial_sums[here.subgroup_id] = sum;
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < here.num_subgroups; i += 1u) {
        total += partial_sums[i];
    }
#else
    partial_sums[here.local_index] = value;
    workgroupBarrier();
    for (var stride = WORKGROUP / 2u; stride > 0u; stride /= 2u) {
        if (here.local_index < stride) {
            partial_sums[here.local_index] += partial_sums[here.local_index + stride];
        }
        workgroupBarrier();
    }
    let total = partial_sums[0];
#endif
    return total;
}
