//! Where the attention scale may be folded.

use std::f64::consts::{LN_2, LOG2_E};

use super::bench::{Bench, OpShape, near, rounded};
use crate::Direction;
use crate::call::Storage;
use crate::grid::Runner;

/// A row of the folding table: what queries, keys and scores are multiplied by.
struct Fold {
    name: &'static str,
    query: f64,
    key: f64,
    scores: f64,
    /// Whether the softmax takes powers of two instead of e.
    log2: bool,
}

/// T14. The attention scale may be folded into queries, into queries and keys, or with the change of base of the
/// exponential into queries: outputs and all gradients are the same, if backward has the scales of forward.
pub fn folded_scales_give_one_attention(
    runner: &mut dyn Runner,
    seed: u64,
    count: usize,
) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let shape = OpShape { storage: Storage::F32, scale: 1.0, ..OpShape::draw(&mut bench.noise) };
        let alpha = 1.0 / f64::from(shape.head_dim).sqrt();
        let root = alpha.sqrt();
        let fold = |name, query, key, scores, log2| Fold { name, query, key, scores, log2 };
        let table = [
            fold("no fold", 1.0, 1.0, alpha, false),
            fold("queries", alpha, 1.0, 1.0, false),
            fold("both sides", root, root, 1.0, false),
            fold("queries, base 2", alpha * LOG2_E, 1.0, 1.0, true),
            fold("both sides, base 2", root * LOG2_E, root, 1.0, true),
        ];
        let mut tensor = || bench.numbers(Storage::F32, shape.len());
        let inputs = [tensor(), tensor(), tensor(), tensor()];
        let angles = shape.angles(f64::from(bench.noise.below(100_000)), 1e4);
        let expected = attend(&mut bench, &shape, &table[0], &inputs, &angles)?;
        for fold in &table[1..] {
            let found = attend(&mut bench, &shape, fold, &inputs, &angles)?;
            for (name, (found, expected)) in ["O", "dQ", "dK", "dV"].iter().zip(found.iter().zip(&expected)) {
                near(&format!("T14 {name} with {} {shape:?}", fold.name), found, expected, 1e-5)?;
            }
        }
    }
    Ok(())
}

/// Output and gradients of attention over rotated queries and keys: `[o, dq, dk, dv]` from `[q, k, v, do]`.
fn attend(
    bench: &mut Bench<'_>,
    shape: &OpShape,
    fold: &Fold,
    [q, k, v, d_out]: &[Vec<f64>; 4],
    angles: &[f32],
) -> Result<[Vec<f64>; 4], String> {
    let query = OpShape { scale: fold.query as f32, ..*shape };
    let key = OpShape { scale: fold.key as f32, ..*shape };
    let q = bench.op(&query, Direction::Forward, q, angles)?;
    let k = bench.op(&key, Direction::Forward, k, angles)?;
    let (rows, n) = (shape.positions as usize, shape.head_dim as usize);
    let mut results = [const { Vec::new() }; 4];
    for head in 0..(shape.batch * shape.heads) as usize {
        let of = |x: &[f64]| x[head * rows * n..(head + 1) * rows * n].to_vec();
        for (all, one) in results.iter_mut().zip(attend_head(fold, n, [of(&q), of(&k), of(v), of(d_out)])) {
            all.extend(one);
        }
    }
    let stored = |x: &[f64]| x.iter().map(|&v| rounded(Storage::F32, v)).collect::<Vec<f64>>();
    results[1] = bench.op(&query, Direction::Inverse, &stored(&results[1]), angles)?;
    results[2] = bench.op(&key, Direction::Inverse, &stored(&results[2]), angles)?;
    Ok(results)
}

/// The same for one rotated head; gradients are those of the rotated tensors.
fn attend_head(fold: &Fold, n: usize, [q, k, v, d_out]: [Vec<f64>; 4]) -> [Vec<f64>; 4] {
    let rows = q.len() / n;
    let dot = |a: &[f64], i: usize, b: &[f64], j: usize| -> f64 {
        a[i * n..(i + 1) * n].iter().zip(&b[j * n..(j + 1) * n]).map(|(a, b)| a * b).sum()
    };
    let add = |sum: &mut [f64], i: usize, factor: f64, x: &[f64], j: usize| {
        for (sum, x) in sum[i * n..(i + 1) * n].iter_mut().zip(&x[j * n..(j + 1) * n]) {
            *sum += factor * x;
        }
    };
    let [mut out, mut dq, mut dk, mut dv] = std::array::from_fn(|_| vec![0.0; q.len()]);
    for i in 0..rows {
        let scores: Vec<f64> = (0..rows).map(|j| fold.scores * dot(&q, i, &k, j)).collect();
        let most = scores.iter().fold(f64::MIN, |most, &s| most.max(s));
        let power = |s: f64| if fold.log2 { (s - most).exp2() } else { (s - most).exp() };
        let sum: f64 = scores.iter().map(|&s| power(s)).sum();
        let weights: Vec<f64> = scores.iter().map(|&s| power(s) / sum).collect();
        let d_weights: Vec<f64> = (0..rows).map(|j| dot(&d_out, i, &v, j)).collect();
        let mean: f64 = weights.iter().zip(&d_weights).map(|(p, d)| p * d).sum();
        for j in 0..rows {
            add(&mut out, i, weights[j], &v, j);
            add(&mut dv, j, weights[j], &d_out, i);
            // With powers of two, a score counts ln 2 times as much.
            let base = if fold.log2 { LN_2 } else { 1.0 };
            let d_score = base * weights[j] * (d_weights[j] - mean);
            add(&mut dq, i, fold.scores * d_score, &k, j);
            add(&mut dk, j, fold.scores * d_score, &q, i);
        }
    }
    [out, dq, dk, dv]
}
