use std::f64::consts::{PI, TAU};

use super::error::RopeError;

/// How frequencies are changed for contexts beyond the original training context.
///
/// Every kind gives a factor for each pair by which its wavelength is stretched. Kinds with a factor on cosine and sine
/// have that too.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// None.
    None,
    /// Linear: positions divided by a factor, all wavelengths stretched alike.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// NTK: the base is raised so that the longest wavelength is stretched by the factor and the shortest unchanged.
    Ntk {
        /// Stretch of the longest wave.
        factor: f64,
    },
    /// Dynamic NTK: as [`Scaling::Ntk`], with a stretch that depends on the sequence's length.
    DynamicNtk {
        /// How steeply the stretch grows with the length.
        factor: f64,
        /// Up to this length frequencies are unchanged.
        original: f64,
    },
    /// YaRN: long wavelengths are stretched by the factor, short ones unchanged, with a ramp over pairs between them.
    Yarn(Yarn),
    /// LongRoPE: every pair has its own factor, in two sets: for short sequences and for long ones.
    LongRope(LongRope),
    /// Llama 3: as YaRN, with a ramp over wavelengths, and no factor on the result.
    Llama3 {
        /// Stretch of the longest waves.
        factor: f64,
        /// Waves longer than `original / low` are stretched in full.
        low: f64,
        /// Waves shorter than `original / high` are unchanged.
        high: f64,
        /// Context of the first training.
        original: f64,
    },
    /// Gemma 4: all pairs of the head have their usual frequencies, but only the first few of them, the fastest, are
    /// rotated.
    Proportional {
        /// Pairs that are rotated.
        rotated: usize,
        /// Stretch of all waves.
        factor: f64,
    },
}

/// Parameters of YaRN.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    /// Stretch of the longest waves.
    pub factor: f64,
    /// Context of the first training.
    pub original: f64,
    /// Rotations within the original context from which on waves are unchanged.
    pub beta_fast: f64,
    /// Rotations within the original context up to which waves are stretched in full.
    pub beta_slow: f64,
    /// Whether the ends of the ramp are moved outwards to whole pairs, as most models do.
    pub truncate: bool,
    /// The factor on cosine and sine.
    pub magnitude: Magnitude,
}

/// The source of YaRN's factor on cosine and sine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Magnitude {
    /// The paper's rule, [`Yarn::mscale`] of 1.
    Rule,
    /// A quotient, [`Yarn::mscale`] of one number over that of another. DeepSeek's are equal, so that the factor on
    /// cosine and sine is 1; it is in the scale of its scores instead.
    Quotient {
        /// `mscale` in files.
        mscale: f64,
        /// `mscale_all_dim` in files.
        all_dim: f64,
    },
    /// A number from the model; it replaces the rule.
    Given(f64),
}

impl Yarn {
    /// YaRN as its paper has it.
    pub fn new(factor: f64, original: f64) -> Yarn {
        let magnitude = Magnitude::Rule;
        Yarn { factor, original, beta_fast: 32.0, beta_slow: 1.0, truncate: true, magnitude }
    }

    /// `0.1·mscale·ln(factor) + 1`, or 1 where nothing is stretched.
    pub fn mscale(factor: f64, mscale: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
    }

    /// The factor on cosine and sine.
    pub fn attention_factor(&self) -> f64 {
        match self.magnitude {
            Magnitude::Rule => Yarn::mscale(self.factor, 1.0),
            Magnitude::Quotient { mscale, all_dim } => {
                Yarn::mscale(self.factor, mscale) / Yarn::mscale(self.factor, all_dim)
            }
            Magnitude::Given(factor) => factor,
        }
    }

    /// The first and the last pair of the ramp: waves before it are unchanged, waves after it stretched in full.
    pub fn ramp(&self, base: f64, rope_dim: usize) -> (f64, f64) {
        // The (fractional) pair that rotates this many times within the original context.
        let pair =
            |turns: f64| rope_dim as f64 * (self.original / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
        let (first, last) = (pair(self.beta_fast), pair(self.beta_slow));
        let (first, last) = if self.truncate { (first.floor(), last.ceil()) } else { (first, last) };
        (first.max(0.0), last.min(rope_dim as f64 - 1.0))
    }
}

/// Parameters of LongRoPE.
#[derive(Debug, Clone, PartialEq)]
pub struct LongRope {
    /// Stretch of each pair for sequences up to the original context.
    pub short: Vec<f64>,
    /// Stretch of each pair for longer ones.
    pub long: Vec<f64>,
    /// Context of the first training.
    pub original: f64,
    /// The factors on cosine and sine that belong to the two sets; most models have one for both.
    pub attention_factors: [f64; 2],
}

impl LongRope {
    /// The factor on cosine and sine where a model gives none: `√(1 + ln(factor) / ln(original))`, with
    /// the factor by which the context has grown.
    pub fn attention_factor(factor: f64, original: f64) -> f64 {
        if factor <= 1.0 || original <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
    }
}

/// Frequencies without any scaling, `base^(-2i / rope_dim)`: radians per position, fastest first.
pub(super) fn plain(base: f64, rope_dim: usize) -> Vec<f64> {
    (0..rope_dim / 2).map(|i| base.powf(-2.0 * i as f64 / rope_dim as f64)).collect()
}

impl Scaling {
    /// A word for the kind, as files spell it.
    pub fn name(&self) -> &'static str {
        match self {
            Scaling::None => "none",
            Scaling::Linear { .. } => "linear",
            Scaling::Ntk { .. } => "ntk",
            Scaling::DynamicNtk { .. } => "dynamic",
            Scaling::Yarn(_) => "yarn",
            Scaling::LongRope(_) => "longrope",
            Scaling::Llama3 { .. } => "llama3",
            Scaling::Proportional { .. } => "proportional",
        }
    }

    /// The shortest length that is treated like this one.
    pub(super) fn class(&self, length: usize) -> usize {
        match self {
            Scaling::LongRope(LongRope { original, .. }) if length as f64 > *original => {
                // The next whole number, so that it is still beyond.
                *original as usize + 1
            }
            Scaling::DynamicNtk { original, .. } if length as f64 > *original => length,
            _ => 0,
        }
    }

    /// The factor on cosine and sine for a sequence of that length.
    pub(super) fn attention_factor(&self, length: usize) -> f64 {
        match self {
            Scaling::Yarn(yarn) => yarn.attention_factor(),
            Scaling::LongRope(long) => long.attention_factors[usize::from(length as f64 > long.original)],
            _ => 1.0,
        }
    }

    /// Refuses meaningless parameters.
    pub(super) fn check(&self, base: f64, rope_dim: usize) -> Result<(), RopeError> {
        let positive = RopeError::positive;
        match self {
            Scaling::None => Ok(()),
            Scaling::Linear { factor } => positive("scaling factor", *factor),
            Scaling::Ntk { factor } => {
                positive("scaling factor", *factor)?;
                more_than_one_pair(rope_dim)
            }
            Scaling::DynamicNtk { factor, original } => {
                positive("scaling factor", *factor)?;
                positive("original context", *original)?;
                more_than_one_pair(rope_dim)
            }
            Scaling::Yarn(yarn) => {
                positive("scaling factor", yarn.factor)?;
                positive("original context", yarn.original)?;
                positive("beta_slow", yarn.beta_slow)?;
                if yarn.beta_fast <= yarn.beta_slow || !yarn.beta_fast.is_finite() {
                    let (low, high) = (yarn.beta_slow, yarn.beta_fast);
                    return Err(RopeError::Ramp { name: "betas", low, high });
                }
                // The ramp lies where waves have a certain length, and they all have the same with base 1.
                if base <= 1.0 {
                    return Err(RopeError::Ramp { name: "base", low: 1.0, high: base });
                }
                positive("attention factor", yarn.attention_factor())
            }
            Scaling::LongRope(LongRope { short, long, original, attention_factors }) => {
                positive("original context", *original)?;
                for (name, factors) in [("short factors", short), ("long factors", long)] {
                    check_factors(name, factors, rope_dim / 2)?;
                }
                attention_factors.iter().try_for_each(|&f| positive("attention factor", f))
            }
            Scaling::Llama3 { factor, low, high, original } => {
                positive("scaling factor", *factor)?;
                positive("original context", *original)?;
                positive("low frequency factor", *low)?;
                if high <= low || !high.is_finite() {
                    return Err(RopeError::Ramp { name: "frequency factors", low: *low, high: *high });
                }
                Ok(())
            }
            Scaling::Proportional { rotated, factor } => {
                if *rotated > rope_dim / 2 {
                    let (expected, found) = (rope_dim / 2, *rotated);
                    return Err(RopeError::Factors { name: "rotated pairs", expected, found });
                }
                positive("scaling factor", *factor)
            }
        }
    }

    /// Frequencies for a sequence of that length; the parameters have been checked.
    pub(super) fn frequencies(&self, base: f64, rope_dim: usize, length: usize) -> Vec<f64> {
        let mut frequencies = match self {
            Scaling::Ntk { factor } => plain(raised(base, *factor, rope_dim), rope_dim),
            Scaling::DynamicNtk { factor, original } => {
                // 1 at the original length, and the factor more for each such length beyond it.
                let stretch = factor * (length as f64 / original).max(1.0) - (factor - 1.0);
                plain(raised(base, stretch, rope_dim), rope_dim)
            }
            _ => plain(base, rope_dim),
        };
        match self {
            Scaling::None | Scaling::Ntk { .. } | Scaling::DynamicNtk { .. } => {}
            Scaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= factor),
            Scaling::Yarn(yarn) => {
                let (first, last) = yarn.ramp(base, rope_dim);
                let width = if first == last { 0.001 } else { last - first };
                for (i, f) in frequencies.iter_mut().enumerate() {
                    let stretch = ((i as f64 - first) / width).clamp(0.0, 1.0);
                    *f *= stretch / yarn.factor + (1.0 - stretch);
                }
            }
            Scaling::LongRope(LongRope { short, long, original, .. }) => {
                let factors = if length as f64 > *original { long } else { short };
                frequencies.iter_mut().zip(factors).for_each(|(f, factor)| *f /= factor);
            }
            Scaling::Llama3 { factor, low, high, original } => {
                for f in &mut frequencies {
                    // How many times the wave fits into the original context.
                    let turns = original * *f / TAU;
                    let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    *f *= (1.0 - keep) / factor + keep;
                }
            }
            Scaling::Proportional { rotated, factor } => {
                let (rotating, still) = frequencies.split_at_mut(*rotated);
                rotating.iter_mut().for_each(|f| *f /= factor);
                still.fill(0.0);
            }
        }
        frequencies
    }
}

/// The base with which the slowest pair's wave is `stretch` times as long.
fn raised(base: f64, stretch: f64, rope_dim: usize) -> f64 {
    let dim = rope_dim as f64;
    base * stretch.powf(dim / (dim - 2.0))
}

fn more_than_one_pair(rope_dim: usize) -> Result<(), RopeError> {
    if rope_dim > 2 {
        return Ok(());
    }
    let reason = "a changed base stretches the last pair and keeps the first, so two are needed";
    Err(RopeError::Dim { rope_dim, offset: 0, head_dim: rope_dim, reason })
}

/// Factors must be as many as pairs, and positive.
pub(super) fn check_factors(name: &'static str, factors: &[f64], pairs: usize) -> Result<(), RopeError> {
    if factors.len() != pairs {
        return Err(RopeError::Factors { name, expected: pairs, found: factors.len() });
    }
    factors.iter().try_for_each(|&f| RopeError::positive("frequency factor", f))
}
