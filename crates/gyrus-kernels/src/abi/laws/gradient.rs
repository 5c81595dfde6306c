//! The backward kernels are gradients.

use super::algebra::x_call;
use super::bench::{Bench, Heads, OpShape, gradient_tolerance, near, pack, rounded, within};
use crate::Direction;
use crate::call::{RopeCall, Storage};
use crate::grid::Runner;

/// T6. `⟨dy, forward(x)⟩ = ⟨backward(dy), x⟩`, and backward equals the finite differences of forward.
///
/// The op is linear, so that a difference is exact for any step, and heads are independent, so that one pair of runs
/// gives a difference for each head.
pub fn backward_is_the_adjoint(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let heads = Heads::draw(&mut bench.noise);
        adjoint(
            &mut bench,
            &format!("T6 {heads:?}"),
            heads.storage,
            heads.len(),
            heads.head_dim,
            |bench, d, x| bench.rotate(&Heads { direction: d, ..heads }, x),
        )?;

        let call = x_call(&heads, bench.noise.pick(&['q', 'k']));
        adjoint(
            &mut bench,
            &format!("T6 {call:?}"),
            Storage::F32,
            heads.len(),
            heads.head_dim,
            |bench, d, x| {
                bench.in_place(&RopeCall { direction: d, ..call }, vec![pack(Storage::F32, x)], x.len())
            },
        )?;

        let op = OpShape::draw(&mut bench.noise);
        let angles = op.angles(f64::from(bench.noise.below(1_000_000)), 1e4);
        adjoint(&mut bench, &format!("T6 {op:?}"), op.storage, op.len(), op.head_dim, |bench, d, x| {
            bench.op(&op, d, x, &angles)
        })?;
    }
    Ok(())
}

fn adjoint(
    bench: &mut Bench<'_>,
    what: &str,
    storage: Storage,
    len: usize,
    head_dim: u32,
    rotate: impl Fn(&mut Bench<'_>, Direction, &[f64]) -> Result<Vec<f64>, String>,
) -> Result<(), String> {
    let tolerance = gradient_tolerance(storage);
    let (x, dy) = (bench.numbers(storage, len), bench.numbers(storage, len));
    let y = rotate(bench, Direction::Forward, &x)?;
    let dx = rotate(bench, Direction::Inverse, &dy)?;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let norm = |a: &[f64]| dot(a, a).sqrt();
    // By the length of what is multiplied: the products themselves may cancel.
    let allowed = tolerance * norm(&dy) * norm(&y);
    let products = format!("{what}: ⟨dy, forward(x)⟩ and ⟨backward(dy), x⟩");
    within(&products, &[dot(&dy, &y)], &[dot(&dx, &x)], |_| allowed)?;

    let n = head_dim as usize;
    let (mut differences, mut gradients) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        // Another element of each head.
        let at: Vec<usize> =
            (0..len / n).map(|head| head * n + bench.noise.below(head_dim) as usize).collect();
        let (mut more, mut less) = (x.clone(), x.clone());
        for &at in &at {
            more[at] = rounded(storage, x[at] + 1.0);
            less[at] = rounded(storage, x[at] - 1.0);
        }
        let above = rotate(bench, Direction::Forward, &more)?;
        let below = rotate(bench, Direction::Forward, &less)?;
        for (head, &at) in at.iter().enumerate() {
            let head = head * n..(head + 1) * n;
            let loss = |y: &[f64]| dot(&dy[head.clone()], &y[head.clone()]);
            // Elements that did not change have the same bits in both, and cancel.
            differences.push((loss(&above) - loss(&below)) / (more[at] - less[at]));
            gradients.push(dx[at]);
        }
    }
    near(&format!("{what}, by differences"), &gradients, &differences, tolerance)
}
