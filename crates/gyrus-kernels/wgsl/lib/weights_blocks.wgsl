// Quantised weights: units are blocks of 32.
//
// A block becomes eight words of four bytes, elements in order: what dot4I8Packed takes. An element's value is
// scale · (byte − ZERO) + offset; bytes are signed, and below 64 where ZERO is not 0.

#define UNIT_VECTORS 8
#include "lib/weights_scales.wgsl"

#if WEIGHT == q4_0
#define ZERO 8
#elif WEIGHT == q5_0
#define ZERO 16
#elif WEIGHT == q3_k
#define ZERO 4
#elif WEIGHT == q6_k
#define ZERO 32
#else
#define ZERO 0
#endif

#if WEIGHT == q2_k || WEIGHT == q3_k
@group(0) @binding(QUANTS_BINDING) var<storage, read> quants: array<vec2<u32>>;
#else
@group(0) @binding(QUANTS_BINDING) var<storage, read> quants: array<vec4<u32>>;
#endif

#if WEIGHT == q5_0 || WEIGHT == q5_1 || WEIGHT == q5_k || WEIGHT == q3_k
@group(0) @binding(HIGH_BINDING) var<storage, read> high: array<u32>;
#elif WEIGHT == q6_k
@group(0) @binding(HIGH_BINDING) var<storage, read> high: array<vec2<u32>>;
#endif

struct Block {
    // Elements 0 to 15.
    first: vec4<u32>,
    // Elements 16 to 31.
    last: vec4<u32>,
    scales: Scales,
}

fn weight_units(k: u32) -> u32 {
    return k / 32u;
}

// One bit of each byte for the first or the last four groups of four elements.
fn one_bit(word: u32, group: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> (vec4<u32>(0u, 1u, 2u, 3u) + group)) & vec4<u32>(0x01010101u);
}

// Two bits of each byte for four groups of four elements.
fn two_bits(word: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
}

#if WEIGHT == iq4_nl || WEIGHT == iq4_xs
// The sixteen levels, four signed bytes a word.
fn level(q: u32) -> u32 {
    let low = select(0xbfad9881u, 0xf6eaddcfu, (q & 4u) != 0u);
    let high = select(0x26190d01u, 0x71594535u, (q & 4u) != 0u);
    return (select(low, high, (q & 8u) != 0u) >> (8u * (q & 3u))) & 0xffu;
}

fn levels_of(word: u32) -> u32 {
    return level(word & 15u) | (level((word >> 8u) & 15u) << 8u) | (level((word >> 16u) & 15u) << 16u)
        | (level((word >> 24u) & 15u) << 24u);
}

fn levels(words: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(levels_of(words.x), levels_of(words.y), levels_of(words.z), levels_of(words.w));
}
#endif

// A block as it lies in memory.
struct Fetched {
#if WEIGHT == q8_0
    first: vec4<u32>,
    last: vec4<u32>,
#elif WEIGHT == q2_k || WEIGHT == q3_k
    q: vec2<u32>,
#else
    q: vec4<u32>,
#endif
#if WEIGHT == q5_0 || WEIGHT == q5_1 || WEIGHT == q5_k || WEIGHT == q3_k
    h: u32,
#elif WEIGHT == q6_k
    h: vec2<u32>,
#endif
    s: SCALE_WORDS,
}

fn weight_fetch(row: u32, block: u32, k: u32) -> Fetched {
    let blocks = k / 32u;
    let at = row * blocks + block;
    let s = fetch_scales(row, block, k);
#if WEIGHT == q8_0
    return Fetched(quants[at + row * blocks], quants[at + row * blocks + blocks], s);
#elif WEIGHT == q5_0 || WEIGHT == q5_1 || WEIGHT == q5_k || WEIGHT == q3_k || WEIGHT == q6_k
    return Fetched(quants[at], high[at], s);
#else
    return Fetched(quants[at], s);
#endif
}

fn weight_unpack(raw: Fetched, block: u32) -> Block {
    let s = scales_of(raw.s, block);
#if WEIGHT == q8_0
    return Block(raw.first, raw.last, s);
#elif WEIGHT == q2_k
    return Block(two_bits(raw.q.x), two_bits(raw.q.y), s);
#elif WEIGHT == q3_k
    let four = vec4<u32>(2u);
    return Block(
        two_bits(raw.q.x) | (one_bit(raw.h, 0u) << four), two_bits(raw.q.y) | (one_bit(raw.h, 4u) << four), s);
#else
    let low = raw.q & vec4<u32>(0x0f0f0f0fu);
    let upper = (raw.q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
#if WEIGHT == q5_0 || WEIGHT == q5_1 || WEIGHT == q5_k
    let sixteen = vec4<u32>(4u);
    return Block(low | (one_bit(raw.h, 0u) << sixteen), upper | (one_bit(raw.h, 4u) << sixteen), s);
#elif WEIGHT == q6_k
    let sixteen = vec4<u32>(4u);
    return Block(low | (two_bits(raw.h.x) << sixteen), upper | (two_bits(raw.h.y) << sixteen), s);
#elif WEIGHT == iq4_nl || WEIGHT == iq4_xs
    return Block(levels(low), levels(upper), s);
#else
    return Block(low, upper, s);
#endif
#endif
}

fn weight_block(row: u32, block: u32, k: u32) -> Block {
    return weight_unpack(weight_fetch(row, block, k), block);
}

fn four_values(word: u32, scale: f32, offset: f32) -> vec4<f32> {
#if WEIGHT == q8_0 || WEIGHT == iq4_nl || WEIGHT == iq4_xs
    let q = vec4<f32>(unpack4xI8(word));
#else
    let q = vec4<f32>(unpack4xU8(word));
#endif
#if OFFSETS
    return scale * q + offset;
#else
    return scale * (q - f32(ZERO));
#endif
}

fn weight_values(row: u32, unit: u32, k: u32) -> array<vec4<f32>, 8> {
    let b = weight_block(row, unit, k);
    let s = b.scales.scale;
    let o = b.scales.offset;
    return array<vec4<f32>, 8>(
        four_values(b.first.x, s.x, o.x), four_values(b.first.y, s.x, o.x),
        four_values(b.first.z, s.x, o.x), four_values(b.first.w, s.x, o.x),
        four_values(b.last.x, s.y, o.y), four_values(b.last.y, s.y, o.y),
        four_values(b.last.z, s.y, o.y), four_values(b.last.w, s.y, o.y));
}
