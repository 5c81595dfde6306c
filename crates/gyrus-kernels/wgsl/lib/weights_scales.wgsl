// Scales and offsets of a block of 32: one pair for the first 16 elements and one for the last 16. SCALES 1: both are
// equal; SCALES 2: they differ. OFFSETS says whether the type has offsets.
//
// Loading the words is separate from decoding them, so that a kernel can have many loads in flight.

// PAIRS: a word a block holds its scale and its offset, both f16 (1) or both bf16 (2).

#if WEIGHT == affine2_bf16 || WEIGHT == affine3_bf16 || WEIGHT == affine4_bf16 || WEIGHT == affine5_bf16 || WEIGHT == affine6_bf16 || WEIGHT == affine8_bf16
#define PAIRS 2
#elif WEIGHT == q4_1 || WEIGHT == q5_1 || WEIGHT == affine2_f16 || WEIGHT == affine3_f16 || WEIGHT == affine6_f16 || WEIGHT == affine8_f16
#define PAIRS 1
#else
#define PAIRS 0
#endif

#if WEIGHT == q2_k || WEIGHT == q3_k || WEIGHT == q6_k
#define SCALES 2
#else
#define SCALES 1
#endif

#if PAIRS > 0 || WEIGHT == q2_k || WEIGHT == q4_k || WEIGHT == q5_k
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
#define SCALE_WORDS vec4<u32>

fn fetch_scales(row: u32, block: u32, k: u32) -> SCALE_WORDS {
    return scales[row * (k / 256u) + block / 8u];
}

fn scales_of(words: SCALE_WORDS, block: u32) -> Scales {
    let four = (block % 8u) * 4u;
    let two = (block % 8u) * 2u;
    let s = ((words.y >> four) & 15u) | (((words.w >> two) & 3u) << 4u);
    let m = ((words.z >> four) & 15u) | (((words.w >> (two + 16u)) & 3u) << 4u);
    let d = unpack2x16float(words.x);
    return Scales(vec2<f32>(d.x * f32(s)), vec2<f32>(-(d.y * f32(m))));
}

#else
@group(0) @binding(SCALES_BINDING) var<storage, read> scales: array<u32>;

// The low (even `at`) or high (odd `at`) 16 bits of a word.
fn u16_of(word: u32, at: u32) -> u32 {
    return (word >> (16u * (at % 2u))) & 0xffffu;
}

#if WEIGHT == q2_k || WEIGHT == q3_k || WEIGHT == q6_k || WEIGHT == iq4_xs
// The scale words of the block, and of the superblock of 256 elements it belongs to.
#define SCALE_WORDS vec2<u32>
#else
#define SCALE_WORDS u32
#endif

fn fetch_scales(row: u32, block: u32, k: u32) -> SCALE_WORDS {
#if PAIRS > 0
    return scales[row * (k / 32u) + block];
#elif WEIGHT == q2_k
    let start = row * (k / 64u + k / 256u);
    return vec2<u32>(scales[start + block / 2u], scales[start + k / 64u + block / 8u]);
#elif WEIGHT == q3_k || WEIGHT == q6_k
    let start = row * (k / 64u + (k / 256u + 1u) / 2u);
    return vec2<u32>(scales[start + block / 2u], scales[start + k / 64u + block / 16u]);
#elif WEIGHT == iq4_xs
    let start = row * (k / 128u + (k / 256u + 1u) / 2u);
    return vec2<u32>(scales[start + block / 4u], scales[start + k / 128u + block / 16u]);
#elif WEIGHT == mxfp4
    return scales[row * ((k / 32u + 3u) / 4u) + block / 4u];
#else
    return scales[row * ((k / 32u + 1u) / 2u) + block / 2u];
#endif
}

fn scales_of(words: SCALE_WORDS, block: u32) -> Scales {
#if PAIRS == 1
    let d = unpack2x16float(words);
    return Scales(d.xx, d.yy);
#elif PAIRS == 2
    let d = bitcast<vec2<f32>>(vec2<u32>(words << 16u, words & 0xffff0000u));
    return Scales(d.xx, d.yy);
#elif WEIGHT == q2_k
    let pair = u16_of(words.x, block);
    let d = unpack2x16float(words.y);
    let s = vec2<f32>(f32(pair & 15u), f32((pair >> 8u) & 15u));
    let m = vec2<f32>(f32((pair >> 4u) & 15u), f32(pair >> 12u));
    return Scales(d.x * s, -(d.y * m));
#elif WEIGHT == q3_k || WEIGHT == q6_k
    let pair = unpack4xI8(u16_of(words.x, block)).xy;
    let d = unpack2x16float(u16_of(words.y, block / 8u)).x;
    return Scales(d * vec2<f32>(pair), vec2<f32>());
#elif WEIGHT == iq4_xs
    let s = extractBits(bitcast<i32>(words.x), 8u * (block % 4u), 8u);
    let d = unpack2x16float(u16_of(words.y, block / 8u)).x;
    return Scales(vec2<f32>(d * f32(s)), vec2<f32>());
#elif WEIGHT == mxfp4
    // The codebook has twice the elements' values. The exponent byte 255 gives an infinity.
    let d = 0.5 * bitcast<f32>(extractBits(words, 8u * (block % 4u), 8u) << 23u);
    return Scales(vec2<f32>(d), vec2<f32>());
#else
    let d = unpack2x16float(u16_of(words, block)).x;
    return Scales(vec2<f32>(d), vec2<f32>());
#endif
}
#endif
