mod error;
mod phases;
mod scaling;
mod sections;
mod spec;
mod spectrum;

use std::borrow::Cow;
use std::fmt;
use std::ops::{Add, Mul, Sub};

pub use error::RopeError;
pub use phases::Phases;
pub use scaling::{LongRope, Magnitude, Scaling, Yarn};
pub use sections::Sections;
pub use spec::{Direction, Pairing, RopeSpec};
pub use spectrum::Spectrum;

/// No sensible base or factor exceeds it, and the rounding of a frequency modulo one turn stays small.
const MOST_RADIANS: f64 = 1e6;

/// The largest head: tables are allocated of that size.
const MOST_ELEMENTS: usize = 1 << 20;

/// Rotary position embedding: pair `i` of a head at position `p` is rotated by `p · frequency(i)`.
///
/// The engine's only implementation; models give a [`RopeSpec`]. Phases are computed from turns in 64-bit fixed point,
/// on a CPU here and on a GPU by `wgsl/lib/turns.wgsl`: positions reach a million, where f32 angles have lost their
/// precision.
///
/// Three factors must not be confused. The *attention factor* of YaRN and LongRoPE multiplies cosine and sine, so only
/// the rotated elements. The *output scale* of the op multiplies all of a head, rotated or not. The scale of attention
/// scores is not part of a rope.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    spec: RopeSpec,
    /// For sequences within the original context; for most kinds of scaling that is all.
    short: Spectrum,
    /// LongRoPE: for sequences beyond it.
    long: Option<Spectrum>,
    /// The row of positions of each pair.
    rows: Vec<u8>,
}

impl Rope {
    /// Checks the parameters and computes the frequencies.
    pub fn new(spec: RopeSpec) -> Result<Rope, RopeError> {
        let RopeSpec { head_dim, rope_dim, offset, base, .. } = spec;
        let dim = |reason| RopeError::Dim { rope_dim, offset, head_dim, reason };
        if head_dim > MOST_ELEMENTS {
            return Err(dim("no head is that large"));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) || !rope_dim.is_multiple_of(2) {
            return Err(dim("even numbers are needed, since elements are rotated in pairs"));
        }
        if rope_dim.checked_add(offset).is_none_or(|end| end > head_dim) {
            return Err(dim("they reach beyond it"));
        }
        RopeError::positive("base", base)?;
        RopeError::positive("output scale", spec.output_scale)?;
        spec.scaling.check(base, rope_dim)?;
        let pairs = rope_dim / 2;
        if let Some(factors) = &spec.factors {
            let factors: Vec<f64> = factors.iter().map(|&f| f.into()).collect();
            scaling::check_factors("frequency factors", &factors, pairs)?;
        }
        let rows = match &spec.sections {
            Some(sections) => sections.rows(pairs)?,
            None => vec![0; pairs],
        };
        let short = compute(&spec, 0);
        let long = match &spec.scaling {
            Scaling::LongRope(_) => Some(compute(&spec, usize::MAX)),
            _ => None,
        };
        for spectrum in [Some(&short), long.as_ref()].into_iter().flatten() {
            let (pairs, most) = (spectrum.frequencies().iter().enumerate(), MOST_RADIANS);
            if let Some((pair, &value)) = pairs.into_iter().find(|(_, f)| !(0.0..=most).contains(*f)) {
                return Err(RopeError::Frequency { pair, value });
            }
        }
        Ok(Rope { spec, short, long, rows })
    }

    /// Its parameters.
    pub fn spec(&self) -> &RopeSpec {
        &self.spec
    }

    /// Which elements form a pair.
    pub fn pairing(&self) -> Pairing {
        self.spec.pairing
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.spec.head_dim
    }

    /// Elements of a head that are rotated.
    pub fn rope_dim(&self) -> usize {
        self.spec.rope_dim
    }

    /// The first element of a head that is rotated.
    pub fn offset(&self) -> usize {
        self.spec.offset
    }

    /// Rotated pairs.
    pub fn pairs(&self) -> usize {
        self.spec.rope_dim / 2
    }

    /// The factor on the whole output, rotated or not.
    pub fn output_scale(&self) -> f64 {
        self.spec.output_scale
    }

    /// The direction of rotation.
    pub fn direction(&self) -> Direction {
        self.spec.direction
    }

    /// Which row of positions each pair reads: zeros without M-RoPE.
    pub fn rows(&self) -> &[u8] {
        &self.rows
    }

    /// How many rows of positions there are: one without M-RoPE.
    pub fn position_rows(&self) -> usize {
        self.spec.sections.as_ref().map_or(1, |s| s.sizes.len())
    }

    /// Radians per position for each pair, scaling included, in sequences within the original context.
    pub fn frequencies(&self) -> &[f64] {
        self.short.frequencies()
    }

    /// [`Spectrum::turns`] in sequences within the original context.
    pub fn turns(&self) -> &[u64] {
        self.short.turns()
    }

    /// The factor on cosine and sine in sequences within the original context.
    pub fn attention_factor(&self) -> f64 {
        self.short.attention_factor()
    }

    /// The frequencies for a sequence that may reach this length.
    ///
    /// Those of LongRoPE and dynamic NTK depend on it. A sequence's length must be fixed before its first key is
    /// written: keys and queries must be rotated with the same frequencies.
    pub fn spectrum(&self, length: usize) -> Cow<'_, Spectrum> {
        match (self.spec.scaling.class(length), &self.long) {
            (0, _) => Cow::Borrowed(&self.short),
            (_, Some(long)) => Cow::Borrowed(long),
            (class, None) => Cow::Owned(compute(&self.spec, class)),
        }
    }

    /// The shortest length whose spectrum is that of `length`. Two lengths of one class can share keys.
    pub fn length_class(&self, length: usize) -> usize {
        self.spec.scaling.class(length)
    }

    /// Frequencies as they would be without scaling and without a file's factors.
    pub fn unscaled(&self) -> Vec<f64> {
        scaling::plain(self.spec.base, self.spec.rope_dim)
    }

    /// The rope that rotates backward with the same scales: the gradient of this one.
    pub fn inverse(&self) -> Rope {
        let mut inverse = self.clone();
        inverse.spec.direction = match self.spec.direction {
            Direction::Forward => Direction::Inverse,
            Direction::Inverse => Direction::Forward,
        };
        inverse
    }

    /// The same rope with all factors 1. It moves a key that has already been rotated by a number of positions: this
    /// rope's own factors would be applied twice.
    pub fn unit(&self) -> Rope {
        let mut unit = self.clone();
        unit.spec.output_scale = 1.0;
        match &mut unit.spec.scaling {
            Scaling::Yarn(yarn) => yarn.magnitude = Magnitude::Given(1.0),
            Scaling::LongRope(long) => long.attention_factors = [1.0; 2],
            _ => {}
        }
        unit.short = compute(&unit.spec, 0);
        unit.long = unit.long.map(|_| compute(&unit.spec, usize::MAX));
        unit
    }

    /// Cosine and sine of one position, all factors and the direction included: `out` is `[rope_dim / 2]`
    /// pairs. It is for sequences within the original context, and text: all rows of positions are equal.
    pub fn phases(&self, position: u32, out: &mut [[f32; 2]]) {
        self.fill_phases(&self.short, |_| position, out);
    }

    /// As [`Rope::phases`], with a spectrum of this rope and a position for each row.
    ///
    /// # Panics
    /// If there are fewer positions than [`Rope::position_rows`].
    pub fn phases_in(&self, spectrum: &Spectrum, positions: &[u32], out: &mut [[f32; 2]]) {
        self.fill_phases(spectrum, |row| positions[row], out);
    }

    fn fill_phases(&self, spectrum: &Spectrum, position: impl Fn(usize) -> u32, out: &mut [[f32; 2]]) {
        let scale = spectrum.attention_factor() * self.spec.output_scale;
        let sign = match self.spec.direction {
            Direction::Forward => scale,
            Direction::Inverse => -scale,
        };
        for ((out, &turns), &row) in out.iter_mut().zip(spectrum.turns()).zip(&self.rows) {
            let phase = turns.wrapping_mul(u64::from(position(usize::from(row))));
            let (sin, cos) = spectrum::angle_of(phase).sin_cos();
            *out = [(cos * scale) as f32, (sin * sign) as f32];
        }
    }

    /// The two elements of a head that form pair `i`.
    pub fn elements(&self, pair: usize) -> (usize, usize) {
        let offset = self.spec.offset;
        match self.spec.pairing {
            Pairing::Adjacent => (offset + 2 * pair, offset + 2 * pair + 1),
            Pairing::Split => (offset + pair, offset + pair + self.pairs()),
        }
    }

    /// Rotates one head in place: `x: [head_dim]`, `phases: [rope_dim / 2]`.
    ///
    /// # Panics
    /// If the slices are shorter.
    pub fn apply(&self, x: &mut [f32], phases: &[[f32; 2]]) {
        let RopeSpec { head_dim, rope_dim, offset, output_scale, .. } = self.spec;
        let phases = &phases[..rope_dim / 2];
        let (before, rest) = x[..head_dim].split_at_mut(offset);
        let (rotated, after) = rest.split_at_mut(rope_dim);
        if output_scale != 1.0 {
            let scale = output_scale as f32;
            before.iter_mut().chain(after).for_each(|x| *x *= scale);
        }
        match self.spec.pairing {
            Pairing::Adjacent => {
                for (pair, &phase) in rotated.as_chunks_mut().0.iter_mut().zip(phases) {
                    *pair = rotate_pair(*pair, phase);
                }
            }
            Pairing::Split => {
                let (first, second) = rotated.split_at_mut(rope_dim / 2);
                for ((a, b), &phase) in first.iter_mut().zip(second).zip(phases) {
                    [*a, *b] = rotate_pair([*a, *b], phase);
                }
            }
        }
    }
}

/// Rotates a pair by an angle of which `phase` has the cosine and the sine: the one definition, in f32 for heads and in
/// f64 for twins.
#[inline(always)]
pub fn rotate_pair<T>([x, y]: [T; 2], [cos, sin]: [T; 2]) -> [T; 2]
where
    T: Copy + Add<Output = T> + Sub<Output = T> + Mul<Output = T>,
{
    [x * cos - y * sin, x * sin + y * cos]
}

/// The frequencies for sequences of that length; the parameters have been checked.
fn compute(spec: &RopeSpec, length: usize) -> Spectrum {
    let mut frequencies = spec.scaling.frequencies(spec.base, spec.rope_dim, length);
    for (frequency, &factor) in frequencies.iter_mut().zip(spec.factors.iter().flatten()) {
        *frequency /= f64::from(factor);
    }
    Spectrum::new(frequencies, spec.scaling.attention_factor(length))
}

impl fmt::Display for Rope {
    /// One line; defaults are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RopeSpec { pairing, head_dim, rope_dim, offset, base, scaling, .. } = &self.spec;
        write!(f, "{pairing:?} pairs, {rope_dim} of {head_dim}")?;
        if *offset > 0 {
            write!(f, " from {offset} on")?;
        }
        write!(f, ", base {base}, scaling {scaling:?}")?;
        if self.spec.factors.is_some() {
            write!(f, ", factors from the file")?;
        }
        if let Some(Sections { sizes, interleaved }) = &self.spec.sections {
            write!(f, ", sections {sizes:?}{}", if *interleaved { " interleaved" } else { "" })?;
        }
        if self.spec.output_scale != 1.0 {
            write!(f, ", output × {}", self.spec.output_scale)?;
        }
        match self.spec.direction {
            Direction::Forward => Ok(()),
            Direction::Inverse => write!(f, ", inverse"),
        }
    }
}

#[cfg(test)]
mod tests;
