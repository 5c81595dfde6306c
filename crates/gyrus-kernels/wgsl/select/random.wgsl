// Random numbers, and the masses that they and top-p choose. Needs lib/u64.wgsl.

// 64 random bits, a hash of seed and step, the same as on the CPU.
fn random(seed: vec2<u32>, step: u32) -> vec2<u32> {
    var z = multiply64(vec2<u32>(step, 0u), vec2<u32>(0x7F4A7C15u, 0x9E3779B9u));
    z = seed ^ add64(z, vec2<u32>(0xD192ED03u, 0xD1B54A32u));
    for (var i = 0u; i < 2u; i += 1u) {
        z = multiply64(z ^ shift_right64(z, 30u), vec2<u32>(0x1CE4E5B9u, 0xBF58476Du));
        z = multiply64(z ^ shift_right64(z, 27u), vec2<u32>(0x133111EBu, 0x94D049BBu));
        z ^= shift_right64(z, 31u);
    }
    return z;
}

// A random mass below `total`: the random fraction z of it.
fn random_mass(total: vec2<u32>, z: vec2<u32>) -> vec2<u32> {
    return add64(fraction64(total, z.y), vec2<u32>(fraction64(total, z.x).y, 0u));
}

// The mass that top-p keeps at least. The most likely token is always kept.
fn top_p_mass(total: vec2<u32>, top_p: f32) -> vec2<u32> {
    let target_mass = fraction64(total, u32(top_p * 4294967296.0));
    return select(target_mass, vec2<u32>(1u, 0u), all(target_mass == vec2<u32>()));
}
