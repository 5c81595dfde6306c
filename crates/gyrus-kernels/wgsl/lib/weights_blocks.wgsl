// Quantised weights: a unit is a block of 32.
//
// A block is unpacked to eight words of four int8, in element order, as dot4I8Packed takes them. An element's value is
// scale·(q − ZERO_POINT) + offset. q is signed; it is below 64 if ZERO_POINT is not 0. With UNSIGNED_8 the value is
// scale·(q + 128) + offset: quants of eight bits without sign are stored minus 128.
//
// CODEBOOK: the planes have indices of 16 int8 values, which are the quants.
//
// LOW_BITS and HIGH_BITS: bits of a quant in the planes `quants` and `high`.

#define UNIT_VECTORS 8
#include "lib/weights_scales.wgsl"

#if WEIGHT == affine8_bf16 || WEIGHT == affine8_f16
#define UNSIGNED_8 1
#else
#define UNSIGNED_8 0
#endif

#if WEIGHT == q8_0 || UNSIGNED_8
#define LOW_BITS 8
#elif WEIGHT == q2_k || WEIGHT == q3_k || WEIGHT == affine2_bf16 || WEIGHT == affine2_f16 || WEIGHT == affine3_bf16 || WEIGHT == affine3_f16
#define LOW_BITS 2
#else
#define LOW_BITS 4
#endif

#if WEIGHT == q5_0 || WEIGHT == q5_1 || WEIGHT == q5_k || WEIGHT == q3_k || WEIGHT == affine5_bf16 || WEIGHT == affine3_bf16 || WEIGHT == affine3_f16
#define HIGH_BITS 1
#elif WEIGHT == q6_k || WEIGHT == affine6_bf16 || WEIGHT == affine6_f16
#define HIGH_BITS 2
#else
#define HIGH_BITS 0
#endif

#if WEIGHT == q4_0
#define ZERO_POINT 8
#elif WEIGHT == q5_0
#define ZERO_POINT 16
#elif WEIGHT == q3_k
#define ZERO_POINT 4
#elif WEIGHT == q6_k
#define ZERO_POINT 32
#else
#define ZERO_POINT 0
#endif

#if WEIGHT == iq4_nl || WEIGHT == iq4_xs || WEIGHT == mxfp4
#define CODEBOOK 1
#else
#define CODEBOOK 0
#endif

#if LOW_BITS == 2
@group(0) @binding(QUANTS_BINDING) var<storage, read> quants: array<vec2<u32>>;
#else
@group(0) @binding(QUANTS_BINDING) var<storage, read> quants: array<vec4<u32>>;
#endif

#if HIGH_BITS == 1
@group(0) @binding(HIGH_BINDING) var<storage, read> high: array<u32>;
#elif HIGH_BITS == 2
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

// The high bit of four groups of four elements (bits 0 to 3 of each byte, or 4 to 7 with group 4).
fn one_bit(word: u32, group: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> (vec4<u32>(0u, 1u, 2u, 3u) + group)) & vec4<u32>(0x01010101u);
}

// The two bits of each of four groups of four elements.
fn two_bits(word: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
}

#if WEIGHT == iq4_nl || WEIGHT == iq4_xs
// The 16 values of the IQ4_NL codebook, four int8 a word. Returns value number q.
fn codebook_byte(q: u32) -> u32 {
    let low = select(0xbfad9881u, 0xf6eaddcfu, (q & 4u) != 0u);
    let high = select(0x26190d01u, 0x71594535u, (q & 4u) != 0u);
    return (select(low, high, (q & 8u) != 0u) >> (8u * (q & 3u))) & 0xffu;
}

fn codebook_word(word: u32) -> u32 {
    return codebook_byte(word & 15u) | (codebook_byte((word >> 8u) & 15u) << 8u)
        | (codebook_byte((word >> 16u) & 15u) << 16u) | (codebook_byte((word >> 24u) & 15u) << 24u);
}

fn codebook_words(words: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(codebook_word(words.x), codebook_word(words.y), codebook_word(words.z), codebook_word(words.w));
}
#elif WEIGHT == mxfp4
// Four int8 from their magnitudes; `negative` has the magnitudes of negative ones, else 0. No byte carries into the next.
fn signed_bytes(magnitude: vec4<u32>, negative: vec4<u32>) -> vec4<u32> {
    let bias = vec4<u32>(0x80808080u);
    return (bias + magnitude - (negative << vec4<u32>(1u))) ^ bias;
}
#endif

#if CODEBOOK
// The int8 values of 32 codes: sixteen in low nibbles and sixteen in high nibbles.
struct CodebookValues {
    low: vec4<u32>,
    high: vec4<u32>,
}

fn codebook_values(codes: vec4<u32>) -> CodebookValues {
    let bytes = vec4<u32>(0x0f0f0f0fu);
#if WEIGHT == mxfp4
    // Twice the E2M1 values: the magnitudes 0, 1, 2, 3, 4, 6, 8, 12 of bits 0 to 2, with the sign of bit 3. A magnitude
    // has four bits, so that eight are computed at once, and nothing carries: from 4 on, bit 0 adds 1, bit 1 adds 2, and
    // both add 2 more.
    let ones = vec4<u32>(0x11111111u);
    let large = (codes >> vec4<u32>(2u)) & ones;
    let odd = codes & large;
    let doubled = (codes >> vec4<u32>(1u)) & large;
    let more = (doubled + (odd & doubled)) << vec4<u32>(1u);
    let magnitude = (codes & vec4<u32>(0x77777777u)) + odd + more;
    let negative = magnitude & (((codes >> vec4<u32>(3u)) & ones) * 15u);
    let high_magnitude = (magnitude >> vec4<u32>(4u)) & bytes;
    let high_negative = (negative >> vec4<u32>(4u)) & bytes;
    return CodebookValues(
        signed_bytes(magnitude & bytes, negative & bytes), signed_bytes(high_magnitude, high_negative));
#else
    return CodebookValues(codebook_words(codes & bytes), codebook_words((codes >> vec4<u32>(4u)) & bytes));
#endif
}
#endif

#if WEIGHT == mxfp4
fn codebook_words(words: vec4<u32>) -> vec4<u32> {
    return codebook_values(words).low;
}
#endif

// A block in its packed form, as loaded from memory.
struct PackedBlock {
#if LOW_BITS == 8
    first: vec4<u32>,
    last: vec4<u32>,
#elif LOW_BITS == 2
    q: vec2<u32>,
#else
    q: vec4<u32>,
#endif
#if HIGH_BITS == 1
    h: u32,
#elif HIGH_BITS == 2
    h: vec2<u32>,
#endif
    s: SCALE_WORDS,
}

fn load_packed_block(row: u32, block: u32, k: u32) -> PackedBlock {
    let blocks = k / 32u;
    let at = row * blocks + block;
    let s = fetch_scales(row, block, k);
#if LOW_BITS == 8
    return PackedBlock(quants[at + row * blocks], quants[at + row * blocks + blocks], s);
#elif HIGH_BITS > 0
    return PackedBlock(quants[at], high[at], s);
#else
    return PackedBlock(quants[at], s);
#endif
}

fn unpack_block(raw: PackedBlock, block: u32) -> Block {
    let s = scales_of(raw.s, block);
#if LOW_BITS == 8
    return Block(raw.first, raw.last, s);
#elif LOW_BITS == 2 && HIGH_BITS == 0
    return Block(two_bits(raw.q.x), two_bits(raw.q.y), s);
#elif LOW_BITS == 2
    let shift = vec4<u32>(2u);
    return Block(
        two_bits(raw.q.x) | (one_bit(raw.h, 0u) << shift), two_bits(raw.q.y) | (one_bit(raw.h, 4u) << shift), s);
#else
#if CODEBOOK
    let values = codebook_values(raw.q);
    return Block(values.low, values.high, s);
#else
    let low = raw.q & vec4<u32>(0x0f0f0f0fu);
    let upper = (raw.q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
#if HIGH_BITS == 1
    let shift = vec4<u32>(4u);
    return Block(low | (one_bit(raw.h, 0u) << shift), upper | (one_bit(raw.h, 4u) << shift), s);
#elif HIGH_BITS == 2
    let shift = vec4<u32>(4u);
    return Block(low | (two_bits(raw.h.x) << shift), upper | (two_bits(raw.h.y) << shift), s);
#else
    return Block(low, upper, s);
#endif
#endif
#endif
}

fn load_block(row: u32, block: u32, k: u32) -> Block {
    return unpack_block(load_packed_block(row, block, k), block);
}

fn dequantize4(word: u32, scale: f32, offset: f32) -> vec4<f32> {
#if WEIGHT == q8_0 || CODEBOOK
    let q = vec4<f32>(unpack4xI8(word));
#elif UNSIGNED_8
    let q = vec4<f32>(unpack4xU8(word ^ 0x80808080u));
#else
    let q = vec4<f32>(unpack4xU8(word));
#endif
#if OFFSETS
    return scale * q + offset;
#else
    return scale * (q - f32(ZERO_POINT));
#endif
}

fn weight_values(row: u32, unit: u32, k: u32) -> array<vec4<f32>, 8> {
    let b = load_block(row, unit, k);
    let s = b.scales.scale;
    let o = b.scales.offset;
    return array<vec4<f32>, 8>(
        dequantize4(b.first.x, s.x, o.x), dequantize4(b.first.y, s.x, o.x),
        dequantize4(b.first.z, s.x, o.x), dequantize4(b.first.w, s.x, o.x),
        dequantize4(b.last.x, s.y, o.y), dequantize4(b.last.y, s.y, o.y),
        dequantize4(b.last.z, s.y, o.y), dequantize4(b.last.w, s.y, o.y));
}
