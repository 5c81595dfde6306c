use std::f64::consts::TAU;

/// A rope's frequencies for sequences of one class of lengths, and its factor on cosine and sine.
#[derive(Debug, Clone, PartialEq)]
pub struct Spectrum {
    frequencies: Vec<f64>,
    turns: Vec<u64>,
    attention_factor: f64,
}

/// Radians in the smallest step of a phase.
const STEP: f64 = TAU / 18_446_744_073_709_551_616.0;

impl Spectrum {
    pub(super) fn new(frequencies: Vec<f64>, attention_factor: f64) -> Spectrum {
        let turns = frequencies.iter().map(|&f| turns_of(f)).collect();
        Spectrum { frequencies, turns, attention_factor }
    }

    /// Radians per position for each pair, scaling included.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// For each pair the fraction of a turn per position, in units of `2⁻⁶⁴` turns.
    ///
    /// A position times this, wrapping, is the phase modulo one turn at any position: whole turns overflow, and no low
    /// bits are lost, unlike with a large f32 angle.
    pub fn turns(&self) -> &[u64] {
        &self.turns
    }

    /// The factor on cosine and sine: YaRN's and LongRoPE's.
    pub fn attention_factor(&self) -> f64 {
        self.attention_factor
    }

    /// The angle of a pair at a position, from `-π` to `π`.
    pub fn angle(&self, pair: usize, position: u32) -> f64 {
        angle_of(self.turns[pair].wrapping_mul(u64::from(position)))
    }
}

/// A frequency in radians as a fraction of a turn; whole turns per position have no effect.
fn turns_of(frequency: f64) -> u64 {
    let turns = (frequency / TAU).rem_euclid(1.0) * 18_446_744_073_709_551_616.0;
    // The cast saturates; only a fraction that rounds up to a whole turn reaches that.
    turns.round() as u64
}

/// A phase in radians. Reading it as signed halves its magnitude, and with it the rounding error of the product.
pub(super) fn angle_of(phase: u64) -> f64 {
    phase.cast_signed() as f64 * STEP
}
