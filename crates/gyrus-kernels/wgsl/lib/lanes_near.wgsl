// lib/lanes.wgsl for kernels whose subgroups are known to be of 32 and full: values pass by shuffles, and need no
// workgroup memory.

struct Member {
    // The invocation's number in the workgroup: subgroups follow each other in it.
    place: u32,
}

fn is_near(lanes: u32, here: Member) -> bool {
    return true;
}

// The value of the invocation `distance` places away, a power of two below 32.
fn neighbour(value: u32, distance: u32, here: Member) -> u32 {
    return subgroupShuffleXor(value, distance);
}

fn neighbour_f32(value: f32, distance: u32, here: Member) -> f32 {
    return subgroupShuffleXor(value, distance);
}
