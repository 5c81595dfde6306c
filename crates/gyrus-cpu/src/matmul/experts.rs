//! The matmul of experts: each slot of a row multiplies the matrix of its own expert.
//!
//! The rows of one expert are gathered into a batch, which the kernels of the plain matmul multiply. Tasks split experts
//! and their outputs, never a sum, so a slot's result depends on its row and its expert alone.

use super::{Input, Output, multiply, row_block};
use crate::matrix::{Body, Matrix};
use crate::panel::float_panels;
use crate::pool::Pool;
use crate::quantize_rows::{GROUP, quantize_row};
use crate::scratch::Scratch;
use crate::storage::Disjoint;
use crate::{simd, thread_scratch};

/// The slots of a batch sorted by expert. Slots of one expert are in their own order.
#[derive(Default)]
pub(crate) struct Sorted {
    /// For each expert the first of its places, and then the number of all.
    starts: Vec<u32>,
    /// For each place its slot.
    slots: Vec<u32>,
    /// For each slot its place.
    places: Vec<u32>,
    /// The experts that have a slot.
    active: Vec<u32>,
}

impl Sorted {
    /// Sorts the slots of `ids`, the experts of each, of which there are `experts`.
    ///
    /// # Panics
    /// If an id is not that of an expert.
    pub(crate) fn sort(&mut self, experts: usize, ids: impl Iterator<Item = usize> + Clone) {
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        self.places.clear();
        for id in ids.clone() {
            assert!(id < experts, "expert {id} of {experts}");
            // The place among those of its expert, until the first place is known.
            self.places.push(self.starts[id + 1]);
            self.starts[id + 1] += 1;
        }
        self.active.clear();
        self.active.extend((0..experts as u32).filter(|expert| self.starts[*expert as usize + 1] > 0));
        for expert in 0..experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        self.slots.clear();
        self.slots.resize(self.places.len(), 0);
        for (slot, id) in ids.enumerate() {
            self.places[slot] += self.starts[id];
            self.slots[self.places[slot] as usize] = slot as u32;
        }
    }

    /// The places of an expert.
    fn of(&self, expert: usize) -> std::ops::Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }
}

/// Multiplies each slot's input with the matrices of its expert. Row `i` of `x` (`[rows, k]`) is the input of as many slots
/// as there are for each row; `out` is `[slots, Σ n_i]`. Each of `weights` has a matrix for each expert, each of `biases`
/// is empty or has `n_i` elements for each expert.
///
/// # Panics
/// If a slice has the wrong length or an id is not that of an expert.
pub(crate) fn expert_matmul(
    pool: &Pool,
    weights: &[&[Matrix]],
    biases: &[&[f32]],
    x: &[f32],
    ids: impl Iterator<Item = usize> + Clone,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let first = weights.first().and_then(|all| all.first()).expect("a matmul needs at least one weight");
    let (k, experts) = (first.cols(), weights[0].len());
    let each = || weights.iter().map(|all| &all[0]);
    let n: usize = each().map(Matrix::rows).sum();
    let mut sorted = std::mem::take(&mut scratch.sorted);
    sorted.sort(experts, ids.clone());
    let (count, rows) = (sorted.slots.len(), x.len() / k);
    assert!(weights.iter().all(|all| all.len() == experts), "weights of {experts} experts");
    assert!(x.len().is_multiple_of(k) && (rows == 0 || count.is_multiple_of(rows)), "inputs of {k}");
    assert_eq!(out.len(), count * n, "output length for {count} slots of {n}");
    if count == 0 {
        scratch.sorted = sorted;
        return;
    }

    let (blocks, width) = (k.div_ceil(GROUP), k.next_multiple_of(simd::LANES));
    let (any_int8, any_f32) = (each().any(Matrix::takes_int8), each().any(|w| !w.takes_int8()));
    let raw = each().any(|w| matches!(w.body(), Body::Raw(_)));
    let tiled = each().any(|w| matches!(w.body(), Body::FloatPanels(_)));
    let when = |needed: bool, size: usize| if needed { size } else { 0 };
    let (quantized, floats, tiles) =
        scratch.take(when(any_int8, count * blocks), when(raw, count * width), when(tiled, count * k));
    let isa = pool.isa();
    if any_int8 {
        gather(pool, rows, &sorted, blocks, quantized, |row, out| {
            quantize_row(isa, &x[row * k..(row + 1) * k], out);
        });
    }
    if raw {
        gather(pool, rows, &sorted, width, floats, |row, out| {
            out[..k].copy_from_slice(&x[row * k..(row + 1) * k]);
            out[k..].fill(0.0);
        });
    }
    if tiled {
        interleave(pool, &sorted, x, k, tiles);
    }
    let input = Input { isa, blocks, width, quantized, floats, tiles };
    let output =
        Output { data: Disjoint::new(out), n, accumulate: false, bias: None, rows: Some(&sorted.slots) };

    let units: usize = each().map(|w| w.rows().div_ceil(w.unit())).sum();
    let row_block = row_block(&input, any_f32);
    // Few experts are split into more tasks.
    let chunks = (4 * pool.threads()).div_ceil(sorted.active.len());
    let chunk = units.div_ceil(chunks).min(128);
    let chunks = units.div_ceil(chunk);
    pool.run(sorted.active.len() * chunks, &|task| {
        let expert = sorted.active[task / chunks] as usize;
        let units = task % chunks * chunk..units.min(task % chunks * chunk + chunk);
        let places = sorted.of(expert);
        for first in places.clone().step_by(row_block) {
            let rows = first..places.end.min(first + row_block);
            let matrices = weights.iter().map(|all| &all[expert]);
            multiply(&input, matrices, units.clone(), rows, &output);
        }
    });
    scratch.sorted = sorted;
    add_biases(weights, biases, ids, out, n);
}

/// Adds each expert's biases to the slots that have it.
fn add_biases(
    weights: &[&[Matrix]],
    biases: &[&[f32]],
    ids: impl Iterator<Item = usize> + Clone,
    out: &mut [f32],
    n: usize,
) {
    if biases.is_empty() {
        return;
    }
    for (slot, expert) in out.chunks_exact_mut(n).zip(ids) {
        let mut rest = slot;
        for (all, bias) in weights.iter().zip(biases) {
            let (here, after) = rest.split_at_mut(all[expert].rows());
            let bias = &bias[expert * here.len()..][..here.len()];
            here.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
            rest = after;
        }
    }
}

/// Fills the place of each slot with its row of `width` elements. `fill` is called once for each row.
fn gather<T: Copy + Send>(
    pool: &Pool,
    rows: usize,
    sorted: &Sorted,
    width: usize,
    out: &mut [T],
    fill: impl Fn(usize, &mut [T]) + Sync,
) {
    let sharing = sorted.places.len() / rows;
    let elems = out.len();
    let all = Disjoint::new(out);
    pool.run_rows(rows, elems, |row| {
        let places = &sorted.places[row * sharing..(row + 1) * sharing];
        let at = |place: u32| place as usize * width..(place as usize + 1) * width;
        // SAFETY: the buffer is borrowed above. Each place belongs to one slot, and each slot to one row.
        let first = unsafe { all.part(at(places[0])) };
        fill(row, first);
        for place in &places[1..] {
            // SAFETY: as above.
            unsafe { all.part(at(*place)) }.copy_from_slice(first);
        }
    });
}

/// Interleaves the rows of each tile of an expert's places.
fn interleave(pool: &Pool, sorted: &Sorted, x: &[f32], k: usize, out: &mut [f32]) {
    let sharing = sorted.slots.len() / (x.len() / k);
    let all = Disjoint::new(out);
    pool.run(sorted.active.len(), &|task| {
        let places = sorted.of(sorted.active[task] as usize);
        thread_scratch::with(float_panels::TILE * k, |rows| {
            for first in places.clone().step_by(float_panels::TILE) {
                let count = float_panels::TILE.min(places.end - first);
                for (slot, row) in sorted.slots[first..first + count].iter().zip(rows.chunks_exact_mut(k)) {
                    row.copy_from_slice(&x[*slot as usize / sharing * k..][..k]);
                }
                // SAFETY: the buffer is borrowed above, and tiles are disjoint.
                let out = unsafe { all.part(first * k..(first + count) * k) };
                float_panels::interleave(&rows[..count * k], k, out);
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use gyrus_kernels::Precision;
    use gyrus_tensor::{DType, quantize};
    use gyrus_testkit::Rng;

    use super::*;
    use crate::{Bytes, Isa};

    const EXPERTS: usize = 5;

    fn matrices(pool: &Pool, rng: &mut Rng, dtype: DType, n: usize, k: usize, p: Precision) -> Vec<Matrix> {
        let one = |_| {
            let values: Vec<f32> = (0..n * k).map(|_| rng.gaussian() as f32).collect();
            let data = Bytes::from(quantize(dtype, &values).unwrap());
            Matrix::new(pool, dtype, n, k, data, p).unwrap()
        };
        (0..EXPERTS).map(one).collect()
    }

    /// Each slot has the bits that the plain matmul gives its row and its expert's matrices.
    #[test]
    fn slots_have_the_bits_of_the_plain_matmul() {
        let mut rng = Rng::new(33);
        let types =
            [DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::MXFP4, DType::F32, DType::BF16];
        for (dtype, precision) in
            types.into_iter().flat_map(|t| [(t, Precision::Fast), (t, Precision::Exact)])
        {
            for (n, k) in [(24, 256), (13, 512)] {
                for (rows, used, shared) in
                    [(1, 1, true), (1, 4, true), (1, 3, false), (40, 2, true), (37, 3, false)]
                {
                    let pool = Pool::new(1);
                    let weights = [0, 1].map(|_| matrices(&pool, &mut rng, dtype, n, k, precision));
                    let ids: Vec<usize> = (0..rows * used).map(|_| rng.below(EXPERTS)).collect();
                    let inputs = if shared { rows } else { rows * used };
                    let x: Vec<f32> = (0..inputs * k).map(|_| rng.gaussian() as f32).collect();
                    let biases: Vec<f32> = (0..EXPERTS * n).map(|_| rng.gaussian() as f32).collect();
                    let biases = if used == 3 { vec![&biases[..], &biases[..]] } else { Vec::new() };
                    let mut expected = vec![0.0; ids.len() * 2 * n];
                    for (slot, (out, id)) in expected.chunks_exact_mut(2 * n).zip(&ids).enumerate() {
                        let row = if shared { slot / used } else { slot };
                        let both = [&weights[0][*id], &weights[1][*id]];
                        let x = &x[row * k..(row + 1) * k];
                        crate::matmul(&pool, &both, x, out, false, &mut Scratch::new());
                        for (out, bias) in out.chunks_exact_mut(n).zip(&biases) {
                            out.iter_mut().zip(&bias[id * n..]).for_each(|(out, bias)| *out += bias);
                        }
                    }
                    for isa in Isa::supported() {
                        let pool = Pool::with_isa(3, isa);
                        let (mut out, mut scratch) = (vec![f32::NAN; expected.len()], Scratch::new());
                        let all = [&weights[0][..], &weights[1][..]];
                        for _ in 0..2 {
                            expert_matmul(
                                &pool,
                                &all,
                                &biases,
                                &x,
                                ids.iter().copied(),
                                &mut out,
                                &mut scratch,
                            );
                            assert!(
                                out == expected,
                                "{dtype} {precision:?} {rows} × {used}, {n} × {k}, {isa:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn slots_are_sorted_by_expert_in_their_own_order() {
        let mut sorted = Sorted::default();
        for _ in 0..2 {
            sorted.sort(4, [2, 0, 2, 3, 0].into_iter());
            assert_eq!(sorted.slots, [1, 4, 0, 2, 3]);
            assert_eq!(sorted.places, [2, 0, 3, 4, 1]);
            assert_eq!(sorted.active, [0, 2, 3]);
            assert_eq!((sorted.of(0), sorted.of(1), sorted.of(2)), (0..2, 2..2, 2..4));
        }
    }
}
