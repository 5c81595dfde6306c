// f32 to f16 for the KV cache. Values beyond the f16 range saturate at ±65504, as on the CPU: WGSL leaves the result of
// packing them undefined, and an infinity in the cache would turn every later row into NaN. NaN stays NaN.

fn f16_pair(v: vec2<f32>) -> u32 {
    let largest = vec2<f32>(65504.0);
    let is_nan = (bitcast<vec2<u32>>(v) & vec2<u32>(0x7fffffffu)) > vec2<u32>(0x7f800000u);
    // WGSL does not define clamp of NaN.
    return pack2x16float(select(clamp(v, -largest, largest), v, is_nan));
}
