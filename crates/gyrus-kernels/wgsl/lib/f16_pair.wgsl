// f32 to f16 for the KV cache. Values beyond the range of f16 saturate at ±65504, as on the CPU: WGSL leaves the result
// of packing them open, and an infinity in the cache would make NaN of every later row. NaN stays NaN.

fn f16_pair(v: vec2<f32>) -> u32 {
    let most = vec2<f32>(65504.0);
    let is_nan = (bitcast<vec2<u32>>(v) & vec2<u32>(0x7fffffffu)) > vec2<u32>(0x7f800000u);
    // What clamp makes of NaN is open.
    return pack2x16float(select(clamp(v, -most, most), v, is_nan));
}
