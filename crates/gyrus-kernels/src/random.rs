/// 64 random bits from seed and step alone (SplitMix64's mixing, twice): a draw does not depend on what was drawn before.
///
/// The sampler draws with it, on the CPU and, in `select/draw.wgsl`, on the GPU; test inputs are made with it.
pub(crate) fn random(seed: u64, step: u64) -> u64 {
    let mut z = seed ^ step.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0xD1B5_4A32_D192_ED03);
    for _ in 0..2 {
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
    }
    z
}
