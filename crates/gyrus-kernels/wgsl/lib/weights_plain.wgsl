// Weights that are numbers: units of eight, the last one of a row padded with zeros.

#define UNIT_VECTORS 2

@group(0) @binding(QUANTS_BINDING) var<storage, read> quants: array<vec4<u32>>;

fn weight_units(k: u32) -> u32 {
    return (k + 7u) / 8u;
}

fn weight_values(row: u32, unit: u32, k: u32) -> array<vec4<f32>, 2> {
    let at = row * weight_units(k) + unit;
#if WEIGHT == f32
    return array<vec4<f32>, 2>(bitcast<vec4<f32>>(quants[2u * at]), bitcast<vec4<f32>>(quants[2u * at + 1u]));
#else
    let words = quants[at];
#if WEIGHT == f16
    return array<vec4<f32>, 2>(
        vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)),
        vec4<f32>(unpack2x16float(words.z), unpack2x16float(words.w)));
#else
    let low = bitcast<vec4<f32>>(words << vec4<u32>(16u));
    let high = bitcast<vec4<f32>>(words & vec4<u32>(0xffff0000u));
    return array<vec4<f32>, 2>(vec4<f32>(low.x, high.x, low.y, high.y), vec4<f32>(low.z, high.z, low.w, high.w));
#endif
#endif
}
