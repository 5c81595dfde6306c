use gyrus_tensor::dequantize;

use super::{KvCache, Query, attention, gate, matmul, rms_norm};
use crate::backend::{Backend, BackendError};
use crate::batch::Batch;
use crate::op::{BufferId, Op, WeightId};
use crate::plan::{Plan, Rows};
use crate::rope::Phases;

/// Runs a plan with the scalar twins: slow and simple.
///
/// It computes in `f32` with `f64` sums whatever the plan's precision, so it is the reference for both.
#[derive(Debug)]
pub struct Reference {
    plan: Plan,
    weights: Vec<Vec<f32>>,
    cache: KvCache,
    blocks: usize,
    logits: Vec<f32>,
}

impl Backend for Reference {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn kv_blocks(&self) -> usize {
        self.blocks
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        if !batch.is_sound(self.plan.vocab, self.blocks) {
            return Err(BackendError::UnsoundBatch);
        }
        self.logits = self.compute(batch);
        Ok(&self.logits)
    }
}

impl Reference {
    /// Dequantises all weights; `bytes` gives each one's data.
    ///
    /// # Panics
    /// If the bytes do not fit the plan's weights: it is for tests.
    pub fn new<'a>(plan: Plan, blocks: usize, bytes: impl Fn(WeightId) -> &'a [u8]) -> Reference {
        let load = |(i, spec): (usize, &crate::plan::WeightSpec)| {
            let mut values = vec![0.0; spec.shape.elems()];
            dequantize(spec.dtype, bytes(WeightId(i as u32)), &mut values).expect("bytes fit the weight");
            values
        };
        let weights = plan.weights.iter().enumerate().map(load).collect();
        Reference { cache: KvCache::new(plan.kv, blocks), plan, weights, blocks, logits: Vec::new() }
    }

    fn compute(&mut self, batch: &Batch<'_>) -> Vec<f32> {
        let rows = |r: Rows| match r {
            Rows::Batch => batch.rows(),
            Rows::Logits => batch.logits.len(),
        };
        let mut buffers: Vec<Vec<f32>> =
            self.plan.buffers.iter().map(|b| vec![0.0; rows(b.rows) * b.width]).collect();
        let mut phases: Vec<Phases> = Vec::new();
        for rope in &self.plan.ropes {
            let mut of_rope = Phases::default();
            of_rope.compute(rope, batch);
            phases.push(of_rope);
        }
        for op in &self.plan.forward {
            run(&self.plan, &self.weights, &mut self.cache, &phases, batch, op, &mut buffers);
        }
        buffers.swap_remove(self.plan.logits.0 as usize)
    }
}

fn run(
    plan: &Plan,
    weights: &[Vec<f32>],
    cache: &mut KvCache,
    phases: &[Phases],
    batch: &Batch<'_>,
    op: &Op,
    buffers: &mut [Vec<f32>],
) {
    let width = |id: &BufferId| plan.buffer(*id).width;
    let weight = |id: &WeightId| weights[id.0 as usize].as_slice();
    let at = |id: &BufferId| id.0 as usize;
    match op {
        Op::Embed { table, scale, out } => {
            let n = width(out);
            for (row, &token) in batch.tokens.iter().enumerate() {
                let source = &weight(table)[token as usize * n..(token as usize + 1) * n];
                let target = &mut buffers[at(out)][row * n..(row + 1) * n];
                target.iter_mut().zip(source).for_each(|(t, s)| *t = s * scale);
            }
        }
        Op::RmsNorm { x, weight: w, eps, out } => {
            let input = buffers[at(x)].clone();
            let n = width(x);
            for (x, out) in input.chunks_exact(n).zip(buffers[at(out)].chunks_exact_mut(n)) {
                rms_norm(x, weight(w), *eps, out);
            }
        }
        Op::MatMul { x, weights: several, accumulate, out } => {
            let input = buffers[at(x)].clone();
            let (k, n) = (width(x), width(out));
            for (x, out) in input.chunks_exact(k).zip(buffers[at(out)].chunks_exact_mut(n)) {
                let mut done = 0;
                for w in several {
                    let rows = plan.weight(*w).shape.rows();
                    matmul(weight(w), x, *accumulate, &mut out[done..done + rows]);
                    done += rows;
                }
            }
        }
        Op::RopeWrite { qkv, layer, head_norm, rope } => {
            let (kv, n) = (plan.kv, width(qkv));
            let dim = kv.head_dim;
            for row in 0..batch.rows() {
                let qkv = &mut buffers[at(qkv)][row * n..(row + 1) * n];
                let (qk, v) = qkv.split_at_mut(kv.q_width() + kv.row());
                for (i, head) in qk.chunks_exact_mut(dim).enumerate() {
                    if let Some((q_norm, k_norm, eps)) = head_norm {
                        let norm = if i < kv.heads { q_norm } else { k_norm };
                        let input: Vec<f32> = head.to_vec();
                        rms_norm(&input, weight(norm), *eps, head);
                    }
                    plan.ropes[rope.0 as usize].apply(head, phases[rope.0 as usize].row(row));
                }
                let position = batch.positions[row] as usize;
                cache.write(*layer as usize, batch.table(row), position, &qk[kv.q_width()..], v);
            }
        }
        Op::Attention { qkv, layer, scale, window, out } => {
            let (q_width, n) = (plan.kv.q_width(), width(qkv));
            for row in 0..batch.rows() {
                let q = buffers[at(qkv)][row * n..row * n + q_width].to_vec();
                let out = &mut buffers[at(out)][row * q_width..(row + 1) * q_width];
                let position = batch.positions[row] as usize;
                let query =
                    Query { q: &q, table: batch.table(row), position, scale: *scale, window: *window };
                attention(cache, *layer as usize, query, out);
            }
        }
        Op::Gate { x, activation, out } => {
            let input = buffers[at(x)].clone();
            let (wide, n) = (width(x), width(out));
            for (x, out) in input.chunks_exact(wide).zip(buffers[at(out)].chunks_exact_mut(n)) {
                gate(*activation, x, out);
            }
        }
        Op::Gather { x, out } => {
            let input = buffers[at(x)].clone();
            let n = width(x);
            for (&row, out) in batch.logits.iter().zip(buffers[at(out)].chunks_exact_mut(n)) {
                out.copy_from_slice(&input[row as usize * n..(row as usize + 1) * n]);
            }
        }
        Op::Select { .. } => {}
    }
}
