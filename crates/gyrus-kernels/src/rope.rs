use std::f64::consts::{PI, TAU};
use std::fmt;

/// Which elements of a head form the pairs that are turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// `(0, 1), (2, 3), …`: Meta's layout, and GGUF's for Llama.
    Adjacent,
    /// `(0, n/2), (1, n/2 + 1), …`: GPT-NeoX's layout, and Hugging Face's for nearly everything.
    Split,
}

/// How frequencies are changed to reach beyond the context a model was first trained on.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// Positions divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3: long waves are stretched by the factor, short ones kept, with a ramp between.
    Llama3 {
        /// Stretch of the longest waves.
        factor: f64,
        /// Waves longer than `original / low` are stretched in full.
        low: f64,
        /// Waves shorter than `original / high` are kept.
        high: f64,
        /// Context of the first training.
        original: f64,
    },
    /// YaRN: as Llama 3, with a ramp over dimensions and a factor on the result.
    Yarn {
        /// Stretch of the longest waves.
        factor: f64,
        /// Context of the first training.
        original: f64,
        /// Turns within the original context from which waves are kept.
        beta_fast: f64,
        /// Turns within the original context up to which waves are stretched in full.
        beta_slow: f64,
        /// Factor on cosine and sine; by rule `0.1·ln(factor) + 1`.
        attention_factor: f64,
    },
}

impl Scaling {
    /// The factor on cosine and sine that YaRN prescribes where a model gives none.
    pub fn yarn_attention_factor(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }
}

/// Rotary position embedding: pair `i` of a head at position `p` is turned by `p · frequency(i)`.
///
/// The only implementation; models give parameters. Phases are computed on the host in `f64`, since
/// positions reach a million and single precision loses the angle long before.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pairing: Pairing,
    head_dim: usize,
    rope_dim: usize,
    base: f64,
    scaling: Scaling,
    /// Radians per position, one for each pair; scaling is included.
    frequencies: Vec<f64>,
    output_scale: f64,
}

/// Why parameters make no rotary embedding.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RopeError {
    /// Only pairs can be turned, and only those a head has.
    #[error(
        "{rope_dim} rotated elements in a head of {head_dim}: an even number from 2 up to the head's is needed"
    )]
    Dim {
        /// Elements to rotate.
        rope_dim: usize,
        /// Elements of a head.
        head_dim: usize,
    },
    /// A parameter that is not a positive finite number.
    #[error("rope {name} is {value}, a positive number is needed")]
    Parameter {
        /// Which.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// A ramp that ends where it begins.
    #[error("rope {name}: {low} and {high} leave no range between them")]
    Ramp {
        /// Which.
        name: &'static str,
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// A factor tensor of the wrong length.
    #[error("{found} rope frequency factors for {expected} pairs")]
    Factors {
        /// Pairs.
        expected: usize,
        /// Factors given.
        found: usize,
    },
}

impl Rope {
    /// Checks the parameters and computes the frequencies. `factors` divide them one by one, as the
    /// `rope_freqs` tensor of some files says.
    pub fn new(
        pairing: Pairing,
        head_dim: usize,
        rope_dim: usize,
        base: f64,
        scaling: Scaling,
        factors: Option<&[f32]>,
    ) -> Result<Rope, RopeError> {
        if rope_dim < 2 || !rope_dim.is_multiple_of(2) || rope_dim > head_dim {
            return Err(RopeError::Dim { rope_dim, head_dim });
        }
        positive("base", base)?;
        let pairs = rope_dim / 2;
        let mut frequencies: Vec<f64> =
            (0..pairs).map(|i| base.powf(-2.0 * i as f64 / rope_dim as f64)).collect();
        let mut output_scale = 1.0;
        match scaling {
            Scaling::None => {}
            Scaling::Linear { factor } => {
                positive("scaling factor", factor)?;
                frequencies.iter_mut().for_each(|f| *f /= factor);
            }
            Scaling::Llama3 { factor, low, high, original } => {
                positive("scaling factor", factor)?;
                positive("original context", original)?;
                positive("low frequency factor", low)?;
                if high <= low || !high.is_finite() {
                    return Err(RopeError::Ramp { name: "frequency factors", low, high });
                }
                for f in &mut frequencies {
                    // How many times the wave fits into the original context.
                    let turns = original * *f / TAU;
                    let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    *f *= (1.0 - keep) / factor + keep;
                }
            }
            Scaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor } => {
                positive("scaling factor", factor)?;
                positive("original context", original)?;
                positive("beta_slow", beta_slow)?;
                positive("attention factor", attention_factor)?;
                if beta_fast <= beta_slow || !beta_fast.is_finite() {
                    return Err(RopeError::Ramp { name: "betas", low: beta_slow, high: beta_fast });
                }
                // The (fractional) pair whose wave turns `turns` times within the original context.
                let pair =
                    |turns: f64| rope_dim as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
                let first = pair(beta_fast).floor().max(0.0);
                let last = pair(beta_slow).ceil().min(rope_dim as f64 - 1.0);
                let width = (last - first).max(0.001);
                for (i, f) in frequencies.iter_mut().enumerate() {
                    let stretch = ((i as f64 - first) / width).clamp(0.0, 1.0);
                    *f *= stretch / factor + (1.0 - stretch);
                }
                output_scale = attention_factor;
            }
        }
        if let Some(factors) = factors {
            if factors.len() != pairs {
                return Err(RopeError::Factors { expected: pairs, found: factors.len() });
            }
            for (f, &factor) in frequencies.iter_mut().zip(factors) {
                positive("frequency factor", factor.into())?;
                *f /= f64::from(factor);
            }
        }
        Ok(Rope { pairing, head_dim, rope_dim, base, scaling, frequencies, output_scale })
    }

    /// Which elements are turned together.
    pub fn pairing(&self) -> Pairing {
        self.pairing
    }

    /// How many elements of a head are turned, from its start.
    pub fn rope_dim(&self) -> usize {
        self.rope_dim
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Radians per position for each pair, scaling included.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// The factor on cosine and sine.
    pub fn output_scale(&self) -> f64 {
        self.output_scale
    }

    /// Cosine and sine of one position: `out` is `[rope_dim / 2]` pairs `(cos, sin)`, output scale included.
    pub fn phases(&self, position: u32, out: &mut [[f32; 2]]) {
        for (out, &frequency) in out.iter_mut().zip(&self.frequencies) {
            let (sin, cos) = (f64::from(position) * frequency).sin_cos();
            *out = [(cos * self.output_scale) as f32, (sin * self.output_scale) as f32];
        }
    }

    /// Turns one head in place: `x: [head_dim]`, `phases: [rope_dim / 2]`.
    pub fn apply(&self, x: &mut [f32], phases: &[[f32; 2]]) {
        let half = self.rope_dim / 2;
        for (i, &[cos, sin]) in phases[..half].iter().enumerate() {
            let (a, b) = match self.pairing {
                Pairing::Adjacent => (2 * i, 2 * i + 1),
                Pairing::Split => (i, i + half),
            };
            let (x0, x1) = (x[a], x[b]);
            x[a] = x0 * cos - x1 * sin;
            x[b] = x0 * sin + x1 * cos;
        }
    }
}

fn positive(name: &'static str, value: f64) -> Result<(), RopeError> {
    if value > 0.0 && value.is_finite() { Ok(()) } else { Err(RopeError::Parameter { name, value }) }
}

impl fmt::Display for Rope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rope { pairing, head_dim, rope_dim, base, scaling, .. } = self;
        write!(f, "{pairing:?} pairs, {rope_dim} of {head_dim}, base {base}, scaling {scaling:?}")
    }
}

/// The phases of a batch's rows: `[rows, rope_dim / 2]` of `(cos, sin)`, shared by all layers.
#[derive(Debug, Default)]
pub struct Phases {
    pairs: usize,
    values: Vec<[f32; 2]>,
}

impl Phases {
    /// Recomputes the phases for these positions, within the memory it has if that suffices.
    pub fn compute(&mut self, rope: &Rope, positions: &[u32]) {
        self.pairs = rope.rope_dim / 2;
        self.values.resize(positions.len() * self.pairs, [0.0; 2]);
        for (row, &position) in self.values.chunks_exact_mut(self.pairs).zip(positions) {
            rope.phases(position, row);
        }
    }

    /// The phases of a row.
    pub fn row(&self, row: usize) -> &[[f32; 2]] {
        &self.values[row * self.pairs..(row + 1) * self.pairs]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(pairing: Pairing) -> Rope {
        Rope::new(pairing, 8, 8, 10000.0, Scaling::None, None).unwrap()
    }

    fn turn(rope: &Rope, x: &[f32], position: u32) -> Vec<f32> {
        let mut phases = vec![[0.0; 2]; rope.rope_dim() / 2];
        rope.phases(position, &mut phases);
        let mut x = x.to_vec();
        rope.apply(&mut x, &phases);
        x
    }

    #[test]
    fn position_zero_changes_nothing_and_lengths_are_kept() {
        let x: Vec<f32> = (1..=8).map(|v| v as f32).collect();
        for pairing in [Pairing::Adjacent, Pairing::Split] {
            let rope = plain(pairing);
            assert_eq!(turn(&rope, &x, 0), x);
            let y = turn(&rope, &x, 12345);
            let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
            assert!((norm(&x) - norm(&y)).abs() < 1e-3);
        }
    }

    #[test]
    fn scores_depend_on_the_distance_alone() {
        let q: Vec<f32> = (0..8).map(|v| (v as f32).sin()).collect();
        let k: Vec<f32> = (0..8).map(|v| (v as f32 + 0.5).cos()).collect();
        let rope = plain(Pairing::Split);
        let score = |p: u32, s: u32| -> f32 {
            turn(&rope, &q, p).iter().zip(turn(&rope, &k, s)).map(|(a, b)| a * b).sum()
        };
        assert!((score(10, 3) - score(1_000_010, 1_000_003)).abs() < 1e-5);
    }

    #[test]
    fn pairings_are_a_permutation_of_each_other() {
        let x: Vec<f32> = (1..=8).map(|v| v as f32).collect();
        // Element i of the split layout is element 2i (first half) or 2(i − 4) + 1 of the adjacent one.
        let to_adjacent = |s: &[f32]| -> Vec<f32> { (0..8).map(|i| s[i / 2 + 4 * (i % 2)]).collect() };
        let split = turn(&plain(Pairing::Split), &x, 77);
        let adjacent = turn(&plain(Pairing::Adjacent), &to_adjacent(&x), 77);
        assert_eq!(to_adjacent(&split), adjacent);
    }

    #[test]
    fn elements_beyond_the_rope_dim_pass_through() {
        let rope = Rope::new(Pairing::Split, 8, 4, 10000.0, Scaling::None, None).unwrap();
        let x: Vec<f32> = (1..=8).map(|v| v as f32).collect();
        let y = turn(&rope, &x, 9);
        assert_eq!(y[4..], x[4..]);
        assert_ne!(y[..4], x[..4]);
    }

    #[test]
    fn llama3_bands_are_kept_ramped_or_stretched() {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let rope = Rope::new(Pairing::Split, 128, 128, 5e5, scaling, None).unwrap();
        let plain = Rope::new(Pairing::Split, 128, 128, 5e5, Scaling::None, None).unwrap();
        let ratio: Vec<f64> =
            plain.frequencies().iter().zip(rope.frequencies()).map(|(a, b)| a / b).collect();
        assert_eq!(ratio[0], 1.0);
        assert!((ratio[63] - 8.0).abs() < 1e-12);
        assert!(ratio.windows(2).all(|w| w[0] <= w[1] + 1e-12));
        assert!(ratio.iter().any(|r| (1.5..7.0).contains(r)), "a ramp lies between");
    }

    #[test]
    fn yarn_scales_the_result_and_keeps_short_waves() {
        let scaling = Scaling::Yarn {
            factor: 4.0,
            original: 32768.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: Scaling::yarn_attention_factor(4.0),
        };
        let rope = Rope::new(Pairing::Split, 128, 128, 1e6, scaling, None).unwrap();
        assert!((rope.output_scale() - 1.138_629_436).abs() < 1e-8);
        assert_eq!(rope.frequencies()[0], 1.0);
        assert!((rope.frequencies()[63] * 4.0 / 1e6f64.powf(-126.0 / 128.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn phases_are_right_at_a_million() {
        let rope = plain(Pairing::Split);
        let mut phases = [[0.0; 2]; 4];
        rope.phases(1_048_576, &mut phases);
        // cos and sin of 1048576 radians, to the digits a single has.
        assert!((f64::from(phases[0][0]) - 1048576f64.cos()).abs() < 1e-7);
        assert!((f64::from(phases[0][1]) - 1048576f64.sin()).abs() < 1e-7);
    }

    #[test]
    fn impossible_parameters_are_refused() {
        let rope = |dim, base, scaling, factors: Option<&[f32]>| {
            Rope::new(Pairing::Split, 8, dim, base, scaling, factors).unwrap_err().to_string()
        };
        let none = || Scaling::None;
        assert!(rope(7, 1e4, none(), None).contains("7 rotated elements in a head of 8"));
        assert!(rope(10, 1e4, none(), None).contains("10 rotated"));
        assert!(rope(8, 0.0, none(), None).contains("base is 0"));
        assert!(rope(8, f64::NAN, none(), None).contains("base is NaN"));
        assert!(rope(8, 1e4, Scaling::Linear { factor: -1.0 }, None).contains("factor is -1"));
        assert!(rope(8, 1e4, none(), Some(&[1.0; 3])).contains("3 rope frequency factors for 4 pairs"));
        assert!(rope(8, 1e4, none(), Some(&[1.0, 0.0, 1.0, 1.0])).contains("frequency factor is 0"));
    }
}
