// The experts of rows, as route writes them. Needs ROUTE_BINDING, USED (experts of a row) and EXPERT_COUNT.
//
//   ROUTE_BINDING  routes  [rows, 2 * USED] f32: ids, then weights

@group(0) @binding(ROUTE_BINDING) var<storage, read> routes: array<f32>;

// The expert of a slot of a row. The bound keeps reads inside the weights, whatever the buffer holds.
fn expert_of(row: u32, slot: u32) -> u32 {
    return min(u32(routes[row * (2u * USED) + slot]), EXPERT_COUNT - 1u);
}

fn expert_weight(row: u32, slot: u32) -> f32 {
    return routes[row * (2u * USED) + USED + slot];
}
