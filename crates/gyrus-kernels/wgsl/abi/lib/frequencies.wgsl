// The phase of a pair of a token. Needs lib/turns.wgsl, and from the kernel: theta(), rope_dim(), tokens(),
// first_position(), freq_scale().
//
//   FREQS      turns     freqs[pair] is the pair's turns per position, a 64-bit fraction, low word first. Its two
//                        lowest
//                        bits select the row of position_ids that the pair reads.
//              divisors  freqs[pair] is the f32 divisor of the position that gives radians. Its precision is that of
//                        f32:
//                        an error of 0.03 radians at position one million.
//              inline    theta^(-2 pair / rope_dim), computed here: a little less precise still.
//   FREQS_BINDING, POSITIONS_BINDING
//   POSITIONS  0: tokens have consecutive positions from first_position() on. 1: position_ids[token]. More: as many
//              rows,
//              position_ids[row * tokens() + token].

#if FREQS == turns
@group(0) @binding(FREQS_BINDING) var<storage, read> freqs: array<vec2<u32>>;
#elif FREQS == divisors
@group(0) @binding(FREQS_BINDING) var<storage, read> freqs: array<f32>;
#endif

#if POSITIONS
@group(0) @binding(POSITIONS_BINDING) var<storage, read> position_ids: array<u32>;
#endif

fn pair_turns(pair: u32) -> vec2<u32> {
#if FREQS == turns
    return freqs[pair];
#elif FREQS == divisors
    return fixed_turns(0.15915494 / freqs[pair]);
#else
    return fixed_turns(0.15915494 * exp2(log2(theta()) * f32(2u * pair) / -f32(rope_dim())));
#endif
}

fn position(token: u32, row: u32) -> u32 {
#if POSITIONS > 1
    return position_ids[row * tokens() + token];
#elif POSITIONS
    return position_ids[token];
#else
    return first_position() + token;
#endif
}

fn phase(token: u32, pair: u32) -> u32 {
    let turns = pair_turns(pair);
    return phase_at(scaled_turns(turns, freq_scale()), position(token, turns.x & 3u));
}
