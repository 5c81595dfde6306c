use std::f64::consts::TAU;

use gyrus_kernels::call::{Freqs, RopeCall, RopeKernel};

use super::cos_sin::{CHUNK, cos_sin};
use super::layout::Layout;
use crate::isa::Isa;

/// Units of a turn in 64-bit fixed point.
const TURN: f64 = 18_446_744_073_709_551_616.0;

/// Angles beyond this lose too many digits to a product with `1 / 2π`, and go another way.
const LARGE: f32 = 1_048_576.0;

/// The angle of each pair of each token.
pub(super) struct Angles<'a> {
    source: Source<'a>,
    /// Factor on both, and on the sine the sign of the direction.
    scale: [f64; 2],
}

enum Source<'a> {
    /// Positions times frequencies.
    Turns {
        /// Fractions of a turn per position; whole turns fall off by themselves.
        turns: Vec<u64>,
        /// Which row of positions each pair reads; empty if there is one.
        rows: Vec<u8>,
        /// The position of the first token, if they follow each other.
        first: u32,
        /// `[rows, tokens]` otherwise.
        positions: &'a [u32],
        tokens: usize,
    },
    /// As given, in radians: `[tokens, width]`.
    Radians { angles: &'a [u32], width: usize },
}

impl<'a> Angles<'a> {
    /// Of a call that has been checked with its buffers.
    pub(super) fn of(call: &RopeCall, layout: &Layout, freqs: &'a [u32], positions: &'a [u32]) -> Angles<'a> {
        let scale = f64::from(layout.scale);
        let scale = [scale, scale * call.direction.sign()];
        let (theta, factor, first) = match call.kernel {
            RopeKernel::InPlace { params: p, .. } => (p.theta, 1.0, p.pos_offset),
            RopeKernel::QkvWrite { params: p, .. }
            | RopeKernel::BatchKvWrite { params: p, .. }
            | RopeKernel::HeadNorm { params: p, .. } => (p.theta, p.freq_scale, p.pos),
            RopeKernel::X { dims, base, .. } => (base.rope_base, 1.0, dims.pos_offset),
            RopeKernel::Op { params: p } => {
                return Angles {
                    source: Source::Radians { angles: freqs, width: p.freqs_dim as usize },
                    scale,
                };
            }
        };
        let pairs = layout.rope_dim / 2;
        let word = |pair: usize| u64::from(freqs[2 * pair]) | u64::from(freqs[2 * pair + 1]) << 32;
        let turns = (0..pairs).map(|pair| match call.freqs {
            Freqs::Turns => scaled(word(pair), factor),
            Freqs::Divisors => fixed(f64::from(factor) / f64::from(f32::from_bits(freqs[pair]))),
            Freqs::Inline => {
                let exponent = -2.0 * pair as f64 / layout.rope_dim as f64;
                fixed(f64::from(factor) * f64::from(theta).powf(exponent))
            }
        });
        let turns = turns.collect();
        let several = call.positions > 1 && call.freqs == Freqs::Turns;
        let rows = if several { (0..pairs).map(|pair| (word(pair) & 3) as u8).collect() } else { Vec::new() };
        Angles { source: Source::Turns { turns, rows, first, positions, tokens: layout.tokens }, scale }
    }

    /// Cosines and sines of a token's pairs, all factors included, at the front of the two slices.
    pub(super) fn cos_sin(&self, isa: Isa, token: usize, cos: &mut [f32], sin: &mut [f32]) {
        let mut chunk = [0.0; CHUNK];
        match &self.source {
            Source::Turns { turns, rows, first, positions, tokens } => {
                let at = |row: usize| match positions.len() {
                    0 => first + token as u32,
                    _ => positions[row * tokens + token],
                };
                let (cos, sin) = (cos[..turns.len()].chunks_mut(CHUNK), sin[..turns.len()].chunks_mut(CHUNK));
                let mut rows = rows.chunks(CHUNK);
                for ((turns, cos), sin) in turns.chunks(CHUNK).zip(cos).zip(sin) {
                    // To 32 bits, and with a sign: from −½ to ½ turns.
                    let part = |turns: u64, position: u32| {
                        let phase = turns.wrapping_mul(u64::from(position)).wrapping_add(1 << 31);
                        f64::from((phase >> 32) as u32 as i32) * (1.0 / 4_294_967_296.0)
                    };
                    match rows.next() {
                        Some(rows) => {
                            for ((chunk, &turns), &row) in chunk.iter_mut().zip(turns).zip(rows) {
                                *chunk = part(turns, at(row.into()));
                            }
                        }
                        None => {
                            let position = at(0);
                            chunk
                                .iter_mut()
                                .zip(turns)
                                .for_each(|(chunk, &turns)| *chunk = part(turns, position));
                        }
                    }
                    cos_sin(isa, &chunk, self.scale, cos, sin);
                }
            }
            Source::Radians { angles, width } => {
                let angles = &angles[token * width..(token + 1) * width];
                let pairs = cos.len().min(angles.len());
                let (cos, sin) = (cos[..pairs].chunks_mut(CHUNK), sin[..pairs].chunks_mut(CHUNK));
                for ((angles, cos), sin) in angles.chunks(CHUNK).zip(cos).zip(sin) {
                    let small = |angle: f32| angle.abs() < LARGE;
                    for (chunk, &angle) in chunk.iter_mut().zip(angles) {
                        let angle = f32::from_bits(angle);
                        *chunk = if small(angle) { f64::from(angle) * (1.0 / TAU) } else { 0.0 };
                    }
                    cos_sin(isa, &chunk, self.scale, cos, sin);
                    for ((&angle, cos), sin) in angles.iter().zip(cos).zip(sin) {
                        let angle = f32::from_bits(angle);
                        if !small(angle) {
                            let (s, c) = f64::from(angle).sin_cos();
                            (*cos, *sin) = ((c * self.scale[0]) as f32, (s * self.scale[1]) as f32);
                        }
                    }
                }
            }
        }
    }
}

/// Radians per position as a fraction of a turn.
fn fixed(frequency: f64) -> u64 {
    // The cast saturates, which is right to the last unit for a fraction that rounds up to one.
    ((frequency / TAU).rem_euclid(1.0) * TURN) as u64
}

/// Turns per position times a positive number, whole turns dropped.
fn scaled(turns: u64, factor: f32) -> u64 {
    if factor == 1.0 {
        return turns;
    }
    let bits = factor.to_bits();
    let (exponent, fraction) = ((bits >> 23) as i32, bits & 0x7f_ffff);
    // factor = mantissa · 2^up, numbers below the normal ones included.
    let (mantissa, up) =
        if exponent == 0 { (fraction, -149) } else { (fraction | 0x80_0000, exponent - 150) };
    let product = u128::from(turns) * u128::from(mantissa);
    match up {
        // Shifted further than they have bits, 88, nothing is left.
        ..=-128 => 0,
        ..0 => (product >> -up) as u64,
        0..64 => (product as u64) << up,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_scaled_exactly() {
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
