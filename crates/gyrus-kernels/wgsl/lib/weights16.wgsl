// Weights in groups of sixteen, the unit that a tile stages. Needs lib/weights.wgsl.
//
//   load_weights16(row, at, k)  group number `at` of a row in its packed form; beyond the row's end, the last group
//   weights16_values(s)         its values in f32, exactly

#if WEIGHT == f32 || WEIGHT == f16 || WEIGHT == bf16

struct Weights16 {
    low: Unit,
    high: Unit,
}

fn load_weights16(row: u32, at: u32, k: u32) -> Weights16 {
    let last = weight_units(k) - 1u;
    let start = row * (last + 1u);
    return Weights16(weight_unit(start + min(2u * at, last)), weight_unit(start + min(2u * at + 1u, last)));
}

fn weights16_values(s: Weights16) -> array<vec4<f32>, 4> {
    let low = unit_values(s.low);
    let high = unit_values(s.high);
    return array<vec4<f32>, 4>(low[0], low[1], high[0], high[1]);
}

#else

struct Weights16 {
    // Sixteen quants, one byte each.
    q8: vec4<u32>,
    scale: f32,
    offset: f32,
}

fn load_weights16(row: u32, at: u32, k: u32) -> Weights16 {
    let blocks = k / 32u;
    let block = min(at / 2u, blocks - 1u);
    let is_high_half = at % 2u == 1u;
    let block_at = row * blocks + block;
#if LOW_BITS == 8
    let q8 = quants[block_at + row * blocks + select(0u, blocks, is_high_half)];
#else
    let q = quants[block_at];
#endif
#if HIGH_BITS > 0
    let h = high[block_at];
#endif
    let s = scales_of(fetch_scales(row, block, k), block);
#if LOW_BITS == 2 && HIGH_BITS == 0
    let q8 = two_bits(select(q.x, q.y, is_high_half));
#elif LOW_BITS == 2
    let q8 = two_bits(select(q.x, q.y, is_high_half)) | (one_bit(h, select(0u, 4u, is_high_half)) << vec4<u32>(2u));
#elif LOW_BITS == 4
    let nibbles = (q >> vec4<u32>(select(0u, 4u, is_high_half))) & vec4<u32>(0x0f0f0f0fu);
#if HIGH_BITS == 1
    let q8 = nibbles | (one_bit(h, select(0u, 4u, is_high_half)) << vec4<u32>(4u));
#elif HIGH_BITS == 2
    let q8 = nibbles | (two_bits(select(h.x, h.y, is_high_half)) << vec4<u32>(4u));
#elif CODEBOOK
    let q8 = codebook_words(nibbles);
#else
    let q8 = nibbles;
#endif
#endif
#if SCALES == 1
    return Weights16(q8, s.scale.x, s.offset.x);
#else
    return Weights16(q8, select(s.scale.x, s.scale.y, is_high_half), select(s.offset.x, s.offset.y, is_high_half));
#endif
}

fn weights16_values(s: Weights16) -> array<vec4<f32>, 4> {
    return array<vec4<f32>, 4>(
        dequantize4(s.q8.x, s.scale, s.offset), dequantize4(s.q8.y, s.scale, s.offset),
        dequantize4(s.q8.z, s.scale, s.offset), dequantize4(s.q8.w, s.scale, s.offset));
}

#endif
