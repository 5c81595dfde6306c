// Loads four logits of a row and applies penalties. Needs logits, and with PENALTIES samplers and counts.

fn load4(base: u32, at: vec4<u32>, row: u32) -> vec4<u32> {
    let inside = vec4<u32>(base) + min(at, vec4<u32>(params.vocab - 1u));
    let bits = vec4<u32>(logits[inside.x], logits[inside.y], logits[inside.z], logits[inside.w]);
#if PENALTIES
    let times = vec4<u32>(counts[inside.x], counts[inside.y], counts[inside.z], counts[inside.w]);
    let row_sampler = samplers[row];
    return vec4<u32>(
        penalised(bits.x, times.x, row_sampler),
        penalised(bits.y, times.y, row_sampler),
        penalised(bits.z, times.z, row_sampler),
        penalised(bits.w, times.w, row_sampler));
#else
    return bits;
#endif
}
