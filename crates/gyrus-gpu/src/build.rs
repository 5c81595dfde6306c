//! From a plan to steps on a device: buffers, weights and the launches of each op.

use std::collections::HashMap;

use gyrus_kernels::call::engine::{self, Paged};
use gyrus_kernels::call::{Activations, EmbedCall, MatMulCall, QuantizeRowsCall, Storage};
use gyrus_kernels::params::{AttendParams, RopeWriteParams};
use gyrus_kernels::{BufferId, KV_BLOCK, Op, Phases, Plan, Precision, Rows, WeightId, WeightSpec};
use wgpu::BufferUsages;

use crate::backend::{GpuBackend, Inputs, LOGITS_ROWS, MAX_ROWS};
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::step::Step;
use crate::weight::{Part, Weight};

/// A backend in the making.
pub(crate) struct Build {
    gpu: Gpu,
    plan: Plan,
    blocks: usize,
    weights: Vec<Weight>,
    buffers: Vec<Buffer>,
    inputs: Inputs,
    /// K and V of each layer.
    cache: Vec<(Buffer, Buffer)>,
    /// Quantised activations, by their width: bytes and scales.
    quantized: HashMap<u32, (Buffer, Buffer)>,
    batch: Vec<Step>,
    tail: Vec<Step>,
    /// Whether ops now work on the rows that want logits.
    gathered: bool,
}

impl Build {
    pub(crate) fn new(gpu: Gpu, plan: Plan, blocks: usize) -> Result<Build, GpuError> {
        let rows = |rows: Rows| if rows == Rows::Batch { MAX_ROWS } else { LOGITS_ROWS };
        let floats = |count: usize| gpu.buffer(4 * count as u64);
        let buffers =
            plan.buffers.iter().map(|b| floats(rows(b.rows) * b.width)).collect::<Result<Vec<_>, _>>()?;
        let pairs = plan.ropes.iter().map(|rope| floats(MAX_ROWS * 2 * rope.pairs()));
        let inputs = Inputs {
            tokens: floats(MAX_ROWS)?,
            rows: floats(2 * MAX_ROWS)?,
            // Sequences may share blocks, so that together their tables can be longer than the cache.
            tables: floats(blocks.max(1) * 4)?,
            indices: floats(MAX_ROWS)?,
            phases: pairs.collect::<Result<_, _>>()?,
            starts: Vec::new(),
            words: Vec::new(),
        };
        let bytes = (blocks * KV_BLOCK * plan.kv.row() * plan.kv_dtype().block_bytes()) as u64;
        let layer = |_| Ok((gpu.buffer(bytes)?, gpu.buffer(bytes)?));
        let cache = (0..plan.kv.layers).map(layer).collect::<Result<Vec<_>, GpuError>>()?;
        Ok(Build {
            weights: Vec::with_capacity(plan.weights.len()),
            buffers,
            inputs,
            cache,
            quantized: HashMap::new(),
            batch: Vec::new(),
            tail: Vec::new(),
            gathered: false,
            gpu,
            plan,
            blocks,
        })
    }

    pub(crate) fn weights<D: AsRef<[u8]>>(
        mut self,
        bytes: impl Fn(&WeightSpec) -> Option<D>,
        uploaded: impl Fn(u64),
    ) -> Result<Build, GpuError> {
        for spec in &self.plan.weights {
            let data = bytes(spec).ok_or_else(|| GpuError::Weight {
                name: spec.name.clone(),
                reason: "it is not in the file".to_owned(),
            })?;
            self.weights.push(Weight::upload(&self.gpu, spec, data.as_ref(), &uploaded)?);
        }
        Ok(self)
    }

    pub(crate) fn finish(mut self) -> Result<GpuBackend, GpuError> {
        for op in self.plan.forward.clone() {
            self.op(&op)?;
        }
        // Compiled now rather than at the first token: a single row, and as many as a prompt has.
        let launches = self.batch.iter().flat_map(|step| [step.launch(1), step.launch(MAX_ROWS as u32)]);
        let tail = self.tail.iter().map(|step| step.launch(1));
        let launches = launches.chain(tail).collect::<Result<Vec<_>, _>>()?;
        self.gpu.compile(&launches)?;
        let logits = self.buffer(self.plan.logits).clone();
        let staging = self.gpu.create(
            (LOGITS_ROWS * self.plan.vocab * 4) as u64,
            BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        )?;
        Ok(GpuBackend {
            phases: self.plan.ropes.iter().map(|_| Phases::default()).collect(),
            gpu: self.gpu,
            plan: self.plan,
            blocks: self.blocks,
            inputs: self.inputs,
            batch: self.batch,
            tail: self.tail,
            logits,
            staging,
            results: Vec::new(),
        })
    }

    fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    fn width(&self, id: BufferId) -> u32 {
        self.plan.buffer(id).width as u32
    }

    fn vector(&self, id: WeightId) -> Result<&Buffer, GpuError> {
        match &self.weights[id.0 as usize] {
            Weight::Vector(vector) => Ok(vector),
            Weight::Matrix(_) => Err(self.misplaced(id, "a vector")),
        }
    }

    fn matrix(&self, id: WeightId) -> Result<&[Part], GpuError> {
        match &self.weights[id.0 as usize] {
            Weight::Matrix(parts) => Ok(parts),
            Weight::Vector(_) => Err(self.misplaced(id, "a matrix")),
        }
    }

    fn misplaced(&self, id: WeightId, wanted: &str) -> GpuError {
        GpuError::Weight { name: self.plan.weight(id).name.clone(), reason: format!("{wanted} is needed") }
    }

    fn push(&mut self, step: Step) {
        if self.gathered { self.tail.push(step) } else { self.batch.push(step) }
    }

    fn paged(&self, rows: u32) -> Paged {
        let kv = if self.plan.precision == Precision::Exact { Storage::F32 } else { Storage::F16 };
        let entries = (self.inputs.tables.bytes() / 4) as u32;
        Paged { kv, blocks: self.blocks as u32, rows, entries }
    }

    fn op(&mut self, op: &Op) -> Result<(), GpuError> {
        let rungs = self.gpu.rungs();
        match *op {
            Op::Embed { table, scale, out } => {
                let target = self.buffer(out).clone();
                let vocab = self.plan.weight(table).shape.rows() as u32;
                let mut steps = Vec::new();
                for part in self.matrix(table)? {
                    let (layout, first) = (part.layout, part.first);
                    let mut buffers = part.planes.clone();
                    buffers.extend([self.inputs.tokens.clone(), target.clone()]);
                    steps.push(Step::new(buffers, move |tokens| {
                        EmbedCall { vocab, first, ..EmbedCall::new(layout, tokens, scale) }.launch(rungs)
                    }));
                }
                steps.into_iter().for_each(|step| self.push(step));
            }
            Op::RmsNorm { x, weight, eps, out } => {
                let dim = self.width(x);
                let mut buffers = vec![self.buffer(x).clone(), self.vector(weight)?.clone()];
                if x != out {
                    buffers.push(self.buffer(out).clone());
                }
                self.push(Step::new(buffers, move |rows| engine::rms_norm(rungs, rows, dim, eps, x == out)));
            }
            Op::MatMul { x, ref weights, accumulate, out } => self.mat_mul(x, weights, accumulate, out)?,
            Op::RopeWrite { qkv, layer, head_norm, rope } => {
                let kv = self.plan.kv;
                let id = rope.0 as usize;
                let rope = &self.plan.ropes[id];
                let params = RopeWriteParams {
                    n_heads: kv.heads as u32,
                    n_kv_heads: kv.kv_heads as u32,
                    head_dim: kv.head_dim as u32,
                    rope_dim: rope.rope_dim() as u32,
                    rope_offset: rope.offset() as u32,
                    stride: self.width(qkv),
                    eps: head_norm.map_or(0.0, |(_, _, eps)| eps),
                    pass_scale: rope.output_scale() as f32,
                };
                let pairing = rope.pairing();
                let (k, v) = &self.cache[usize::from(layer)];
                let mut buffers = vec![self.buffer(qkv).clone(), k.clone(), v.clone()];
                buffers.extend([
                    self.inputs.phases[id].clone(),
                    self.inputs.rows.clone(),
                    self.inputs.tables.clone(),
                ]);
                if let Some((q_norm, k_norm, _)) = head_norm {
                    buffers.extend([self.vector(q_norm)?.clone(), self.vector(k_norm)?.clone()]);
                }
                let (norm, paged) = (head_norm.is_some(), self.paged(0));
                self.push(Step::new(buffers, move |rows| {
                    engine::rope_write(rungs, params, pairing, norm, Paged { rows, ..paged })
                }));
            }
            Op::Attention { qkv, layer, scale, window, out } => {
                let kv = self.plan.kv;
                let params = AttendParams {
                    n_heads: kv.heads as u32,
                    n_kv_heads: kv.kv_heads as u32,
                    head_dim: kv.head_dim as u32,
                    q_stride: self.width(qkv),
                    scale,
                    window: window.unwrap_or(0),
                    ..Default::default()
                };
                let (k, v) = &self.cache[usize::from(layer)];
                let mut buffers = vec![self.buffer(qkv).clone(), k.clone(), v.clone()];
                buffers.extend([
                    self.inputs.rows.clone(),
                    self.inputs.tables.clone(),
                    self.buffer(out).clone(),
                ]);
                let paged = self.paged(0);
                self.push(Step::new(buffers, move |rows| {
                    engine::attention(rungs, params, Paged { rows, ..paged })
                }));
            }
            Op::Gate { x, activation, out } => {
                let count = self.width(out);
                let buffers = vec![self.buffer(x).clone(), self.buffer(out).clone()];
                self.push(Step::new(buffers, move |rows| engine::gate(rungs, rows, count, activation)));
            }
            Op::Gather { x, out } => {
                self.gathered = true;
                let count = self.width(x);
                let buffers =
                    vec![self.buffer(x).clone(), self.inputs.indices.clone(), self.buffer(out).clone()];
                let all = MAX_ROWS as u32;
                self.push(Step::new(buffers, move |rows| engine::gather(rungs, all, rows, count)));
            }
            // Tokens are drawn by the caller, who has each row's sampler.
            Op::Select { .. } => {}
        }
        Ok(())
    }

    /// Several weights write their outputs side by side. In `fast`, activations become bytes first, where a weight
    /// can be multiplied by them.
    fn mat_mul(
        &mut self,
        x: BufferId,
        weights: &[WeightId],
        accumulate: bool,
        out: BufferId,
    ) -> Result<(), GpuError> {
        let rungs = self.gpu.rungs();
        let (x_stride, y_stride) = (self.width(x), self.width(out));
        let fast = self.plan.precision == Precision::Fast;
        let mut ready = false;
        let mut column = 0;
        for &id in weights {
            let quantized = fast && self.plan.weight(id).dtype.is_quantized();
            if quantized && !ready {
                let rows = if self.gathered { LOGITS_ROWS } else { MAX_ROWS };
                let (bytes, scales) = self.quantized(x_stride, rows)?;
                let buffers = vec![self.buffer(x).clone(), bytes, scales];
                self.push(Step::new(buffers, move |rows| {
                    QuantizeRowsCall { rows, cols: x_stride, x_stride }.launch(rungs)
                }));
                ready = true;
            }
            let mut steps = Vec::new();
            for part in self.matrix(id)? {
                let mut buffers = part.planes.clone();
                match self.quantized.get(&x_stride) {
                    Some((bytes, scales)) if quantized => buffers.extend([bytes.clone(), scales.clone()]),
                    _ => buffers.push(self.buffer(x).clone()),
                }
                buffers.push(self.buffer(out).clone());
                let call = MatMulCall {
                    x_stride,
                    y_stride,
                    y_offset: column + part.first,
                    accumulate,
                    ..MatMulCall::new(
                        part.layout,
                        if quantized { Activations::Int8 } else { Activations::F32 },
                        1,
                    )
                };
                steps.push(Step::new(buffers, move |rows| {
                    MatMulCall { rows, ..call }.launch(rungs, Default::default())
                }));
            }
            steps.into_iter().for_each(|step| self.push(step));
            column += self.plan.weight(id).shape.rows() as u32;
        }
        Ok(())
    }

    /// Where rows of this width go as bytes: one place for all of that width, since each is used at once.
    fn quantized(&mut self, width: u32, rows: usize) -> Result<(Buffer, Buffer), GpuError> {
        let elements = rows as u64 * u64::from(width);
        if let Some((bytes, scales)) = self.quantized.get(&width)
            && bytes.bytes() >= elements
        {
            return Ok((bytes.clone(), scales.clone()));
        }
        let pair = (self.gpu.buffer(elements)?, self.gpu.buffer(elements / 4)?);
        self.quantized.insert(width, pair.clone());
        Ok(pair)
    }
}
