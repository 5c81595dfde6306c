//! The CPU implementation of [`Backend`]: executes a plan op by op. Weights are prepared once; activation
//! buffers grow to the largest batch and never shrink.

mod contents;
mod delta;
mod encoder;
mod executor;
mod experts;
mod fused_bias;
mod observe;
mod parts;
mod roles;
mod slots;

use std::ops::Range;
use std::sync::Arc;

use gyrus_kernels::observe::Observer;
use gyrus_kernels::{
    Backend, BackendError, Batch, BufferId, CacheContents, ENCODED, HOST_LIMITS, HeadNorms, HostSlots,
    KvGroup, KvSize, MAX_KV_GROUPS, Op, Plan, Precision, RopeId, Slots, WeightId, WeightSpec,
};
use gyrus_tensor::dequantize;

use crate::attention::{Attention, attention};
use crate::delta::{StateStore, transposed};
use crate::kv::{KvRow, KvStore, Strided};
use crate::matmul::matmul_with_bias;
use crate::matrix::Matrix;
use crate::norm::{rms_norm, rms_norm_heads};
use crate::pool::Pool;
use crate::scratch::Scratch;
use crate::storage::{Bytes, Disjoint};
use crate::{CpuError, activation, elementwise};
pub use executor::MAX_BATCH_ROWS;
use executor::{Executor, Pass, State};
use fused_bias::{Fused, fused_biases};
use parts::Parts;
use roles::{Role, roles};

/// The most rows of the chunks of one batch.
pub const MAX_ROWS: usize = HOST_LIMITS.rows;

/// Rows of a batch that one task rotates.
const ROPE_ROWS: usize = 16;

/// The most weights of a matmul.
const MOST_WEIGHTS: usize = 6;

/// A weight in the form that its op reads.
enum Weight {
    Matrix(Matrix),
    /// One for each expert.
    Experts(Vec<Matrix>),
    Vector(Vec<f32>),
}

/// Executes a plan on the CPU.
pub struct CpuBackend {
    executor: Executor,
    slots: HostSlots,
}

/// The immutable part: plan, weights and threads.
struct Prepared {
    plan: Plan,
    weights: Vec<Weight>,
    /// The taps of each layer with a state, transposed.
    taps: Vec<Vec<f32>>,
    /// Biases that products add, for each op of the encoder and of the forward pass.
    fused: [Vec<Fused>; 2],
    pool: Pool,
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
    /// Prepares the plan's weights and allocates a KV cache and records of this size.
    /// `bytes` returns the data of each weight; the backend drops it when it is no longer needed.
    pub fn new(
        plan: Plan,
        kv: &KvSize,
        threads: usize,
        bytes: impl Fn(&WeightSpec) -> Arc<dyn AsRef<[u8]> + Send + Sync>,
    ) -> Result<CpuBackend, BackendError> {
        let blocks = &kv.blocks[..];
        if plan.kv.len() > MAX_KV_GROUPS || plan.kv.len() != blocks.len() {
            let (groups, given) = (plan.kv.len(), blocks.len());
            return Err(CpuError::Groups { groups, given, most: MAX_KV_GROUPS }.into());
        }
        let pool = Pool::new(threads);
        let mut weights = Vec::with_capacity(plan.weights.len());
        let roles = roles(&plan);
        for (spec, role) in plan.weights.iter().zip(roles) {
            let weight = prepare(&pool, spec, &bytes, plan.precision, role);
            weights.push(weight.map_err(|error| UnusableWeight { name: spec.name.clone(), error })?);
        }
        let storage = plan.precision.kv_storage();
        let groups = plan.kv.iter().zip(blocks);
        let caches = groups.map(|(group, blocks)| KvStore::new(*group, *blocks, storage));
        let caches = caches.collect::<Result<Vec<_>, _>>()?;
        let (state, of_parts) = (State::new(&plan, blocks), State::new(&plan, blocks));
        let has_state = !plan.delta.is_empty();
        let slots = HostSlots::new(plan.vocab, blocks, has_state.then_some(kv.records));
        let states = StateStore::new(&plan.delta, kv.records)?;
        let parts = Parts::new(&plan);
        let demands = [plan.demands(&plan.encode), plan.demands(&plan.forward)];
        let mut model = Prepared { plan, weights, taps: Vec::new(), fused: [Vec::new(), Vec::new()], pool };
        model.taps = model.transposed_taps();
        let width = |id| model.plan.buffer(id).width;
        let fused = |ops: &[Op]| fused_biases(ops, width, |id| model.vector(id));
        model.fused = [fused(&model.plan.encode), fused(&model.plan.forward)];
        let blocks = blocks.to_vec();
        let executor = Executor { model, caches, blocks, states, state, of_parts, parts, demands };
        Ok(CpuBackend { executor, slots })
    }

    /// Bytes that are mapped for keys, values and records of states.
    pub fn cache_bytes(&self) -> usize {
        let caches: usize = self.executor.caches.iter().map(KvStore::bytes).sum();
        caches + self.executor.states.bytes()
    }
}

impl Prepared {
    fn matrix(&self, id: WeightId) -> &Matrix {
        match &self.weights[id.0 as usize] {
            Weight::Matrix(matrix) => matrix,
            _ => unreachable!("the weight of a matmul is a matrix"),
        }
    }

    fn vector(&self, id: WeightId) -> &[f32] {
        match &self.weights[id.0 as usize] {
            Weight::Vector(vector) => vector,
            _ => unreachable!("the weight of a norm is a vector"),
        }
    }

    /// The taps of each layer with a state as kernels read them.
    fn transposed_taps(&self) -> Vec<Vec<f32>> {
        let taps = self.plan.forward.iter().filter_map(|op| match op {
            Op::DeltaConv { taps, .. } => Some(transposed(self.vector(*taps))),
            _ => None,
        });
        taps.collect()
    }

    /// Runs a product, which may add a bias to each of its outputs.
    fn multiply(&self, op: &Op, bias: Option<&[f32]>, batch: &Batch<'_>, state: &mut State) {
        let Op::MatMul { x, weights, accumulate, out } = op else { return };
        // Fused projections have up to six weights (gate and up; Q, K and V; those of Gated DeltaNet).
        let mut several = [self.matrix(weights[0]); MOST_WEIGHTS];
        assert!(weights.len() <= MOST_WEIGHTS, "{} weights in one matmul", weights.len());
        for (slot, id) in several.iter_mut().zip(weights) {
            *slot = self.matrix(*id);
        }
        let several = &several[..weights.len()];
        self.between(state, *x, *out, batch, |x, out, scratch| {
            matmul_with_bias(&self.pool, several, x, out, (*accumulate, bias), scratch);
        });
    }

    /// Runs an op of a batch. Attention computes the rows of `slice` alone, so that it can be divided; other ops compute
    /// all rows.
    #[allow(clippy::too_many_arguments, reason = "a batch, its rows, and what they read and write")]
    fn run(
        &self,
        op: &Op,
        batch: &Batch<'_>,
        slice: Range<usize>,
        rows: &[&[KvRow<'_>]],
        caches: &mut [KvStore],
        states: &mut StateStore,
        state: &mut State,
    ) {
        match op {
            Op::DeltaConv { .. } | Op::DeltaRule { .. } => self.run_delta(op, batch, states, state),
            Op::Features { .. }
            | Op::AddPositions { .. }
            | Op::AddTypes { .. }
            | Op::Unfold { .. }
            | Op::LayerNorm { .. }
            | Op::Activate { .. } => self.run_encoder(op, batch, state),
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
                    rms_norm_heads(&self.pool, buffer, n, 0, n / weight.len(), weight, *eps);
                } else {
                    self.between(state, *x, *out, batch, |x, out, _| {
                        rms_norm(&self.pool, x, weight, *eps, out)
                    });
                }
            }
            Op::MatMul { .. } => self.multiply(op, None, batch, state),
            Op::NormColumns { x, first, weight, eps } => {
                let (buffer, n) = self.target(state, *x, batch);
                rms_norm_heads(&self.pool, buffer, n, *first as usize, 1, self.vector(*weight), *eps);
            }
            Op::Bias { x, first, bias } => {
                let (buffer, n) = self.target(state, *x, batch);
                elementwise::add_bias(&self.pool, buffer, n, *first as usize, self.vector(*bias));
            }
            Op::Add { x, scale, out } => self.between(state, *x, *out, batch, |x, out, _| {
                elementwise::add_scaled(&self.pool, x, *scale, out);
            }),
            Op::Scale { x, factor } => {
                elementwise::scale(&self.pool, self.target(state, *x, batch).0, *factor);
            }
            Op::SoftCap { x, cap } => {
                elementwise::soft_cap(&self.pool, self.target(state, *x, batch).0, *cap);
            }
            Op::RopeWrite { qkv, heads, kv, write, norms, rope } => {
                let group = *self.plan.kv_group(*kv);
                let q_width = usize::from(*heads) * group.head_dim;
                self.rotate(state, *qkv, usize::from(*heads), group, *norms, *rope, batch);
                if *write {
                    let (buffer, n) = self.target(state, *qkv, batch);
                    let keys = Strided { data: &buffer[q_width..], stride: n };
                    let values = Strided { data: &buffer[q_width + group.row()..], stride: n };
                    let cache = &mut caches[usize::from(kv.group)];
                    let rows = rows[usize::from(kv.group)];
                    cache.write_rows(&self.pool, usize::from(kv.index), rows, keys, values);
                }
            }
            Op::Attention { qkv, heads, kv, span, scale, soft_cap, sinks, out } => {
                let params = Attention {
                    layer: usize::from(kv.index),
                    heads: usize::from(*heads),
                    scale: *scale,
                    span: *span,
                    window: self.plan.kv_group(*kv).window,
                    softcap: *soft_cap,
                    sinks: sinks.map(|id| self.vector(id)),
                };
                let stride = self.plan.buffer(*qkv).width;
                let (cache, rows) =
                    (&caches[usize::from(kv.group)], &rows[usize::from(kv.group)][slice.clone()]);
                let width = self.plan.buffer(*out).width;
                self.between(state, *qkv, *out, batch, |x, out, scratch| {
                    let queries = Strided { data: &x[slice.start * stride..], stride };
                    let out = &mut out[slice.start * width..slice.end * width];
                    attention(&self.pool, cache, &params, rows, queries, out, scratch);
                });
            }
            Op::Gate { x, activation, out } => {
                let n = self.plan.buffer(*out).width;
                self.between(state, *x, *out, batch, |x, out, _| {
                    activation::gate(&self.pool, *activation, x, n, out)
                });
            }
            Op::GateBy { x, activation, by, first } => {
                let (n, width) = (self.plan.buffer(*x).width, self.plan.buffer(*by).width);
                self.between(state, *by, *x, batch, |by, x, _| {
                    activation::gate_by(&self.pool, *activation, x, n, by, width, *first as usize);
                });
            }
            Op::Route { .. } | Op::ExpertMatMul { .. } | Op::ExpertSum { .. } | Op::AddGated { .. } => {
                self.run_experts(op, batch, state);
            }
            Op::MulBy { x, activation, by, first } => {
                let (n, width) = (self.plan.buffer(*x).width, self.plan.buffer(*by).width);
                self.between(state, *by, *x, batch, |by, x, _| {
                    activation::mul_by(&self.pool, *activation, x, n, by, width, *first as usize);
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
        }
    }

    /// Normalises the heads of Q, K and V, and rotates those of Q and K.
    #[allow(clippy::too_many_arguments, reason = "the fields of the op")]
    fn rotate(
        &self,
        state: &mut State,
        qkv: BufferId,
        heads: usize,
        group: KvGroup,
        norms: Option<HeadNorms>,
        rope: Option<RopeId>,
        batch: &Batch<'_>,
    ) {
        let rope = rope.map(|id| usize::from(id.0));
        let rope = rope.map(|id| (&self.plan.ropes[id], &state.phases[id]));
        let n = self.plan.buffer(qkv).width;
        let (q_width, dim) = (heads * group.head_dim, group.head_dim);
        let rotated = n.min(q_width + group.row());
        let all = Disjoint::new(&mut state.buffers[usize::from(qkv.0)][..batch.rows() * n]);
        self.pool.run(batch.rows().div_ceil(ROPE_ROWS), &|task| {
            for row in task * ROPE_ROWS..batch.rows().min((task + 1) * ROPE_ROWS) {
                // SAFETY: the buffer is borrowed above, and each task writes its own rows.
                let qkv = unsafe { all.part(row * n..(row + 1) * n) };
                if let Some(HeadNorms { q, k, v, eps }) = norms {
                    let mut norm = |weight: Option<WeightId>, first: usize, heads: usize| {
                        if let Some(weight) = weight {
                            rms_norm_heads(&self.pool, qkv, n, first, heads, self.vector(weight), eps);
                        }
                    };
                    norm(Some(q), 0, heads);
                    norm(k, q_width, group.kv_heads);
                    norm(v, q_width + group.row(), group.kv_heads);
                }
                if let Some((rope, phases)) = rope {
                    let phases = phases.row(row);
                    qkv[..rotated].chunks_exact_mut(dim).for_each(|head| rope.apply(head, phases));
                }
            }
        });
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
        self.plan.buffer(id).rows.count(batch)
    }
}

impl Backend for CpuBackend {
    fn plan(&self) -> &Plan {
        &self.executor.model.plan
    }

    fn kv_blocks(&self) -> &[usize] {
        &self.executor.blocks
    }

    fn batch_rows(&self) -> usize {
        MAX_BATCH_ROWS
    }

    fn records(&self) -> usize {
        self.executor.states.records()
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        let width = self.plan().buffer(self.plan().result()).width;
        let result = self.executor.execute(Pass::Forward, batch, None)?;
        batch.check_logits(result, width)?;
        Ok(result)
    }

    fn encode(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        if self.plan().encode.is_empty() {
            return Err(BackendError::NoEncoder);
        }
        let width = self.plan().output(ENCODED).map_or(0, |id| self.plan().buffer(id).width);
        let result = self.executor.execute(Pass::Encode, batch, None)?;
        batch.check_logits(result, width)?;
        Ok(result)
    }

    fn observe(&mut self, batch: &Batch<'_>, observer: &mut Observer<'_>) -> Result<(), BackendError> {
        self.executor.execute(Pass::Forward, batch, Some(observer)).map(drop)
    }

    fn slots(&mut self) -> &mut dyn Slots {
        self
    }

    fn contents(&mut self) -> Option<&mut dyn CacheContents> {
        Some(self)
    }
}

/// Prepares a weight: matrices for the matmul, vectors (norm weights) as `f32`. The experts of a stacked weight are read one
/// after the other, so that no more than one of them is in memory twice.
fn prepare(
    pool: &Pool,
    spec: &WeightSpec,
    bytes: &impl Fn(&WeightSpec) -> Arc<dyn AsRef<[u8]> + Send + Sync>,
    precision: Precision,
    role: Role,
) -> Result<Weight, CpuError> {
    if let Some(count) = spec.experts() {
        let one = |expert| spec.expert(expert).map(|spec| matrix(pool, &spec, bytes(&spec), precision));
        return Ok(Weight::Experts((0..count).filter_map(one).collect::<Result<_, _>>()?));
    }
    if spec.shape.rank() < 2 {
        let mut vector = vec![0.0; spec.shape.elems()];
        dequantize(spec.dtype, (*bytes(spec)).as_ref(), &mut vector)?;
        if spec.plus != 0.0 {
            vector.iter_mut().for_each(|v| *v += spec.plus);
        }
        return Ok(Weight::Vector(vector));
    }
    match (role, precision) {
        (Role::Table, _) => {
            let data = whole(bytes(spec))?;
            Matrix::table(spec.dtype, spec.shape.rows(), spec.shape.row(), &data).map(Weight::Matrix)
        }
        (Role::ManyRows, Precision::Exact) => {
            let (rows, cols, data) = (spec.shape.rows(), spec.shape.row(), whole(bytes(spec))?);
            Matrix::for_many_rows(pool, spec.dtype, rows, cols, data).map(Weight::Matrix)
        }
        _ => matrix(pool, spec, bytes(spec), precision).map(Weight::Matrix),
    }
}

fn whole(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Result<Bytes, CpuError> {
    let length = (*owner).as_ref().len();
    Bytes::new(owner, 0..length)
}

fn matrix(
    pool: &Pool,
    spec: &WeightSpec,
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    precision: Precision,
) -> Result<Matrix, CpuError> {
    let data = whole(owner)?;
    Matrix::new(pool, spec.dtype, spec.shape.rows(), spec.shape.row(), data, precision)
}
