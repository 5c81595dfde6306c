//! Elements that are not rotated pass through.

use super::bench::{Bench, Heads, OpShape, equal, pack, rounded, unit, unpack, within};
use crate::Direction;
use crate::call::{Freqs, RopeKernel, Storage};
use crate::grid::Runner;
use crate::params::RoPEParams;

/// T15. Elements outside the rotated ones are unchanged but for the output scale; the rotated ones are rotated as if
/// they were the whole head, at any offset; and a `rope_dim` of 0 means the whole head where the struct says so.
pub fn elements_outside_the_rope_pass(
    runner: &mut dyn Runner,
    seed: u64,
    count: usize,
) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let drawn = Heads::draw(&mut bench.noise);
        let rope_dim = 2 * (1 + bench.noise.below(drawn.head_dim / 2));
        let rest = drawn.head_dim - rope_dim;
        let offset = bench.noise.pick(&[0, rest, bench.noise.clone().below(rest + 1)]);
        let heads = Heads { rope_dim, offset, ..drawn };
        let x = bench.numbers(heads.storage, heads.len());
        let y = bench.rotate(&heads, &x)?;
        let (n, first, rotated) = (heads.head_dim as usize, heads.offset as usize, rope_dim as usize);
        let inside = |rows: &[f64]| {
            rows.chunks_exact(n).flat_map(|head| head[first..first + rotated].to_vec()).collect::<Vec<_>>()
        };
        let outside = |rows: &[f64]| {
            let rest = |head: &[f64]| [&head[..first], &head[first + rotated..]].concat();
            rows.chunks_exact(n).flat_map(rest).collect::<Vec<_>>()
        };
        equal(&format!("T15 outside {heads:?}"), &outside(&y), &outside(&x))?;
        let alone = Heads { head_dim: rope_dim, rope_dim, offset: 0, ..heads };
        let expected = bench.rotate(&alone, &inside(&x))?;
        bench.same(&format!("T15 inside {heads:?}"), heads.storage, &inside(&y), &expected)?;

        let whole = Heads { rope_dim: heads.head_dim, offset: 0, ..heads };
        let mut named = whole.call(Freqs::Turns, 0);
        if let RopeKernel::InPlace { params: RoPEParams { rope_dim, head_dim, .. }, .. } = &mut named.kernel {
            *rope_dim = *head_dim;
        }
        let by_size = bench.in_place(&named, vec![pack(heads.storage, &x), whole.table(1.0)], x.len())?;
        equal(&format!("T15 whole {whole:?}"), &by_size, &bench.rotate(&whole, &x)?)?;

        let op = OpShape::draw(&mut bench.noise);
        let x = bench.numbers(op.storage, op.len());
        let direction = bench.noise.pick(&[Direction::Forward, Direction::Inverse]);
        let y = bench.op(&op, direction, &x, &op.angles(1000.0, 1e4))?;
        let (n, pass) = (op.head_dim as usize, (op.head_dim - op.rope_dim) as usize);
        // 16-bit elements may be rounded twice, first to f32.
        let one = if op.storage == Storage::F32 || op.scale == 1.0 { 0.0 } else { unit(op.storage) };
        for (x, y) in x.chunks_exact(n).zip(y.chunks_exact(n)) {
            let expected: Vec<f64> =
                x[..pass].iter().map(|v| rounded(op.storage, v * f64::from(op.scale))).collect();
            within(&format!("T15 {op:?}"), &y[..pass], &expected, |i| one * expected[i].abs())?;
        }
    }
    Ok(())
}

/// T17. Gaps between rows stay unchanged, bit for bit.
pub fn gaps_between_rows_stay(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let dense = Heads::draw(&mut bench.noise);
        let heads = Heads { gap: 2 * (1 + bench.noise.below(20)), ..dense };
        let x = bench.numbers(heads.storage, heads.len());
        let per_word = 4 / heads.storage.bytes() as usize;
        let (row, gap) = (dense.stride() as usize / per_word, heads.gap as usize / per_word);
        let packed = pack(heads.storage, &x);
        let (mut words, mut gaps) = (Vec::new(), Vec::new());
        for row in packed.chunks_exact(row) {
            let gap = bench.noise.words(gap);
            words.extend(row);
            words.extend(&gap);
            gaps.push(gap);
        }
        let after = bench.run(&heads.call(Freqs::Turns, 0), vec![words, heads.table(1.0)])?;
        let rows: Vec<&[u32]> = after[0].chunks_exact(row + gap).collect();
        if let Some(i) = (0..rows.len()).find(|&i| rows[i][row..] != gaps[i]) {
            return Err(format!("T17: the gap behind row {i} was written ({heads:?})"));
        }
        let rotated: Vec<u32> = rows.iter().flat_map(|words| words[..row].to_vec()).collect();
        let rotated = unpack(heads.storage, &rotated, x.len());
        let expected = bench.rotate(&dense, &x)?;
        bench.same(&format!("T17 {heads:?}"), heads.storage, &rotated, &expected)?;
    }
    Ok(())
}
