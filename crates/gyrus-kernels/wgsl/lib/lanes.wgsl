// Shuffles and reductions within groups of LANES invocations. A workgroup consists of several such lane groups.
//
// A reduction is one fixed tree on every device: it first combines values LANES / 2 apart and ends with neighbours.
// Values within a subgroup, whatever its size, are exchanged by shuffles. Values of different subgroups go through
// workgroup memory, as do all values if SUBGROUPS is 0 or the subgroups are not full. So the result has the same bits
// on every device and in every lane of a group.
//
// LANES and WORKGROUP are powers of two, and LANES <= WORKGROUP. All invocations of a workgroup must call these
// functions together.

struct Thread {
    // The invocation's index in the workgroup, numbered subgroup by subgroup.
    index: u32,
    // Shuffles reach lanes at a distance below this: the subgroup size, or 1 if shuffles cannot be used.
    shuffle_width: u32,
}

var<workgroup> exchanged: array<u32, WORKGROUP>;

fn thread_of(here: Invocation) -> Thread {
#if SUBGROUPS
    if (here.num_subgroups * here.subgroup_size == WORKGROUP) {
        return Thread(here.subgroup_id * here.subgroup_size + here.subgroup_lane, here.subgroup_size);
    }
#endif
    return Thread(here.local_index, 1u);
}

// The value of the lane whose index differs in the bit `distance`, a power of two below LANES.
fn shuffle_xor(value: u32, distance: u32, thread: Thread) -> u32 {
#if SUBGROUPS
    if (distance < thread.shuffle_width) {
        return subgroupShuffleXor(value, distance);
    }
#endif
    workgroupBarrier();
    exchanged[thread.index] = value;
    workgroupBarrier();
    return exchanged[thread.index ^ distance];
}

fn shuffle_xor_f32(value: f32, distance: u32, thread: Thread) -> f32 {
    return bitcast<f32>(shuffle_xor(bitcast<u32>(value), distance, thread));
}

// Whether a subgroup holds whole groups of `lanes` lanes. A reduction asks once and not at every step.
fn fits_subgroup(lanes: u32, thread: Thread) -> bool {
    return lanes <= thread.shuffle_width;
}

// Sum over groups of `lanes` lanes, a power of two up to LANES.
fn reduce_sum_over(value: f32, lanes: u32, thread: Thread) -> f32 {
    var sum = value;
#if SUBGROUPS
    if (fits_subgroup(lanes, thread)) {
        for (var distance = lanes / 2u; distance > 0u; distance /= 2u) {
            sum += subgroupShuffleXor(sum, distance);
        }
        return sum;
    }
#endif
    for (var distance = lanes / 2u; distance > 0u; distance /= 2u) {
        sum += shuffle_xor_f32(sum, distance, thread);
    }
    return sum;
}

fn reduce_max_over(value: f32, lanes: u32, thread: Thread) -> f32 {
    var largest = value;
#if SUBGROUPS
    if (fits_subgroup(lanes, thread)) {
        for (var distance = lanes / 2u; distance > 0u; distance /= 2u) {
            largest = max(largest, subgroupShuffleXor(largest, distance));
        }
        return largest;
    }
#endif
    for (var distance = lanes / 2u; distance > 0u; distance /= 2u) {
        largest = max(largest, shuffle_xor_f32(largest, distance, thread));
    }
    return largest;
}

fn reduce_sum(value: f32, thread: Thread) -> f32 {
    return reduce_sum_over(value, LANES, thread);
}

fn reduce_max(value: f32, thread: Thread) -> f32 {
    return reduce_max_over(value, LANES, thread);
}
