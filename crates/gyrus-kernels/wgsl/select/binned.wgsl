// What kernels share that read the tokens of a row by its bins: the largest key, the scales and the random number of the row.
// Needs `partials`, `rows`, `lane`, and `mass_scale` of select/mass.wgsl. `at`: the first word of the row's bins.

var<workgroup> broadcast: u32;

// The largest key of the row. NO_KEY: select_histogram has left a row that is not finite, or without a token.
fn row_max_key(at: u32) -> u32 {
    if (lane == 0u) {
        broadcast = atomicLoad(&partials[at + BIN_MAX_KEY]);
    }
    return workgroupUniformLoad(&broadcast);
}

struct RowScale {
    max_logit: f32,
    inverse: f32,
    per_unit: f32,
}

// Sets the scale of masses, too.
fn row_scale(at: u32, max_key: u32, slot: SlotState) -> RowScale {
    let max_logit = value_of(max_key);
    let inverse = slot.inverse_temperature;
    let most = distance_to_max(atomicLoad(&partials[at + BIN_MIN_KEY]), max_logit, inverse);
    mass_scale = mass_scale_of(most);
    return RowScale(max_logit, inverse, bins_per_unit(most));
}

// The random number of the token to draw. The row has not advanced yet.
fn row_random(row: u32, slot: SlotState) -> vec2<u32> {
    return random(vec2<u32>(slot.seed_low, slot.seed_high), rows[row].x + 1u);
}
