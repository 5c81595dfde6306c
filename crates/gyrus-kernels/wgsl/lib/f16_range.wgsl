// Values on their way to the f16 KV cache. Beyond the range of f16 they saturate at ±65504, as on the CPU: WGSL leaves the
// result of packing them undefined, and an infinity in the cache would turn every later row into NaN. NaN stays NaN.

fn f16_range(v: f32) -> f32 {
    // WGSL does not define clamp of NaN.
    let is_nan = (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
    return select(clamp(v, -65504.0, 65504.0), v, is_nan);
}
