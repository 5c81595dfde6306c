// Sums over teams of LANES invocations, several of which make a workgroup.
//
// The sum is one tree whatever the device: first the values LANES / 2 apart, at last neighbours. Within a subgroup,
// of whatever size it is, values are exchanged by shuffles; beyond it, and where SUBGROUPS is 0 or subgroups are not
// full, through workgroup memory. So the bits are the same on every rung, in every member of a team.
//
// LANES and WORKGROUP are powers of two, LANES the smaller. All invocations of a workgroup must call team_sum.

struct Member {
    // The invocation's number in the workgroup: subgroups follow each other in it.
    place: u32,
    // Values that are this far apart, or farther, are in different subgroups.
    reach: u32,
}

var<workgroup> team_values: array<f32, WORKGROUP>;

#if SUBGROUPS
fn team_member(here: Invocation, subgroup_size: u32) -> Member {
    if (here.subgroups * subgroup_size != WORKGROUP) {
        return Member(here.lane, 1u);
    }
    return Member(here.subgroup * subgroup_size + here.subgroup_lane, subgroup_size);
}
#else
fn team_member(here: Invocation) -> Member {
    return Member(here.lane, 1u);
}
#endif

fn team_sum(value: f32, here: Member) -> f32 {
    var sum = value;
    var stride = LANES / 2u;
    for (; stride >= here.reach; stride /= 2u) {
        workgroupBarrier();
        team_values[here.place] = sum;
        workgroupBarrier();
        sum += team_values[here.place ^ stride];
    }
#if SUBGROUPS
    for (; stride > 0u; stride /= 2u) {
        sum += subgroupShuffleXor(sum, stride);
    }
#endif
    return sum;
}
