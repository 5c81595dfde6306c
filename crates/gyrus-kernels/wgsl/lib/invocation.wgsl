// Where in the grid an invocation is. SUBGROUPS 1 adds where in its workgroup's subgroups.

struct Invocation {
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
#if SUBGROUPS
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
#endif
}

// The workgroup's number in a grid of two dimensions: one holds only 65,535 of them.
fn group_index(here: Invocation) -> u32 {
    return here.group.y * here.groups.x + here.group.x;
}
