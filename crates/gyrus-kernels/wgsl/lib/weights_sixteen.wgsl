// Weights sixteen at a time, what a tile's staging moves: lib/weights.wgsl must be there.
//
//   weight_sixteen(row, at, k)  number `at` of a row's sixteens as it lies in memory; beyond the row's end, the last
//   sixteen_values(s)           its values, exactly

#if WEIGHT == f32 || WEIGHT == f16 || WEIGHT == bf16

struct Sixteen {
    low: Unit,
    high: Unit,
}

fn weight_sixteen(row: u32, at: u32, k: u32) -> Sixteen {
    let last = weight_units(k) - 1u;
    let start = row * (last + 1u);
    return Sixteen(weight_unit(start + min(2u * at, last)), weight_unit(start + min(2u * at + 1u, last)));
}

fn sixteen_values(s: Sixteen) -> array<vec4<f32>, 4> {
    let low = unit_values(s.low);
    let high = unit_values(s.high);
    return array<vec4<f32>, 4>(low[0], low[1], high[0], high[1]);
}

#else

struct Sixteen {
    // One byte an element.
    bytes: vec4<u32>,
    scale: f32,
    offset: f32,
}

fn weight_sixteen(row: u32, at: u32, k: u32) -> Sixteen {
    let blocks = k / 32u;
    let block = min(at / 2u, blocks - 1u);
    let is_last = at % 2u == 1u;
    let place = row * blocks + block;
#if WEIGHT == q8_0
    let bytes = quants[place + row * blocks + select(0u, blocks, is_last)];
#else
    let q = quants[place];
#endif
#if WEIGHT == q5_0 || WEIGHT == q5_1 || WEIGHT == q5_k || WEIGHT == q3_k || WEIGHT == q6_k
    let h = high[place];
#endif
    let s = scales_of(fetch_scales(row, block, k), block);
#if WEIGHT == q2_k
    let bytes = two_bits(select(q.x, q.y, is_last));
#elif WEIGHT == q3_k
    let bytes = two_bits(select(q.x, q.y, is_last)) | (one_bit(h, select(0u, 4u, is_last)) << vec4<u32>(2u));
#elif WEIGHT != q8_0
    let four = (q >> vec4<u32>(select(0u, 4u, is_last))) & vec4<u32>(0x0f0f0f0fu);
#if WEIGHT == q5_0 || WEIGHT == q5_1 || WEIGHT == q5_k
    let bytes = four | (one_bit(h, select(0u, 4u, is_last)) << vec4<u32>(4u));
#elif WEIGHT == q6_k
    let bytes = four | (two_bits(select(h.x, h.y, is_last)) << vec4<u32>(4u));
#elif WEIGHT == iq4_nl || WEIGHT == iq4_xs
    let bytes = codebook_words(four);
#else
    let bytes = four;
#endif
#endif
#if SCALES == 1
    return Sixteen(bytes, s.scale.x, s.offset.x);
#else
    return Sixteen(bytes, select(s.scale.x, s.scale.y, is_last), select(s.offset.x, s.offset.y, is_last));
#endif
}

fn sixteen_values(s: Sixteen) -> array<vec4<f32>, 4> {
    return array<vec4<f32>, 4>(
        dequantize4(s.bytes.x, s.scale, s.offset), dequantize4(s.bytes.y, s.scale, s.offset),
        dequantize4(s.bytes.z, s.scale, s.offset), dequantize4(s.bytes.w, s.scale, s.offset));
}

#endif
