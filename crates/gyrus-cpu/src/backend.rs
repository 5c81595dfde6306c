//! The CPU implementation of [`Backend`]: executes a plan op by op. Weights are prepared once; activation
//! buffers grow to the largest batch and never shrink.

use std::sync::Arc;

use gyrus_kernels::observe::{F16_ROUNDING, HostState, Observer, show};
use gyrus_kernels::{
    Backend, BackendError, Batch, BufferId, Op, Phases, Plan, Precision, Rows, WeightId, WeightSpec,
};
use gyrus_tensor::dequantize;

use crate::attention::{Attention, attention};
use crate::kv::{KvRow, KvShape, KvStore, KvType, Strided};
use crate::matrix::Matrix;
use crate::norm::{rms_norm, rms_norm_heads};
use crate::pool::Pool;
use crate::scratch::{Scratch, grow};
use crate::storage::{Bytes, Disjoint};
use crate::{CpuError, activation, matmul};

/// The most rows of one batch. The rows' block tables and positions are collected on the stack.
pub const MAX_ROWS: usize = 512;

/// Rows of a batch that one task rotates.
const ROPE_ROWS: usize = 16;

/// A weight in the form that its op reads.
enum Weight {
    Matrix(Matrix),
    Vector(Vec<f32>),
}

/// Executes a plan on the CPU.
pub struct CpuBackend {
    model: Prepared,
    cache: KvStore,
    state: State,
}

/// The immutable part: plan, weights and threads.
struct Prepared {
    plan: Plan,
    weights: Vec<Weight>,
    pool: Pool,
}

/// The mutable state of a forward pass, separate from the weights so both can be borrowed.
struct State {
    buffers: Vec<Vec<f32>>,
    phases: Vec<Phases>,
    scratch: Scratch,
}

/// A weight that could not be prepared.
#[derive(Debug, thiserror::Error)]
#[error("tensor '{name}': {error}")]
struct UnusableWeight {
    name: String,
    #[source]
    error: CpuError,
}

impl From<UnusableWeight> for BackendError {
    fn from(error: UnusableWeight) -> BackendError {
        BackendError::device(error)
    }
}

impl From<CpuError> for BackendError {
    fn from(error: CpuError) -> BackendError {
        BackendError::device(error)
    }
}

impl CpuBackend {
    /// Prepares the plan's weights and allocates a KV cache of `blocks` blocks. `bytes` returns the data of
    /// each weight; the backend drops it when it is no longer needed.
    pub fn new(
        plan: Plan,
        blocks: usize,
        threads: usize,
        bytes: impl Fn(&WeightSpec) -> Arc<dyn AsRef<[u8]> + Send + Sync>,
    ) -> Result<CpuBackend, BackendError> {
        let pool = Pool::new(threads);
        let mut weights = Vec::with_capacity(plan.weights.len());
        for spec in &plan.weights {
            let owner = bytes(spec);
            let length = (*owner).as_ref().len();
            let data = Bytes::new(owner, 0..length)?;
            let weight = prepare(&pool, spec, data, &plan);
            weights.push(weight.map_err(|error| UnusableWeight { name: spec.name.clone(), error })?);
        }
        let kv = plan.kv;
        let shape = KvShape { layers: kv.layers, blocks, kv_heads: kv.kv_heads, head_dim: kv.head_dim };
        let store = match plan.precision {
            Precision::Exact => KvType::F32,
            Precision::Fast => KvType::F16,
        };
        let cache = KvStore::new(shape, store)?;
        let mut scratch = Scratch::new();
        scratch.reserve_attention(kv.heads, kv.head_dim, blocks);
        let state = State {
            buffers: plan.buffers.iter().map(|_| Vec::new()).collect(),
            phases: plan.ropes.iter().map(|_| Phases::default()).collect(),
            scratch,
        };
        Ok(CpuBackend { model: Prepared { plan, weights, pool }, cache, state })
    }
}

impl Prepared {
    fn matrix(&self, id: WeightId) -> &Matrix {
        match &self.weights[id.0 as usize] {
            Weight::Matrix(matrix) => matrix,
            Weight::Vector(_) => unreachable!("the weight of a matmul is a matrix"),
        }
    }

    fn vector(&self, id: WeightId) -> &[f32] {
        match &self.weights[id.0 as usize] {
            Weight::Vector(vector) => vector,
            Weight::Matrix(_) => unreachable!("the weight of a norm is a vector"),
        }
    }

    fn run(&self, op: &Op, batch: &Batch<'_>, rows: &[KvRow<'_>], cache: &mut KvStore, state: &mut State) {
        match op {
            Op::Embed { table, scale, out } => {
                let table = self.matrix(*table);
                let (buffer, n) = self.target(state, *out, batch);
                let out = Disjoint::new(buffer);
                self.pool.run(batch.rows(), &|row| {
                    // SAFETY: the buffer is borrowed above, and each task writes its own row.
                    let out = unsafe { out.part(row * n..(row + 1) * n) };
                    table.row(batch.tokens[row] as usize, out);
                    if *scale != 1.0 {
                        activation::scale(out, *scale);
                    }
                });
            }
            Op::RmsNorm { x, weight, eps, out } => {
                let weight = self.vector(*weight);
                if x == out {
                    let (buffer, n) = self.target(state, *out, batch);
                    rms_norm_heads(&self.pool, buffer, n, 0, 1, weight, *eps);
                } else {
                    self.between(state, *x, *out, batch, |x, out, _| {
                        rms_norm(&self.pool, x, weight, *eps, out)
                    });
                }
            }
            Op::MatMul { x, weights, accumulate, out } => {
                // Fused projections have two or three weights (gate and up; Q, K and V).
                let mut several: [&Matrix; 4] = [self.matrix(weights[0]); 4];
                assert!(
                    weights.len() <= several.len(),
                    "{} weights in one matmul, at most 4 are supported",
                    weights.len()
                );
                for (slot, id) in several.iter_mut().zip(weights) {
                    *slot = self.matrix(*id);
                }
                let several = &several[..weights.len()];
                self.between(state, *x, *out, batch, |x, out, scratch| {
                    matmul(&self.pool, several, x, out, *accumulate, scratch);
                });
            }
            Op::RopeWrite { qkv, layer, head_norm, rope } => {
                let norms = head_norm.map(|(q, k, eps)| (self.vector(q), self.vector(k), eps));
                let kv = self.plan.kv;
                let (rope, phases) = (&self.plan.ropes[rope.0 as usize], &state.phases[rope.0 as usize]);
                let n = self.plan.buffer(*qkv).width;
                let buffer = &mut state.buffers[qkv.0 as usize][..batch.rows() * n];
                let all = Disjoint::new(buffer);
                self.pool.run(batch.rows().div_ceil(ROPE_ROWS), &|task| {
                    for row in task * ROPE_ROWS..batch.rows().min((task + 1) * ROPE_ROWS) {
                        // SAFETY: the buffer is borrowed above, and each task writes its own rows.
                        let qkv = unsafe { all.part(row * n..(row + 1) * n) };
                        if let Some((q_norm, k_norm, eps)) = norms {
                            rms_norm_heads(&self.pool, qkv, n, 0, kv.heads, q_norm, eps);
                            rms_norm_heads(&self.pool, qkv, n, kv.q_width(), kv.kv_heads, k_norm, eps);
                        }
                        for head in qkv[..kv.q_width() + kv.row()].chunks_exact_mut(kv.head_dim) {
                            rope.apply(head, phases.row(row));
                        }
                    }
                });
                let keys = Strided { data: &buffer[kv.q_width()..], stride: n };
                let values = Strided { data: &buffer[kv.q_width() + kv.row()..], stride: n };
                cache.write_rows(&self.pool, usize::from(*layer), rows, keys, values);
            }
            Op::Attention { qkv, layer, scale, window, out } => {
                let params = Attention {
                    layer: usize::from(*layer),
                    heads: self.plan.kv.heads,
                    scale: *scale,
                    window: *window,
                    softcap: None,
                };
                let stride = self.plan.buffer(*qkv).width;
                self.between(state, *qkv, *out, batch, |x, out, scratch| {
                    attention(&self.pool, cache, &params, rows, Strided { data: x, stride }, out, scratch);
                });
            }
            Op::Gate { x, activation, out } => {
                let n = self.plan.buffer(*out).width;
                self.between(state, *x, *out, batch, |x, out, _| {
                    activation::gate(&self.pool, *activation, x, n, out)
                });
            }
            Op::Gather { x, out } => {
                let n = self.plan.buffer(*x).width;
                self.between(state, *x, *out, batch, |x, out, _| {
                    for (&row, out) in batch.logits.iter().zip(out.chunks_exact_mut(n)) {
                        out.copy_from_slice(&x[row as usize * n..(row as usize + 1) * n]);
                    }
                });
            }
            // The caller samples on the CPU.
            Op::Select { .. } => {}
        }
    }

    /// The part of a buffer that this batch uses, and the buffer's width.
    fn target<'s>(&self, state: &'s mut State, id: BufferId, batch: &Batch<'_>) -> (&'s mut [f32], usize) {
        let width = self.plan.buffer(id).width;
        let rows = self.rows(id, batch);
        (&mut state.buffers[id.0 as usize][..rows * width], width)
    }

    /// Calls `work` with buffer `x` to read and buffer `out` to write.
    fn between(
        &self,
        state: &mut State,
        x: BufferId,
        out: BufferId,
        batch: &Batch<'_>,
        work: impl FnOnce(&[f32], &mut [f32], &mut Scratch),
    ) {
        assert_ne!(x, out, "this op cannot run in place");
        let size = |id: BufferId| self.rows(id, batch) * self.plan.buffer(id).width;
        let mut target = std::mem::take(&mut state.buffers[out.0 as usize]);
        work(&state.buffers[x.0 as usize][..size(x)], &mut target[..size(out)], &mut state.scratch);
        state.buffers[out.0 as usize] = target;
    }

    fn rows(&self, id: BufferId, batch: &Batch<'_>) -> usize {
        match self.plan.buffer(id).rows {
            Rows::Batch => batch.rows(),
            Rows::Logits => batch.logits.len(),
        }
    }
}

impl Backend for CpuBackend {
    fn plan(&self) -> &Plan {
        &self.model.plan
    }

    fn kv_blocks(&self) -> usize {
        self.cache.shape().blocks
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        let vocab = self.model.plan.vocab;
        let logits = self.execute(batch, None)?;
        batch.check_logits(logits, vocab)?;
        Ok(logits)
    }

    fn observe(&mut self, batch: &Batch<'_>, observer: &mut Observer<'_>) -> Result<(), BackendError> {
        self.execute(batch, Some(observer)).map(drop)
    }
}

impl CpuBackend {
    /// Runs all ops and returns the logits. An observer is shown the results of each op.
    fn execute(
        &mut self,
        batch: &Batch<'_>,
        mut observer: Option<&mut Observer<'_>>,
    ) -> Result<&[f32], BackendError> {
        if batch.rows() > MAX_ROWS {
            return Err(BackendError::TooManyRows { rows: batch.rows(), most: MAX_ROWS });
        }
        if !batch.is_sound(self.model.plan.vocab, self.kv_blocks()) {
            return Err(BackendError::UnsoundBatch);
        }
        let mut rows = [KvRow { table: &[], position: 0 }; MAX_ROWS];
        for (i, row) in rows[..batch.rows()].iter_mut().enumerate() {
            *row = KvRow { table: batch.table(i), position: batch.positions[i] };
        }
        let rows = &rows[..batch.rows()];

        let CpuBackend { model, cache, state } = self;
        let plan = &model.plan;
        for (i, buffer) in state.buffers.iter_mut().enumerate() {
            let id = BufferId(i as u16);
            grow(buffer, model.rows(id, batch) * plan.buffer(id).width);
        }
        for (phases, rope) in state.phases.iter_mut().zip(&plan.ropes) {
            phases.compute(rope, batch);
        }
        for (i, op) in plan.forward.iter().enumerate() {
            model.run(op, batch, rows, cache, state);
            if let Some(observer) = observer.as_deref_mut() {
                let mut state = Observable { model, batch, rows, cache, state };
                show(plan, i, batch.rows(), &mut state, observer);
            }
        }
        Ok(&state.buffers[plan.logits.0 as usize][..batch.logits.len() * plan.vocab])
    }
}

/// The state after an op.
struct Observable<'a> {
    model: &'a Prepared,
    batch: &'a Batch<'a>,
    rows: &'a [KvRow<'a>],
    cache: &'a mut KvStore,
    state: &'a mut State,
}

impl HostState for Observable<'_> {
    fn buffer(&mut self, id: BufferId) -> &mut [f32] {
        self.model.target(self.state, id, self.batch).0
    }

    fn read_cache(&self, layer: u16, keys: &mut [f32], values: &mut [f32]) {
        let n = self.model.plan.kv.row();
        let rows = keys.chunks_exact_mut(n).zip(values.chunks_exact_mut(n));
        for (row, (keys, values)) in self.rows.iter().zip(rows) {
            self.cache.read_row(usize::from(layer), *row, keys, values);
        }
    }

    fn cache_rounding(&self) -> f32 {
        match self.model.plan.precision {
            Precision::Exact => 0.0,
            Precision::Fast => F16_ROUNDING,
        }
    }

    fn write_cache(&mut self, layer: u16, keys: &[f32], values: &[f32]) {
        let strided = |data| Strided { data, stride: self.model.plan.kv.row() };
        let (keys, values) = (strided(keys), strided(values));
        self.cache.write_rows(&self.model.pool, usize::from(layer), self.rows, keys, values);
    }
}

/// Prepares a weight: matrices for the matmul, vectors (norm weights) as `f32`.
fn prepare(pool: &Pool, spec: &WeightSpec, data: Bytes, plan: &Plan) -> Result<Weight, CpuError> {
    if spec.shape.rank() < 2 {
        let mut vector = vec![0.0; spec.shape.elems()];
        dequantize(spec.dtype, data.as_slice(), &mut vector)?;
        return Ok(Weight::Vector(vector));
    }
    let (rows, cols) = (spec.shape.rows(), spec.shape.row());
    Ok(Weight::Matrix(Matrix::new(pool, spec.dtype, rows, cols, data, plan.precision)?))
}
