use std::f64::consts::TAU;

use gyrus_kernels::Pairing;
use gyrus_kernels::call::{Freqs, RopeCall, RopeKernel};

use super::cos_sin::{CHUNK, cos_sin};
use super::layout::Layout;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;

/// 2⁶⁴: phases are stored in 64-bit fixed point, in units of a turn (2π).
const UNITS_PER_TURN: f64 = 18_446_744_073_709_551_616.0;

/// From this angle on, the product with `1 / 2π` loses too many digits; `sin_cos` is used instead.
const LARGE: f32 = 1_048_576.0;

/// A position is split into a multiple of `STEPS` and a remainder, whose phases are multiplied as complex
/// numbers. Adjacent tokens share both factors, so a phase costs six operations instead of a polynomial. The
/// split depends on the position alone, so the bits do too.
const STEPS: u32 = 16;

/// The rotation angle of each pair of each token.
pub(super) struct Angles<'a> {
    source: Source<'a>,
    pairing: Pairing,
    pairs: usize,
    /// The factors of cosines and sines: the output scale and, for sines, the sign of the direction.
    scale: [f64; 2],
}

enum Source<'a> {
    /// Position times frequency.
    Turns {
        /// Turns per position in fixed point. Multiplication wraps, which drops whole turns. Padded with zeros
        /// to whole chunks.
        turns: Vec<u64>,
        /// The row of `positions` for each pair (multi-axis rope); empty if there is one row.
        rows: Vec<u8>,
        /// The position of the first token, if positions are consecutive.
        first: u32,
        /// `[rows, tokens]` if they are not; empty otherwise.
        positions: &'a [u32],
        tokens: usize,
        /// `[STEPS, 2, turns.len()]`: cosines and sines of the remainders; empty for a few tokens.
        steps: Vec<f64>,
    },
    /// Angles in radians, `[tokens, width]`; the first `pairs` of each row are used.
    Radians { angles: &'a [u32], width: usize },
}

/// The phases that a task reuses for consecutive tokens.
pub(super) struct PhaseCache {
    /// The multiple of [`STEPS`] that `whole` holds.
    base: Option<u32>,
    /// `[2, turns.len()]`: cosines and sines of the multiple.
    whole: Vec<f64>,
    /// `[2, turns.len()]`: cosines and sines of the remainder, if there is no table.
    rest: Vec<f64>,
}

impl<'a> Angles<'a> {
    /// The angles of a call that was checked together with its buffers.
    pub(super) fn of(
        isa: Isa,
        call: &RopeCall,
        layout: &Layout,
        freqs: &'a [u32],
        positions: &'a [u32],
    ) -> Angles<'a> {
        let (pairing, pairs, scale) = (layout.pairing, layout.rope_dim / 2, f64::from(layout.scale));
        let scale = [scale, scale * call.direction.sign()];
        let (theta, factor, first) = match call.kernel {
            RopeKernel::InPlace { params: p, .. } => (p.theta, 1.0, p.pos_offset),
            RopeKernel::QkvWrite { params: p, .. }
            | RopeKernel::BatchKvWrite { params: p, .. }
            | RopeKernel::HeadNorm { params: p, .. } => (p.theta, p.freq_scale, p.pos),
            RopeKernel::X { dims, base, .. } => (base.rope_base, 1.0, dims.pos_offset),
            RopeKernel::Op { params: p } => {
                let source = Source::Radians { angles: freqs, width: p.freqs_dim as usize };
                return Angles { source, pairing, pairs, scale };
            }
        };
        let word = |pair: usize| u64::from(freqs[2 * pair]) | u64::from(freqs[2 * pair + 1]) << 32;
        let turns = (0..pairs).map(|pair| match call.freqs {
            Freqs::Turns => scaled(word(pair), factor),
            Freqs::Divisors => fixed(f64::from(factor) / f64::from(f32::from_bits(freqs[pair]))),
            Freqs::Inline => {
                let exponent = -2.0 * pair as f64 / layout.rope_dim as f64;
                fixed(f64::from(factor) * f64::from(theta).powf(exponent))
            }
        });
        let mut turns: Vec<u64> = turns.collect();
        turns.resize(pairs.next_multiple_of(CHUNK), 0);
        let several = call.positions > 1 && call.freqs == Freqs::Turns;
        let rows = if several { (0..pairs).map(|pair| (word(pair) & 3) as u8).collect() } else { Vec::new() };
        // For a few tokens the table would cost more than it saves.
        let mut steps = Vec::new();
        if layout.tokens >= 4 * STEPS as usize && !several {
            steps.resize(STEPS as usize * 2 * turns.len(), 0.0);
            tabulate(isa, &turns, scale[1], &mut steps);
        }
        let source = Source::Turns { turns, rows, first, positions, tokens: layout.tokens, steps };
        Angles { source, pairing, pairs, scale }
    }

    pub(super) fn phase_cache(&self) -> PhaseCache {
        let len = if let Source::Turns { turns, .. } = &self.source { 2 * turns.len() } else { 0 };
        PhaseCache { base: None, whole: vec![0.0; len], rest: vec![0.0; len] }
    }

    /// Writes the scaled cosines and sines of a token, [`super::rotate::Rotation::width`] of each.
    pub(super) fn phases(
        &self,
        isa: Isa,
        cache: &mut PhaseCache,
        token: usize,
        (cos, sin): (&mut [f32], &mut [f32]),
    ) {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this level proves that the CPU has the instructions.
            Level::Avx2 => unsafe { avx2(self, cache, token, cos, sin) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this level proves that the CPU has the instructions.
            Level::Avx512Vnni => unsafe { avx512(self, cache, token, cos, sin) },
            _ => self.row(cache, token, cos, sin),
        }
    }

    /// The portable source. With target features the compiler vectorises the same operations.
    #[inline(always)]
    fn row(&self, cache: &mut PhaseCache, token: usize, cos: &mut [f32], sin: &mut [f32]) {
        match &self.source {
            Source::Turns { turns, rows, first, positions, tokens, steps } => {
                let at = |row: u8| match positions.len() {
                    0 => first + token as u32,
                    _ => positions[usize::from(row) * tokens + token],
                };
                let (position, len) = (at(0), turns.len());
                let PhaseCache { base, whole, rest } = cache;
                let rest: &[f64] = if rows.is_empty() {
                    let step = position % STEPS;
                    if *base != Some(position - step) {
                        *base = Some(position - step);
                        fill(turns, |_| position - step, self.scale[1], whole);
                    }
                    if steps.is_empty() {
                        fill(turns, |_| step, self.scale[1], rest);
                        rest
                    } else {
                        &steps[step as usize * 2 * len..][..2 * len]
                    }
                } else {
                    let of = |pair: usize| rows.get(pair).map_or(0, |&row| at(row));
                    fill(turns, |pair| of(pair) - of(pair) % STEPS, self.scale[1], whole);
                    fill(turns, |pair| of(pair) % STEPS, self.scale[1], rest);
                    rest
                };
                let ((c, s), (c0, s0)) = (whole.split_at(len), rest.split_at(len));
                let chunks = c.as_chunks::<CHUNK>().0.iter().zip(s.as_chunks::<CHUNK>().0);
                let others = c0.as_chunks::<CHUNK>().0.iter().zip(s0.as_chunks::<CHUNK>().0);
                for (i, ((c, s), (c0, s0))) in chunks.zip(others).enumerate() {
                    let cosines: [f32; CHUNK] = std::array::from_fn(|i| (c[i] * c0[i] - s[i] * s0[i]) as f32);
                    let sines: [f32; CHUNK] = std::array::from_fn(|i| (s[i] * c0[i] + c[i] * s0[i]) as f32);
                    self.put(i * CHUNK, cosines, sines, cos, sin);
                }
            }
            Source::Radians { angles, width } => {
                let (chunks, last) = angles[token * width..][..self.pairs].as_chunks::<CHUNK>();
                for (i, angles) in chunks.iter().enumerate() {
                    self.put_radians(i * CHUNK, *angles, cos, sin);
                }
                if !last.is_empty() {
                    let mut angles = [0; CHUNK];
                    angles[..last.len()].copy_from_slice(last);
                    self.put_radians(chunks.len() * CHUNK, angles, cos, sin);
                }
            }
        }
    }

    /// Stores the cosines and sines of a chunk of angles in radians.
    #[inline(always)]
    fn put_radians(&self, start: usize, angles: [u32; CHUNK], cos: &mut [f32], sin: &mut [f32]) {
        let radians = angles.map(f32::from_bits);
        // Without short-circuit, so the compiler emits one vector comparison. NaN compares false.
        let near = radians.iter().fold(true, |near, angle| near & (angle.abs() < LARGE));
        let (cosines, sines) = if near {
            cos_sin(radians.map(|angle| f64::from(angle) * (1.0 / TAU)))
        } else {
            cos_sin_large(radians)
        };
        let rounded = |v: [f64; CHUNK], scale: f64| v.map(|v| (v * scale) as f32);
        self.put(start, rounded(cosines, self.scale[0]), rounded(sines, self.scale[1]), cos, sin);
    }

    /// Stores the cosines and sines of a chunk in element order. Adjacent pairs store each value twice, the
    /// sine with both signs: `y[j] = x[j]·cos[j] + x[j ^ 1]·sin[j]`.
    #[inline(always)]
    fn put(&self, start: usize, c: [f32; CHUNK], s: [f32; CHUNK], cos: &mut [f32], sin: &mut [f32]) {
        match self.pairing {
            Pairing::Split => {
                put(c, &mut cos[start..self.pairs]);
                put(s, &mut sin[start..self.pairs]);
            }
            Pairing::Adjacent => {
                let twice: [f32; 2 * CHUNK] = std::array::from_fn(|i| c[i / 2]);
                put(twice, &mut cos[2 * start..2 * self.pairs]);
                let twice: [f32; 2 * CHUNK] =
                    std::array::from_fn(|i| if i % 2 == 0 { -s[i / 2] } else { s[i / 2] });
                put(twice, &mut sin[2 * start..2 * self.pairs]);
            }
        }
    }
}

/// Cosines and sines of a chunk of angles in radians, at least one of which is not below [`LARGE`].
#[cold]
#[inline(never)]
fn cos_sin_large(radians: [f32; CHUNK]) -> ([f64; CHUNK], [f64; CHUNK]) {
    let near = radians.map(|angle| angle.abs() < LARGE);
    let turns = std::array::from_fn(|i| if near[i] { f64::from(radians[i]) * (1.0 / TAU) } else { 0.0 });
    let (mut cosines, mut sines) = cos_sin(turns);
    for i in (0..CHUNK).filter(|&i| !near[i]) {
        (sines[i], cosines[i]) = f64::from(radians[i]).sin_cos();
    }
    (cosines, sines)
}

/// Cosines and sines of the positions below [`STEPS`].
fn tabulate(isa: Isa, turns: &[u64], sign: f64, steps: &mut [f64]) {
    #[inline(always)]
    fn all(turns: &[u64], sign: f64, steps: &mut [f64]) {
        for (step, out) in (0..).zip(steps.chunks_exact_mut(2 * turns.len())) {
            fill(turns, |_| step, sign, out);
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(turns: &[u64], sign: f64, steps: &mut [f64]) {
        all(turns, sign, steps);
    }
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level proves that the CPU has the instructions.
        Level::Avx2 | Level::Avx512Vnni => unsafe { avx2(turns, sign, steps) },
        _ => all(turns, sign, steps),
    }
}

/// # Safety
/// The CPU has the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(angles: &Angles<'_>, cache: &mut PhaseCache, token: usize, cos: &mut [f32], sin: &mut [f32]) {
    angles.row(cache, token, cos, sin);
}

/// # Safety
/// The CPU has the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn avx512(
    angles: &Angles<'_>,
    cache: &mut PhaseCache,
    token: usize,
    cos: &mut [f32],
    sin: &mut [f32],
) {
    angles.row(cache, token, cos, sin);
}

/// Stores the chunk, truncated to the length of `row`.
#[inline(always)]
fn put<const N: usize>(chunk: [f32; N], row: &mut [f32]) {
    match row.first_chunk_mut() {
        Some(whole) => *whole = chunk,
        None => row.copy_from_slice(&chunk[..row.len()]),
    }
}

/// Writes the cosines of each pair at its position, then the sines times `sign`.
#[inline(always)]
fn fill(turns: &[u64], position: impl Fn(usize) -> u32, sign: f64, out: &mut [f64]) {
    let (cosines, sines) = out.split_at_mut(turns.len());
    let out = cosines.as_chunks_mut::<CHUNK>().0.iter_mut().zip(sines.as_chunks_mut::<CHUNK>().0);
    for (start, (turns, (cosines, sines))) in turns.as_chunks::<CHUNK>().0.iter().zip(out).enumerate() {
        let angles = std::array::from_fn(|i| {
            let phase = turns[i].wrapping_mul(u64::from(position(start * CHUNK + i))).wrapping_add(1 << 31);
            // Rounded to 32 bits and read as signed: from −½ to ½ turns.
            f64::from((phase >> 32) as u32 as i32) * (1.0 / 4_294_967_296.0)
        });
        (*cosines, *sines) = cos_sin(angles);
        sines.iter_mut().for_each(|sine| *sine *= sign);
    }
}

/// Converts radians per position to turns in fixed point, modulo one turn.
fn fixed(frequency: f64) -> u64 {
    // A fraction that rounds up to 1 saturates, an error of one unit.
    ((frequency / TAU).rem_euclid(1.0) * UNITS_PER_TURN) as u64
}

/// Multiplies turns in fixed point by a positive number, modulo one turn.
fn scaled(turns: u64, factor: f32) -> u64 {
    if factor == 1.0 {
        return turns;
    }
    let bits = factor.to_bits();
    let (exponent, fraction) = ((bits >> 23) as i32, bits & 0x7f_ffff);
    // factor = mantissa · 2^up, subnormals included.
    let (mantissa, up) =
        if exponent == 0 { (fraction, -149) } else { (fraction | 0x80_0000, exponent - 150) };
    let product = u128::from(turns) * u128::from(mantissa);
    match up {
        // The product has 88 bits, so a shift by 128 or more leaves zero.
        ..=-128 => 0,
        -127..0 => (product >> -up) as u64,
        0..64 => (product as u64) << up,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_fixed_point_turns_is_exact() {
        let turns = 0x1234_5678_9abc_def1;
        assert_eq!(scaled(turns, 1.0), turns);
        assert_eq!(scaled(turns, 0.5), turns >> 1);
        assert_eq!(scaled(turns, 0.25), turns >> 2);
        assert_eq!(scaled(turns, 3.0), turns.wrapping_mul(3));
        assert_eq!(scaled(turns, 3e9), turns.wrapping_mul(3_000_000_000));
        assert_eq!(scaled(turns, f32::MAX), 0);
        assert_eq!(scaled(turns, f32::from_bits(1)), 0);
        assert_eq!(scaled(u64::MAX, f32::MIN_POSITIVE), 0);
    }
}
