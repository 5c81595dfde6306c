// Scales and offsets of a block of 32: one for the first 16 elements, one for the last, which most types have equal
// (SCALES 1; else 2). OFFSETS says whether there are offsets at all.

#if WEIGHT == q2_k || WEIGHT == q3_k || WEIGHT == q6_k
#define SCALES 2
#else
#define SCALES 1
#endif

#if WEIGHT == q4_1 || WEIGHT == q5_1 || WEIGHT == q2_k || WEIGHT == q4_k || WEIGHT == q5_k
#define OFFSETS 1
#else
#define OFFSETS 0
#endif

struct Scales {
    scale: vec2<f32>,
    offset: vec2<f32>,
}

#if WEIGHT == q4_k || WEIGHT == q5_k
@group(0) @binding(SCALES_BINDING) var<storage, read> scales: array<vec4<u32>>;

fn weight_scales(row: u32, block: u32, k: u32) -> Scales {
    let words = scales[row * (k / 256u) + block / 8u];
    let four = (block % 8u) * 4u;
    let two = (block % 8u) * 2u;
    let s = ((words.y >> four) & 15u) | (((words.w >> two) & 3u) << 4u);
    let m = ((words.z >> four) & 15u) | (((words.w >> (two + 16u)) & 3u) << 4u);
    let d = unpack2x16float(words.x);
    return Scales(vec2<f32>(d.x * f32(s)), vec2<f32>(-(d.y * f32(m))));
}

#else
@group(0) @binding(SCALES_BINDING) var<storage, read> scales: array<u32>;

// The 16-bit half number `at` counted from a word.
fn scale_half(word: u32, at: u32) -> u32 {
    return (scales[word + at / 2u] >> (16u * (at % 2u))) & 0xffffu;
}

fn scale_number(word: u32, at: u32) -> f32 {
    return unpack2x16float(scale_half(word, at)).x;
}

fn weight_scales(row: u32, block: u32, k: u32) -> Scales {
#if WEIGHT == q4_1 || WEIGHT == q5_1
    let d = unpack2x16float(scales[row * (k / 32u) + block]);
    return Scales(d.xx, d.yy);
#elif WEIGHT == q2_k
    let start = row * (k / 64u + k / 256u);
    let pair = scale_half(start, block);
    let d = unpack2x16float(scales[start + k / 64u + block / 8u]);
    let s = vec2<f32>(f32(pair & 15u), f32((pair >> 8u) & 15u));
    let m = vec2<f32>(f32((pair >> 4u) & 15u), f32(pair >> 12u));
    return Scales(d.x * s, -(d.y * m));
#elif WEIGHT == q3_k || WEIGHT == q6_k
    let start = row * (k / 64u + (k / 256u + 1u) / 2u);
    let pair = unpack4xI8(scale_half(start, block)).xy;
    let d = scale_number(start + k / 64u, block / 8u);
    return Scales(d * vec2<f32>(pair), vec2<f32>());
#elif WEIGHT == iq4_xs
    let start = row * (k / 128u + (k / 256u + 1u) / 2u);
    let s = extractBits(bitcast<i32>(scales[start + block / 4u]), 8u * (block % 4u), 8u);
    let d = scale_number(start + k / 128u, block / 8u);
    return Scales(vec2<f32>(d * f32(s)), vec2<f32>());
#else
    let d = scale_number(row * ((k / 32u + 1u) / 2u), block);
    return Scales(vec2<f32>(d), vec2<f32>());
#endif
}
#endif
