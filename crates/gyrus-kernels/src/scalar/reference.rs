use gyrus_tensor::{TensorError, dequantize};

use super::{KvCache, Query, attention, gate, matmul, rms_norm};
use crate::backend::{Backend, BackendError};
use crate::batch::Batch;
use crate::observe::{HostState, Observer, show};
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
        self.compute(batch, None)?;
        Ok(&self.logits)
    }

    fn observe(&mut self, batch: &Batch<'_>, observer: &mut Observer<'_>) -> Result<(), BackendError> {
        self.compute(batch, Some(observer))
    }
}

impl Reference {
    /// Dequantises all weights; `bytes` gives each one's data. The error names the weight that could not be.
    pub fn new<'a>(
        plan: Plan,
        blocks: usize,
        bytes: impl Fn(WeightId) -> &'a [u8],
    ) -> Result<Reference, (WeightId, TensorError)> {
        let mut weights = Vec::with_capacity(plan.weights.len());
        for (id, spec) in (0..).map(WeightId).zip(&plan.weights) {
            let mut values = vec![0.0; spec.shape.elems()];
            dequantize(spec.dtype, bytes(id), &mut values).map_err(|error| (id, error))?;
            weights.push(values);
        }
        let cache = KvCache::new(plan.kv, blocks);
        Ok(Reference { cache, plan, weights, blocks, logits: Vec::new() })
    }

    fn compute(
        &mut self,
        batch: &Batch<'_>,
        mut observer: Option<&mut Observer<'_>>,
    ) -> Result<(), BackendError> {
        if !batch.is_sound(self.plan.vocab, self.blocks) {
            return Err(BackendError::UnsoundBatch);
        }
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
        for (i, op) in self.plan.forward.iter().enumerate() {
            run(&self.plan, &self.weights, &mut self.cache, &phases, batch, op, &mut buffers);
            if let Some(observer) = observer.as_deref_mut() {
                let mut state = Observable { batch, cache: &mut self.cache, buffers: &mut buffers };
                show(&self.plan, i, batch.rows(), &mut state, observer);
            }
        }
        self.logits = buffers.swap_remove(self.plan.logits.0 as usize);
        Ok(())
    }
}

/// The state after an op.
struct Observable<'a> {
    batch: &'a Batch<'a>,
    cache: &'a mut KvCache,
    buffers: &'a mut [Vec<f32>],
}

impl HostState for Observable<'_> {
    fn buffer(&mut self, id: BufferId) -> &mut [f32] {
        &mut self.buffers[id.0 as usize]
    }

    fn read_cache(&self, layer: u16, keys: &mut [f32], values: &mut [f32]) {
        let (layer, spec) = (usize::from(layer), self.cache.spec());
        let (row, n) = (spec.row(), spec.head_dim);
        for i in 0..self.batch.rows() {
            let (table, position) = (self.batch.table(i), self.batch.positions[i] as usize);
            for head in 0..spec.kv_heads {
                let at = i * row + head * n;
                keys[at..at + n].copy_from_slice(self.cache.k(layer, table, position, head));
                values[at..at + n].copy_from_slice(self.cache.v(layer, table, position, head));
            }
        }
    }

    fn cache_rounding(&self) -> f32 {
        0.0
    }

    fn write_cache(&mut self, layer: u16, keys: &[f32], values: &[f32]) {
        let row = self.cache.spec().row();
        for (i, (k, v)) in keys.chunks_exact(row).zip(values.chunks_exact(row)).enumerate() {
            let position = self.batch.positions[i] as usize;
            self.cache.write(usize::from(layer), self.batch.table(i), position, k, v);
        }
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
