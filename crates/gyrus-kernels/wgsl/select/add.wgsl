// Adds masses of tokens to bins. Needs partials as atomics, mass.wgsl and bins.wgsl.

// The masses of four tokens, and their bins.
struct Masses {
    low: vec4<u32>,
    high: vec4<u32>,
    bins: vec4<u32>,
}

fn masses_of(keys: vec4<u32>, max_logit: f32, inverse: f32, per_unit: f32) -> Masses {
    var four: Masses;
    for (var i = 0u; i < 4u; i += 1u) {
        let distance = distance_to_max(keys[i], max_logit, inverse);
        let own = mass(relative_probability(distance));
        four.low[i] = own.x;
        four.high[i] = own.y;
        four.bins[i] = bin_at(distance, per_unit);
    }
    return four;
}

// Adds to a word of `partials`, and returns what it was.
fn add_global(word: u32, value: u32) -> u32 {
    if (value == 0u) {
        return 0u;
    }
    return atomicAdd(&partials[word], value);
}

// Adds the low words of four masses to their bins, and returns what these were. The additions are independent of each
// other, so that they are in flight together.
fn add_low4(at: u32, four: Masses) -> vec4<u32> {
    let words = vec4<u32>(at + BIN_MASS) + 2u * four.bins;
    return vec4<u32>(
        add_global(words.x, four.low.x),
        add_global(words.y, four.low.y),
        add_global(words.z, four.low.z),
        add_global(words.w, four.low.w));
}

// Adds the high words and the carries.
fn add_high4(at: u32, four: Masses, old: vec4<u32>) {
    let words = vec4<u32>(at + BIN_MASS + 1u) + 2u * four.bins;
    let carried = four.high + select(vec4<u32>(), vec4<u32>(1u), old + four.low < old);
    add_global(words.x, carried.x);
    add_global(words.y, carried.y);
    add_global(words.z, carried.z);
    add_global(words.w, carried.w);
}
