//! Random ropes and vectors.

#![allow(dead_code, reason = "each test program uses its part")]

use gyrus_kernels::{LongRope, Magnitude, Pairing, Rope, RopeSpec, Scaling, Sections, Yarn};
use gyrus_testkit::Rng;

/// Any rope that can be, of all kinds.
pub(crate) fn random_rope(rng: &mut Rng) -> Rope {
    let pairs = 2 + rng.below(63);
    let rope_dim = 2 * pairs;
    let offset = if rng.below(2) == 0 { 0 } else { rng.below(20) };
    let after = if rng.below(2) == 0 { 0 } else { rng.below(20) };
    let head_dim = (rope_dim + offset + after).next_multiple_of(2);
    let pairing = *rng.pick(&[Pairing::Adjacent, Pairing::Split]);
    let base = *rng.pick(&[10.0, 10000.0, 500_000.0, 1e6, 5e6]);
    let sections = (rng.below(4) == 0).then(|| {
        let first = rng.below(pairs);
        let second = rng.below(pairs - first);
        Sections { sizes: vec![first, second, pairs - first - second], interleaved: false }
    });
    let scaling = random_scaling(rng, pairs);
    let factors = (rng.below(4) == 0).then(|| (0..pairs).map(|_| 1.0 + 7.0 * rng.uniform() as f32).collect());
    let output_scale = *rng.pick(&[1.0, 1.0, 0.125, 1.5]);
    let whole = RopeSpec::new(pairing, head_dim, base);
    Rope::new(RopeSpec { rope_dim, offset, scaling, factors, sections, output_scale, ..whole }).unwrap()
}

fn random_scaling(rng: &mut Rng, pairs: usize) -> Scaling {
    let factor = *rng.pick(&[1.0, 2.0, 8.0, 40.0]);
    let original = *rng.pick(&[128.0, 4096.0, 32768.0]);
    match rng.below(8) {
        0 => Scaling::None,
        1 => Scaling::Linear { factor },
        2 => Scaling::Ntk { factor },
        3 => Scaling::DynamicNtk { factor, original },
        4 => {
            let magnitude = *rng.pick(&[
                Magnitude::Rule,
                Magnitude::Given(0.9),
                Magnitude::Quotient { mscale: 1.0, all_dim: 0.5 },
            ]);
            Scaling::Yarn(Yarn { truncate: rng.below(2) == 0, magnitude, ..Yarn::new(factor, original) })
        }
        5 => {
            let mut factors = || (0..pairs).map(|_| 1.0 + 30.0 * rng.uniform()).collect();
            let (short, long) = (factors(), factors());
            Scaling::LongRope(LongRope { short, long, original, attention_factors: [1.1, 1.2] })
        }
        6 => Scaling::Llama3 { factor, low: 1.0, high: 4.0, original },
        _ => Scaling::Proportional { rotated: rng.below(pairs + 1), factor },
    }
}

/// A vector of standard normal numbers.
pub(crate) fn random_head(rng: &mut Rng, dim: usize) -> Vec<f32> {
    (0..dim).map(|_| rng.gaussian() as f32).collect()
}

/// A head at a position, in a sequence within the original context.
pub(crate) fn rotated(rope: &Rope, x: &[f32], position: u32) -> Vec<f32> {
    rotated_at(rope, x, &vec![position; rope.position_rows()], 0)
}

/// A head at a position for each row, in a sequence that may reach a length.
pub(crate) fn rotated_at(rope: &Rope, x: &[f32], positions: &[u32], length: usize) -> Vec<f32> {
    let mut phases = vec![[0.0; 2]; rope.pairs()];
    rope.phases_in(&rope.spectrum(length), positions, &mut phases);
    let mut x = x.to_vec();
    rope.apply(&mut x, &phases);
    x
}

/// A score.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// The largest difference of two vectors.
pub(crate) use gyrus_testkit::distance as apart;
