// The builtins of an invocation. SUBGROUPS 1 adds those of its subgroup. SUBGROUPS 32 is for kernels that require full
// subgroups of 32: it leaves out their number and size, which such kernels do not read.

struct Invocation {
    @builtin(local_invocation_index) local_index: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
#if SUBGROUPS
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
#endif
#if SUBGROUPS == 1
    @builtin(num_subgroups) num_subgroups: u32,
    @builtin(subgroup_size) subgroup_size: u32,
#endif
}

// The workgroup's linear index in a two-dimensional grid. One grid dimension has at most 65,535 workgroups.
fn workgroup_index(here: Invocation) -> u32 {
    return here.workgroup.y * here.num_workgroups.x + here.workgroup.x;
}
