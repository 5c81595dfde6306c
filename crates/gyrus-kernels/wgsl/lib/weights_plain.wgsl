// Weights in f32, f16 or bf16: a unit is eight elements, the last unit of a row padded with zeros.

#define UNIT_VECTORS 2

@group(0) @binding(QUANTS_BINDING) var<storage, read> quants: array<vec4<u32>>;

// A unit as loaded from memory.
struct Unit {
    first: vec4<u32>,
#if WEIGHT == f32
    last: vec4<u32>,
#endif
}

fn weight_units(k: u32) -> u32 {
    return (k + 7u) / 8u;
}

fn weight_unit(at: u32) -> Unit {
#if WEIGHT == f32
    return Unit(quants[2u * at], quants[2u * at + 1u]);
#else
    return Unit(quants[at]);
#endif
}

fn unit_values(unit: Unit) -> array<vec4<f32>, 2> {
#if WEIGHT == f32
    return array<vec4<f32>, 2>(bitcast<vec4<f32>>(unit.first), bitcast<vec4<f32>>(unit.last));
#else
    let words = unit.first;
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

fn weight_values(row: u32, unit: u32, k: u32) -> array<vec4<f32>, 2> {
    return unit_values(weight_unit(row * weight_units(k) + unit));
}
