// Probabilities relative to the likeliest token's, and their sums in fixed point: units of 2^-40 in 64 bits, so that a
// sum is exact and does not depend on its order. What is below a unit is nothing, as is what cannot be chosen.

// Rows that keep more tokens than this, or all, need the sum over the vocabulary.
const NEAR: u32 = 256u;
// Distances from the likeliest in units of temperature, beyond which a probability is below a unit.
const FAR: f32 = 31.0;

fn is_wide(temperature: f32, top_k: u32) -> bool {
    return temperature > 0.0 && (top_k == 0u || top_k > NEAR);
}

// How far a token is from the likeliest, in units of temperature, at most FAR.
fn gap(key: u32, most: f32, inverse: f32) -> f32 {
    if (key == NO_KEY) {
        return FAR;
    }
    return clamp((most - value_of(key)) * inverse, 0.0, FAR);
}

fn likelihood(distance: f32) -> f32 {
    if (distance >= FAR) {
        return 0.0;
    }
    return select(exp(-distance), 1.0, distance == 0.0);
}

// A number below 2^24 in fixed point.
fn mass(value: f32) -> vec2<u32> {
    let scaled = value * 256.0;
    let whole = floor(scaled);
    return vec2<u32>(u32((scaled - whole) * 4294967296.0), u32(whole));
}
