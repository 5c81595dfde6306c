// Elements packed in 32-bit words, and their conversion from and to f32.
//
// Needs STORAGE (f32, f16, bf16) and F16 (whether the device has f16 arithmetic). All buffers of elements are arrays of
// WORD, so that one source serves devices with and without f16. With VECTOR a WORD is vec4<u32>, which makes every
// access sixteen bytes wide; else it is u32.

#if VECTOR
#define WORD vec4<u32>
#else
#define WORD u32
#endif

#if STORAGE == f32
#define WORD_ELEMENTS 1u
#define VECTOR_ELEMENTS 4u
#else
#define WORD_ELEMENTS 2u
#define VECTOR_ELEMENTS 8u
#endif

#if STORAGE == f16 && F16
enable f16;
#endif

#if STORAGE == f16
fn unpack(word: u32) -> vec2<f32> {
    return unpack2x16float(word);
}

// Conversion to f16 rounds to nearest. How pack2x16float rounds depends on the driver on some APIs, so it gets values
// that need no rounding.
fn pack(values: vec2<f32>) -> u32 {
#if F16
    return pack2x16float(vec2<f32>(vec2<f16>(values)));
#else
    return pack2x16float(values);
#endif
}
#elif STORAGE == bf16
fn unpack(word: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}

// Rounds to nearest, ties to even; NaN stays NaN.
fn bf16_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 0x40u, (bits & 0x7fffffffu) > 0x7f800000u);
}

fn pack(values: vec2<f32>) -> u32 {
    return bf16_bits(values.x) | (bf16_bits(values.y) << 16u);
}
#endif

// The eight elements (four if STORAGE is f32) of a vec4<u32>.
struct Elements {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn elements(words: vec4<u32>) -> Elements {
#if STORAGE == f32
    return Elements(bitcast<vec4<f32>>(words), vec4<f32>());
#else
    return Elements(
        vec4<f32>(unpack(words.x), unpack(words.y)), vec4<f32>(unpack(words.z), unpack(words.w)));
#endif
}

fn words(values: Elements) -> vec4<u32> {
#if STORAGE == f32
    return bitcast<vec4<u32>>(values.low);
#else
    return vec4<u32>(
        pack(values.low.xy), pack(values.low.zw), pack(values.high.xy), pack(values.high.zw));
#endif
}
