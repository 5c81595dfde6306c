// Phases in fixed point and their cosines and sines. The unit of phase is the turn, a full rotation.
//
// A pair's frequency is a 64-bit fraction of a turn per position, (low word, high word). Its product with a position
// modulo 2^64 is the exact phase at any position: integer arithmetic does not depend on the compiler's reordering or
// fusing, and whole turns drop out by overflow. The error of a phase is below position * 2^-64 + 2^-32 turns.

// The high word of a 32 x 32 bit product; WGSL gives only the low one.
fn mul_high(a: u32, b: u32) -> u32 {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let low = a0 * b0;
    let mid = a1 * b0 + (low >> 16u);
    let cross = a0 * b1 + (mid & 0xffffu);
    return a1 * b1 + (mid >> 16u) + (cross >> 16u);
}

// The phase of a position, as a 32-bit fraction of a turn.
fn phase_at(turns: vec2<u32>, position: u32) -> u32 {
    return turns.y * position + mul_high(turns.x, position);
}

// Turns per position from an f32 below one.
fn fixed_turns(turns: f32) -> vec2<u32> {
    let scaled = turns * 4294967296.0;
    let high = u32(scaled);
    return vec2<u32>(u32((scaled - f32(high)) * 4294967296.0), high);
}

// Turns per position, times a positive factor below 2^32.
fn scaled_turns(turns: vec2<u32>, factor: f32) -> vec2<u32> {
    if (factor == 1.0) {
        return turns;
    }
    let bits = bitcast<u32>(factor);
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    // factor = mantissa * 2^-down
    let down = 150 - i32((bits >> 23u) & 0xffu);
    // The product as three words, low first.
    let low = turns.x * mantissa;
    let carry = mul_high(turns.x, mantissa);
    let mid = turns.y * mantissa + carry;
    var high = mul_high(turns.y, mantissa);
    if (mid < carry) {
        high += 1u;
    }
    return shifted(vec3<u32>(low, mid, high), down);
}

// The low two words of a number shifted right by `down` bits, or left if that is negative; whole turns drop out.
fn shifted(words: vec3<u32>, down: i32) -> vec2<u32> {
    if (down <= -64 || down >= 96) {
        return vec2<u32>(0u, 0u);
    }
    // With one more word of zeros below, a shift to the left by n is one to the right by 32 - n, a word up.
    var w = array<u32, 6>(0u, 0u, words.x, words.y, words.z, 0u);
    let first = down + 64;
    let word = u32(first) / 32u;
    let bits = u32(first) % 32u;
    let a = w[min(word, 5u)];
    let b = select(0u, w[min(word + 1u, 5u)], word + 1u < 6u);
    let c = select(0u, w[min(word + 2u, 5u)], word + 2u < 6u);
    if (bits == 0u) {
        return vec2<u32>(a, b);
    }
    return vec2<u32>((a >> bits) | (b << (32u - bits)), (b >> bits) | (c << (32u - bits)));
}

// The first eight 32-bit words of the binary fraction 1 / (2 pi). Enough for every finite f32 angle.
const TURN_PER_RADIAN: array<u32, 8> = array<u32, 8>(
    0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau, 0xf7aef158u);

// The phase of an angle in radians. The range reduction is exact for every angle: only those bits of 1 / (2 pi) are
// multiplied that affect the fraction of a turn.
fn phase_of_angle(angle: f32) -> u32 {
    let bits = bitcast<u32>(abs(angle));
    let exponent = i32(bits >> 23u) - 150;
    var phase: u32;
    if (exponent < -23) {
        // Below one radian the f32 product is as accurate as the angle.
        phase = u32(abs(angle) * 0.15915494 * 4294967296.0);
    } else {
        let mantissa = (bits & 0x7fffffu) | 0x800000u;
        // The fraction's bits from `exponent` on; below zero they are preceded by zeros.
        let at = exponent + 32;
        let word = u32(at) / 32u;
        let shift = u32(at) % 32u;
        var table = TURN_PER_RADIAN;
        let a = select(0u, table[max(word, 1u) - 1u], word >= 1u);
        let b = table[min(word, 7u)];
        let c = table[min(word + 1u, 7u)];
        var x = a;
        var y = b;
        if (shift != 0u) {
            x = (a << shift) | (b >> (32u - shift));
            y = (b << shift) | (c >> (32u - shift));
        }
        phase = x * mantissa + mul_high(y, mantissa);
    }
    return select(phase, 0u - phase, angle < 0.0);
}

// Cosine and sine of a phase, each within 1e-7.
fn cos_sin(phase: u32) -> vec2<f32> {
    // The nearest quarter turn, and the remainder in quarter turns, from -1/2 to 1/2: its upper sixteen bits, and the
    // rest.
    let quarter = (phase + 0x20000000u) >> 30u;
    let rest = bitcast<i32>(phase - (quarter << 30u));
    let coarse = f32(rest >> 14u) * 1.52587890625e-5;
    let fine = f32(rest & 0x3fff) * 9.3132257461547852e-10;
    let x = coarse + fine;
    let z = x * x;
    // Minimax polynomials on that range: errors 1.2e-9 and 5.4e-11 before rounding. A quarter turn in radians is split
    // in two parts, the first of eight bits, so that the leading product of the sine is exact.
    let s = coarse * 1.5703125
        + (fine * 1.5703125 + x * (4.8382679e-4 + z * (-0.64596295 + z * (0.079675905 + z * -0.0045922892))));
    let c = 1.0 + z * (-1.2337005 + z * (0.25366923 + z * (-0.020860288 + z * 0.00090402161)));
    let swapped = (quarter & 1u) != 0u;
    let cosine = select(c, s, swapped);
    let sine = select(s, c, swapped);
    // The cosine is negative in the two quarters around half a turn, the sine in the second half.
    return vec2<f32>(
        select(cosine, -cosine, ((quarter + 1u) & 2u) != 0u),
        select(sine, -sine, (quarter & 2u) != 0u));
}
