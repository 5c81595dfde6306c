// Invocations numbered subgroup by subgroup, and prefix sums over the workgroup. Needs WORKGROUP, lib/u64.wgsl and
// lib/invocation.wgsl.

var<private> lane: u32;
#if SUBGROUPS
// Shuffles reach lanes at a distance below this: the subgroup size, or 1 if shuffles cannot be used.
var<private> shuffle_width: u32;
var<private> subgroup_lane: u32;
#endif

var<workgroup> scan_low: array<u32, WORKGROUP>;
var<workgroup> scan_high: array<u32, WORKGROUP>;

fn number_lanes(here: Invocation) {
    lane = here.local_index;
#if SUBGROUPS
    shuffle_width = 1u;
    subgroup_lane = here.subgroup_lane;
    // If subgroups are full, invocations are numbered subgroup by subgroup.
    if (here.num_subgroups * here.subgroup_size == WORKGROUP) {
        shuffle_width = here.subgroup_size;
        lane = here.subgroup_id * here.subgroup_size + here.subgroup_lane;
    }
#endif
}

// Inclusive prefix sum over the workgroup. All invocations must call it. Values are exchanged by shuffles within a
// subgroup and through workgroup memory between subgroups.
fn scan(value: vec2<u32>) -> vec2<u32> {
    var sum = value;
    var stride = 1u;
#if SUBGROUPS
    for (; stride < shuffle_width; stride *= 2u) {
        let other = vec2<u32>(subgroupShuffleUp(sum.x, stride), subgroupShuffleUp(sum.y, stride));
        if (subgroup_lane >= stride) {
            sum = add64(sum, other);
        }
    }
    // Now add the totals of the preceding subgroups, each of `stride` invocations.
    let block = lane / stride;
    workgroupBarrier();
    if (lane % stride == stride - 1u) {
        scan_low[block] = sum.x;
        scan_high[block] = sum.y;
    }
    workgroupBarrier();
    for (var i = 0u; i < block; i += 1u) {
        sum = add64(sum, vec2<u32>(scan_low[i], scan_high[i]));
    }
#else
    for (; stride < WORKGROUP; stride *= 2u) {
        workgroupBarrier();
        scan_low[lane] = sum.x;
        scan_high[lane] = sum.y;
        workgroupBarrier();
        if (lane >= stride) {
            sum = add64(sum, vec2<u32>(scan_low[lane - stride], scan_high[lane - stride]));
        }
    }
#endif
    return sum;
}
