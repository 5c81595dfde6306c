//! Cosine and sine of fractions of a turn: within `1e-11` before they are rounded to `f32`.

use std::f64::consts::TAU;

use crate::isa::{Isa, Level};

/// How many are computed at once.
pub(super) const CHUNK: usize = 16;

/// Added and taken away again, it leaves a number rounded to a whole one, whose last bits stand in its own.
const WHOLE: f64 = 6_755_399_441_055_744.0;

/// Cosine and sine of up to [`CHUNK`] angles, in turns and below `2³⁰` of them, times `scale[0]` and `scale[1]`.
pub(super) fn cos_sin(isa: Isa, turns: &[f64; CHUNK], scale: [f64; 2], cos: &mut [f32], sin: &mut [f32]) {
    let mut out = [[0.0; CHUNK]; 2];
    match isa.level() {
        Level::Portable => plain(turns, scale, &mut out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only where the instructions do.
        Level::Avx2 | Level::Avx512Vnni => unsafe { avx2(turns, scale, &mut out) },
    }
    cos.copy_from_slice(&out[0][..cos.len()]);
    sin.copy_from_slice(&out[1][..sin.len()]);
}

/// The same source; with the target feature the compiler makes wider registers of it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(turns: &[f64; CHUNK], scale: [f64; 2], out: &mut [[f32; CHUNK]; 2]) {
    plain(turns, scale, out);
}

#[inline(always)]
fn plain(turns: &[f64; CHUNK], scale: [f64; 2], out: &mut [[f32; CHUNK]; 2]) {
    for i in 0..CHUNK {
        let t = turns[i];
        // The nearest quarter, which only permutes and negates, and an angle within an eighth of a turn.
        let quarters = 4.0 * t + WHOLE;
        let quarter = quarters.to_bits();
        let x = (t - (quarters - WHOLE) * 0.25) * TAU;
        let z = x * x;
        // Their series: what is left out is below 8e-12 and 4e-13.
        let s = x
            * (1.0
                + z * (-1.0 / 6.0
                    + z * (1.0 / 120.0
                        + z * (-1.0 / 5_040.0 + z * (1.0 / 362_880.0 + z * (-1.0 / 39_916_800.0))))));
        let c = 1.0
            + z * (-0.5
                + z * (1.0 / 24.0
                    + z * (-1.0 / 720.0
                        + z * (1.0 / 40_320.0 + z * (-1.0 / 3_628_800.0 + z * (1.0 / 479_001_600.0))))));
        let swapped = quarter & 1 != 0;
        let (cos, sin) = if swapped { (s, c) } else { (c, s) };
        // The cosine is negative in the two quarters around half a turn, the sine in the second half.
        let sign = |bit: u64, v: f64| f64::from_bits(v.to_bits() ^ (bit & 2) << 62);
        out[0][i] = (sign(quarter.wrapping_add(1), cos) * scale[0]) as f32;
        out[1][i] = (sign(quarter, sin) * scale[1]) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_half_a_step_of_single_precision_on_every_instruction_set() {
        let mut worst: f64 = 0.0;
        for start in 0..40_000u32 {
            // Around the circle, on and beside quarters of it, and some turns away.
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
            let (mut cos, mut sin) = ([0.0; CHUNK], [0.0; CHUNK]);
            cos_sin(Isa::PORTABLE, &turns, [1.0; 2], &mut cos, &mut sin);
            for isa in Isa::supported() {
                let (mut c, mut s) = ([0.0; CHUNK], [0.0; CHUNK]);
                cos_sin(isa, &turns, [1.0; 2], &mut c, &mut s);
                assert_eq!((c, s), (cos, sin), "{isa:?} {turns:?}");
            }
            for i in 0..CHUNK {
                // Whole turns taken away first, so that the reference does not lose digits to them.
                let angle = (turns[i] - turns[i].round()) * TAU;
                worst = worst.max((f64::from(cos[i]) - angle.cos()).abs());
                worst = worst.max((f64::from(sin[i]) - angle.sin()).abs());
            }
        }
        assert!(worst < 2f64.powi(-25) + 1e-11, "{worst:e}");
    }

    #[test]
    fn quarters_are_exact() {
        let mut turns = [0.0; CHUNK];
        (turns[1], turns[2], turns[3], turns[4]) = (0.25, 0.5, 0.75, -0.25);
        let (mut cos, mut sin) = ([0.0; 5], [0.0; 5]);
        cos_sin(Isa::detect(), &turns, [1.0, 1.0], &mut cos, &mut sin);
        assert_eq!((cos, sin), ([1.0, 0.0, -1.0, 0.0, 0.0], [0.0, 1.0, 0.0, -1.0, -1.0]));
    }
}
