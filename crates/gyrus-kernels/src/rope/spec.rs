use super::scaling::Scaling;
use super::sections::Sections;

/// Which elements of a head form a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// `(0, 1), (2, 3), …`: Meta's layout, and GGUF's for Llama.
    Adjacent,
    /// `(0, n/2), (1, n/2 + 1), …`: GPT-NeoX's layout, and Hugging Face's for nearly everything.
    Split,
}

/// The direction of rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// By the angle.
    Forward,
    /// By the negative angle, with the same scales. It is the transpose of the forward op, hence its gradient; if all
    /// scales are 1, it is the inverse.
    Inverse,
}

impl Direction {
    /// The sign of the sine.
    pub fn sign(self) -> f64 {
        if self == Direction::Forward { 1.0 } else { -1.0 }
    }
}

/// The parameters of a rotary embedding, which [`crate::Rope::new`] checks.
///
/// ```
/// use gyrus_kernels::{Pairing, Rope, RopeSpec, Scaling};
///
/// let linear = Scaling::Linear { factor: 8.0 };
/// let rope = Rope::new(RopeSpec { scaling: linear, ..RopeSpec::new(Pairing::Split, 256, 1e6) })?;
/// assert_eq!(rope.frequencies()[0], 0.125);
/// # Ok::<(), gyrus_kernels::RopeError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Which elements form a pair.
    pub pairing: Pairing,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements that are rotated: an even number.
    pub rope_dim: usize,
    /// The first that is rotated: 0 as in GPT-NeoX and Phi, or `head_dim - rope_dim` as in DeepSeek.
    pub offset: usize,
    /// Pair `i` rotates by `base^(-2i / rope_dim)` per position, before scaling.
    pub base: f64,
    /// How frequencies are changed for long contexts.
    pub scaling: Scaling,
    /// Factors from a file, one per pair, which divide the frequencies in addition to scaling.
    pub factors: Option<Vec<f32>>,
    /// M-RoPE: which pairs read which row of positions.
    pub sections: Option<Sections>,
    /// A factor on the whole output, also on elements that are not rotated.
    pub output_scale: f64,
    /// The direction.
    pub direction: Direction,
}

impl RopeSpec {
    /// Whole heads, unscaled, forward.
    pub fn new(pairing: Pairing, head_dim: usize, base: f64) -> RopeSpec {
        RopeSpec {
            pairing,
            head_dim,
            rope_dim: head_dim,
            offset: 0,
            base,
            scaling: Scaling::None,
            factors: None,
            sections: None,
            output_scale: 1.0,
            direction: Direction::Forward,
        }
    }
}
