// The interface of lib/lanes.wgsl for kernels that require full subgroups of 32. Values are exchanged by shuffles
// alone, without workgroup memory.

struct Thread {
    // The invocation's index in the workgroup, numbered subgroup by subgroup.
    index: u32,
}

fn fits_subgroup(lanes: u32, thread: Thread) -> bool {
    return true;
}

// The value of the lane whose index differs in the bit `distance`, a power of two below 32.
fn shuffle_xor(value: u32, distance: u32, thread: Thread) -> u32 {
    return subgroupShuffleXor(value, distance);
}

fn shuffle_xor_f32(value: f32, distance: u32, thread: Thread) -> f32 {
    return subgroupShuffleXor(value, distance);
}
