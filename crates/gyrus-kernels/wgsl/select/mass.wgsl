// Probabilities relative to that of the most likely token, and their sums ("mass") in fixed point: units of 2^-40 in 64
// bits, so that a sum is exact and does not depend on its order. Probabilities below one unit count as 0.

// Masses are in units of 2^-32 / mass_scale.
var<private> mass_scale: f32 = 256.0;

// The largest top-k that candidates suffice for.
const MAX_CANDIDATE_K: u32 = 256u;
// The distance from the largest logit, in units of temperature, from which on a probability is below one unit.
const MAX_DISTANCE: f32 = 31.0;

// A token's distance from the largest logit in units of temperature, at most MAX_DISTANCE.
fn distance_to_max(key: u32, max_logit: f32, inverse: f32) -> f32 {
    if (key == NO_KEY) {
        return MAX_DISTANCE;
    }
    return clamp((max_logit - value_of(key)) * inverse, 0.0, MAX_DISTANCE);
}

fn relative_probability(distance: f32) -> f32 {
    if (distance >= MAX_DISTANCE) {
        return 0.0;
    }
    return select(exp(-distance), 1.0, distance == 0.0);
}

// A value below 2^24 in fixed point.
fn mass(value: f32) -> vec2<u32> {
    let scaled = value * mass_scale;
    let complete = floor(scaled);
    return vec2<u32>(u32((scaled - complete) * 4294967296.0), u32(complete));
}
