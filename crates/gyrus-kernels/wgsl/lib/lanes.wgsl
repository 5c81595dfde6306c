// Values exchanged and reduced among teams of LANES invocations, several of which make a workgroup.
//
// A reduction is one tree whatever the device: first the values LANES / 2 apart, at last neighbours. Within a subgroup,
// of whatever size it is, values are exchanged by shuffles; beyond it, and where SUBGROUPS is 0 or subgroups are not
// full, through workgroup memory. So the bits are the same on every rung, in every member of a team.
//
// LANES and WORKGROUP are powers of two, LANES the smaller. All invocations of a workgroup must call these together.

struct Member {
    // The invocation's number in the workgroup: subgroups follow each other in it.
    place: u32,
    // Values that are this far apart, or farther, are in different subgroups.
    reach: u32,
}

var<workgroup> team_values: array<u32, WORKGROUP>;

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

// The value of the invocation `distance` places away, a power of two below LANES.
fn neighbour(value: u32, distance: u32, here: Member) -> u32 {
#if SUBGROUPS
    if (distance < here.reach) {
        return subgroupShuffleXor(value, distance);
    }
#endif
    workgroupBarrier();
    team_values[here.place] = value;
    workgroupBarrier();
    return team_values[here.place ^ distance];
}

fn neighbour_f32(value: f32, distance: u32, here: Member) -> f32 {
    return bitcast<f32>(neighbour(bitcast<u32>(value), distance, here));
}

// Whether a subgroup holds whole teams of `lanes`: then a reduction need not ask at every step.
fn is_near(lanes: u32, here: Member) -> bool {
    return lanes <= here.reach;
}

// Among `lanes` neighbours, a power of two up to LANES.
fn lanes_sum(value: f32, lanes: u32, here: Member) -> f32 {
    var sum = value;
#if SUBGROUPS
    if (is_near(lanes, here)) {
        for (var distance = lanes / 2u; distance > 0u; distance /= 2u) {
            sum += subgroupShuffleXor(sum, distance);
        }
        return sum;
    }
#endif
    for (var distance = lanes / 2u; distance > 0u; distance /= 2u) {
        sum += neighbour_f32(sum, distance, here);
    }
    return sum;
}

fn lanes_max(value: f32, lanes: u32, here: Member) -> f32 {
    var most = value;
#if SUBGROUPS
    if (is_near(lanes, here)) {
        for (var distance = lanes / 2u; distance > 0u; distance /= 2u) {
            most = max(most, subgroupShuffleXor(most, distance));
        }
        return most;
    }
#endif
    for (var distance = lanes / 2u; distance > 0u; distance /= 2u) {
        most = max(most, neighbour_f32(most, distance, here));
    }
    return most;
}

fn team_sum(value: f32, here: Member) -> f32 {
    return lanes_sum(value, LANES, here);
}

fn team_max(value: f32, here: Member) -> f32 {
    return lanes_max(value, LANES, here);
}
