// Logits as words that compare like them, and penalties. Logits are read as words throughout: NaN and infinity are told
// by their bits, since a compiler may assume that neither exists.

// The key of no token, below every other.
const NO_KEY: u32 = 0u;
// The key of NaN and of the infinities, above every other: a row that has one has it for its largest key.
const NOT_FINITE: u32 = 0xffffffffu;

fn key_of(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
        return NOT_FINITE;
    }
    // Both zeros are one.
    if (magnitude == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits != magnitude);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}

#if PENALTIES
// The bits of a logit whose token occurred `count` times.
fn penalised(bits: u32, count: u32, row: SelectRow) -> u32 {
    if (count == 0u || (bits & 0x7f800000u) == 0x7f800000u) {
        return bits;
    }
    let logit = bitcast<f32>(bits);
    let by = row.repetition_penalty;
    // Division may be off by a few units in the last place; one step of Newton's mends that.
    let quotient = logit / by;
    let divided = fma(fma(-quotient, by, logit), 1.0 / by, quotient);
    var scaled = select(logit * by, divided, logit > 0.0);
    if (by == 1.0) {
        scaled = logit;
    }
    // A penalty may exceed what f32 holds; the logit is then the largest or least there is.
    let bits_of = bitcast<u32>(scaled - row.presence_penalty - row.frequency_penalty * f32(count));
    return select(bits_of, (bits_of & 0x80000000u) | 0x7f7fffffu, (bits_of & 0x7f800000u) == 0x7f800000u);
}
#endif
