//! The ops that encoders have besides those of decoders.

use gyrus_kernels::{Batch, Op};

use super::{Prepared, State};
use crate::layer_norm::{layer_norm, layer_norm_to};
use crate::matrix::Matrix;
use crate::storage::Disjoint;
use crate::{activation, thread_scratch};

impl Prepared {
    pub(super) fn run_encoder(&self, op: &Op, batch: &Batch<'_>, state: &mut State) {
        match op {
            Op::Features { out } => {
                let (buffer, _) = self.target(state, *out, batch);
                buffer.copy_from_slice(batch.inputs.features);
            }
            Op::AddPositions { table, offset, out } => {
                let (buffer, n) = self.target(state, *out, batch);
                let entry = |row: usize| (batch.positions[row] + offset) as usize;
                self.add_rows(self.matrix(*table), entry, buffer, n);
            }
            Op::AddTypes { table, out } => {
                let (buffer, n) = self.target(state, *out, batch);
                let entry = |row: usize| batch.inputs.types.get(row).map_or(0, |of| *of as usize);
                self.add_rows(self.matrix(*table), entry, buffer, n);
            }
            Op::Unfold { x, taps, out } => {
                let [channels, width] = [*x, *out].map(|id| self.plan.buffer(id).width);
                let [of_x, of_out] = [*x, *out].map(|id| self.plan.buffer(id).rows.of_each());
                self.between(state, *x, *out, batch, |x, out, _| {
                    for (first, count, _) in batch.runs() {
                        let x = &x[first * of_x * channels..][..count * of_x * channels];
                        let out = &mut out[first * of_out * width..][..count * of_out * width];
                        self.unfold(x, channels, of_x / of_out, usize::from(*taps), out);
                    }
                });
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                let weight = self.vector(*weight);
                let bias = bias.map_or(&[][..], |id| self.vector(id));
                if x == out {
                    let (buffer, _) = self.target(state, *out, batch);
                    layer_norm(&self.pool, buffer, weight, bias, *eps);
                } else {
                    self.between(state, *x, *out, batch, |x, out, _| {
                        layer_norm_to(&self.pool, x, weight, bias, *eps, out);
                    });
                }
            }
            Op::Activate { x, activation } => {
                activation::activate(&self.pool, *activation, self.target(state, *x, batch).0);
            }
            _ => {}
        }
    }

    /// `out[r] += table[entry(r)]` for rows of `n` elements.
    fn add_rows(&self, table: &Matrix, entry: impl Fn(usize) -> usize + Sync, out: &mut [f32], n: usize) {
        let (rows, elems) = (out.len() / n, out.len());
        let parts = Disjoint::new(out);
        self.pool.run_rows(rows, elems, |row| {
            // SAFETY: the buffer is borrowed above, and each task writes its own rows.
            let out = unsafe { parts.part(row * n..(row + 1) * n) };
            thread_scratch::with(n, |added| {
                table.row(entry(row), added);
                out.iter_mut().zip(added).for_each(|(out, added)| *out += *added);
            });
        });
    }

    /// [`gyrus_kernels::scalar::unfold`], by rows.
    fn unfold(&self, x: &[f32], channels: usize, stride: usize, taps: usize, out: &mut [f32]) {
        let (width, rows_of_x) = (channels * taps, x.len() / channels);
        let (rows, elems) = (out.len() / width, out.len());
        let parts = Disjoint::new(out);
        self.pool.run_rows(rows, elems, |row| {
            // SAFETY: the buffer is borrowed above, and each task writes its own rows.
            let out = unsafe { parts.part(row * width..(row + 1) * width) };
            for tap in 0..taps {
                let places = out.iter_mut().skip(tap).step_by(taps);
                match (row * stride + tap).checked_sub(taps / 2).filter(|row| *row < rows_of_x) {
                    Some(from) => places.zip(&x[from * channels..]).for_each(|(out, x)| *out = *x),
                    None => places.for_each(|out| *out = 0.0),
                }
            }
        });
    }
}
