//! Rotations form a group, keep lengths, and two layouts of pairs are one rotation.

use super::bench::{Bench, Heads, OpShape, equal, near, pack, rounded, unit, unpack, within};
use crate::Direction;
use crate::call::{Freqs, RopeCall, RopeKernel, Storage};
use crate::grid::Runner;
use crate::params::{RoPEBase, RoPEDims};
use crate::rope::Pairing;

/// T1. Position zero is the identity, exactly: the cosine is 1 and the sine 0. `rope_fwd` multiplies by its output
/// scale, which may round twice for 16-bit elements.
pub fn position_zero_is_the_identity(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let direction = bench.noise.pick(&[Direction::Forward, Direction::Inverse]);
        let heads = Heads { tokens: 1, position: 0, direction, ..Heads::draw(&mut bench.noise) };
        let x = bench.numbers(heads.storage, heads.len());
        let inline = heads.call(Freqs::Inline, 0);
        equal(&format!("T1 {heads:?}"), &bench.rotate(&heads, &x)?, &x)?;
        let y = bench.in_place(&inline, vec![pack(heads.storage, &x)], x.len())?;
        equal(&format!("T1 inline {heads:?}"), &y, &x)?;

        let op = OpShape::draw(&mut bench.noise);
        let x = bench.numbers(op.storage, op.len());
        let angles = vec![0.0; (op.positions * op.freqs_dim) as usize];
        let y = bench.op(&op, direction, &x, &angles)?;
        let expected: Vec<f64> = x.iter().map(|v| rounded(op.storage, v * f64::from(op.scale))).collect();
        let exact = op.scale == 1.0 || op.storage == Storage::F32;
        let one = if exact { 0.0 } else { unit(op.storage) };
        within(&format!("T1 {op:?}"), &y, &expected, |i| one * expected[i].abs())?;
    }
    Ok(())
}

/// T2. Rotation preserves the norm of a pair and of a head, up to the output scale.
pub fn lengths_are_kept(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let heads = Heads::draw(&mut bench.noise);
        let x = bench.numbers(heads.storage, heads.len());
        let y = bench.rotate(&heads, &x)?;
        let pairs: Vec<(usize, usize)> = heads.pairs().collect();
        lengths(&format!("T2 {heads:?}"), &x, &y, heads.head_dim, &pairs, 1.0, unit(heads.storage))?;

        let op = OpShape::draw(&mut bench.noise);
        let x = bench.numbers(op.storage, op.len());
        let first = f64::from(bench.noise.below(1_000_000));
        let y = bench.op(&op, Direction::Forward, &x, &op.angles(first, 1e4))?;
        let (first, half) = ((op.head_dim - op.rope_dim) as usize, op.rope_dim as usize / 2);
        let pairs: Vec<(usize, usize)> = (0..half).map(|i| (first + i, first + i + half)).collect();
        let scale = op.scale.into();
        lengths(&format!("T2 {op:?}"), &x, &y, op.head_dim, &pairs, scale, unit(op.storage))?;
    }
    Ok(())
}

fn lengths(
    what: &str,
    x: &[f64],
    y: &[f64],
    head_dim: u32,
    pairs: &[(usize, usize)],
    scale: f64,
    tolerance: f64,
) -> Result<(), String> {
    let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
    for (x, y) in x.chunks_exact(head_dim as usize).zip(y.chunks_exact(head_dim as usize)) {
        let of_pairs = |v: &[f64]| pairs.iter().map(|&(a, b)| v[a].hypot(v[b])).collect::<Vec<_>>();
        let expected: Vec<f64> = of_pairs(x).iter().map(|v| v * scale).collect();
        // Near zero the error is absolute: a step of the storage.
        within(what, &of_pairs(y), &expected, |i| tolerance * expected[i].max(2e-3 * scale))?;
        within(what, &[norm(y)], &[norm(x) * scale], |_| tolerance * norm(x) * scale)?;
    }
    Ok(())
}

/// T3. The product of a query at `m` and a key at `n` depends on `m − n` alone.
pub fn scores_depend_on_the_distance(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        // Four positions of a query and of a key, and the distance itself.
        let heads = Heads { tokens: 5, heads: 1, ..Heads::draw(&mut bench.noise) };
        let n = heads.head_dim as usize;
        let (q, k) = (bench.numbers(heads.storage, n), bench.numbers(heads.storage, n));
        let (key, distance) = (bench.noise.below(500_000), bench.noise.below(500_000));
        let keys = [key, key + 1, key + 17, key + 1000, 0];
        let queries = keys.map(|key| key + distance);
        let turned_q = bench.rotate_at(&heads, &q.repeat(5), &queries)?;
        let turned_k = bench.rotate_at(&heads, &k.repeat(5), &keys)?;
        let rows = turned_q.chunks_exact(n).zip(turned_k.chunks_exact(n));
        let scores: Vec<f64> = rows.map(|(q, k)| q.iter().zip(k).map(|(q, k)| q * k).sum()).collect();
        let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
        let allowed = 2.0 * unit(heads.storage) * norm(&q) * norm(&k);
        within(&format!("T3 {heads:?} at {queries:?}, {keys:?}"), &scores, &[scores[4]; 5], |_| allowed)?;
    }
    Ok(())
}

/// T4. A rotation by `a` and then by `b` is a rotation by `a + b`.
pub fn positions_add_up(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let heads = Heads { storage: Storage::F32, ..Heads::draw(&mut bench.noise) };
        let x = bench.numbers(heads.storage, heads.len());
        let mut draw = || (0..heads.tokens).map(|_| bench.noise.below(1 << 31)).collect::<Vec<u32>>();
        let (a, b) = (draw(), draw());
        let sum: Vec<u32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let once = bench.rotate_at(&heads, &x, &a)?;
        let twice = bench.rotate_at(&heads, &once, &b)?;
        let expected = bench.rotate_at(&heads, &x, &sum)?;
        near(&format!("T4 {heads:?} at {a:?} + {b:?}"), &twice, &expected, unit(heads.storage))?;
    }
    Ok(())
}

/// T5. Backward is the inverse of forward; `rope_fwd` and `rope_bwd` both apply the output scale, which gives `a²·x`.
pub fn backward_undoes_forward(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let heads = Heads::draw(&mut bench.noise);
        let x = bench.numbers(heads.storage, heads.len());
        let y = bench.rotate(&heads, &x)?;
        let back = bench.rotate(&Heads { direction: Direction::Inverse, ..heads }, &y)?;
        near(&format!("T5 {heads:?}"), &back, &x, twice(heads.storage))?;

        let of = bench.noise.pick(&['q', 'k']);
        let x_call = x_call(&heads, of);
        let x = bench.numbers(Storage::F32, heads.len());
        let mut words = vec![pack(Storage::F32, &x)];
        for direction in [Direction::Forward, Direction::Inverse] {
            words = bench.run(&RopeCall { direction, ..x_call }, words)?;
        }
        let back = unpack(Storage::F32, &words[0], x.len());
        near(&format!("T5 {x_call:?}"), &back, &x, twice(Storage::F32))?;

        let op = OpShape::draw(&mut bench.noise);
        let x = bench.numbers(op.storage, op.len());
        let angles = op.angles(f64::from(bench.noise.below(1_000_000)), 1e4);
        let y = bench.op(&op, Direction::Forward, &x, &angles)?;
        let back = bench.op(&op, Direction::Inverse, &y, &angles)?;
        let expected: Vec<f64> = x.iter().map(|v| v * f64::from(op.scale).powi(2)).collect();
        near(&format!("T5 {op:?}"), &back, &expected, twice(op.storage))?;
    }
    Ok(())
}

/// The error of two roundings to the storage.
fn twice(storage: Storage) -> f64 {
    if storage == Storage::F32 { unit(storage) } else { 2.0 * unit(storage) }
}

/// `rope_q` or `rope_k` over whole heads.
pub(super) fn x_call(heads: &Heads, of: char) -> RopeCall {
    let Heads { tokens, heads: n_heads, head_dim, position, base, .. } = *heads;
    RopeCall {
        kernel: RopeKernel::X {
            of,
            dims: RoPEDims { seq_len: tokens, n_heads, head_dim, pos_offset: position },
            base: RoPEBase { rope_base: base, ..Default::default() },
        },
        storage: Storage::F32,
        direction: Direction::Forward,
        freqs: Freqs::Inline,
        positions: 0,
    }
}

/// T7. The two pairings are one rotation of elements in another order; and `rope_q` and `rope_k` are the adjacent
/// one.
pub fn adjacent_and_split_are_permutations(
    runner: &mut dyn Runner,
    seed: u64,
    count: usize,
) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let adjacent = Heads { pairing: Pairing::Adjacent, ..Heads::draw(&mut bench.noise) };
        let split = Heads { pairing: Pairing::Split, ..adjacent };
        let x = bench.numbers(adjacent.storage, adjacent.len());
        let rotated = bench.rotate(&adjacent, &x)?;
        let rotated_split = bench.rotate(&split, &permuted(&split, &x))?;
        bench.same(&format!("T7 {split:?}"), split.storage, &rotated_split, &permuted(&split, &rotated))?;

        let whole = Heads { storage: Storage::F32, rope_dim: adjacent.head_dim, offset: 0, ..adjacent };
        let x = pack(Storage::F32, &bench.numbers(Storage::F32, whole.len()));
        let of = bench.noise.pick(&['q', 'k']);
        let by_name = bench.in_place(&x_call(&whole, of), vec![x.clone()], whole.len())?;
        let expected = bench.in_place(&whole.call(Freqs::Inline, 0), vec![x], whole.len())?;
        bench.same(&format!("T7 rope_{of} {whole:?}"), Storage::F32, &by_name, &expected)?;
    }
    Ok(())
}

/// Heads with adjacent pairs, in the order that split pairs have.
fn permuted(heads: &Heads, x: &[f64]) -> Vec<f64> {
    let half = heads.rope_dim as usize / 2;
    let mut y = x.to_vec();
    for (x, y) in x.chunks_exact(heads.head_dim as usize).zip(y.chunks_exact_mut(heads.head_dim as usize)) {
        let (x, y) = (&x[heads.offset as usize..], &mut y[heads.offset as usize..]);
        for i in 0..half {
            (y[i], y[i + half]) = (x[2 * i], x[2 * i + 1]);
        }
    }
    y
}
