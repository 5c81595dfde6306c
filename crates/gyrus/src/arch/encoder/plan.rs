//! The forward pass of a text encoder, top to bottom.

use gyrus_formats::Checkpoint;
use gyrus_kernels::{
    BufferId, BufferSpec, HIDDEN, KvGroup, KvLayer, Op, Output, Plan, Precision, RopeId, Rows, SCORES,
    WeightId, WeightSpec,
};
use gyrus_tensor::{DType, Shape};

use super::super::tensor_names::TensorNames;
use super::super::weights::Weights;
use super::config::{EncoderConfig, EncoderLayer};
use super::names::{Names, Tensor};
use super::reader;
use crate::Error;

/// What an encoder is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncoderTask {
    /// Its last hidden rows.
    Embed,
    /// The scores of its classifier.
    Classify,
}

/// The types that matrices of floats are quantised to while they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Quantized {
    /// Those of all products but the next.
    pub(crate) products: Option<DType>,
    /// The projections to values, also where one matrix has queries and keys, too. Half of the error of int8 comes from
    /// their inputs, and they are a twelfth of an encoder's work.
    pub(crate) values: Option<DType>,
}

/// Reads an encoder's configuration and builds its plan. Matrices of floats whose rows are whole blocks are quantised;
/// tables are not.
pub(crate) fn build(
    model: &Checkpoint,
    task: EncoderTask,
    precision: Precision,
    quantize: Quantized,
) -> Result<(EncoderConfig, Plan), Error> {
    let (config, arch) = reader::read(model)?;
    let names = Names::of(model, arch.layouts, arch.pre_norms);
    // The names of a decoder are not used.
    let unused = TensorNames::HuggingFace { prefix: "", output: "", post_norms: false };
    let weights = Weights::new(model, unused, 0.0, None, None);
    let mut builder =
        Builder { config: &config, names, weights, quantize, buffers: Vec::new(), ops: Vec::new() };
    let plan = builder.build(task, precision)?;
    Ok((config, plan))
}

pub(super) struct Builder<'a> {
    pub(super) config: &'a EncoderConfig,
    pub(super) names: Names,
    pub(super) weights: Weights<'a>,
    quantize: Quantized,
    buffers: Vec<BufferSpec>,
    pub(super) ops: Vec<Op>,
}

impl Builder<'_> {
    fn build(&mut self, task: EncoderTask, precision: Precision) -> Result<Plan, Error> {
        let c = self.config;
        let name = self.names.weight(Tensor::Embedding);
        // The vocabulary size is the number of rows.
        let vocab = self.weights.find(&name)?.shape.rows();
        let table = self.table(&name, &[vocab, c.dim])?;
        let stream = self.buffer("stream", c.dim, Rows::Batch);
        self.ops.push(Op::Embed { table, scale: 1.0, out: stream });
        if let Some(first) = c.first_position {
            let name = self.names.weight(Tensor::Positions);
            let positions = self.weights.find(&name)?.shape.rows();
            if positions < c.context + first {
                let found = self.weights.find(&name)?.shape.to_string();
                let expected = format!("at least {} rows", c.context + first);
                return Err(Error::TensorShape { name, found, expected });
            }
            let table = self.table(&name, &[positions, c.dim])?;
            self.ops.push(Op::AddPositions { table, offset: first as u32, out: stream });
        }
        self.types(stream)?;
        self.norm(Tensor::EmbeddingNorm, stream, stream)?;

        let kv = KvLayer { group: 0, index: 0 };
        let mut layers = Vec::with_capacity(c.layers.len());
        for (i, layer) in c.layers.iter().enumerate() {
            let first = self.ops.len();
            self.attention(i, *layer, kv, stream)?;
            self.feed_forward(i, stream)?;
            layers.push(first..self.ops.len());
        }

        let last = self.buffer("last", c.dim, Rows::Logits);
        self.ops.push(Op::Gather { x: stream, out: last });
        if c.pre_norms {
            self.norm(Tensor::FinalNorm, last, last)?;
        }
        let output = match task {
            EncoderTask::Embed => Output { name: HIDDEN, buffer: last },
            EncoderTask::Classify => Output { name: SCORES, buffer: self.classifier(last)? },
        };
        self.skip_other_heads(task);
        self.weights.check_all_used()?;
        // Nothing reads keys and values after their layer, so that all layers have one place for them.
        let group = KvGroup { layers: 1, kv_heads: c.heads, head_dim: c.dim / c.heads, window: None };
        Ok(Plan {
            precision,
            vocab,
            buffers: std::mem::take(&mut self.buffers),
            weights: std::mem::take(&mut self.weights.specs),
            ropes: c.ropes.clone(),
            kv: vec![group],
            delta: Vec::new(),
            encode: Vec::new(),
            forward: std::mem::take(&mut self.ops),
            layers,
            outputs: vec![output],
        })
    }

    /// Adds the types of tokens, if the model has them. GGUF files of XLM-R have a vector, the row of their one type.
    fn types(&mut self, stream: BufferId) -> Result<(), Error> {
        let (dim, name) = (self.config.dim, self.names.weight(Tensor::Types));
        let Some(tensor) = self.weights.tensor(&name) else { return Ok(()) };
        match tensor.shape.rank() {
            1 => {
                let bias = self.table(&name, &[dim])?;
                self.ops.push(Op::Bias { x: stream, first: 0, bias });
            }
            _ => {
                let table = self.table(&name, &[tensor.shape.rows(), dim])?;
                self.ops.push(Op::AddTypes { table, out: stream });
            }
        }
        Ok(())
    }

    /// Attention of a layer, added to the stream.
    fn attention(
        &mut self,
        i: usize,
        layer: EncoderLayer,
        kv: KvLayer,
        stream: BufferId,
    ) -> Result<(), Error> {
        let (dim, heads) = (self.config.dim, self.config.heads);
        // ModernBERT's first layer has the norm of embeddings before it, and none of its own.
        let has_norm = self.weights.tensor(&self.names.weight(Tensor::AttentionNorm(i))).is_some();
        let x = match self.config.pre_norms && (i > 0 || has_norm) {
            true => {
                let normed = self.buffer("normed", dim, Rows::Batch);
                self.norm(Tensor::AttentionNorm(i), stream, normed)?;
                normed
            }
            false => stream,
        };
        let qkv = self.buffer("qkv", 3 * dim, Rows::Batch);
        let fused = self.names.weight(Tensor::Qkv(i));
        let parts = match self.weights.tensor(&fused) {
            Some(_) => vec![(Tensor::Qkv(i), 3 * dim)],
            None => vec![(Tensor::Q(i), dim), (Tensor::K(i), dim), (Tensor::V(i), dim)],
        };
        let mut weights = Vec::new();
        for (tensor, rows) in &parts {
            let name = self.names.weight(*tensor);
            let to = match tensor {
                Tensor::Q(_) | Tensor::K(_) => self.quantize.products,
                _ => self.quantize.values,
            };
            weights.push(self.quantized(&name, &[*rows, dim], to)?);
        }
        self.ops.push(Op::MatMul { x, weights, accumulate: false, out: qkv });
        let mut first = 0;
        for (tensor, rows) in &parts {
            self.bias(*tensor, *rows, first, qkv)?;
            first += rows;
        }
        let rope = layer.rope.map(|rope| RopeId(rope as u8));
        let count = heads as u16;
        self.ops.push(Op::RopeWrite { qkv, heads: count, kv, write: true, norms: None, rope });
        let attended = self.buffer("attended", dim, Rows::Batch);
        let scale = 1.0 / ((dim / heads) as f32).sqrt();
        let (span, soft_cap, sinks) = (layer.span, None, None);
        self.ops.push(Op::Attention { qkv, heads: count, kv, span, scale, soft_cap, sinks, out: attended });
        let weights = vec![self.matrix(&self.names.weight(Tensor::AttentionOutput(i)), &[dim, dim])?];
        self.ops.push(Op::MatMul { x: attended, weights, accumulate: true, out: stream });
        self.bias(Tensor::AttentionOutput(i), dim, 0, stream)?;
        if !self.config.pre_norms {
            self.norm(Tensor::AttentionNorm(i), stream, stream)?;
        }
        Ok(())
    }

    /// The feed-forward of a layer, added to the stream.
    fn feed_forward(&mut self, i: usize, stream: BufferId) -> Result<(), Error> {
        let (dim, width) = (self.config.dim, self.config.feed_forward);
        let activation = self.config.activation;
        let x = match self.config.pre_norms {
            true => {
                let normed = self.buffer("normed", dim, Rows::Batch);
                self.norm(Tensor::FeedForwardNorm(i), stream, normed)?;
                normed
            }
            false => stream,
        };
        let activated = self.buffer("activated", width, Rows::Batch);
        if self.config.gated {
            let gate_up = self.buffer("gate_up", 2 * width, Rows::Batch);
            let separate = self.weights.tensor(&self.names.weight(Tensor::Gate(i))).is_some();
            let parts = match separate {
                true => vec![(Tensor::Gate(i), width), (Tensor::Up(i), width)],
                false => vec![(Tensor::GateUp(i), 2 * width)],
            };
            let mut weights = Vec::new();
            for (tensor, rows) in &parts {
                weights.push(self.matrix(&self.names.weight(*tensor), &[*rows, dim])?);
            }
            self.ops.push(Op::MatMul { x, weights, accumulate: false, out: gate_up });
            let mut first = 0;
            for (tensor, rows) in &parts {
                self.bias(*tensor, *rows, first, gate_up)?;
                first += rows;
            }
            self.ops.push(Op::Gate { x: gate_up, activation, out: activated });
        } else {
            let weights = vec![self.matrix(&self.names.weight(Tensor::Up(i)), &[width, dim])?];
            self.ops.push(Op::MatMul { x, weights, accumulate: false, out: activated });
            self.bias(Tensor::Up(i), width, 0, activated)?;
            self.ops.push(Op::Activate { x: activated, activation });
        }
        let weights = vec![self.matrix(&self.names.weight(Tensor::Down(i)), &[dim, width])?];
        self.ops.push(Op::MatMul { x: activated, weights, accumulate: true, out: stream });
        self.bias(Tensor::Down(i), dim, 0, stream)?;
        if !self.config.pre_norms {
            self.norm(Tensor::FeedForwardNorm(i), stream, stream)?;
        }
        Ok(())
    }

    /// A layer norm. Its bias is used if the file has one.
    pub(super) fn norm(&mut self, tensor: Tensor, x: BufferId, out: BufferId) -> Result<(), Error> {
        let (dim, eps) = (self.config.dim, self.config.norm_eps);
        let weight = self.table(&self.names.weight(tensor), &[dim])?;
        let name = self.names.bias(tensor);
        let bias = match self.weights.tensor(&name) {
            Some(_) => Some(self.table(&name, &[dim])?),
            None => None,
        };
        self.ops.push(Op::LayerNorm { x, weight, bias, eps, out });
        Ok(())
    }

    /// The bias of a projection, if the file has one.
    pub(super) fn bias(
        &mut self,
        tensor: Tensor,
        count: usize,
        first: usize,
        x: BufferId,
    ) -> Result<(), Error> {
        let name = self.names.bias(tensor);
        if self.weights.tensor(&name).is_some() {
            let bias = self.table(&name, &[count])?;
            self.ops.push(Op::Bias { x, first: first as u32, bias });
        }
        Ok(())
    }

    /// A tensor in the type of its file.
    pub(super) fn table(&mut self, name: &str, dims: &[usize]) -> Result<WeightId, Error> {
        let tensor = self.weights.find(name)?;
        self.weights.add(tensor, dims)
    }

    /// The matrix of a product.
    pub(super) fn matrix(&mut self, name: &str, dims: &[usize]) -> Result<WeightId, Error> {
        self.quantized(name, dims, self.quantize.products)
    }

    /// A matrix, quantised to a type if it has floats and its rows are whole blocks.
    fn quantized(&mut self, name: &str, dims: &[usize], to: Option<DType>) -> Result<WeightId, Error> {
        let tensor = self.weights.find(name)?;
        let stored = self.weights.checked(&tensor, dims)?;
        let shape = Shape::new(dims).map_err(|error| Error::Unsupported(error.to_string()))?;
        let quantized = to.filter(|_| !stored.dtype.is_quantized());
        let dtype = quantized.filter(|dtype| dtype.bytes_of(&shape).is_ok()).unwrap_or(stored.dtype);
        Ok(self.weights.push(WeightSpec::new(stored.name, dtype, shape)))
    }

    pub(super) fn buffer(&mut self, name: &'static str, width: usize, rows: Rows) -> BufferId {
        let spec = BufferSpec { name, width, rows };
        let at = self.buffers.iter().position(|known| *known == spec);
        BufferId(at.unwrap_or_else(|| {
            self.buffers.push(spec);
            self.buffers.len() - 1
        }) as u16)
    }
}
