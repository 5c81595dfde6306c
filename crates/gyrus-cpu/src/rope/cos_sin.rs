//! Cosine and sine of angles in turns, with an absolute error below `6e-11`.

use std::f64::consts::TAU;

/// Angles that are computed at once.
pub(super) const CHUNK: usize = 16;

/// 1.5 · 2⁵². Adding and subtracting it rounds to an integer; the low bits of the sum are that integer.
const ROUND: f64 = 6_755_399_441_055_744.0;

const S: [f64; 4] = [
    -0.166_666_666_279_988_58,
    0.008_333_328_238_697_83,
    -1.983_904_376_600_398_6e-4,
    2.716_013_982_028_439e-6,
];
const C: [f64; 4] = [
    -0.499_999_997_251_079_35,
    0.041_666_623_324_313_67,
    -0.001_388_676_379_344_589_3,
    2.439_045_061_913_632e-5,
];

/// Cosines and sines of angles in turns, below `2³⁰`. The compiler vectorises the loop with the target features
/// of its caller.
#[inline(always)]
pub(super) fn cos_sin(turns: [f64; CHUNK]) -> ([f64; CHUNK], [f64; CHUNK]) {
    let (mut cosines, mut sines) = ([0.0; CHUNK], [0.0; CHUNK]);
    for i in 0..CHUNK {
        let t = turns[i];
        // Reduce to the nearest quarter turn, which only swaps and negates, and an angle within ⅛ turn.
        let quarters = 4.0 * t + ROUND;
        let quarter = quarters.to_bits();
        let x = (t - (quarters - ROUND) * 0.25) * TAU;
        let z = x * x;
        // Minimax polynomials with errors of 2.4e-12 and 5.4e-11.
        let s = x + x * z * (S[0] + z * (S[1] + z * (S[2] + z * S[3])));
        let c = 1.0 + z * (C[0] + z * (C[1] + z * (C[2] + z * C[3])));
        let swapped = quarter & 1 != 0;
        let (cos, sin) = if swapped { (s, c) } else { (c, s) };
        // The cosine is negative in the quarters around ½ turn, the sine in the second half turn.
        let sign = |bit: u64, v: f64| f64::from_bits(v.to_bits() ^ (bit & 2) << 62);
        cosines[i] = sign(quarter.wrapping_add(1), cos);
        sines[i] = sign(quarter, sin);
    }
    (cosines, sines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cos_sin_error_is_below_6e_11() {
        let mut worst: f64 = 0.0;
        for start in 0..40_000u32 {
            // All around the circle, at and near quarter turns, and many turns away.
            let turns = std::array::from_fn(|i| {
                let fraction =
                    f64::from(start.wrapping_mul(2_654_435_769).wrapping_add(i as u32 * 7)) / 4_294_967_296.0;
                match start % 4 {
                    0 => fraction - 0.5,
                    1 => (fraction * 8.0).floor() / 8.0 + f64::from(i as u32) * 1e-10,
                    2 => fraction * 200_000.0,
                    _ => -fraction * 3.0,
                }
            });
            let (cos, sin) = cos_sin(turns);
            for i in 0..CHUNK {
                // Whole turns are removed first, so the reference does not lose digits to them.
                let angle = (turns[i] - turns[i].round()) * TAU;
                let apart = [(cos[i] - angle.cos()).abs(), (sin[i] - angle.sin()).abs()];
                worst = gyrus_testkit::largest([worst, apart[0], apart[1]]);
            }
        }
        assert!(worst < 6e-11, "{worst:e}");
    }

    #[test]
    fn quarter_turns_are_exact() {
        let mut turns = [0.0; CHUNK];
        (turns[1], turns[2], turns[3], turns[4]) = (0.25, 0.5, 0.75, -0.25);
        let (cos, sin) = cos_sin(turns);
        assert_eq!(cos[..5], [1.0, 0.0, -1.0, 0.0, 0.0]);
        assert_eq!(sin[..5], [0.0, 1.0, 0.0, -1.0, -1.0]);
    }
}
