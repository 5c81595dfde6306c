// The sum of one value over all invocations of a workgroup, the same bits in each of them.
//
// SUBGROUPS 1 sums within subgroups first, of whatever size they are; 0 uses workgroup memory alone and needs
// WORKGROUP to be a power of two. Between two sums there must be a barrier: the second writes where the first is
// read.

var<workgroup> partial_sums: array<f32, WORKGROUP>;

fn workgroup_sum(value: f32, here: Invocation) -> f32 {
#if SUBGROUPS
    let sum = subgroupAdd(value);
    if (here.subgroups == 1u) {
        return sum;
    }
    if (here.subgroup_lane == 0u) {
        partial_sums[here.subgroup] = sum;
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < here.subgroups; i += 1u) {
        total += partial_sums[i];
    }
#else
    partial_sums[here.lane] = value;
    workgroupBarrier();
    for (var stride = WORKGROUP / 2u; stride > 0u; stride /= 2u) {
        if (here.lane < stride) {
            partial_sums[here.lane] += partial_sums[here.lane + stride];
        }
        workgroupBarrier();
    }
    let total = partial_sums[0];
#endif
    return total;
}
