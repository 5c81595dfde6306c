// Loads four logits of a row and applies penalties and masks. Needs logits; slots and counts with PENALTIES; slots and
// masks with MASKS.

#if MASKS
// Whether tokens may be chosen: one bit a token, all of them for rows without a mask.
fn is_allowed(row: u32, at: vec4<u32>) -> vec4<bool> {
    if ((slots[row].flags & SLOT_MASKED) == 0u) {
        return vec4<bool>(true);
    }
    let words = vec4<u32>(row * ((params.vocab + 31u) / 32u)) + at / 32u;
    let bits = vec4<u32>(masks[words.x], masks[words.y], masks[words.z], masks[words.w]) >> (at % 32u);
    return (bits & vec4<u32>(1u)) == vec4<u32>(1u);
}
#endif

fn load4(base: u32, at: vec4<u32>, row: u32) -> vec4<u32> {
    let inside_row = min(at, vec4<u32>(params.vocab - 1u));
    let inside = vec4<u32>(base) + inside_row;
    var bits = vec4<u32>(logits[inside.x], logits[inside.y], logits[inside.z], logits[inside.w]);
#if PENALTIES
    let times = vec4<u32>(counts[inside.x], counts[inside.y], counts[inside.z], counts[inside.w]);
    let slot = slots[row];
    bits = vec4<u32>(
        penalised(bits.x, times.x, slot),
        penalised(bits.y, times.y, slot),
        penalised(bits.z, times.z, slot),
        penalised(bits.w, times.w, slot));
#endif
#if MASKS
    // A logit that is not finite is found even if its token is not allowed.
    let exponent = vec4<u32>(0x7f800000u);
    let is_finite = (bits & exponent) != exponent;
    bits = select(exponent, select(vec4<u32>(NOT_ALLOWED), bits, is_allowed(row, inside_row)), is_finite);
#endif
    return bits;
}
