// Logits as u32 keys that compare like them, and penalties. Logits are read as words throughout: NaN and infinity are
// detected by their bits, since a compiler may assume that neither exists.

// The key of a token that is missing or not allowed, below every other key.
const NO_KEY: u32 = 0u;
// The key of NaN and of the infinities, above every other key: a row that contains one has it as its largest key.
const NOT_FINITE: u32 = 0xffffffffu;

#if MASKS
// The bits of a logit whose token may not be chosen: a NaN that load4 replaces by another where the model has it.
const NOT_ALLOWED: u32 = 0xffffffffu;
#endif

fn key_of(bits: u32) -> u32 {
#if MASKS
    if (bits == NOT_ALLOWED) {
        return NO_KEY;
    }
#endif
    let magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
        return NOT_FINITE;
    }
    // Both zeros have one key.
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
fn penalised(bits: u32, count: u32, slot: SlotState) -> u32 {
    if (count == 0u || (bits & 0x7f800000u) == 0x7f800000u) {
        return bits;
    }
    let logit = bitcast<f32>(bits);
    let penalty = slot.repetition_penalty;
    // WGSL division may be off by a few ulp; one Newton step corrects that.
    let quotient = logit / penalty;
    let divided = fma(fma(-quotient, penalty, logit), 1.0 / penalty, quotient);
    var scaled = select(logit * penalty, divided, logit > 0.0);
    if (penalty == 1.0) {
        scaled = logit;
    }
    // If a penalty overflows f32, the logit saturates at the largest or smallest finite value.
    let penalised_bits = bitcast<u32>(scaled - slot.presence_penalty - slot.frequency_penalty * f32(count));
    let saturated = (penalised_bits & 0x80000000u) | 0x7f7fffffu;
    return select(penalised_bits, saturated, (penalised_bits & 0x7f800000u) == 0x7f800000u);
}
#endif
